"""The figures about a stream, against a stream small enough to count by hand and against the known ones."""

import os
from pathlib import Path

import numpy as np
import pytest

from melon.data.files import load_stream
from melon.data.info import describe
from melon.data.interactions import Interactions
from melon.errors import DataError

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


def test_by_hand() -> None:
    # 40 events, so the tail is the last two: item 3 is first seen there and taken twice, once by the new user 2.
    users = np.array([0, 1] * 19 + [2, 0])
    items = np.array([0, 1] * 18 + [0, 2] + [3, 3])
    info = describe(Interactions.from_ids(users, items, np.arange(40) // 2))
    assert (info.users, info.items, info.interactions, info.tail_interactions) == (3, 4, 40, 2)
    assert (info.first_time, info.last_time, info.span_seconds) == (0, 19, 19)
    assert info.tail_new_items == 1.0
    assert info.tail_cold_users == 0.5
    assert info.tail_cold_interactions == 0.5
    assert info.repeats == pytest.approx((18 + 17) / 40)
    assert info.tail_repeats == 0.0
    assert info.equal_times == pytest.approx(20 / 39)
    assert info.item_life_interactions["50%"] == np.median([36, 34, 0, 1])
    assert info.item_life_seconds["50%"] == np.median([18, 17, 0, 0])
    assert info.events_per_user["50%"] == 19
    assert info.as_dict()["span_seconds"] == 19


def test_one_event_and_none() -> None:
    one = describe(Interactions.from_ids(np.array([4]), np.array([4]), np.array([9])))
    assert (one.interactions, one.tail_interactions, one.tail_cold_users, one.equal_times) == (1, 1, 1.0, 0.0)
    with pytest.raises(DataError, match="no interaction"):
        describe(Interactions.from_ids(np.array([]), np.array([]), np.array([], dtype=np.int64)))


@pytest.mark.parametrize(
    ("name", "new_items"),
    [("news_globo", 0.24), ("amazon_grocery", 0.21), ("amazon_electronics", 0.08), ("yelp", 0.02)],
)
def test_real_streams(name: str, new_items: float) -> None:
    path = DATA / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path} is not here; point MELON_DATA at the folder with the real streams")
    info = describe(load_stream(path))
    assert info.tail_new_items == pytest.approx(new_items, abs=0.006)
    if name == "news_globo":
        assert info.item_life_seconds["50%"] / 86_400 == pytest.approx(2.1, abs=0.05)
