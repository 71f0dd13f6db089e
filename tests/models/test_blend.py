"""The blend: features against plain loops, a head in closed form, and a start that is its personal score."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from melon.data.interactions import Interactions
from melon.errors import CheckpointError, SettingsError
from melon.learning.pretrain import live_through
from melon.learning.updater import Updater
from melon.models.base import Context
from melon.models.blend.features import HALF_LIVES
from melon.models.blend.head import (
    SCALED_BY,
    TABLES,
    BlendHead,
    HeadExamples,
    HeadSettings,
    head_tables,
)
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.evidence import Examples
from melon.strategies.default import Default
from melon.stream.batch import batch_of
from melon.stream.history import History
from melon.tables import Table
from melon.testing import check_pairing, check_recommender, toy_batches, toy_log
from melon.types import AnyArray

SMALL = {"dim": 6, "head_units": 4, "head_negatives": 3, "slots": 64}
HEAD = HeadSettings(units=5, negatives=4, lr=0.01, decay=0.1, meta_training_lr=0.05, passes=6)
#: Learns from the first training example on, with inputs as they come.
AT_ONCE = replace(HEAD, rest=0)


def head_scores(values: dict[str, Any], scaled: AnyArray) -> AnyArray:
    """w · z + v · relu(W z + b)."""
    linear, hidden, shift, output = (values[name] for name in TABLES)
    return scaled @ linear[0] + np.maximum(scaled @ hidden.T + shift[:, 0], 0) @ output[0]


def by_formula(blend: Blend, users: AnyArray, items: AnyArray, now: Context) -> AnyArray:
    """Inputs, then the head, written out."""
    inputs = blend.inputs_of(users, items, now)
    return personal_score(inputs) + head_scores(
        blend.head_values(None), (inputs - blend.head.centre) * blend.head.scale
    )


def personal_score(inputs: AnyArray) -> AnyArray:
    return inputs[..., 0] + inputs[..., 1]


def lived(head_speaks: bool = True, **settings: Any) -> tuple[Blend, History, Interactions]:
    """A blend that has observed the toy stream, with random rows, and a head that says something."""
    log, blend, history = toy_log(), Blend({**SMALL, **settings}, seed=4), History()
    blend.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
    live_through(blend, history, log)
    if head_speaks:
        generator = np.random.default_rng(1)
        for name in TABLES:
            table = blend.tables[name]
            new = generator.normal(size=(table.rows, table.spec.dim))
            table.scatter(np.arange(table.rows), new)
        width = len(blend.inputs)
        blend.head.centre = generator.normal(size=width).astype(np.float32)
        blend.head.scale = generator.random(width, dtype=np.float32) + np.float32(0.5)
    return blend, history, log


class TestScores:
    def test_an_untrained_blend_is_its_personal_score(self) -> None:
        blend, history, log = lived(head_speaks=False)
        plain = BPR({"dim": 6}, seed=4)
        plain.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
        users, items, now = np.arange(5), np.tile(np.arange(40), (5, 1)), Context(0, history)
        assert np.allclose(blend.score(users, items, now), plain.score(users, items), atol=1e-6)
        assert np.allclose(blend.score_catalogue(users, 45, now)[:, :40], plain.score(users, items), atol=1e-6)

    @pytest.mark.parametrize("transitions", [False, True])
    def test_all_ways_of_scoring_agree(self, transitions: bool) -> None:
        blend, history, log = lived(transitions=transitions)
        users, now = np.array([0, 3, 3, log.n_users + 7]), Context(0, history)
        items = np.tile(np.arange(log.n_items + 6), (len(users), 1))
        found = blend.score(users, items, now)
        assert np.allclose(found, by_formula(blend, users, items, now), rtol=1e-4, atol=1e-4)
        assert np.allclose(found, blend.score_catalogue(users, log.n_items + 6, now), rtol=1e-4, atol=1e-4)
        assert found.std() > 0.1

    def test_a_head_that_is_no_number_gives_none(self) -> None:
        log = toy_log()
        blend = Blend(SMALL, seed=4)
        blend.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
        for name, value in (("head_hidden", float("nan")), ("head_output", 1.0)):
            rows, dim = blend.tables[name].everything().shape
            blend.tables[name].scatter(np.arange(rows), np.full((rows, dim), value))
        assert np.isnan(blend.score(np.arange(2), np.tile(np.arange(5), (2, 1)), Context(0, History()))).all()

    def test_items_without_a_past_are_alike(self) -> None:
        blend, history, log = lived()
        scores = blend.score(np.array([1]), np.arange(log.n_items, log.n_items + 5)[None], Context(0, history))
        assert scores.std() == pytest.approx(0, abs=1e-5)

    def test_similar_items_share_users(self) -> None:
        blend, _, log = lived()
        alike = blend.similarities(np.array([0, 1]))
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
        found = blend.inputs_of(np.array([2, 5]), np.array([[0, 3, 7], [1, 2, 9]]), Context(0, history))
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
                assert found[line, column, 2:13].tolist() == pytest.approx(wanted, rel=1e-5)

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
        asked, offered = np.array([2, 5, 1]), np.tile(np.arange(12), (3, 1))
        found = blend.inputs_of(asked, offered, Context(0, history))
        without = lived()[0].inputs_of(asked, offered, Context(0, history))
        assert np.array_equal(found[..., :17], without)
        for line, user in enumerate(asked.tolist()):
            before = np.sqrt(total[last[user]] + 5)
            for item in range(12):
                one = plain[last[user], item] / before / np.sqrt(total[item] + 5)
                other = decayed[last[user], item] / before / np.sqrt(recent[item] + 2)
                wanted = [np.log1p(20 * one), np.log1p(20 * other)]
                assert found[line, item, 17:19].tolist() == pytest.approx(wanted, rel=1e-5)
        assert found[..., 17].any()

    def test_nothing_tells_whether_the_user_has_had_the_item(self) -> None:
        """An item that one user alone has had looks the same to that user and to another with the same past."""
        history, blend = History(), Blend(SMALL)
        blend.observe(np.array([0]), np.array([0]), np.array([0]), history)
        history.append(np.array([0]), np.array([0]))
        found = blend.inputs_of(np.array([0]), np.array([[0]]), Context(0, history))
        assert found[0, 0, 10:13].tolist() == [0, 0, 0]


class TestGradients:
    def test_the_personal_part_learns_what_bpr_learns(self) -> None:
        blend, _, _ = lived()
        plain = BPR({"dim": 6})
        values = {name: torch.from_numpy(table.state()["values"]) for name, table in blend.tables.items()}
        examples = Examples(torch.tensor([0, 1, 1]), torch.tensor([[0, 1], [2, 0], [4, 5]]))
        mine = blend.differentiable().evidence(values, examples)
        theirs = plain.differentiable().evidence({**values, "user_bias": torch.zeros((6, 1))}, examples)
        for one, other in zip(mine.row_gradients, theirs.row_gradients, strict=True):
            assert torch.equal(one.gradient, other.gradient)
        assert not mine.shared_gradients


def head_batches(batches: int = 3, size: int = 40) -> list[HeadExamples]:
    """The item taken has a high third input; the first two are noise, and a constant one teaches nothing."""
    generator, made = np.random.default_rng(2), []
    for _ in range(batches):
        inputs = generator.normal(size=(size, 5, 4)) * np.array([1, 1, 3.0, 0])
        inputs[:, 0, 2] += 6
        inputs[..., 3] = 7
        made.append(
            HeadExamples((inputs + np.array([0, 0, 5.0, 0])).astype(np.float32), np.ones((size, 5), dtype=bool))
        )
    return made


@pytest.fixture
def values() -> dict[str, Any]:
    return {spec.name: np.array(Table(spec, seed=3).state()["values"]) for spec in head_tables(4, 5)}


class TestHead:
    def test_a_step_is_that_of_adamw(self, values: dict[str, Any]) -> None:
        head = BlendHead(4, AT_ONCE)
        mine = dict(values)
        free = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in values.items()}
        theirs = torch.optim.AdamW(list(free.values()), lr=HEAD.lr, weight_decay=HEAD.decay)
        for head_examples in head_batches():
            head_examples.inputs[..., 3] = 0  # of a constant, only rounding says how the linear part moves
            made = head.step(mine, head_examples)
            mine = made.values
            head.keep(made.memory)
            theirs.zero_grad()
            inputs = torch.from_numpy(head_examples.inputs)
            linear, hidden, shift, output = (free[name] for name in TABLES)
            by_head = inputs @ linear[0] + torch.relu(inputs @ hidden.T + shift[:, 0]) @ output[0]
            scores = personal_score(inputs) + by_head
            torch.nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long)).backward()
            theirs.step()
        for name, value in free.items():
            assert mine[name] == pytest.approx(value.detach().numpy(), abs=1e-5)

    def test_a_negative_that_does_not_count_is_as_if_it_were_not_there(self, values: dict[str, Any]) -> None:
        head = BlendHead(4, AT_ONCE)
        head_examples = head_batches(1)[0]
        head_examples.inputs[..., 3] = 0
        allowed = head_examples.allowed.copy()
        allowed[:, 3:] = False
        one = head.step(values, HeadExamples(head_examples.inputs, allowed)).values
        other = head.step(values, HeadExamples(head_examples.inputs[:, :3].copy(), allowed[:, :3])).values
        assert all(one[name] == pytest.approx(other[name], abs=1e-6) for name in TABLES)

    def test_meta_training_finds_what_decides(self, values: dict[str, Any]) -> None:
        head, given = BlendHead(4, HEAD), head_batches(20)
        before = {name: value.copy() for name, value in values.items()}
        meta_training = head.meta_train(values, given)
        assert all(np.array_equal(before[name], values[name]) for name in TABLES)
        assert not head.memory()["centre"].any()  # nothing is kept before it is taken over
        taken = head.take_over(meta_training)
        test = head_batches(25)[-1]
        inputs = test.inputs
        scores = personal_score(inputs) + head_scores(taken, (inputs - head.centre) * head.scale)
        assert (scores.argmax(1) == 0).mean() > 0.7
        assert (personal_score(inputs).argmax(1) == 0).mean() < 0.4

    def test_scales_are_spreads_within_events_of_the_first_interactions(self) -> None:
        head = BlendHead(4, HEAD)
        given = head_batches(2, SCALED_BY - 10)
        meta_training = head.meta_train(_zero_tables(), given)
        first = np.concatenate([head_examples.inputs for head_examples in given])[:SCALED_BY].astype(float)
        apart = first - first.mean(1, keepdims=True)
        assert meta_training["centre"] == pytest.approx(first.mean((0, 1)), rel=1e-5, abs=1e-6)
        assert 1 / meta_training["scale"][:3] == pytest.approx(np.sqrt(np.square(apart).mean((0, 1)))[:3], rel=1e-5)
        assert meta_training["scale"][3] == 0  # nothing was learned of what a constant input means when it changes

    def test_without_meta_training_it_rests_and_is_scaled_by_what_it_saw(self, values: dict[str, Any]) -> None:
        """The same scales as meta-training over the same examples gives, and not a step before there are any."""
        head, given = BlendHead(4, HEAD), head_batches(4, HEAD.rest // 3)
        for number, head_examples in enumerate(given[:3]):
            assert head.resting
            step = head.step(values, head_examples)
            assert step.values == {}
            head.keep(step.memory)
            again = BlendHead(4, HEAD)
            again.recall(head.memory())
            assert again.memory().keys() == head.memory().keys()
            assert all(np.array_equal(again.memory()[name], held) for name, held in head.memory().items()), number
        assert head.resting  # two interactions short
        head.keep(head.step(values, given[3]).memory)
        assert not head.resting
        meta_training = BlendHead(4, HEAD).meta_train(values, given)
        assert head.memory()["centre"] == pytest.approx(meta_training["centre"], abs=1e-6)
        assert head.memory()["scale"] == pytest.approx(meta_training["scale"], rel=1e-6)
        assert set(head.step(values, given[0]).values) == set(TABLES)

    def test_a_head_that_has_stream_trained_does_not_rest(self, values: dict[str, Any]) -> None:
        head = BlendHead(4, HEAD)
        head.take_over(head.meta_train(values, head_batches(2)))
        assert not head.resting
        again = BlendHead(4, HEAD)
        again.recall(head.memory())  # before its first step on the stream
        assert not again.resting

    def test_foreign_meta_training_is_refused(self, values: dict[str, Any]) -> None:
        head = BlendHead(4, HEAD)
        with pytest.raises(CheckpointError, match="centre, head_hidden"):
            head.take_over({"scale": np.ones(4)})
        wrong = BlendHead(3, HEAD)
        with pytest.raises(CheckpointError, match="its inputs do not fit"):
            wrong.take_over(head.meta_train(values, head_batches(1)))
        assert head.meta_train(values, []) == {}


def _zero_tables() -> dict[str, Any]:
    return {spec.name: np.zeros((spec.rows, spec.dim), dtype=np.float32) for spec in head_tables(4, 5)}


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
            assert np.array_equal(one, other)

    def test_what_is_new_is_no_head_examples_and_what_is_ones_own_is_no_negative(self) -> None:
        updater = self.updater(head_negatives=40)
        batch = toy_batches()[6]
        head_examples = updater.head_examples(batch)
        assert head_examples is not None
        known = updater.history.of_items.met(batch.items) > 0
        assert 0 < known.sum() < len(batch)
        assert len(head_examples) == known.sum()
        assert head_examples.allowed[:, 0].all()
        assert not head_examples.allowed.all()
        assert Updater(Blend(SMALL), Default()).head_examples(batch) is None
        assert Updater(BPR({"dim": 4}), Default()).head_examples(batch) is None

    def test_a_head_examples_is_what_was_scored(self) -> None:
        """Newcomers have no row yet when they are predicted, and none when the head is taught."""
        updater = self.updater()
        batch = toy_batches()[6]
        head_examples = updater.head_examples(batch)
        updater.situation(batch)  # makes rows
        again = updater.head_examples(batch)
        assert head_examples is not None
        assert again is not None
        new = batch.users[updater.history.of_items.met(batch.items) > 0] >= updater.history.of_users.rows
        assert new.any()
        assert not head_examples.inputs[new, :, 0].any()

    def test_meta_training_is_taken_over_with_fresh_moments(self) -> None:
        updater = self.updater()
        head_examples = updater.head_examples(toy_batches()[6])
        assert head_examples is not None
        meta_training = updater.train_head([head_examples])
        fresh = Updater(Blend(SMALL, seed=1), Default({"lr": 0.1}), seed=2)
        fresh.take_over(meta_training)
        assert np.array_equal(fresh.recommender.tables["head_linear"].everything(), meta_training["head/head_linear"])
        assert set(fresh.recommender.streaming_state()) >= {"head.centre", "head.scale"}
        assert "head.steps" not in fresh.recommender.streaming_state()
        assert Updater(BPR({"dim": 4}), Default()).train_head([]) == {}

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


class TestUnits:
    def stream_trained(self, **settings: Any) -> Updater:
        made = Updater(Blend({**SMALL, **settings}, seed=1), Default({"lr": 0.1}), seed=2)
        given = []
        for batch in toy_batches():
            given.append(made.head_examples(batch))
            made.learn(batch, teach_head=False)
        made.take_over(made.train_head([head_examples for head_examples in given if head_examples is not None]))
        return made

    def test_a_head_without_hidden_units_is_linear(self) -> None:
        updater = self.stream_trained(head_units=0)
        blend = updater.recommender
        assert isinstance(blend, Blend)
        users, items = np.arange(4), np.tile(np.arange(20), (4, 1))
        inputs = blend.inputs_of(users, items, Context(0, updater.history))
        linear = blend.tables[TABLES[0]].everything()[0]
        expected = personal_score(inputs) + ((inputs - blend.head.centre) * blend.head.scale) @ linear
        assert np.allclose(blend.score(users, items, Context(0, updater.history)), expected, atol=1e-4)


class TestConformance:
    def test_one_with_transitions_conforms(self) -> None:
        """A plain one is in tests/test_checks.py."""

        def make(*, seed: int, dtype: np.dtype) -> Blend:
            return Blend({**SMALL, "transitions": True, "negatives": 2}, seed=seed, dtype=dtype)

        check_recommender(make)
        long = {"finite_after_many_batches": "done elsewhere"}
        assert check_pairing(make, lambda *, seed: Default({"lr": 0.05}, seed=seed), exempt=long).applicable

    def test_wrong_settings_are_told(self) -> None:
        with pytest.raises(SettingsError, match="lists = 'other' is not valid"):
            Blend({"lists": "other"})
