"""The same interactions come out of every shape a program may have them in."""

import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.data.frames import interactions_from
from melon.data.interactions import Interactions
from melon.errors import DataError

EVENTS = [("b", 7, 30), ("a", 8, 10), ("b", 8, 10), ("c", 7, 20)]
IN_TIME = [EVENTS[1], EVENTS[2], EVENTS[3], EVENTS[0]]
COLUMNS = {name: [event[n] for event in EVENTS] for n, name in enumerate(("user_id", "itemId", "Timestamp"))}
ODD = {"who": COLUMNS["user_id"], "what": COLUMNS["itemId"], "when": COLUMNS["Timestamp"]}


def events_of(log: Interactions) -> list[tuple[Any, ...]]:
    return list(
        zip(log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist(), log.times.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    "make", [pl.DataFrame, pl.LazyFrame, pd.DataFrame, pa.table, lambda _: EVENTS, lambda _: iter(EVENTS)]
)
def test_shapes(make: Any) -> None:
    log = interactions_from(make(COLUMNS))
    assert events_of(log) == IN_TIME
    assert log.users.tolist() == [0, 1, 2, 1]
    assert interactions_from(log) is log


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame, pa.table])
def test_names(make: Any) -> None:
    assert events_of(interactions_from(make(ODD), user="who", item="what", time="when")) == IN_TIME
    with pytest.raises(DataError, match=r"no column looks like the user. Columns there: 'who', 'what', 'when'.*user=…"):
        interactions_from(make(ODD))


def dicts(*names: str) -> list[dict[str, Any]]:
    return [dict(zip(names, event, strict=False)) for event in EVENTS]


def test_dicts_are_read_by_their_keys() -> None:
    assert events_of(interactions_from(dicts("user", "item", "time"))) == IN_TIME
    assert events_of(interactions_from(dicts("userId", "Item ID", "ts"))) == IN_TIME
    assert (
        events_of(interactions_from(iter(dicts("who", "what", "when")), user="who", item="what", time="when"))
        == IN_TIME
    )
    mixed = [{"time": time, "user": user, "note": "x", "item": item} for user, item, time in EVENTS]
    assert events_of(interactions_from(mixed)) == IN_TIME
    pairs = [{"item": 1, "user": "a"}, {"user": "b", "item": 2}]
    assert events_of(interactions_from(pairs)) == [("a", 1, 0), ("b", 2, 1)]
    assert events_of(interactions_from([{"who": "a", "what": 1}], user="who", item="what")) == [("a", 1, 0)]


@pytest.mark.parametrize("make", [lambda ids: [(one, 1, n) for n, one in enumerate(ids)], pl.DataFrame, pd.DataFrame])
def test_whole_floats_are_integers(make: Any) -> None:
    ids = [27.0, 3.0, 27.0]
    source = make(ids) if not hasattr(make, "__mro__") else make({"user": ids, "item": [1] * 3, "time": [0, 1, 2]})
    log = interactions_from(source)
    assert log.user_ids.tolist() == [27, 3]
    assert log.user_ids.dtype == np.int64


def test_dates_of_other_countries() -> None:
    assert interactions_from([(1, 1, "31.12.2024 14:05")]).times.tolist() == [1_735_653_900]
    assert interactions_from([(1, 1, "31/12/2024"), (1, 1, "01/02/2024")]).times.tolist() == [
        1_706_745_600,
        1_735_603_200,
    ]


def test_pairs_have_event_numbers() -> None:
    assert events_of(interactions_from([("a", 1), ("b", 2), ("a", 2)])) == [("a", 1, 0), ("b", 2, 1), ("a", 2, 2)]


