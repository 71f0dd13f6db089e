"""Lists under rules: like a slow twin that looks at every item, and the same whoever else asks at the same time."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon.errors import DataError, ServiceError
from melon.estimator import Melon
from melon.learning.model import LiveModel
from melon.service.answers import AnsweredList, ListMaker, Query
from melon.service.coalesce import AT_ONCE, Coalescer
from melon.service.log.base import Position
from melon.service.rules.items import Facts, ItemFacts
from melon.service.rules.request import Rules
from melon.service.served import Served

USERS, ITEMS, NOW = 12, 60, 1_000.0
AT = Position("v", 3, 40, b"")


@pytest.fixture(scope="module")
def model() -> LiveModel:
    draws = np.random.default_rng(5)
    log = [
        (f"u{u}", f"i{i}", n)
        for n, (u, i) in enumerate(zip(draws.integers(0, USERS, 400), draws.integers(0, ITEMS, 400), strict=True))
    ]
    return Melon("bpr", "default", recommender_settings={"dim": 8}, batch_size=16).partial_fit(log).live


@pytest.fixture(scope="module")
def facts() -> ItemFacts:
    facts = ItemFacts()
    facts.put(
        {
            f"i{n}": Facts(
                categories=(("news", "sport", "local")[n % 3],),
                available=n % 11 != 0,
                owner=f"u{n % 5}",
                attributes={"price": n},
            )
            for n in range(0, ITEMS + 10, 2)
        }
    )
    return facts


def maker(facts: ItemFacts, hidden: dict[str, set[str]] | None = None, served: Served | None = None) -> ListMaker:
    return ListMaker(facts, served or Served(10), lambda user: (hidden or {}).get(user, ()))


rules = st.builds(
    Rules,
    filter=st.sampled_from([None, {"category": ["news", "sport"]}, {"not": {"field": "price", "lt": 20}}]),
    exclude_own=st.booleans(),
    boost=st.sampled_from([(), ({"category": "news", "by": 0.3},)]),
)
queries = st.builds(
    Query,
    source=st.sampled_from(["model", "popular", "similar", "history"]),
    user=st.sampled_from([None, "u0", "u3", "u4", "stranger"]),
    k=st.integers(1, 70),
    filter_seen=st.booleans(),
    rules=rules,
    exclude=st.lists(st.sampled_from(["i1", "i2", "i3", "nothing"]), max_size=3).map(tuple),
    candidates=st.one_of(st.none(), st.lists(st.sampled_from([f"i{n}" for n in range(70)]), min_size=1).map(tuple)),
    items=st.just(("i7",)),
)


def slowly(model: LiveModel, facts: ItemFacts, query: Query) -> list[tuple[str, float]]:
    """Score every item that the model knows, drop those that may not be listed, sort."""
    known = query.user is not None and model.users.rows([query.user])[0] >= 0
    items = model.items.ids(np.arange(model.rows_of("item"))).tolist()
    if query.source == "model":
        scores = model.score(["stranger" if query.user is None else query.user], items)
    elif query.source == "popular":
        scores = model.popular.read(np.arange(len(items)))[:, 0]
    else:
        row = model.items.rows(["i7"])
        scores = model.updater.similarities(row, model.last_time)[0]
    listed = []
    for row, (item, score) in enumerate(zip(items, np.asarray(scores, dtype=np.float64).tolist(), strict=True)):
        about = facts.get(item) or Facts()
        met = known and query.filter_seen and has_had(model, query.user, row)
        own = query.rules.exclude_own and query.user is not None and about.owner == query.user
        passed = not query.rules.filter or (
            about.attributes.get("price", 99) >= 20
            if "not" in query.rules.filter
            else bool({"news", "sport"} & set(about.categories))
        )
        left = query.candidates is not None and item not in query.candidates
        if met or own or left or not passed or not about.available or item in query.exclude or item in query.items:
            continue
        boost = 0.3 if query.rules.boost and "news" in about.categories else 0.0
        listed.append((item, score + boost))
    return sorted(listed, key=lambda one: (-one[1], items.index(one[0])))[: query.k]


def has_had(model: LiveModel, user: Any, row: int) -> bool:
    pair = (int(model.users.rows([user])[0]) << 32) + row
    return bool(model.updater.history.seen.contains(np.array([pair]))[0])


@settings(max_examples=40)
@given(st.lists(queries, min_size=1, max_size=4))
def test_lists_are_those_of_a_slow_twin(model: LiveModel, facts: ItemFacts, wanted: list[Query]) -> None:
    made = maker(facts).make(model, AT, wanted, NOW)
    for query, listed in zip(wanted, made, strict=True):
        slow = slowly(model, facts, query)
        assert len(listed.items) == len(slow)
        np.testing.assert_allclose(
            [one.score for one in listed.items], [score for _, score in slow], rtol=2e-5, atol=1e-6
        )
        assert len({one.item for one in listed.items}) == len(slow)
        # An answer does not depend on who else asks.
        assert maker(facts).make(model, AT, [query], NOW) == [listed]


@given(queries)
def test_a_short_list_says_why(model: LiveModel, facts: ItemFacts, query: Query) -> None:
    (listed,) = maker(facts).make(model, AT, [query], NOW)
    if len(listed.items) < query.k:
        competing = len(set(query.candidates)) if query.candidates is not None else model.rows_of("item")
        itself = 1 if query.candidates is None or "i7" in query.candidates else 0
        passed = not query.rules.filter  # the item itself may fall to a rule first
        counted = sum(listed.filtered.values())
        assert competing - counted - len(listed.items) in ((itself,) if passed else (0, itself))


def test_pins_hidden_items_caps_and_sources(model: LiveModel, facts: ItemFacts) -> None:
    query = Query(user="u3", k=5, pins=((1, "i5"), (3, "new"), (2, "i0")), rules=Rules(at_most={"category": 1}))
    (listed,) = maker(facts, {"u3": {"i9"}}).make(model, AT, [query], NOW)
    assert (listed.items[0].item, listed.items[0].why) == ("i5", "pinned")
    assert "new" in [one.item for one in listed.items]
    assert "i0" not in [one.item for one in listed.items]  # not available
    assert len(listed.items) == 5
    categories = [
        one for entry in listed.items if entry.why != "pinned" for one in (facts.get(entry.item) or Facts()).categories
    ]
    assert len(categories) == len(set(categories))
    everything = Query(user="u3", k=100, filter_seen=False)
    (listed,) = maker(facts, {"u3": {"i9"}}).make(model, AT, [everything], NOW)
    assert "i9" not in [one.item for one in listed.items]
    assert listed.filtered["hidden"] == 1
    (stranger,) = maker(facts).make(model, AT, [Query(user="nobody", k=3)], NOW)
    assert stranger.source == "model"
    (visitor,) = maker(facts).make(model, AT, [Query(source="history", items=("i7", "i9"), k=100)], NOW)
    assert visitor.source == "history"
    assert not {"i7", "i9"} & {one.item for one in visitor.items}
    (lost,) = maker(facts).make(model, AT, [Query(source="history", items=("unheard of",), k=3)], NOW)
    assert lost.source == "popular"


def test_what_was_shown_and_not_taken_comes_later(model: LiveModel, facts: ItemFacts) -> None:
    served = Served(10)
    lists = maker(facts, served=served)
    (first,) = lists.make(model, AT, [Query(user="u3", k=5)], NOW)
    names = [one.item for one in first.items]
    name = served.record("u3", names, NOW)
    rotated = Query(user="u3", k=10, rules=Rules(rotate_s=60))
    (second,) = lists.make(model, AT, [rotated], NOW + 1)
    assert not set(names) & {one.item for one in second.items[:5]}
    assert served.take("u3", names[0], f"{name}/1", NOW + 2)
    assert served.taken.total() == 1
    (third,) = lists.make(model, AT, [Query(user="u3", k=60, rules=Rules(rotate_s=60))], NOW + 3)
    assert {one.item for one in third.items if one.why == "shown before"} == set(names[1:])
    (later,) = lists.make(model, AT, [rotated], NOW + 61)
    assert [one.item for one in later.items[:5]] == names


def test_served_lists_are_bounded() -> None:
    served = Served(2)
    names = [served.record(f"u{n}", ["a", "b"], float(n)) for n in range(4)]
    assert served.shown("u0", -1) == set()
    assert served.shown("u3", -1) == {"a", "b"}
    assert not served.take("u0", "a", names[0], 4)
    assert served.take("u3", "a", None, 4)
    assert not served.take("u3", "a", "r-other", 4 + 1801)
    assert served.take("u3", "a", names[3], 4 + 1801)
    served.forget("u3")
    assert served.shown("u3", -1) == set()
    served.record("u9", ["a"], 100_000.0)
    assert served.shown("u2", -1) == set()
    for user in ("long", "longer"):  # of 20 items that two lists of ten have
        served.record(user, [f"i{n}" for n in range(15)], 100_001.0)
    assert (served.shown("long", -1), len(served.shown("longer", -1))) == (set(), 15)


def test_lists_of_one_user_are_few() -> None:
    """Each event of a user is compared with what the user was shown."""
    served = Served(1_000)
    names = [served.record("u", [f"i{n}"], float(n)) for n in range(201)]
    assert served.shown("u", -1) == {f"i{n}" for n in range(1, 201)}
    assert not served.take("u", "i0", names[0], 201.0)
    assert served.take("u", "i1", names[1], 201.0)


def test_the_newest_items_of_a_long_visit_count(model: LiveModel, facts: ItemFacts) -> None:
    """A visit may have thousands of items; their similarities would take gigabytes."""
    assert [len(rows) for rows in compared(model, facts, tuple(f"i{n % 50}" for n in range(500)))] == [25]


def compared(model: LiveModel, facts: ItemFacts, items: tuple[str, ...]) -> list[Any]:
    """The rows whose similarities a visitor's list asks for."""
    asked = list[Any]()
    plain = model.updater.similarities

    def similarities(rows: Any, moment: int) -> Any:
        asked.append(rows)
        return plain(rows, moment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.updater, "similarities", similarities)
        maker(facts).make(model, AT, [Query(source="history", items=items)], NOW)
    return asked


