"""The blend: features against plain loops, a head in closed form, and a start that is its personal score."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.checks import check_pairing, check_recommender
from melon.checks.toys import toy_batches, toy_log
from melon.data.interactions import Interactions
from melon.errors import CheckpointError, SettingsError
from melon.learning.pretrain import live_through
from melon.learning.updater import Updater
from melon.recommenders.base import Context, Recommender
from melon.recommenders.blend.head import (
    SCALED_BY,
    TABLES,
    BlendHead,
    HeadSettings,
    head_scores,
    head_tables,
)
from melon.recommenders.blend.inputs import HALF_LIVES, INPUTS, PARTS, Named, personal_score
from melon.recommenders.blend.recommender import Blend
from melon.recommenders.bpr import BPR
from melon.recommenders.evidence import Examples, evidence_by_autograd
from melon.recommenders.heads import Lesson
from melon.strategies.default import Default
from melon.strategies.melon.strategy import NetworkMeLON
from melon.stream.batch import batch_of
from melon.stream.history import History
from melon.stream.pairs import pair_keys
from melon.tables import Table

SMALL = {"dim": 6, "head_units": 4, "head_negatives": 3, "slots": 64}
HEAD = HeadSettings(own=True, units=5, negatives=4, lr=0.01, decay=0.1, practice_lr=0.05, passes=6)
#: Learns from the first lesson on, with inputs as they come.
AT_ONCE = replace(HEAD, rest=0)


def lived(head_speaks: bool = True, **settings: Any) -> tuple[Blend, History, Interactions]:
    """A blend that has observed the toy stream, with random rows, and a head that says something."""
    log, blend, history = toy_log(), Blend({**SMALL, **settings}, seed=4, dtype=torch.float64), History()
    blend.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
    live_through(blend, history, log)
    if head_speaks:
        generator = torch.Generator().manual_seed(1)
        for name in TABLES:
            table = blend.tables[name]
            new = torch.randn((table.rows, table.spec.dim), generator=generator, dtype=torch.float64)
            table.scatter(torch.arange(table.rows), new)
        width = len(blend.inputs)
        blend.head.centre = torch.randn(width, generator=generator, dtype=torch.float64)
        blend.head.scale = torch.rand(width, generator=generator, dtype=torch.float64) + 0.5
    return blend, history, log


class TestScores:
    def test_an_untrained_blend_is_its_personal_score(self) -> None:
        blend, history, log = lived(head_speaks=False)
        plain = BPR({"dim": 6}, seed=4, dtype=torch.float64)
        plain.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
        users, items, now = torch.arange(5), torch.arange(40).expand(5, -1), Context(0, history)
        assert torch.equal(blend.score(users, items, now), plain.score(users, items))
        assert torch.allclose(blend.score_catalogue(users, 45, now)[:, :40], plain.score(users, items), atol=1e-12)

    @pytest.mark.parametrize("transitions", [False, True])
    def test_all_ways_of_scoring_agree(self, transitions: bool) -> None:
        blend, history, log = lived(transitions=transitions)
        users, now = torch.tensor([0, 3, 3, log.n_users + 7]), Context(0, history)
        items = torch.arange(log.n_items + 6).expand(len(users), -1)
        found = blend.score(users, items, now)
        assert torch.allclose(found, Recommender.score(blend, users, items, now), atol=1e-12)
        assert torch.allclose(found, blend.score_catalogue(users, log.n_items + 6, now), atol=1e-12)
        assert found.std() > 0.1

    @pytest.mark.parametrize(
        "settings", [{}, {"without": ["personal"]}, {"without": ["neighbours", "activity"]}, {"transitions": True}]
    )
    def test_compiled_loops_and_plain_ones_agree(
        self, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
    ) -> None:
        log, found, taught = toy_log(), [], []
        for kernel in ("torch", "numba"):
            monkeypatch.setenv("MELON_KERNEL", kernel)
            blend, history = Blend({**SMALL, **settings}, seed=4), History()
            blend.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
            live_through(blend, history, log)
            for name in ("item_factors", "item_bias"):
                blend.tables[name].half_life = 40.0
            for name in ("head_linear", "head_output"):
                weights = blend.tables[name]
                weights.scatter(torch.arange(1), torch.linspace(-1, 1, weights.spec.dim)[None])
            blend.clock.now = 30
            lines = torch.arange(log.n_items + 3).expand(6, -1)
            now = Context(0, history)
            found.append(blend.score(torch.arange(6), lines, now))
            taught.append(blend.lesson(torch.arange(6), lines, torch.ones_like(lines, dtype=torch.bool), now).inputs)
        assert torch.allclose(found[0], found[1], rtol=1e-5, atol=1e-5)
        assert torch.allclose(taught[0], taught[1], rtol=1e-5, atol=1e-6)
        assert found[0].std() > 0.1

    def test_compiled_loops_keep_the_number_type_of_the_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever PyTorch's default number type is."""
        monkeypatch.setenv("MELON_KERNEL", "numba")
        log = toy_log()
        blend = Blend(SMALL, seed=4)
        blend.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
        blend.tables["head_linear"].scatter(torch.arange(1), torch.ones((1, blend.tables["head_linear"].spec.dim)))
        items, now = torch.arange(5).expand(2, -1), Context(0, History())
        torch.set_default_dtype(torch.float64)
        try:
            scores = blend.score(torch.arange(2), items, now)
            lesson = blend.lesson(torch.arange(2), items, torch.ones((2, 5), dtype=torch.bool), now)
        finally:
            torch.set_default_dtype(torch.float32)
        assert scores.dtype == lesson.inputs.dtype == torch.float32

    @pytest.mark.parametrize("kernel", ["torch", "numba"])
    def test_a_head_that_is_no_number_gives_none(self, monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
        monkeypatch.setenv("MELON_KERNEL", kernel)
        log = toy_log()
        blend = Blend(SMALL, seed=4)
        blend.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
        for name, value in (("head_hidden", float("nan")), ("head_output", 1.0)):
            rows, dim = blend.tables[name].everything().shape
            blend.tables[name].scatter(torch.arange(rows), torch.full((rows, dim), value))
        assert blend.score(torch.arange(2), torch.arange(5).expand(2, -1), Context(0, History())).isnan().all()

    def test_items_without_a_past_are_alike(self) -> None:
        blend, history, log = lived()
        scores = blend.score(torch.tensor([1]), torch.arange(log.n_items, log.n_items + 5)[None], Context(0, history))
        assert scores.std() == pytest.approx(0, abs=1e-12)

    def test_similar_items_share_users(self) -> None:
        blend, _, log = lived()
        alike = blend.similarities(torch.tensor([0, 1]))
        assert alike.shape == (2, log.n_items)
        pairs = {(user, item) for user, item in zip(log.users.tolist(), log.items.tolist(), strict=True)}
        takers = [{user for user, item in pairs if item == each} for each in range(log.n_items)]
        nearest = int(alike[0].argmax())
        assert takers[nearest] & takers[0]
        assert all(alike[0, other] == 0 for other in range(log.n_items) if not takers[other] & takers[0])


class TestFeatures:
    def test_they_are_those_of_plain_loops(self) -> None:
        """docs/methods.md 8.5, written out."""
        blend, history, log = lived()
        users, items, now = log.users.tolist(), log.items.tolist(), len(log)
        total = [items.count(item) for item in range(log.n_items)]
        recent = [
            sum(0.5 ** ((now - at) / 20_000) for at, each in enumerate(items) if each == item)
            for item in range(log.n_items)
        ]
        plain, decayed = np.zeros((2, log.n_items, log.n_items))
        for at, (user, item) in enumerate(zip(users, items, strict=True)):
            before = [each for u, each in zip(users[:at], items[:at], strict=True) if u == user][-20:]
            for other in before:
                if other != item:
                    for one, two in ((other, item), (item, other)):
                        plain[one, two] += 1
                        decayed[one, two] += 0.5 ** ((now - at) / 20_000)
        found = blend.features(torch.tensor([2, 5]), torch.tensor([[0, 3, 7], [1, 2, 9]]), Context(0, history))
        for line, user in enumerate((2, 5)):
            lasts = [each for u, each in zip(users, items, strict=True) if u == user][::-1]
            for column, item in enumerate(((0, 3, 7), (1, 2, 9))[line]):
                moments = [at for at, each in enumerate(items) if each == item]
                wanted = [np.log1p(sum(0.5 ** ((now - at) / h) for at in moments)) for h in HALF_LIVES]
                wanted += [np.log1p(now - moments[-1]), np.log1p(now - moments[0])]
                near = [plain[last, item] / np.sqrt((total[last] + 5) * (total[item] + 5)) for last in lasts[:20]]
                late = [decayed[last, item] / np.sqrt((total[last] + 5) * (recent[item] + 2)) for last in lasts[:20]]
                by_lag = sum(each / place for place, each in enumerate(near, start=1))
                wanted += [np.log1p(20 * sum(near)), np.log1p(20 * by_lag), np.log1p(20 * sum(late))]
                wanted.append(np.log1p(len(lasts)) / 4 - 1)
                assert found[line, column].tolist() == pytest.approx(wanted, rel=1e-6)

    def test_transitions_are_what_followed_the_last_item(self) -> None:
        """They come behind the neighbours; everything else is as without them."""
        blend, history, log = lived(transitions=True)
        users, items, now = log.users.tolist(), log.items.tolist(), len(log)
        plain, decayed = np.zeros((2, log.n_items, log.n_items))
        last: dict[int, int] = {}
        for at, (user, item) in enumerate(zip(users, items, strict=True)):
            if last.get(user, item) != item:
                plain[last[user], item] += 1
                decayed[last[user], item] += 0.5 ** ((now - at) / 20_000)
            last[user] = item
        total = [items.count(item) for item in range(log.n_items)]
        recent = np.array(
            [sum(0.5 ** ((now - at) / 20_000) for at in np.flatnonzero(log.items == i)) for i in range(12)]
        )
        asked, offered = torch.tensor([2, 5, 1]), torch.arange(12).expand(3, -1)
        found = blend.features(asked, offered, Context(0, history))
        without = lived()[0].features(asked, offered, Context(0, history))
        assert torch.equal(found[..., [*range(11), 13]], without)
        for line, user in enumerate(asked.tolist()):
            before = np.sqrt(total[last[user]] + 5)
            for item in range(12):
                one = plain[last[user], item] / before / np.sqrt(total[item] + 5)
                other = decayed[last[user], item] / before / np.sqrt(recent[item] + 2)
                wanted = [np.log1p(20 * one), np.log1p(20 * other)]
                assert found[line, item, 11:13].tolist() == pytest.approx(wanted, rel=1e-6)
        assert found[..., 11].any()

    def test_nothing_tells_whether_the_user_has_had_the_item(self) -> None:
        """An item that one user alone has had looks the same to that user and to another with the same past."""
        history, blend = History(), Blend(SMALL, dtype=torch.float64)
        blend.observe(np.array([0]), np.array([0]), np.array([0]), history)
        history.append(np.array([0]), np.array([0]))
        found = blend.features(torch.tensor([0]), torch.tensor([[0]]), Context(0, history))
        assert found[0, 0, 8:11].tolist() == [0, 0, 0]


class TestGradients:
    @pytest.mark.parametrize(("per_branch", "transitions"), [(False, False), (True, False), (False, True)])
    def test_a_head_that_a_strategy_drives_is_in_closed_form(self, per_branch: bool, transitions: bool) -> None:
        blend, history, log = lived(head="strategy", transitions=transitions)
        values = {name: table.state()["values"] for name, table in blend.tables.items()}
        users = torch.tensor([0, 1, 1, 4, 2])
        items = torch.tensor(np.random.default_rng(0).integers(0, log.n_items, (5, 4)))
        features = blend.taught_features(users, items, Context(0, history))
        examples = Examples(users, items, features=features)
        mine = blend.evidence(values, examples, per_branch=per_branch)
        twin = evidence_by_autograd(blend, values, examples, per_branch=per_branch)
        assert torch.allclose(mine.losses, twin.losses)
        assert torch.allclose(blend.losses(values, examples), twin.losses)
        theirs = {gradient.table: gradient.expand() for gradient in twin.gradients}
        assert {gradient.table for gradient in mine.gradients} == set(theirs)
        for gradient in mine.gradients:
            assert torch.allclose(gradient.expand(), theirs[gradient.table], atol=1e-9)
            assert gradient.expand().any()

    def test_the_personal_part_learns_what_bpr_learns(self) -> None:
        for how in ("own", "strategy"):
            blend, history, _ = lived(head=how)
            plain = BPR({"dim": 6}, dtype=torch.float64)
            values = {name: table.state()["values"] for name, table in blend.tables.items()}
            users, items = torch.tensor([0, 1, 1]), torch.tensor([[0, 1], [2, 0], [4, 5]])
            features = blend.taught_features(users, items, Context(0, history))
            mine = blend.evidence(values, Examples(users, items, features=features))
            bias = {"user_bias": torch.zeros((6, 1), dtype=torch.float64)}
            theirs = plain.evidence({**values, **bias}, Examples(users, items))
            for one, other in zip(mine.row_gradients, theirs.row_gradients, strict=True):
                assert torch.equal(one.gradient, other.gradient)
            assert bool(mine.shared_gradients) == (how == "strategy")


def lessons(batches: int = 3, size: int = 40) -> list[Lesson]:
    """The item taken has a high third input; the first two are noise, and a constant one teaches nothing."""
    generator, made = torch.Generator().manual_seed(2), []
    for _ in range(batches):
        inputs = torch.randn((size, 5, 4), generator=generator, dtype=torch.float64) * torch.tensor([1, 1, 3.0, 0])
        inputs[:, 0, 2] += 6
        inputs[..., 3] = 7
        made.append(Lesson(inputs + torch.tensor([0, 0, 5.0, 0]), torch.ones((size, 5), dtype=torch.bool)))
    return made


@pytest.fixture
def values() -> dict[str, Tensor]:
    specs = head_tables(4, 5)
    return {spec.name: Table(spec, seed=3, dtype=torch.float64).state()["values"] for spec in specs}


class TestHead:
    def test_a_step_is_that_of_adamw(self, values: dict[str, Tensor]) -> None:
        head = BlendHead(4, AT_ONCE, torch.float64, torch.device("cpu"))
        mine = dict(values)
        free = {name: value.clone().requires_grad_() for name, value in values.items()}
        theirs = torch.optim.AdamW(list(free.values()), lr=HEAD.lr, weight_decay=HEAD.decay)
        for lesson in lessons():
            made = head.step(mine, lesson)
            mine = made.values
            head.keep(made.memory)
            theirs.zero_grad()
            scores = personal_score(lesson.inputs) + head_scores(free, lesson.inputs)
            torch.nn.functional.cross_entropy(scores, torch.zeros(len(lesson), dtype=torch.long)).backward()
            theirs.step()
        for name, value in free.items():
            assert torch.allclose(mine[name], value.detach(), atol=1e-10)

    def test_a_negative_that_does_not_count_is_as_if_it_were_not_there(self, values: dict[str, Tensor]) -> None:
        head = BlendHead(4, AT_ONCE, torch.float64, torch.device("cpu"))
        lesson = lessons(1)[0]
        allowed = lesson.allowed.clone()
        allowed[:, 3:] = False
        one = head.step(values, Lesson(lesson.inputs, allowed)).values
        other = head.step(values, Lesson(lesson.inputs[:, :3], allowed[:, :3])).values
        assert all(torch.allclose(one[name], other[name], atol=1e-12) for name in TABLES)

    def test_practice_finds_what_decides(self, values: dict[str, Tensor]) -> None:
        head, given = BlendHead(4, HEAD, torch.float64, torch.device("cpu")), lessons(20)
        before = {name: value.clone() for name, value in values.items()}
        practice = head.practise(values, given)
        assert all(torch.equal(before[name], values[name]) for name in TABLES)
        assert not head.memory()["centre"].any()  # nothing is kept before it is taken over
        taken = head.take_over(practice)
        test = lessons(25)[-1]
        scores = personal_score(test.inputs) + head(taken, test.inputs)
        assert (scores.argmax(1) == 0).double().mean() > 0.75
        assert (personal_score(test.inputs).argmax(1) == 0).double().mean() < 0.4

    def test_scales_are_spreads_within_events_of_the_first_interactions(self) -> None:
        head = BlendHead(4, HEAD, torch.float64, torch.device("cpu"))
        given = lessons(2, SCALED_BY - 10)
        practice = head.practise(_zero_tables(), given)
        first = torch.cat([lesson.inputs for lesson in given])[:SCALED_BY]
        apart = first - first.mean(1, keepdim=True)
        assert torch.allclose(practice["centre"], first.mean((0, 1)))
        assert torch.allclose(1 / practice["scale"][:3], apart.square().mean((0, 1)).sqrt()[:3])
        assert practice["scale"][3] == 1_000  # a constant input has no spread, and stays finite

    def test_without_practice_it_rests_and_is_scaled_by_what_it_saw(self, values: dict[str, Tensor]) -> None:
        """The same scales as practice over the same lessons gives, and not a step before there are any."""
        head, given = BlendHead(4, HEAD, torch.float64, torch.device("cpu")), lessons(4, HEAD.rest // 3)
        for number, lesson in enumerate(given[:3]):
            assert head.resting
            step = head.step(values, lesson)
            assert step.values == {}
            head.keep(step.memory)
            again = BlendHead(4, HEAD, torch.float64, torch.device("cpu"))
            again.recall(head.memory())
            assert again.memory().keys() == head.memory().keys()
            assert all(torch.equal(again.memory()[name], tensor) for name, tensor in head.memory().items()), number
        assert head.resting  # two interactions short
        head.keep(head.step(values, given[3]).memory)
        assert not head.resting
        practice = BlendHead(4, HEAD, torch.float64, torch.device("cpu")).practise(values, given)
        assert torch.allclose(head.memory()["centre"], practice["centre"], atol=1e-12)
        assert torch.allclose(head.memory()["scale"], practice["scale"], rtol=1e-12)
        assert set(head.step(values, given[0]).values) == set(TABLES)

    def test_a_head_that_has_practised_does_not_rest(self, values: dict[str, Tensor]) -> None:
        head = BlendHead(4, HEAD, torch.float64, torch.device("cpu"))
        head.take_over(head.practise(values, lessons(2)))
        assert not head.resting
        again = BlendHead(4, HEAD, torch.float64, torch.device("cpu"))
        again.recall(head.memory())  # before its first step on the stream
        assert not again.resting

    def test_foreign_practice_is_refused(self, values: dict[str, Tensor]) -> None:
        head = BlendHead(4, HEAD, torch.float64, torch.device("cpu"))
        with pytest.raises(CheckpointError, match="centre, head_hidden"):
            head.take_over({"scale": torch.ones(4)})
        wrong = BlendHead(3, HEAD, torch.float64, torch.device("cpu"))
        with pytest.raises(CheckpointError, match="its inputs do not fit"):
            wrong.take_over(head.practise(values, lessons(1)))
        assert head.practise(values, []) == {}


def _zero_tables() -> dict[str, Tensor]:
    return {spec.name: torch.zeros((spec.rows, spec.dim), dtype=torch.float64) for spec in head_tables(4, 5)}


class TestLearning:
    def updater(self, **settings: Any) -> Updater:
        made = Updater(Blend({**SMALL, **settings}, seed=1), Default({"lr": 0.1}), seed=2)
        for batch in toy_batches()[:6]:
            made.learn(batch)
        return made

    def test_the_head_learns_by_itself_and_the_strategy_leaves_it_alone(self) -> None:
        assert not self.updater(head_lr=0.1).recommender.tables["head_linear"].everything().any()  # it still rests
        silent, speaks = self.updater(head_lr=0.0, head_rest=20), self.updater(head_lr=0.1, head_rest=20)
        assert not silent.recommender.tables["head_linear"].everything().any()
        assert speaks.recommender.tables["head_linear"].everything().any()
        for name in ("user_factors", "item_factors", "item_bias"):
            one, other = (each.recommender.tables[name].everything() for each in (silent, speaks))
            assert torch.equal(one, other)

    def test_a_strategy_can_drive_it(self) -> None:
        driven = self.updater(head="strategy", negatives=4)
        assert driven.recommender.tables["head_linear"].everything().any()
        rates = driven.learning_rates(toy_batches()[6])
        assert set(rates.shared) == set(TABLES)
        assert set(self.updater().learning_rates(toy_batches()[6]).shared) == set()

    def test_what_is_new_is_no_lesson_and_what_is_ones_own_is_no_negative(self) -> None:
        updater = self.updater(head_negatives=40)
        batch = toy_batches()[6]
        lesson = updater.lesson(batch)
        assert lesson is not None
        known = updater.history.of_items.met(batch.items) > 0
        assert 0 < known.sum() < len(batch)
        assert len(lesson) == known.sum()
        assert lesson.allowed[:, 0].all()
        assert not lesson.allowed.all()
        assert Updater(Blend(SMALL), Default()).lesson(batch) is None
        assert Updater(BPR({"dim": 4}), Default()).lesson(batch) is None

    def test_without_repeats_only_first_times_are_lessons(self) -> None:
        updater, batch = self.updater(), toy_batches()[6]
        had = updater.history.seen.contains(pair_keys(batch.users, batch.items))
        known = updater.history.of_items.met(batch.items) > 0
        assert 0 < (known & had).sum() < known.sum()
        every, first = updater.lesson(batch), self.updater(head_repeats=False).lesson(batch)
        assert every is not None
        assert first is not None
        assert len(every) == known.sum()
        assert len(first) == (known & ~had).sum()

    def test_a_lesson_is_what_was_scored(self) -> None:
        """Newcomers have no row yet when they are predicted, and none when the head is taught."""
        updater = self.updater()
        batch = toy_batches()[6]
        lesson = updater.lesson(batch)
        updater.situation(batch)  # makes rows
        again = updater.lesson(batch)
        assert lesson is not None
        assert again is not None
        new = batch.users[updater.history.of_items.met(batch.items) > 0] >= updater.history.of_users.rows
        assert new.any()
        assert not lesson.inputs[torch.from_numpy(new), :, 0].any()

    def test_practice_is_taken_over_with_fresh_moments(self) -> None:
        updater = self.updater()
        lesson = updater.lesson(toy_batches()[6])
        assert lesson is not None
        practice = updater.practise_head([lesson])
        fresh = Updater(Blend(SMALL, seed=1), Default({"lr": 0.1}), seed=2)
        fresh.take_over(practice)
        assert torch.equal(fresh.recommender.tables["head_linear"].everything(), practice["head/head_linear"])
        assert set(fresh.recommender.streaming_state()) >= {"head.centre", "head.scale"}
        assert "head.steps" not in fresh.recommender.streaming_state()
        assert Updater(BPR({"dim": 4}), Default()).practise_head([]) == {}

    @pytest.mark.parametrize("transitions", [False, True])
    def test_how_a_log_is_cut_does_not_matter_to_what_is_observed(self, transitions: bool) -> None:
        log, states = toy_log(), []
        for size in (1, 16, len(log)):
            blend, history = Blend({**SMALL, "transitions": transitions}), History()
            for start in range(0, len(log), size):
                batch = batch_of(log, start, min(start + size, len(log)))
                blend.observe(batch.users, batch.items, batch.times, history)
                history.append(batch.users, batch.items)
            states.append(blend.streaming_state())
        for name, array in states[0].items():
            for other in states[1:]:
                assert other[name] == pytest.approx(array, rel=1e-10)


class TestParts:
    def practised(self, **settings: Any) -> Updater:
        made = Updater(Blend({**SMALL, **settings}, seed=1, dtype=torch.float64), Default({"lr": 0.1}), seed=2)
        given = []
        for batch in toy_batches():
            given.append(made.lesson(batch))
            made.learn(batch, teach_head=False)
        made.take_over(made.practise_head([lesson for lesson in given if lesson is not None]))
        return made

    @pytest.mark.parametrize("part", PARTS)
    def test_one_that_is_left_out_says_nothing(self, part: str) -> None:
        updater = self.practised(without=[part])
        blend, history = updater.recommender, updater.history
        assert isinstance(blend, Blend)
        silent = {INPUTS[at] for at in np.flatnonzero(blend.head.scale == 0)}
        assert silent == set(PARTS[part])
        users, now = torch.arange(6), Context(0, history)
        items = torch.arange(blend.rows_of("item")).expand(6, -1)
        scores = blend.score(users, items, now)
        assert torch.allclose(scores, blend.score_catalogue(users, items.shape[1], now), atol=1e-9)
        assert scores.std(dim=1).min() > 0
        table = blend.tables["item_factors"]
        table.scatter(torch.arange(table.rows), table.everything() + 1)
        same = torch.allclose(scores, blend.score(users, items, now), atol=1e-12)
        assert same == (part == "personal")

    def test_a_head_without_hidden_units_is_linear(self) -> None:
        updater = self.practised(head_units=0)
        blend = updater.recommender
        assert isinstance(blend, Blend)
        users, items = torch.arange(4), torch.arange(20).expand(4, -1)
        inputs = blend._stored_inputs(users, Named.of(items.numpy()), Context(0, updater.history))
        linear = blend.tables[TABLES[0]].everything()[0]
        expected = personal_score(inputs) + blend.head.scaled(inputs) @ linear
        assert torch.allclose(blend.score(users, items, Context(0, updater.history)), expected, atol=1e-10)


class TestConformance:
    @pytest.fixture(params=[("strategy", False), ("own", True)])  # a plain one is in tests/test_checks.py
    def settings(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        head, transitions = request.param
        return {**SMALL, "head": head, "transitions": transitions, "negatives": 2}

    def test_both_ways_of_training_the_head_conform(self, settings: dict[str, Any]) -> None:
        def make(*, seed: int, dtype: torch.dtype) -> Blend:
            return Blend(settings, seed=seed, dtype=dtype)

        check_recommender(make)
        long = {"finite_after_many_batches": "done elsewhere"}
        assert check_pairing(make, lambda *, seed: Default({"lr": 0.05}, seed=seed), exempt=long).applicable
        if settings["head"] == "strategy":
            forgets = {"learning_rates_explain_the_update": "it forgets", **long}
            assert check_pairing(make, NetworkMeLON, exempt=forgets).applicable

    def test_wrong_settings_are_told(self) -> None:
        with pytest.raises(SettingsError, match="head = 'other' is not valid"):
            Blend({"head": "other"})