UUIDS = [uuid.UUID(int=n) for n in (9, 3, 9)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: [(each, 1, n) for n, each in enumerate(UUIDS)],
        lambda: pd.DataFrame({"user": UUIDS, "item": [1, 1, 1], "time": [0, 1, 2]}),
        lambda: pl.DataFrame({"user": pl.Series(UUIDS, dtype=pl.Object), "item": [1, 1, 1], "time": [0, 1, 2]}),
        lambda: pa.table(
            {"user": pa.array([each.bytes for each in UUIDS], pa.uuid()), "item": [1, 1, 1], "time": [0, 1, 2]}
        ),
    ],
)
def test_uuids_stay_uuids(make: Any) -> None:
    log = interactions_from(make())
    assert log.user_ids.tolist() == [UUIDS[0], UUIDS[1]]
    assert log.users.tolist() == [0, 1, 0]


MOMENT = datetime(2019, 1, 5, 12, 33, 44, 250_000)
SECOND = 1_546_691_624


@pytest.mark.parametrize(
    "time",
    [
        SECOND,
        np.int32(SECOND),
        SECOND + 0.25,
        MOMENT,
        MOMENT.replace(tzinfo=UTC),
        (MOMENT + timedelta(hours=2)).replace(tzinfo=timezone(timedelta(hours=2))),
        "2019-01-05T12:33:44Z",
        "2019-01-05 12:33:44.25",
        str(SECOND),
        np.datetime64("2019-01-05T12:33:44"),
    ],
    ids=repr,
)
def test_times(time: Any) -> None:
    assert interactions_from([("a", 1, time)]).times.tolist() == [SECOND]
    assert interactions_from(pd.DataFrame({"user": ["a"], "item": [1], "time": [time]})).times.tolist() == [SECOND]


def test_days_and_pandas_timestamps() -> None:
    assert interactions_from([(1, 1, date(1970, 1, 2))]).times.tolist() == [86_400]
    frame = pd.DataFrame({"user": [1, 2], "item": [1, 1], "time": pd.to_datetime([2, 1], unit="s", utc=True)})
    assert events_of(interactions_from(frame)) == [(2, 1, 1), (1, 1, 2)]


def test_order_within_a_second() -> None:
    log = interactions_from([("late", 1, 5.75), ("early", 1, 5.25), ("early", 2, 5.25)])
    assert events_of(log) == [("early", 1, 5), ("early", 2, 5), ("late", 1, 5)]


