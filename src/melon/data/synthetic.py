"""Streams made by rule, with a known answer: they carry the tests and the demo.

Each world is drawn from a seed, makes its events, and can score any (user, item) at any event by the very rule that the
events were drawn from. That oracle is the known answer: no recommender can do much better, and the same oracle stuck at
an early event shows what standing still costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from melon.data.ids import rows_from_codes
from melon.data.interactions import Interactions
from melon.errors import SettingsError, unknown_name
from melon.types import Floats, Ints

START = 1_600_000_000  # the first second of every made-up stream
PACE = 30.0  # seconds between events, on average


class World(ABC):
    """A rule by which users choose items. Ids are 0 … n-1, so `log.item_ids[row]` is the item's number in its world."""

    def __init__(self, n_users: int, n_items: int, n_events: int, seed: int) -> None:
        for name, value, least in (
            ("n_users", n_users, 2),
            ("n_items", n_items, 4),
            ("n_events", n_events, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise SettingsError(f"{name} must be {least} or more for a synthetic stream, got {value}.")
        self.n_users, self.n_items, self.n_events, self.seed = n_users, n_items, n_events, seed
        # The world and its events have generators of their own: asking the oracle needs no events.
        self.draw(np.random.default_rng([seed, 0]))

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> None:
        """Draw what is fixed: groups, births, angles."""

    @abstractmethod
    def choose(self, users: Ints, rng: np.random.Generator) -> Ints:
        """The item that each user takes, event by event."""

    @abstractmethod
    def score(self, users: Ints, items: Ints, events: Ints) -> Floats:
        """The known answer: higher where the user would rather take the item at that event; shapes broadcast."""

    def interactions(self) -> Interactions:
        """The stream."""
        rng = np.random.default_rng([self.seed, 1])
        users = rng.integers(self.n_users, size=self.n_events)
        items = self.choose(users, rng)
        times = START + np.cumsum(rng.exponential(PACE, self.n_events)).astype(np.int64)
        user_rows, user_firsts = rows_from_codes(users, self.n_users)
        item_rows, item_firsts = rows_from_codes(items, self.n_items)
        return Interactions(user_rows, item_rows, times, users[user_firsts], items[item_firsts])


class Flip(World):
    """Items are in groups; a user likes one of them, and from the flip on the opposite one.

    User u's group is u mod g before the flip and half-way round the g groups after it; item i's is i mod g. One event
    in twenty is a random item. With two groups, users of A turn to B and those of B to A.
    """

    def __init__(
        self,
        n_users: int = 200,
        n_items: int = 200,
        n_events: int = 20_000,
        seed: int = 0,
        *,
        flip_at: int | None = None,
        groups: int = 20,
    ) -> None:
        self.flip_at = n_events // 2 if flip_at is None else flip_at
        self.groups = max(2, min(groups, n_items // 2))
        self.groups -= self.groups % 2
        super().__init__(n_users, n_items, n_events, seed)

    def draw(self, rng: np.random.Generator) -> None:
        """Nothing is left to chance here: groups follow from the ids."""

    def liked(self, users: Ints, events: Ints) -> Ints:
        """The group that each user likes at each event."""
        group: Ints = (users + np.where(events >= self.flip_at, self.groups // 2, 0)) % self.groups
        return group

    def choose(self, users: Ints, rng: np.random.Generator) -> Ints:
        """A random item of the liked group, or now and then any item."""
        group = self.liked(users, np.arange(len(users)))
        size = (self.n_items - group - 1) // self.groups + 1
        item = group + self.groups * (rng.random(len(users)) * size).astype(np.int64)
        anything = rng.random(len(users)) < 0.05
        return np.where(anything, rng.integers(self.n_items, size=len(users)), item)

    def score(self, users: Ints, items: Ints, events: Ints) -> Floats:
        """1 for an item of the liked group."""
        match: Floats = (items % self.groups == self.liked(users, events)).astype(np.float64)
        return match


class News(World):
    """Items are born all along the stream, burst, fade and die; a user prefers the items of one topic.

    An item's pull is its appeal, halved at every half-life since its birth and nothing after eight of them; it is six
    times stronger for users of its topic. Half-lives are about 3 % of the stream.
    """

    topics = 8
    taste = 6.0
    step = 64  # pulls change slowly: they are computed once per this many events

    def __init__(self, n_users: int = 500, n_items: int = 1_000, n_events: int = 20_000, seed: int = 0) -> None:
        super().__init__(n_users, n_items, n_events, seed)

    def draw(self, rng: np.random.Generator) -> None:
        """Births, half-lives, appeal and topics."""
        at_start = max(2, self.n_items // 50)
        later = np.sort(rng.integers(0, self.n_events, self.n_items - at_start))
        # Whole steps, so that an item's birth is the very event from which it can be taken.
        self.birth = np.concatenate([np.zeros(at_start, dtype=np.int64), later // self.step * self.step])
        self.half_life = np.maximum(self.step, self.n_events * rng.lognormal(np.log(0.03), 0.5, self.n_items))
        self.appeal = rng.lognormal(0.0, 1.0, self.n_items)
        self.topic = rng.integers(self.topics, size=self.n_items)
        self.interest = rng.integers(self.topics, size=self.n_users)

    def pull(self, items: Ints, events: Ints) -> Floats:
        """How strongly items attract anybody at these events."""
        age = (events // self.step * self.step - self.birth[items]) / self.half_life[items]
        alive = (age >= 0) & (age < 8)
        pull: Floats = np.where(alive, self.appeal[items] * 2.0 ** -np.where(alive, age, 0.0), 0.0)
        return pull

    def choose(self, users: Ints, rng: np.random.Generator) -> Ints:
        """By pull, times taste; when nothing is alive, any item born so far."""
        chance = rng.random(len(users))
        chosen = np.zeros(len(users), dtype=np.int64)
        everything = np.arange(self.n_items)
        match = np.where(self.topic == np.arange(self.topics)[:, None], self.taste, 1.0)
        for begin in range(0, len(users), self.step):
            now = np.arange(begin, min(begin + self.step, len(users)))
            pull = self.pull(everything, np.array(begin))
            pull = pull if pull.any() else (self.birth <= begin).astype(np.float64)
            edges = np.cumsum(pull * match, axis=1)
            interest = self.interest[users[now]]
            drawn = chance[now] * edges[interest, -1]
            chosen[now] = (edges[interest] <= drawn[:, None]).sum(axis=1)
        return chosen

    def score(self, users: Ints, items: Ints, events: Ints) -> Floats:
        """Pull, times taste."""
        return self.pull(items, events) * np.where(self.topic[items] == self.interest[users], self.taste, 1.0)


class Drift(World):
    """Items lie on a circle, and each user's taste wanders along it, half of them one way and half the other.

    Over the whole stream a taste goes once round; an item's chance falls off with its distance (von Mises, κ = 120).
    """

    sharpness = 120.0
    turns = 1.0

    def __init__(self, n_users: int = 300, n_items: int = 300, n_events: int = 20_000, seed: int = 0) -> None:
        super().__init__(n_users, n_items, n_events, seed)

    def draw(self, rng: np.random.Generator) -> None:
        """Where items lie, and where each user begins."""
        self.place = 2 * np.pi * rng.permutation(self.n_items) / self.n_items
        self.begin = rng.uniform(0, 2 * np.pi, self.n_users)

    def taste(self, users: Ints, events: Ints) -> Floats:
        """The angle of each user's taste at each event."""
        way = np.where(users % 2 == 0, 1.0, -1.0)
        angle: Floats = self.begin[users] + way * 2 * np.pi * self.turns * events / self.n_events
        return angle

    def choose(self, users: Ints, rng: np.random.Generator) -> Ints:
        """The item nearest to an angle drawn around the user's taste."""
        wanted = rng.vonmises(0.0, self.sharpness, len(users)) + self.taste(users, np.arange(len(users)))
        slot = np.round(wanted / (2 * np.pi) * self.n_items).astype(np.int64) % self.n_items
        chosen: Ints = np.argsort(self.place)[slot]
        return chosen

    def score(self, users: Ints, items: Ints, events: Ints) -> Floats:
        """The cosine of the distance."""
        near: Floats = np.cos(self.place[items] - self.taste(users, events))
        return near


@dataclass(frozen=True)
class Synthetic:
    """A registered synthetic stream."""

    name: str
    description: str
    answer: str
    world: Callable[..., World]


SYNTHETIC: dict[str, Synthetic] = {
    kind.name: kind
    for kind in (
        Synthetic(
            "flip",
            "tastes flip to the opposite group of items half-way",
            "user u likes the items i with i = u (mod groups) before the flip, and the opposite group after it",
            Flip,
        ),
        Synthetic(
            "news",
            "items are born, burst and die; users prefer a topic",
            "an item's appeal, halved at every half-life since its birth, six times stronger for its topic's users",
            News,
        ),
        Synthetic(
            "drift",
            "tastes wander slowly round a circle of items",
            "the items nearest to the user's angle, which goes once round over the stream",
            Drift,
        ),
    )
}


def world(name: str, **settings: int | None) -> World:
    """The world of that name, with n_users, n_items, n_events and seed if given; `.score` is its known answer."""
    if name not in SYNTHETIC:
        raise unknown_name("synthetic stream", name, SYNTHETIC)
    given = {key: value for key, value in settings.items() if value is not None}
    try:
        return SYNTHETIC[name].world(**given)
    except TypeError as error:
        raise SettingsError(f"the synthetic stream {name!r} has no such setting: {error}.") from error


def synthetic_stream(name: str, **settings: int | None) -> Interactions:
    """The synthetic stream of that name: the same settings and seed give the same events."""
    return world(name, **settings).interactions()
