"""How a recommender with a head is trained: out of sample on the window, then taken over (docs/methods.md 8.5)."""

from dataclasses import replace

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.errors import LearningError
from melon.evaluation.predictors import RowsAlone
from melon.fitting.meta_training import WindowMetaTraining
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.models.blend.head import TABLES
from melon.strategies.default import Default
from melon.strategies.melon.published import PublishedMeLON
from melon.stream.batch import batch_of
from melon.stream.split import Parts, batches, split

PROTOCOL = EvaluationProtocol(batch_size=64, negatives=30)
SETTINGS = {"dim": 6, "slots": 32, "negatives": 1}
BLEND = Plan("blend", recommender_settings=SETTINGS, epochs=2, protocol=PROTOCOL, budget=1)
PLAIN = Plan("bpr", recommender_settings={"dim": 6}, epochs=2, protocol=PROTOCOL, budget=1)


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("news", n_events=4_000, seed=3)


@pytest.fixture(scope="module")
def parts(log: Interactions) -> Parts:
    return split(log, (0.8, 0.05, 0.15))


def selection_of(log: Interactions, parts: Parts, plan: Plan = BLEND) -> Selection:
    return Selection(log.head(parts.validation_stop), parts, plan)


def before_window(selection: Selection, plan: Plan) -> PretrainedState:
    return refit(plan, selection.before_window, {"epochs": 2}, observed={})


def changed(log: Interactions, start: int) -> Interactions:
    """The same log with another future."""
    items = log.items.copy()
    items[start:] = np.random.default_rng(1).permutation(items[start:])
    ids = log.item_ids[items]
    return Interactions.from_ids(log.user_ids[log.users], ids, log.times)


def test_only_a_recommender_with_a_head_meta_trains_it(log: Interactions, parts: Parts) -> None:
    selection = selection_of(log, parts)
    blend, plain = before_window(selection, BLEND), before_window(selection, PLAIN)
    assert selection.train_meta_model(Default(), plain, parts.judged_from) == {}
    meta_training = selection.train_meta_model(Default(), blend, parts.judged_from)
    assert set(meta_training) == {f"head/{name}" for name in ("centre", "scale", *TABLES)}
    learned = selection.train_meta_model(PublishedMeLON({"passes": 1}), blend, parts.judged_from)
    assert set(meta_training) < set(learned)


def test_meta_training_leaves_the_strategy_and_the_start_as_they_were(log: Interactions, parts: Parts) -> None:
    selection = selection_of(log, parts)
    start = before_window(selection, BLEND)
    before = {name: state["values"].copy() for name, state in start.tables.items()}
    strategy = Default({"optimizer": "adam_lazy", "lr": 0.01})
    selection.train_meta_model(strategy, start, parts.judged_from)
    assert int(strategy.memory()["steps"]) == 0
    assert all(np.array_equal(before[name], state["values"]) for name, state in start.tables.items())


def test_the_head_knows_nothing_after_its_part_of_the_window(log: Interactions, parts: Parts) -> None:
    found = []
    for each in (log, changed(log, parts.judged_from)):
        selection = selection_of(each, parts)
        found.append(selection.train_meta_model(Default(), before_window(selection, BLEND), parts.judged_from))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_the_head_meta_trains_on_earlier_windows_with_rows_from_before_each(log: Interactions, parts: Parts) -> None:
    selection, settings = selection_of(log, parts), {"epochs": 2}
    start = before_window(selection, BLEND)
    assert parts.earlier_windows == [(1_639, 2_048), (2_048, 2_560)]
    meta_training = selection.train_meta_model(Default(), start, parts.train_stop, settings)
    head_batches = []
    for first, stop in [*parts.earlier_windows, (parts.window_start, parts.train_stop)]:
        past = log.head(first)
        updater = deploy(Default(), refit(BLEND, past, settings), past)
        for batch in (batch_of(log, *bounds) for bounds in batches(first, stop, PROTOCOL.batch_size)):
            head_batches.append(updater.head_examples(batch))
            updater.learn(batch, teach_head=False)
    expected = updater.train_head([head_examples for head_examples in head_batches if head_examples is not None])
    assert meta_training.keys() == expected.keys()
    assert all(np.array_equal(meta_training[name], expected[name]) for name in meta_training)
    short = selection.train_meta_model(Default(), start, parts.train_stop)
    assert not np.array_equal(short[f"head/{TABLES[0]}"], meta_training[f"head/{TABLES[0]}"])