@given(st.lists(st.tuples(st.integers(0, 5), st.text(min_size=1, max_size=3), st.integers(0, 4)), min_size=1))
def test_agrees_with_a_slow_twin(events: list[tuple[int, str, int]]) -> None:
    log = interactions_from(events)
    expected = sorted(events, key=lambda event: event[2])
    assert events_of(log) == expected
    assert log.user_ids.tolist() == list(dict.fromkeys(event[0] for event in expected))
    assert log.item_ids.tolist() == list(dict.fromkeys(event[1] for event in expected))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "the data has no interaction"),
        (pl.DataFrame({"user": [], "item": [], "time": []}, schema_overrides={"user": pl.Int64}), "no interaction"),
        ([(1, 2, 3), ("a", 2, 3)], "user 'a' has another type than the others"),
        ([(True, 2, 3)], "user True is a bool; ids are"),
        ([(2**70, 2, 3)], "does not fit 64 bits; give it as a text"),
        ([(1, 2, 3), (1, 2)], "some of the tuples have a time"),
        ([(1, 2, 3, 4)], r"event 0 is \(1, 2, 3, 4\)"),
        (["abc"], "event 0 is 'abc'"),
        ([{"user": 1, "item": 2, "when": 3}], r"no column looks like the time. Columns there: .*'when'.*time=…"),
        ([{"user": 1, "item": 2, "time": 3}, (1, 2, 3)], r"event 1 is \(1, 2, 3\), but the events before it are dicts"),
        ([(1, 2, 1e300)], r"time of event 0 is 1e\+300, which is not a time"),
        ([(1, 2, "03/04/2024")], "day first .* month first .*Give datetimes"),
        (
            pl.DataFrame({"user": [1], "item": [1], "time": [2**63]}, schema_overrides={"time": pl.UInt64}),
            "time of event 0 is 9223372036854775808, which is not a time",
        ),
        ("clicks.csv", "cannot be made from str"),
        ([(1, 2, -3)], r"time of event 0 is negative \(-3\)"),
        ([(1, 2, float("inf"))], "time of event 0 is inf"),
        ([(1, None, 3), (1, 2, float("nan"))], "no complete interaction"),
        ([(1, 2, "soon")], "time of event 0, 'soon', cannot be read"),
        ([(1, 2, 1 + 2j)], "times must be all"),
        (pl.DataFrame({"user": [1.0, 1.5], "item": [1, 1], "time": [1, 2]}), r"event 1 has the user 1\.5, not a whole"),
        (pl.DataFrame({"user": [1], "item": [1], "time": [[1]]}), "cannot be a time"),
        (pl.DataFrame({"user": [2**63], "item": [1], "time": [1]}, schema_overrides={"user": pl.UInt64}), "64 bits"),
    ],
    ids=str,
)
def test_bad_input(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        interactions_from(source)


GAPS: dict[str, list[Any]] = {
    "user": ["a", None, "b", "", "c"],
    "item": [1, 2, None, 4, 5],
    "time": [1, 2, 3, 4, None],
}


@pytest.mark.parametrize(
    "make",
    [
        pl.DataFrame,
        pd.DataFrame,
        pa.table,
        lambda columns: list(zip(*columns.values(), strict=True)),
        lambda columns: [{"user": "a", "item": 1, "time": 1}, {"user": "b", "time": 2}, {"item": 4}, *[{}] * 2],
        lambda _: [("a", 1, 1), ("b", pd.NA, 2), ("c", 1, pd.NaT), (None, 3, 3), ("", 3, float("nan"))],
        lambda columns: pd.DataFrame(columns, dtype=object),
        lambda columns: pl.DataFrame(columns).with_columns(pl.col("user").cast(pl.Categorical)),
    ],
)
def test_incomplete_rows_are_left_out_and_counted(make: Any) -> None:
    with pytest.warns(UserWarning, match=r"4 of 5 interactions left out: .* × missing user"):
        assert events_of(interactions_from(make(GAPS))) == [("a", 1, 1)]


def test_nan_is_missing() -> None:
    frame = {"user": [1.0, float("nan"), 2.0], "item": [1, 1, 1], "time": [1, 2, 3]}
    for make in (pl.DataFrame, pd.DataFrame, pa.table):
        with pytest.warns(UserWarning, match=r"1 × missing user \(first in event 1\)"):
            assert events_of(interactions_from(make(frame))) == [(1, 1, 1), (2, 1, 3)]


WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
import pandas as pd, polars as pl
from melon.data.files import load_stream, write_stream
from melon.data.frames import interactions_from
from melon.data.prepare import prepare
ids = ["b", "a", "b"]
moments = pd.to_datetime([1, 2, 3], unit="s")
for users in (ids, pd.Categorical(ids), pd.Series([2, 1, 2], dtype="Int64"), [2.0, 1.0, 2.0]):
    for times in ([1, 2, 3], moments, moments.tz_localize("UTC"), pd.Series([1, 2, 3], dtype="Int64")):
        log = interactions_from(pd.DataFrame({"user": users, "item": [1, 1, 1], "time": times}))
        assert log.times.tolist() == [1, 2, 3] and log.users.tolist() == [0, 1, 0]
write_stream(__import__("pathlib").Path("s.parquet"), log, {})
assert load_stream("s.parquet").identity == log.identity
class Capsule:
    def __arrow_c_stream__(self, requested_schema=None):
        return pl.DataFrame({"user": ids, "item": [1, 1, 1], "time": [1, 2, 3]}).__arrow_c_stream__(requested_schema)
assert interactions_from(Capsule()).user_ids.tolist() == ["b", "a"]
pl.DataFrame({"user": ids, "item": [1, 1, 1], "time": [1, 2, 3]}).write_csv("s.csv")
assert prepare("s.csv", out="p.parquet", min_interactions=1).interactions == 3
"""


def test_pyarrow_is_not_needed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PYARROW], cwd=tmp_path, check=True)