class Fixed:
    """A replica that stands still."""

    def __init__(self, model: LiveModel, pause: float = 0.0) -> None:
        self.model, self.pause, self.turns = model, pause, 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[tuple[LiveModel, Position]]:
        self.turns += 1
        time.sleep(self.pause)
        yield self.model, AT


def coalescing(replica: Fixed, lists: ListMaker, most: int = 1000) -> Coalescer:
    coalescer = Coalescer(replica, lists, most)
    coalescer.start()
    return coalescer


def test_what_waits_together_is_scored_together(model: LiveModel, facts: ItemFacts) -> None:
    replica, lists = Fixed(model, pause=0.02), maker(facts)
    alone = {user: lists.make(model, AT, [Query(user=f"u{user}")], NOW)[0] for user in range(USERS)}

    async def ask() -> list[list[AnsweredList]]:
        coalescer = coalescing(replica, maker(facts))
        requests = [coalescer.lists([Query(user=f"u{n % USERS}")] * (1 + n % 9)) for n in range(40)]
        answers = await asyncio.gather(*requests)
        assert await coalescer.look(lambda found, at: (found is model, at)) == (True, AT)
        assert coalescer.waiting == 0
        await asyncio.to_thread(coalescer.stop)
        return answers

    answers = asyncio.run(ask())
    for n, answer in enumerate(answers):
        assert answer == [alone[n % USERS]] * (1 + n % 9)
    total = sum(map(len, answers))
    assert total / AT_ONCE <= replica.turns <= total / 2


