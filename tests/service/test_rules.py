"""Rules of lists against slow twins: filters, masks over rows, caps, diversity, rotation, pins."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.data.ids import IdBook
from melon.errors import SettingsError
from melon.service.rules.arrange import Pool, arrange, with_pins
from melon.service.rules.filters import MOST_FILTER_DEPTH, check_filter, compile_filter
from melon.service.rules.items import NOTHING, Facts, ItemFacts, RowFacts
from melon.service.rules.request import Boost, Masks

NOW = 1_000_000.0
CATEGORIES = ["news", "sport", "local"]
FIELDS = ["price", "lang", "tags", "new", "published"]
EQUAL = ["eq", "ne", "contains"]
SCALARS = st.one_of(st.integers(0, 3), st.sampled_from(["de", "en", "1"]), st.booleans(), st.floats(0, 3))

facts_of_an_item = st.builds(
    Facts,
    categories=st.lists(st.sampled_from(CATEGORIES), max_size=2, unique=True).map(tuple),
    available=st.booleans(),
    owner=st.sampled_from([None, "ann", "bob"]),
    published=st.one_of(st.none(), st.floats(NOW - 300_000, NOW + 10)),
    expires=st.sampled_from([None, NOW - 5, NOW, NOW + 5]),
    attributes=st.dictionaries(
        st.sampled_from(FIELDS[:4]), st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), max_size=3
    ),
)
comparisons = st.one_of(
    st.builds(
        lambda f, o, v: {"field": f, o: v}, st.sampled_from(FIELDS), st.sampled_from(["eq", "ne", "contains"]), SCALARS
    ),
    st.builds(
        lambda f, o, v: {"field": f, o: v},
        st.sampled_from(FIELDS),
        st.sampled_from(["lt", "le", "gt", "ge", "within_days"]),
        st.one_of(st.integers(0, 3), st.floats(0, 4)),
    ),
    st.builds(lambda f, v: {"field": f, "in": v}, st.sampled_from(FIELDS), st.lists(SCALARS, min_size=1, max_size=3)),
    st.builds(lambda c: {"category": c}, st.lists(st.sampled_from([*CATEGORIES, "none"]), min_size=1, max_size=2)),
    st.builds(lambda flag: {"available": flag}, st.booleans()),
)
filters = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"all": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda parts: {"any": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=4,
)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def passes(content: dict[str, Any], facts: Facts) -> bool:
    """A filter, item by item and read literally."""
    if "all" in content:
        return all(passes(part, facts) for part in content["all"])
    if "any" in content:
        return any(passes(part, facts) for part in content["any"])
    if "not" in content:
        return not passes(content["not"], facts)
    if "category" in content:
        return any(one in facts.categories for one in content["category"])
    if "available" in content:
        return facts.available == content["available"]
    operator = next(name for name in content if name != "field")
    wanted, field = content[operator], content["field"]
    value = facts.published if field == "published" else facts.attributes.get(field)
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if operator == "contains":
        return isinstance(value, list) and any(same(one, wanted) for one in value)
    if operator == "within_days":
        return number <= NOW and number >= NOW - wanted * 86_400
    if operator in ("lt", "le", "gt", "ge"):
        return {"lt": number < wanted, "le": number <= wanted, "gt": number > wanted, "ge": number >= wanted}[operator]
    if value is None or isinstance(value, list):
        return False
    equal = any(same(value, one) for one in (wanted if operator == "in" else [wanted]))
    return equal != (operator == "ne")


@given(st.lists(facts_of_an_item, max_size=8), filters)
def test_a_filter_is_what_it_says_of_each_item(items: list[Facts], content: dict[str, Any]) -> None:
    facts = ItemFacts()
    facts.put({f"i{n}": Facts(categories=("other",)) for n in range(len(items))})
    facts.put({f"i{n}": one for n, one in enumerate(items)})
    flags = compile_filter(check_filter(content), facts, NOW)
    assert flags.tolist() == [passes(content, one) for one in [*items, NOTHING]]


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), facts_of_an_item)), max_size=12), filters)
def test_masks_follow_changes_of_facts_and_of_the_catalogue(
    changes: list[tuple[int, Facts | None]], content: dict[str, Any]
) -> None:
    facts, book, known = ItemFacts(), IdBook("item"), dict[str, Facts]()
    masks, rows = Masks(facts), RowFacts(facts, book)
    for number, (item, new) in enumerate(changes):
        facts.put({f"i{item}": new})
        known[f"i{item}"] = new or NOTHING
        if number % 2:
            book.rows([f"i{number}"], add=True)
        mask = masks.mask(content, rows, len(book), NOW)
        wanted, reasons = [], {"unavailable": 0, "expired": 0, "rules": 0}
        for one in book.ids(np.arange(len(book))):
            about = known.get(one, NOTHING)
            expired = about.expires is not None and about.expires <= NOW
            why = "unavailable" if not about.available else "expired" if expired else "rules"
            if why == "rules" and passes(content, about):
                wanted.append(True)
            else:
                wanted.append(False)
                reasons[why] += 1
        assert (mask.allowed.tolist() if mask.allowed is not None else [True] * len(book)) == wanted
        assert dict(mask.filtered) == {why: count for why, count in reasons.items() if count}
        boosts = (Boost(filter=content, by=0.5), Boost(category="news", by=-1))
        added = masks.boost(boosts, rows, len(book), NOW)
        assert added is not None
        about = [known.get(one, NOTHING) for one in book.ids(np.arange(len(book)))]
        assert added.tolist() == [0.5 * passes(content, one) - ("news" in one.categories) for one in about]


def test_a_mask_holds_until_the_next_item_expires() -> None:
    facts, book = ItemFacts(), IdBook("item")
    book.rows(["a", "b"], add=True)
    facts.put({"a": Facts(expires=NOW + 10)})
    masks, rows = Masks(facts), RowFacts(facts, book)
    first = masks.mask(None, rows, 2, NOW)
    assert first.allowed is None
    assert masks.mask(None, rows, 2, NOW + 9.9) is first
    later = masks.mask(None, rows, 2, NOW + 10)
    assert later.allowed is not None
    assert later.allowed.tolist() == [False, True]


def deep(depth: int) -> dict[str, Any]:
    return {"available": True} if depth == 1 else {"not": deep(depth - 1)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "a filter is an object"),
        ([], "a filter is an object"),
        ({"price": 3}, "has the parts price"),
        ({"field": "price", "near": 3}, "not a comparison"),
        ({"field": "price", "lt": "3"}, "must be a number"),
        ({"field": "price", "lt": math.inf}, "must be a number"),
        ({"field": "price", "lt": True}, "must be a number"),
        ({"field": "price", "within_days": -1}, "must be a number"),
        ({"field": "", "eq": 1}, "name of a fact"),
        ({"field": "price", "in": []}, "a list of texts"),
        ({"field": "price", "eq": None}, "a text, a number"),
        ({"category": 3}, "a text or a list"),
        ({"available": 1}, "true or false"),
        ({"all": {"available": True}}, "a list of filters"),
        ({"any": [{"available": True}, 3]}, r"any\[1\]"),
        (deep(MOST_FILTER_DEPTH + 1), "nested more than 8"),
        ({"all": [{"available": True}] * 1000}, "more than 100 "),
        ({"field": "price", "lt": 3, "gt": 1}, "has the parts"),
    ],
)
def test_a_filter_that_cannot_be_is_refused(content: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_filter(content)
    check_filter(deep(MOST_FILTER_DEPTH))


pools = st.integers(0, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(-3, 3), min_size=n, max_size=n),
        st.lists(facts_of_an_item, min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
        st.integers(0, 1_000),
    )
)


class SlowTwin:
    """Choose one after another, computing everything anew each time."""

    def __init__(
        self, scores: list[float], facts: list[Facts], units: Any, caps: dict[str, int], weight: float
    ) -> None:
        self.scores, self.facts, self.units, self.caps, self.weight = scores, facts, units, caps, weight

    def fits(self, place: int, chosen: list[int]) -> bool:
        for one in self.facts[place].categories if "category" in self.caps else ():
            if sum(one in self.facts[other].categories for other in chosen) >= self.caps["category"]:
                return False
        owner = self.facts[place].owner
        owned = sum(self.facts[other].owner == owner for other in chosen)
        return "owner" not in self.caps or owner is None or owned < self.caps["owner"]

    def value(self, place: int, chosen: list[int]) -> float:
        spread = max(self.scores) - min(self.scores)
        relevance = (self.scores[place] - min(self.scores)) / spread if spread else 1.0
        near = max((float(self.units[place] @ self.units[other]) for other in chosen), default=0.0)
        return (1 - self.weight) * relevance - self.weight * near

    def check(self, places: list[int], shown: list[bool], k: int) -> None:
        """Each item is the best of those that fit; rounding may choose another of equal ones."""
        chosen: list[int] = []
        for tier in (False, True):
            left = [place for place in range(len(self.scores)) if shown[place] == tier]
            while len(chosen) < k and (open_ones := [place for place in left if self.fits(place, chosen)]):
                best = max(self.value(place, chosen) for place in open_ones) if self.weight else 0.0
                taken = places[len(chosen)]
                assert taken in open_ones
                if self.weight:
                    assert self.value(taken, chosen) >= best - 1e-9
                else:
                    assert taken == open_ones[0]
                chosen.append(taken)
                left.remove(taken)
        assert chosen == places


@given(
    pools, st.integers(1, 6), st.dictionaries(st.sampled_from(["category", "owner"]), st.integers(1, 2)),
    st.sampled_from([0.0, 0.25, 1.0]),
)  # fmt: skip
def test_lists_are_arranged_like_a_slow_twin(pool: Any, k: int, caps: dict[str, int], weight: float) -> None:
    raw, facts, shown, seed = pool
    scores = np.sort(np.array(raw, dtype=np.float64))[::-1]
    vectors = np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], (len(raw), 2))
    vectors[:, 0] = 1.0
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    places = arrange(
        Pool(np.arange(len(raw)), scores, facts, vectors, np.array(shown, dtype=np.bool_)),
        k,
        at_most=caps,
        diversity=weight,
    )
    SlowTwin(scores.tolist(), facts, units, caps, weight).check(places, shown, k)


def test_diversity_prefers_what_is_not_alike() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0]])
    pool = Pool(np.arange(3), np.array([1.0, 0.9, 0.5]), [NOTHING] * 3, vectors)
    assert arrange(pool, 3, at_most={}, diversity=0.0) == [0, 1, 2]
    assert arrange(pool, 3, at_most={}, diversity=0.5) == [0, 2, 1]


@given(
    st.lists(st.integers(0, 9), max_size=6, unique=True),
    st.lists(st.tuples(st.integers(1, 9), st.integers(20, 29)), max_size=3, unique_by=lambda pin: pin[0]),
    st.integers(1, 8),
)
def test_pins_stand_where_they_are_wanted(listed: list[int], pins: list[tuple[int, int]], k: int) -> None:
    result = with_pins(listed, pins, k)
    assert len(result) == min(len(listed) + len(pins), k)
    assert [one for one in result if one < 20] == listed[: sum(one < 20 for one in result)]
    for at, item in pins:
        if at <= len(result) and len(listed) + len(pins) >= at:
            assert result[at - 1] == item or len(listed) < at