def test_earlier_windows_see_nothing_of_what_follows(log: Interactions, parts: Parts) -> None:
    found = []
    for each in (log, changed(log, parts.judged_from)):
        selection = selection_of(each, parts)
        start = before_window(selection, BLEND)
        found.append(selection.train_meta_model(Default(), start, parts.judged_from, {"epochs": 2}))
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_an_earlier_window_that_cannot_be_stream_trained_on_is_left_out(log: Interactions, parts: Parts) -> None:
    """One item alone before the oldest window, so nothing can be drawn beside it."""
    items = log.items.copy()
    items[: parts.earlier_windows[0][0]] = items[0]
    few = Interactions.from_ids(log.user_ids[log.users], log.item_ids[items], log.times)
    selection = selection_of(few, parts)
    meta_training = selection.train_meta_model(
        Default(), before_window(selection, BLEND), parts.train_stop, {"epochs": 2}
    )
    known, past, newer = few.head(parts.validation_stop), selection.before_window, parts.earlier_windows[1:]
    later = WindowMetaTraining(known, parts.window_start, past, PROTOCOL, newer)
    expected = later.of(Default(), before_window(selection, BLEND), parts.train_stop, {"epochs": 2})
    assert all(np.array_equal(meta_training[name], expected[name]) for name in expected)


