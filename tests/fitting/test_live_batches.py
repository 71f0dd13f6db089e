"""What smaller live batches would bring: which sizes are tried, what is measured, and the line that says it."""

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.fitting.live_batches import live_batch_line, measure_live_batches, sizes_worth_trying
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.stream.split import split
from melon.types import Ints

DAY = 86_400


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("drift", n_users=40, n_items=60, n_events=1_500, seed=1)


def selection_of(log: Interactions, batch_size: int = 256) -> Selection:
    parts = split(log, (0.7, 0.1, 0.2))
    protocol = EvaluationProtocol(batch_size=batch_size, negatives=15)
    plan = Plan("blend", recommender_settings={"dim": 6, "head_passes": 2}, epochs=2, protocol=protocol)
    return Selection(log.head(parts.validation_stop), parts, plan)


@pytest.mark.parametrize(
    ("times", "usual", "tried"),
    [
        (np.arange(1_000) * 7 + 1, 256, (64, 16)),
        (np.arange(1_000) * 7 + 1, 64, (16,)),
        (np.arange(1_000) * DAY, 256, ()),  # whole days say nothing
        (np.arange(1_000) // 20 + 1, 256, (64,)),  # nor does a batch within one stamp
        (np.empty(0, dtype=np.int64), 256, ()),
    ],
)
def test_sizes_at_which_the_streams_own_order_decides(times: Ints, usual: int, tried: tuple[int, ...]) -> None:
    assert sizes_worth_trying(times, usual) == tried


def test_each_size_is_measured_from_the_same_model(log: Interactions) -> None:
    selection = selection_of(log)
    start = refit(selection.plan, selection.before_window, {"epochs": 2})
    updater = selection.at_window("default", {"lr": 0.1}, start)
    events = updater.history.events
    measured = measure_live_batches(selection, updater)
    assert updater.history.events == events
    assert [each["size"] for each in measured["sizes"]] == [256, 64, 16]
    assert measured["sizes"][0]["gain"] == measured["sizes"][0]["se"] == 0
    assert measured["interactions"] == selection.parts.validation_stop - selection.parts.judged_from
    for each in measured["sizes"]:
        assert each["HR@5"] == pytest.approx(measured["sizes"][0]["HR@5"] + each["gain"])
        assert each["ms"] > 0


def test_nothing_is_measured_where_times_are_days(log: Interactions) -> None:
    days = Interactions(log.users, log.items, log.times // DAY * DAY, log.user_ids, log.item_ids)
    selection = selection_of(days)
    start = refit(selection.plan, selection.before_window, {"epochs": 1})
    assert measure_live_batches(selection, selection.at_window("default", {"lr": 0.1}, start)) == {}


def test_the_line_says_gain_and_cost() -> None:
    usual = {"size": 256, "HR@5": 0.55, "gain": 0.0, "se": 0.0, "ms": 0.1}
    small = {"size": 64, "HR@5": 0.566, "gain": 0.016, "se": 0.004, "ms": 0.25}
    line = live_batch_line({"interactions": 4_243, "sizes": [usual, small]})
    assert line is not None
    assert "64 at a time +0.016 (± 0.004) for 2.5 times the CPU time" in line
    assert "4,243 interactions" in line
    assert live_batch_line({}) is None
    assert live_batch_line(None) is None
