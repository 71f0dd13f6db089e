"""The selection window: its arithmetic, the same budget for all, and nothing of the test part."""

import json
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.errors import LearningError, StreamError
from melon.evaluation.predictors import Popularity
from melon.evaluation.prequential import prequential
from melon.evaluation.ranking import gains
from melon.fitting import pretrained
from melon.fitting import selection as module
from melon.fitting.baselines import choose_baselines
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, refit, untrained
from melon.fitting.selection import Selection
from melon.learning.pretrain import Pretraining
from melon.learning.updater import Updater
from melon.progress import Progress
from melon.strategies.registry import STRATEGIES
from melon.stream.split import Parts, split
from melon.types import Plain

SHARES = (0.7, 0.1, 0.2)
PROTOCOL = EvaluationProtocol(batch_size=64, negatives=15)
PLAN = Plan("bpr", recommender_settings={"dim": 6}, epochs=2, protocol=PROTOCOL)


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("flip", n_users=30, n_items=40, n_events=1_000, seed=1)


@pytest.fixture(scope="module")
def parts(log: Interactions) -> Parts:
    return split(log, SHARES)


class Lines(Progress):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def window(log: Interactions, parts: Parts, progress: Progress | None = None, **more: Any) -> Selection:
    """The selection window under the small plan, with some of it changed."""
    return Selection(log.head(parts.validation_stop), parts, replace(PLAN, **more), progress)


def bytes_of(state: PretrainedState) -> dict[str, bytes]:
    return {f"{t}/{p}": tensor.tobytes() for t, some in state.tables.items() for p, tensor in some.items()}


def choose(log: Interactions, parts: Parts, budget: int = 3) -> tuple[Plain, dict[str, bytes]]:
    """Everything that can be chosen, and the recommender it was chosen with."""
    selection = window(log, parts, budget=budget)
    pretraining, start = selection.pretraining()
    chosen = {"pretrain": pretraining.plain(), "mix": choose_baselines(selection)["mix"].plain()}
    chosen |= {name: selection.strategy(name, start, {}).plain() for name in ("default", "eals")}
    return chosen, bytes_of(start)


@pytest.mark.parametrize(
    ("train_stop", "window_start", "judged_from"),
    [(1_000, 800, 920), (100_000, 80_000, 92_000), (125_000, 100_000, 115_000), (2_000_000, 1_975_000, 1_990_000)],
)
def test_the_window_is_a_fifth_of_training_at_most_25_000(train_stop: int, window_start: int, judged_from: int) -> None:
    parts = Parts(train_stop, train_stop + 50, train_stop + 500)
    assert (parts.window_start, parts.judged_from) == (window_start, judged_from)