def test_rows_that_diverge_on_an_earlier_window_cost_its_head_batches_alone(
    log: Interactions, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(plan: Plan, log: Interactions, settings: object) -> PretrainedState:
        raise LearningError("a row left the finite numbers.")

    selection = selection_of(log, parts)
    start = before_window(selection, BLEND)
    monkeypatch.setattr("melon.fitting.pretrained.refit", diverges)
    meta_training = selection.train_meta_model(Default(), start, parts.train_stop, {"epochs": 2})
    alone = selection.train_meta_model(Default(), start, parts.train_stop)
    assert all(np.array_equal(meta_training[name], alone[name]) for name in alone)


def test_what_was_stream_trained_is_deployed_with_counts_of_the_whole_past(log: Interactions, parts: Parts) -> None:
    selection = selection_of(log, parts)
    meta_training = selection.train_meta_model(Default(), before_window(selection, BLEND), parts.train_stop)
    training = log.head(parts.train_stop)
    updater = deploy(Default(), refit(BLEND, training, {"epochs": 2}), training, meta_training)
    for name in TABLES:
        assert np.array_equal(updater.recommender.tables[name].everything(), meta_training[f"head/{name}"])
    state = updater.recommender.streaming_state()
    assert state["counts.events"].tolist() == [parts.train_stop]
    assert state["head.scale"].tolist() == meta_training["head/scale"].tolist()
    assert updater.history.events == parts.train_stop


def test_a_state_is_observed_once_and_copies_do_not_share_it(log: Interactions, parts: Parts) -> None:
    start, training = before_window(selection_of(log, parts), BLEND), log.head(parts.train_stop)
    (one, first), (two, second) = start.after(training), start.after(training)
    states = one.streaming_state(), two.streaming_state()
    assert all(states[0][name].tobytes() == array.tobytes() for name, array in states[1].items())
    assert {name: array.tobytes() for name, array in first.state().items()} == {
        name: array.tobytes() for name, array in second.state().items()
    }
    one.observe(log.users[-5:], log.items[-5:], log.times[-5:], first)
    assert two.streaming_state()["counts.events"].tolist() == [parts.train_stop]
    assert start.after(training)[0].streaming_state()["counts.events"].tolist() == [parts.train_stop]


def test_another_log_of_the_same_length_is_observed_anew(log: Interactions, parts: Parts) -> None:
    start, training = before_window(selection_of(log, parts), BLEND), log.head(parts.train_stop)
    start.after(training)
    backwards = replace(training, users=training.users[::-1].copy(), items=training.items[::-1].copy())
    (one, first), (two, second) = start.after(backwards), start.after(training)
    assert first.of_users.last(np.arange(5)).tolist() != second.of_users.last(np.arange(5)).tolist()
    assert any(
        array.tobytes() != two.streaming_state()[name].tobytes() for name, array in one.streaming_state().items()
    )


def test_on_a_fast_stream_the_head_finds_what_is_new(log: Interactions, parts: Parts) -> None:
    scores = {}
    for plan in (BLEND, PLAIN):
        selection = selection_of(log, parts, plan)
        updater = selection.at_window("default", {}, before_window(selection, plan))
        scores[plan.recommender] = selection.judged(updater)
    assert scores["blend"] > scores["bpr"] + 0.1


def test_pre_training_is_chosen_as_for_the_rows_alone(log: Interactions, parts: Parts) -> None:
    chosen = [selection_of(log, parts, plan).pretraining()[0].plain() for plan in (BLEND, PLAIN)]
    assert chosen[0] == chosen[1]


def test_rows_that_streamed_for_the_meta_training_need_not_stream_again(log: Interactions, parts: Parts) -> None:
    """The shortcut to the judged part, and the long way: meta-train, deploy at the window, stream through it again."""
    selection = selection_of(log, parts)
    start, settings = before_window(selection, BLEND), {"optimizer": "adam_lazy", "lr": 0.01, "half_life": 500.0}
    short = selection.at_window("default", settings, start)
    assert short.history.events == parts.judged_from
    learner = Default(settings)
    meta_training = selection.train_meta_model(learner, start, parts.judged_from)
    long = deploy(learner, start, selection.before_window, meta_training)
    assert selection.judged(long) == selection.judged(short)
    for name, table in long.recommender.tables.items():
        assert np.array_equal(table.everything(), short.recommender.tables[name].everything()), name


def test_rows_alone_are_judged_without_what_is_observed(log: Interactions, parts: Parts) -> None:
    selection = selection_of(log, parts)
    start = before_window(selection, BLEND)
    quick = deploy(Default(), start, selection.before_window, rows_alone=True)
    whole = deploy(Default(), start, selection.before_window)
    assert selection.judged(RowsAlone(quick)) == selection.judged(RowsAlone(whole))
    assert quick.recommender.streaming_state()["counts.events"].tolist() == [0]


def test_trials_that_share_the_window_are_those_that_observe_it_themselves(log: Interactions, parts: Parts) -> None:
    own_past = {**SETTINGS, "inputs": ("profiles", "preferences", "own"), "head_own_share": 0.2}
    plan = replace(BLEND, recommender_settings={**own_past, "transitions": True})
    selection = selection_of(log, parts, plan)
    start, settings = before_window(selection, plan), {"lr": 0.2, "half_life": 500.0}
    judged = selection.judged(selection.at_window("default", settings, start))
    window, how = selection._meta_training, (Default(settings), start, parts.judged_from, {})
    alone, examples = window.recorded(*how)
    with selection._sharing("default", start, None, {}):
        shared, others = [window.recorded(*how) for _ in range(2)][1]
        gone_on = selection.at_window("default", settings, start)
    assert [each.inputs.tobytes() for each in examples] == [each.inputs.tobytes() for each in others]
    for one, other in zip(*(each.recommender.tables.values() for each in (alone, shared)), strict=True):
        parts_of = [{name: part.tobytes() for name, part in table.state().items()} for table in (one, other)]
        assert parts_of[0] == parts_of[1], one.spec.name
    states = [each.recommender.streaming_state() for each in (alone, shared)]
    assert {name: each.tobytes() for name, each in states[0].items()} == {
        name: each.tobytes() for name, each in states[1].items()
    }
    # A trial's head goes on from the shared one for a quarter of the passes: another head, and much the same lists.
    assert selection.judged(gone_on) == pytest.approx(judged, rel=0.05)
