"""Profiles and preferences against slow twins that keep the whole past, and what they must not tell."""

import math
from functools import partial

import numpy as np
import pytest

from melon.errors import CheckpointError
from melon.models.blend.recommender import Blend
from melon.models.streaming.counts import ItemCounts
from melon.models.streaming.profiles import OF_ITEMS, Preferences, Profiles
from melon.stream.history import RING, History
from melon.testing import check_recommender
from melon.types import Ints

USERS, ITEMS = 7, 25
NEAR = 2e-5


def log_of(events: int = 600) -> tuple[Ints, Ints]:
    random = np.random.default_rng(1)
    return random.integers(0, USERS, events), (ITEMS * random.random(events) ** 2).astype(np.int64)


def matched(model: Profiles, users: Ints, items: Ints, history: History) -> np.ndarray:
    out = np.empty((*items.shape, 3), dtype=model.rows.items.rows.dtype)
    model.match(users, items, history, out)
    return out


def unit(row: np.ndarray) -> np.ndarray:
    return row / math.sqrt(float(row @ row) + 1e-9)


class Past:
    """Every event, with the taker's row as it was."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int, np.ndarray]] = []

    def add(self, users: Ints, items: Ints, model: Profiles) -> None:
        rows = model.rows.users.read(users).astype(float)
        self.events += [(int(u), int(i), unit(row)) for u, i, row in zip(users, items, rows, strict=True)]

    def match(self, user: int, item: int, model: Profiles) -> list[float]:
        now, own_row = len(self.events), unit(model.rows.users.read(np.array([user]))[0].astype(float))
        takes = [(0.5 ** ((now - t) / 20_000), u, row) for t, (u, i, row) in enumerate(self.events) if i == item]
        weight = sum(share for share, _, _ in takes)
        takers = sum((share * row for share, _, row in takes), np.zeros(32))
        own = sum(u == user for _, u, _ in takes[-RING:])
        part = weight * own / len(takes) if takes else 0.0
        others = np.zeros(32) if own == len(takes) else takers - part * own_row
        lasts = [i for u, i, _ in self.events if u == user][::-1][:RING]
        row_of = {i: unit(model.rows.items.read(np.array([i]))[0].astype(float)) for i in {*lasts, item}}
        profile = sum((0.9**k * row_of[i] for k, i in enumerate(lasts) if i != item), np.zeros(32))
        return [
            float(own_row @ others) / (weight - part + 1),
            float(unit(profile) @ row_of[item]),
            float(unit(profile) @ unit(others)),
        ]


def test_matches_are_those_of_the_slow_twin() -> None:
    users, items = log_of()
    model, history, past = Profiles(seed=2), History(), Past()
    model.fit(users[:300], items[:300])
    for start in range(0, len(users), 50):
        batch = users[start : start + 50], items[start : start + 50]
        past.add(*batch, model)
        model.observe(*batch, history)
        history.append(*batch)
    who = np.arange(USERS + 1)  # the last one is nobody
    offered = np.tile(np.arange(ITEMS + 2), (len(who), 1))
    given = matched(model, who, offered, history)
    assert not given[:, ITEMS:].any()
    assert not given[USERS, :, 0].any()
    wanted = [[past.match(user, item, model) for item in range(ITEMS)] for user in range(USERS)]
    assert given[:USERS, :ITEMS] == pytest.approx(np.array(wanted), abs=NEAR)


def test_what_a_user_took_alone_says_nothing_of_its_takers() -> None:
    users, items = log_of()
    model, history = Profiles(), History()
    batch = np.append(users, 3), np.append(items, ITEMS + 1)  # taken once, by user 3
    model.observe(*batch, history)
    history.append(*batch)
    takers, _, profile_takers = matched(model, np.array([3]), np.array([[ITEMS + 1]]), history)[0, 0]
    assert (takers, profile_takers) == (0, 0)


class EveryPreference:
    """Means of log(1 + looks) by the definition, one event at a time, with counts added up from the start."""

    def __init__(self) -> None:
        self.items: list[int] = []
        self.means: dict[int, list[float]] = {}
        self.taken: dict[int, int] = {}
        self.overall = [0.0] * 4

    def looks(self, item: int) -> list[float]:
        now, when = len(self.items), [t for t, i in enumerate(self.items) if i == item]
        counts = [sum(0.5 ** ((now - t) / half_life) for t in when) for half_life in (300, 5_000)]
        first, last = (when[0], when[-1]) if when else (0, 0)
        return [math.log1p(each) for each in (*counts, now - last, now - first)]

    def observe(self, user: int, item: int) -> None:
        taken, means, looks = self.taken.get(user, 0), self.means.setdefault(user, [0.0] * 4), self.looks(item)
        own, every = max(0.1, 1 / (taken + 1)), max(0.0005, 1 / (len(self.items) + 1))
        for f in range(4):
            means[f] += own * (looks[f] - means[f])
            self.overall[f] += every * (looks[f] - self.overall[f])
        self.taken[user] = taken + 1
        self.items.append(item)


@pytest.mark.parametrize("cut", [1, 64])
def test_preferences_are_those_of_the_slow_twin(cut: int) -> None:
    users, items = log_of(200)
    preferences, counts, twin = Preferences(), ItemCounts([300.0, 5_000.0]), EveryPreference()
    for start in range(0, len(users), cut):
        batch = slice(start, start + cut)
        preferences.observe(users[batch], items[batch], counts)
        counts.observe(items[batch])
    for user, item in zip(users.tolist(), items.tolist(), strict=True):
        twin.observe(user, item)
    assert preferences.storage.overall[:4] == pytest.approx(twin.overall, abs=NEAR)
    given = preferences.read(np.arange(USERS + 1))
    for user in range(USERS):
        taken = twin.taken[user]
        preferred = [taken / (taken + 3) * (twin.means[user][f] - twin.overall[f]) for f in range(len(OF_ITEMS))]
        assert given[user] == pytest.approx(preferred, abs=10 * NEAR)
    assert not given[USERS].any()


def test_a_blend_with_every_input_conforms() -> None:
    small = {"dim": 6, "head_units": 4, "head_negatives": 3, "head_rest": 20, "slots": 16, "transitions": True}
    report = check_recommender(partial(Blend, {**small, "inputs": ("profiles", "preferences")}))
    assert not report.not_applicable


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("profiles.takers", np.zeros((3, 32), np.float32)),
        ("profiles.weight", np.full(ITEMS, -1.0)),
        ("profiles.last", np.full(ITEMS, 10**6)),
        ("profiles.rows.items", np.zeros((3, 32), np.float32)),
        ("preferences.means", np.full((USERS, 4), np.inf, np.float32)),
        ("preferences.taken", np.full(USERS, -1)),
        ("preferences.overall", None),
    ],
)
def test_a_broken_state_is_refused(name: str, broken: np.ndarray | None) -> None:
    users, items = log_of()
    blend, times = Blend({"dim": 4, "inputs": ("profiles", "preferences")}), np.arange(len(users))
    for column in (users, items, times):
        column.setflags(write=False)  # as those of a recorded log may be
    blend.observe(users, items, times, History())
    state = blend.streaming_state()
    assert name in state
    blend.restore_streaming_state(state)
    bad = {key: array for key, array in state.items() if key != name} | ({} if broken is None else {name: broken})
    with pytest.raises(CheckpointError):
        blend.restore_streaming_state(bad)
