"""Worlds with a known answer: `auto` is about as good as the rule that made the world, by lists."""

import numpy as np
import pytest

import melon
from melon.data.interactions import Interactions

EVENTS = 6_000


def habits(rng: np.random.Generator) -> Interactions:
    """Everybody has eight items and takes one of them, again and again."""
    users = rng.integers(60, size=EVENTS)
    favourites = np.stack([rng.permutation(300)[:8] for _ in range(60)])
    return Interactions.from_ids(users, favourites[users, rng.integers(8, size=EVENTS)], np.arange(EVENTS))


def strangers(rng: np.random.Generator) -> Interactions:
    """Every session is a new user's; an item is followed by one of three others."""
    followers = np.stack([rng.permutation(200)[:3] for _ in range(200)])
    items = [int(rng.integers(200))]
    for event in range(1, EVENTS):
        items.append(int(rng.integers(200)) if event % 6 == 0 else int(followers[items[-1], rng.integers(3)]))
    return Interactions.from_ids(np.arange(EVENTS) // 6, np.array(items), np.arange(EVENTS))


def novelty(rng: np.random.Generator) -> Interactions:
    """Nobody takes anything twice; some items are taken more often than others."""
    weights = 1 / np.arange(1, 401) ** 1.2
    had = np.zeros((150, 400), dtype=bool)
    users, items = rng.integers(150, size=EVENTS), np.empty(EVENTS, dtype=np.int64)
    for event, user in enumerate(users.tolist()):
        left = np.where(had[user], 0, weights)
        items[event] = rng.choice(400, p=left / left.sum())
        had[user, items[event]] = True
    return Interactions.from_ids(users, items, np.arange(EVENTS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "rule", "batch"),
    [(habits, "own_history", 64), (strangers, "markov", 1), (novelty, "recent_popularity", 64)],
)
def test_auto_is_about_as_good_as_the_rule_that_made_the_world(world: object, rule: str, batch: int) -> None:
    log = world(np.random.default_rng(1))  # type: ignore[operator]
    result = melon.evaluate(log, split=(0.85, 0.05, 0.1), budget=2, epochs=10, batch_size=batch, progress=False)
    for track in ("all", "first_time"):
        ours, theirs = result.record["lists"][track], result.record["baselines"][rule]["lists"][track]
        if ours and ours["events"] > 100:
            assert ours["HR@10"] >= theirs["HR@10"] - 0.01, (track, ours, theirs)