@pytest.mark.parametrize("costly", ["look", "similar", "long"])
def test_usual_lists_pass_by_what_is_costly(model: LiveModel, facts: ItemFacts, costly: str) -> None:
    async def ask() -> list[str]:
        coalescer, done = coalescing(Fixed(model, pause=0.02), maker(facts)), list[str]()

        async def noted(name: str, work: Any) -> None:
            await work
            done.append(name)

        query = Query(source="similar", items=("i7",)) if costly == "similar" else Query(user="u1", k=500)
        many = [
            noted(costly, coalescer.look(lambda found, at: at) if costly == "look" else coalescer.lists([query]))
            for _ in range(20)
        ]
        await asyncio.gather(*many, noted("usual", coalescer.lists([Query(user="u2")])))
        await asyncio.to_thread(coalescer.stop)
        return done

    assert asyncio.run(ask()).index("usual") <= 2


def test_a_long_queue_is_refused_and_one_bad_list_spoils_no_other(model: LiveModel, facts: ItemFacts) -> None:
    async def ask() -> None:
        coalescer = coalescing(Fixed(model, pause=0.05), maker(facts), most=4)
        good = asyncio.create_task(coalescer.lists([Query(user="u1")]))
        bad = asyncio.create_task(coalescer.lists([Query(user=7)]))  # the model's ids are texts
        await asyncio.sleep(0)
        with pytest.raises(ServiceError) as refused:
            await coalescer.lists([Query(user="u1")] * 3)
        assert (refused.value.status, refused.value.retry_after) == (503, 1)
        gone = asyncio.create_task(coalescer.lists([Query(user="u1")]))
        await asyncio.sleep(0)
        gone.cancel()
        assert len(await good) == 1
        with pytest.raises(DataError, match="another type"):
            await bad
        assert len(await coalescer.lists([Query(user="u2")] * 4)) == 4
        assert coalescer.waiting == 0
        await asyncio.to_thread(coalescer.stop)
        with pytest.raises(ServiceError):
            await coalescer.lists([Query(user="u1")])

    asyncio.run(ask())
