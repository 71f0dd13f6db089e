"""Streams made by rule, for the demo, for tests and to try things on: same settings, same seed, same events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from melon.data.ids import rows_from_codes
from melon.data.interactions import Interactions
from melon.errors import SettingsError, unknown_name
from melon.types import Ints

START = 1_600_000_000  # the first second of every made-up stream
PACE = 30.0  # seconds between events, on average


@dataclass(frozen=True)
class Synthetic:
    """A synthetic stream: what it shows, by which rule users choose, and its usual size.

    `choose` gives the item of each event from its user, the number of users and of items, and two generators: one for
    what is fixed in its world, one for its events.
    """

    description: str
    answer: str
    n_users: int
    n_items: int
    choose: Callable[[Ints, int, int, np.random.Generator, np.random.Generator], Ints]


def synthetic_stream(
    name: str,
    *,
    n_users: int | None = None,
    n_items: int | None = None,
    n_events: int | None = None,
    seed: int = 0,
) -> Interactions:
    """The synthetic stream of that name. Ids are 0 … n-1, so `log.item_ids[row]` is the item's number in its world."""
    if name not in SYNTHETIC:
        raise unknown_name("synthetic stream", name, SYNTHETIC)
    kind = SYNTHETIC[name]
    users_in_all = kind.n_users if n_users is None else n_users
    items_in_all = kind.n_items if n_items is None else n_items
    events = 20_000 if n_events is None else n_events
    asked = (("n_users", users_in_all, 2), ("n_items", items_in_all, 4), ("n_events", events, 1), ("seed", seed, 0))
    for setting, value, least in asked:
        if value < least:
            raise SettingsError(f"{setting} must be {least} or more for a synthetic stream, got {value}.")
    world, rng = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    users = rng.integers(users_in_all, size=events)
    items = kind.choose(users, users_in_all, items_in_all, world, rng)
    times = START + np.cumsum(rng.exponential(PACE, events)).astype(np.int64)
    user_rows, user_firsts = rows_from_codes(users, users_in_all)
    item_rows, item_firsts = rows_from_codes(items, items_in_all)
    return Interactions(user_rows, item_rows, times, users[user_firsts], items[item_firsts])


def flip_groups(n_items: int) -> int:
    """How many groups of items `flip` has."""
    groups = max(2, min(20, n_items // 2))
    return groups - groups % 2


def _flip(users: Ints, n_users: int, n_items: int, world: np.random.Generator, rng: np.random.Generator) -> Ints:  # noqa: ARG001
    """A random item of the group that the user likes, half-way round the groups after the flip; 1 in 20 is any item."""
    groups, n_events = flip_groups(n_items), len(users)
    group = (users + np.where(np.arange(n_events) >= n_events // 2, groups // 2, 0)) % groups
    size = (n_items - group - 1) // groups + 1
    item = group + groups * (rng.random(n_events) * size).astype(np.int64)
    anything = rng.random(n_events) < 0.05
    return np.where(anything, rng.integers(n_items, size=n_events), item)


def _news(users: Ints, n_users: int, n_items: int, world: np.random.Generator, rng: np.random.Generator) -> Ints:
    """By pull: an item's appeal, halved at every half-life since its birth and nothing after eight of them.

    It is six times stronger for users of the item's topic. Half-lives are about 3 % of the stream. Where nothing is
    alive, any item known so far is taken. Pulls change slowly: they are computed once per 64 events.
    """
    n_events, step, topics = len(users), 64, np.arange(8)
    at_start = max(2, n_items // 50)
    later = np.sort(world.integers(0, n_events, n_items - at_start))
    # Whole steps, so that an item's birth is the very event from which it can be taken.
    birth = np.concatenate([np.zeros(at_start, dtype=np.int64), later // step * step])
    half_life = np.maximum(step, n_events * world.lognormal(np.log(0.03), 0.5, n_items))
    appeal = world.lognormal(0.0, 1.0, n_items)
    match = np.where(world.integers(len(topics), size=n_items) == topics[:, None], 6.0, 1.0)
    interest = world.integers(len(topics), size=n_users)[users]
    chance, chosen = rng.random(n_events), np.zeros(n_events, dtype=np.int64)
    for begin in range(0, n_events, step):
        now = slice(begin, begin + step)
        age = (begin - birth) / half_life
        alive = (age >= 0) & (age < 8)
        pull = np.where(alive, appeal * 2.0 ** -np.where(alive, age, 0.0), 0.0)
        pull = pull if pull.any() else (birth <= begin).astype(np.float64)
        edges = np.cumsum(pull * match, axis=1)[interest[now]]
        chosen[now] = (edges <= (chance[now] * edges[:, -1])[:, None]).sum(axis=1)
    return chosen


def _drift(users: Ints, n_users: int, n_items: int, world: np.random.Generator, rng: np.random.Generator) -> Ints:
    """The item nearest to an angle drawn around the user's taste (von Mises, κ = 120).

    Items lie on a circle, and each taste goes once round it over the stream, half of them one way and half the other.
    """
    place = world.permutation(n_items)
    begin = world.uniform(0, 2 * np.pi, n_users)
    way = np.where(users % 2 == 0, 1.0, -1.0)
    taste = begin[users] + way * 2 * np.pi * np.arange(len(users)) / len(users)
    wanted = rng.vonmises(0.0, 120.0, len(users)) + taste
    slot = np.round(wanted / (2 * np.pi) * n_items).astype(np.int64) % n_items
    chosen: Ints = np.argsort(place)[slot]
    return chosen


SYNTHETIC = {
    "flip": Synthetic(
        "tastes flip to the opposite group of items half-way",
        "user u likes the items i with i = u (mod groups) before the flip, and the opposite group after it",
        200,
        200,
        _flip,
    ),
    "news": Synthetic(
        "articles appear, burst and are forgotten; users prefer a topic",
        "an item's appeal, halved at every half-life since its birth, six times stronger for its topic's users",
        500,
        1_000,
        _news,
    ),
    "drift": Synthetic(
        "tastes wander slowly round a circle of items",
        "the items nearest to the user's angle, which goes once round over the stream",
        300,
        300,
        _drift,
    ),
}