def test_the_judged_part_is_the_end_of_the_window_and_validation(
    log: Interactions, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed: list[tuple[int, int]] = []
    judged: list[int] = []

    def spy(*given: Any, **more: Any) -> Any:
        streamed.append((given[3], given[4]))
        return prequential(*given, **more)

    monkeypatch.setattr(module, "prequential", spy)
    monkeypatch.setattr(module, "selection_score", lambda rank: judged.append(len(rank)) or 0.5)
    selection = window(log, parts, budget=1)
    selection.judged(Popularity(100, selection.before_window.items))
    assert (parts.window_start, parts.judged_from, parts.train_stop, parts.validation_stop) == (560, 644, 700, 800)
    assert streamed == [(644, 700), (700, 800)]
    assert judged == [800 - 644]


def test_a_log_that_holds_test_events_is_refused(log: Interactions, parts: Parts) -> None:
    for wrong in (log, log.head(parts.validation_stop + 1), log.head(parts.train_stop)):
        with pytest.raises(StreamError, match="a choice may see 800 interactions"):
            Selection(wrong, parts, PLAN)


def test_every_strategy_gets_the_same_number_of_trials(log: Interactions, parts: Parts) -> None:
    _, start = window(log, parts, budget=1).pretraining()
    for budget in (1, 4):
        selection = window(log, parts, budget=budget)
        trials = {name: selection.strategy(name, start, {}).trials for name in ("default", "eals", "metasgd")}
        assert {name: len(some) for name, some in trials.items()} == dict.fromkeys(trials, budget)


def test_where_time_is_up_each_choice_has_one_trial_and_it_is_said_once(log: Interactions, parts: Parts) -> None:
    progress = Lines()
    selection = window(log, parts, progress, minutes=1e-9, budget=3)
    assert not selection.time_is_up
    pretraining, start = selection.pretraining()
    choices = [pretraining, selection.strategy("default", start, {})]
    assert [len(choice.trials) for choice in choices] == [1, 1]
    assert [line for line in progress.lines if "are over" in line] == [
        "1e-09 minutes of choosing are over: the best settings so far are taken"
    ]
    assert selection.time_is_up


def test_every_trial_starts_from_the_same_recommender(
    log: Interactions, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = window(log, parts, budget=3)
    _, start = selection.pretraining()
    wanted, met = bytes_of(start), []

    class Spy(Updater):
        def __init__(self, recommender: Any, *given: Any, **more: Any) -> None:
            met.append(bytes_of(PretrainedState.of(PLAN, recommender)))
            super().__init__(recommender, *given, **more)
            assert self.history.events == parts.window_start

    monkeypatch.setattr(pretrained, "Updater", Spy)
    selection.strategy("default", start, {})
    assert [each for each in met if any(each.values())] == [wanted] * 3
    assert bytes_of(start) == wanted


def test_the_recommender_that_is_judged_was_not_trained_on_the_window(
    log: Interactions, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Interactions] = []
    learned: list[int] = []

    class SpyTraining(Pretraining):
        def __init__(self, recommender: Any, given: Interactions, *rest: Any, **more: Any) -> None:
            trained.append(given)
            super().__init__(recommender, given, *rest, **more)

    class SpyUpdater(Updater):
        def learn(self, batch: Any, **more: Any) -> float:
            learned.append(self.history.events)
            return super().learn(batch, **more)

    monkeypatch.setattr(module, "Pretraining", SpyTraining)
    monkeypatch.setattr(pretrained, "Updater", SpyUpdater)
    _, start = window(log, parts, budget=2).pretraining()
    assert {len(given) for given in trained} == {parts.window_start}
    before = log.head(parts.window_start)
    assert len(start.tables["item_factors"]["values"]) == before.n_items
    assert len(start.tables["user_factors"]["values"]) == before.n_users
    # Each pass begins with the window and has learned exactly what lies before each batch.
    assert learned[0] == parts.window_start
    passes = [at for at, events in enumerate(learned) if events == parts.window_start]
    cuts = [*range(560, 644, 64), *range(644, 700, 64), *range(700, 800, 64)]
    assert [learned[at : at + len(cuts)] for at in passes] == [cuts] * len(passes)


def test_the_number_of_epochs_is_the_best_of_those_tried(
    log: Interactions, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, recommender_settings={"dim": 4}, pretrain_settings={"l2": 0.03}, epochs=6)
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    scores = iter([0.1, 0.5, 0.4, 0.45, 0.3, 0.9])
    monkeypatch.setattr(selection, "_judge_pretrained", lambda state: next(scores))
    choice, start = selection.pretraining()
    assert choice.settings == {"l2": 0.03, "epochs": 2}
    assert choice.score == 0.5
    assert next(scores) == 0.9  # three checks without progress were enough
    training = Pretraining(plan.build(), selection.before_window, module.PretrainSettings(l2=0.03), seed=0)
    list(training.run(2))
    assert bytes_of(PretrainedState.of(plan, training.recommender)) == bytes_of(start)


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_a_settled_number_of_epochs_is_kept(epochs: int, log: Interactions, parts: Parts) -> None:
    selection = window(log, parts, pretrain_settings={"epochs": epochs}, epochs=None, budget=3)
    choice, start = selection.pretraining()
    assert {trial.settings["epochs"] for trial in choice.trials} == {epochs}
    assert len(choice.trials) == 3
    assert len(start.tables["item_factors"]["values"]) == selection.before_window.n_items


def test_a_trial_that_breaks_never_wins_and_is_written_down(log: Interactions, parts: Parts) -> None:
    progress = Lines()
    selection = window(log, parts, progress, budget=3)
    _, start = selection.pretraining()
    choice = selection.strategy("default", start, {"lr": 1e6})
    assert choice.score is None or np.isfinite(choice.score)
    broken = [trial for trial in choice.trials if trial.score is None]
    assert broken
    assert all("not finite" in str(trial.problem) or "a score is" in str(trial.problem) for trial in broken)
    assert any("smaller learning rate" in line for line in progress.lines)
    json.dumps(choice.plain(), allow_nan=False)


def test_a_pretraining_that_always_breaks_is_an_error(log: Interactions, parts: Parts) -> None:
    selection = window(log, parts, pretrain_settings={"lr": 1e6}, epochs=20, budget=3)
    with pytest.raises(LearningError, match=r"all pre-trainings failed.*smaller step"):
        selection.pretraining()


def test_a_pretraining_that_breaks_late_keeps_what_was_good(
    log: Interactions, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = window(log, parts, epochs=4, budget=2)
    monkeypatch.setattr(selection, "_judge_pretrained", lambda state: 0.5)
    epoch = Pretraining.epoch

    def breaks_in_the_third(self: Pretraining) -> float:
        if self.epochs_done == 2 and self.settings.l2 == 0.03:
            raise LearningError("left the finite numbers")
        return epoch(self)

    monkeypatch.setattr(Pretraining, "epoch", breaks_in_the_third)
    choice, _ = selection.pretraining()
    assert choice.settings == {"l2": 0.03, "epochs": 1}
    assert [trial.score for trial in choice.trials] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("events", "protocol"),
    [
        (100, PROTOCOL),  # too few events to judge by
        (1_000, EvaluationProtocol(negatives=40)),  # too few items
    ],
)
def test_too_little_to_choose_on_says_so(events: int, protocol: EvaluationProtocol, log: Interactions) -> None:
    short = log.head(events)
    parts = split(short, SHARES)
    assert not Selection(short.head(parts.validation_stop), parts, Plan(protocol=protocol)).possible


def test_in_known_mode_items_of_the_future_make_no_pool() -> None:
    when = np.arange(1_000)
    log = Interactions.from_ids(when % 10, np.where(when < 700, when % 12, when), when)
    parts = split(log, SHARES)
    early = log.head(parts.validation_stop)
    assert Selection(early, parts, Plan(protocol=EvaluationProtocol(negatives=20))).possible
    known = EvaluationProtocol(negatives=20, candidates="known")
    assert not Selection(early, parts, Plan(protocol=known)).possible


def test_a_refit_is_plain_pretraining_on_all_of_it(log: Interactions, parts: Parts) -> None:
    told: list[str] = []
    state = refit(PLAN, log.head(parts.train_stop), {"l2": 0.01, "epochs": 3}, told.append)
    training = Pretraining(PLAN.build(), log.head(parts.train_stop), module.PretrainSettings(l2=0.01), seed=0)
    list(training.run(3))
    assert bytes_of(state) == bytes_of(PretrainedState.of(PLAN, training.recommender))
    assert [line.partition(",")[0] for line in told] == [f"epoch {n} of 3" for n in (1, 2, 3)]


def test_copies_are_independent(log: Interactions, parts: Parts) -> None:
    state = refit(PLAN, log.head(300), {"epochs": 1})
    wanted = bytes_of(state)
    copy = state.copy()
    table = copy.tables["item_factors"]
    table.lend()[: table.rows] += 1
    assert bytes_of(state) == wanted
    assert bytes_of(PretrainedState.of(PLAN, state.copy())) == wanted


def test_open_half_life_is_tried_at_a_middling_and_at_a_short_half_life_first(log: Interactions, parts: Parts) -> None:
    choice = window(log, parts, budget=3).strategy("default", untrained(PLAN, log), {})
    assert [trial.settings["half_life"] for trial in choice.trials] == pytest.approx([10_000, 1_000, 10_000])
    assert [trial.settings["optimizer"] for trial in choice.trials] == ["sgd", "sgd", "adam_lazy"]


class TestJudgedAfterTrainingAgain:
    SETTINGS: ClassVar[Plain] = {"l2": 0.01, "epochs": 2}
    PLAN = Plan(
        "ncf",
        recommender_settings={"dim": 4, "layers": [4]},
        pretrain_settings=SETTINGS,
        protocol=PROTOCOL,
        budget=1,
    )

    def selection(self, log: Interactions, parts: Parts) -> Selection:
        return Selection(log.head(parts.validation_stop), parts, self.PLAN)

    def test_only_where_weights_are_shared(self, log: Interactions, parts: Parts) -> None:
        for plan, wanted in ((PLAN, False), (self.PLAN, True), (Plan("blend"), False)):
            selection = Selection(log.head(parts.validation_stop), parts, plan)
            assert selection.judges_again is wanted, plan.recommender

    def test_it_is_what_deployment_does_a_little_earlier(self, log: Interactions, parts: Parts) -> None:
        """Meta-training before the window; then the judged part, on one that was trained up to there."""
        selection = self.selection(log, parts)
        _, start = selection.pretraining()
        again = selection.trained_again(self.SETTINGS)
        assert bytes_of(again) == bytes_of(refit(self.PLAN, log.head(parts.judged_from), self.SETTINGS))
        updater = selection.at_window("mwnet", {"passes": 1}, start, again)
        assert updater.history.events == parts.judged_from
        seen = [(point.start, point.stop) for point in selection.through(updater)]
        assert (seen[0][0], seen[-1][1]) == (parts.judged_from, parts.validation_stop)
        strategy = STRATEGIES["mwnet"].load()({"passes": 1}, seed=0)
        meta_training = selection.train_meta_model(strategy, start, parts.judged_from)
        by_hand = pretrained.deploy(strategy, again, log.head(parts.judged_from), meta_training)
        twin = selection.at_window("mwnet", {"passes": 1}, start, again)
        assert selection.judged(by_hand) == selection.judged(twin)

    def test_the_judged_part_does_not_reach_it(self, log: Interactions, parts: Parts) -> None:
        """Other events from there on change nothing of it."""
        items = log.items.copy()
        items[parts.judged_from : parts.validation_stop] = items[parts.judged_from : parts.validation_stop][::-1]
        other = Interactions(log.users, items, log.times, log.user_keys, log.item_keys)
        states = [self.selection(each, parts).trained_again({"epochs": 2}) for each in (log, other)]
        assert bytes_of(states[0]) == bytes_of(states[1])


def test_by_lists_the_score_is_the_mean_of_both_tracks(log: Interactions, parts: Parts) -> None:
    """`auto` compares settings by the mean NDCG@10 over all events and over first-time pairs."""
    selection = window(log, parts, protocol=replace(PROTOCOL, by_lists=True))
    before, tracks = selection.before_window.items, dict[str, list[Any]]()
    for point in selection.through(Popularity(100, before), by_lists=True):
        assert point.lists is not None
        for track, lists in point.lists.tracks.items():
            tracks.setdefault(track, []).append(lists.rank)
    ranks = {track: np.concatenate(some) for track, some in tracks.items()}
    first = ~selection.log.repeats[parts.judged_from :]
    wanted = gains(ranks["all"]).sum() / len(first) + np.nansum(gains(ranks["first_time"])) / first.sum()
    trial = selection.raced({}, Popularity(100, before), None)
    assert trial.score == pytest.approx(wanted / 2, rel=1e-12)
    assert trial.score != window(log, parts).raced({}, Popularity(100, before), None).score
