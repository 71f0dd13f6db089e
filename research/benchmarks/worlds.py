"""`auto` on made-up streams of many kinds, none of which its design was settled on, beside every simple baseline.

    python research/benchmarks/worlds.py                     # every world, one seed: about a minute each on one core
    python research/benchmarks/worlds.py chain,habits --seeds 3

Everything is chosen on the selection window. For each world: `auto`, the same without its further inputs, the baseline
that did best on the test part (which favours it: it is chosen by what is reported), and the difference; the same for
events that are no repeats.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import polars as pl

from accuracy import show_conclusions
from auto import COMPARED, METRICS
from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.evaluation.cell import Cell
from melon.evaluation.compare import Comparison, compare
from melon.fitting.auto import SETTINGS, settle_auto
from melon.fitting.config import CellConfig
from melon.kernels.threads import use_threads
from melon.types import Ints

EVENTS, SPLIT = 40_000, (0.8, 0.02, 0.18)
WITHOUT, TUNED = "auto without further inputs", "bpr, default + time decay"
#: Recommenders that are evaluated, each under the tuned Default with time decay, and their settings.
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("blend", SETTINGS),
    WITHOUT: ("blend", {}),
    TUNED: ("bpr", {}),
}


def popular(n_items: int) -> Callable[[np.random.Generator], int]:
    """A way to draw an item by popularity, which has a heavy tail."""
    weights = np.random.default_rng([0, 0]).pareto(1.0, n_items) + 0.05
    edges = np.cumsum(weights / weights.sum())
    return lambda rng: min(int(np.searchsorted(edges, rng.random())), n_items - 1)


def chain(users: Ints, n_users: int, n_items: int, rng: np.random.Generator) -> Iterator[int]:
    """Half of the events follow from the user's last one: each item has one successor."""
    anything, successor = popular(n_items), rng.permutation(n_items)
    last = rng.integers(0, n_items, n_users)
    for user in users:
        last[user] = successor[last[user]] if rng.random() < 0.5 else anything(rng)
        yield int(last[user])


def habits(users: Ints, n_users: int, n_items: int, rng: np.random.Generator) -> Iterator[int]:
    """Users mostly take again what they have taken; the rest is by popularity."""
    anything = popular(n_items)
    own = [[anything(rng)] for _ in range(n_users)]
    for user in users:
        if rng.random() < 0.3:
            own[user].append(anything(rng))
            yield own[user][-1]
        else:
            yield own[user][int(rng.integers(len(own[user])))]


def groups(users: Ints, n_users: int, n_items: int, rng: np.random.Generator) -> Iterator[int]:
    """Six groups of users with tastes of their own, which move ten times in the course of the stream."""
    group = rng.integers(0, 6, n_users)
    taste = rng.gamma(0.3, 1.0, (6, n_items)) * (rng.pareto(1.2, n_items) + 0.1)
    for event, user in enumerate(users):
        if event % (len(users) // 10) == 0:
            taste = taste * rng.lognormal(0.0, 0.7, taste.shape)
            edges = np.cumsum(taste, axis=1)
        own = edges[group[user]]
        yield min(int(np.searchsorted(own, rng.random() * own[-1])), n_items - 1)


def noise(users: Ints, _: int, n_items: int, rng: np.random.Generator) -> Iterator[int]:
    """There is nothing to learn: any item for anybody."""
    yield from rng.integers(0, n_items, len(users)).tolist()


def told(rule: Callable[..., Iterator[int]], n_users: int, n_items: int) -> Interactions:
    """A stream by a rule that says which item each user takes, one event after the other."""
    rng = np.random.default_rng([0, 1])
    users = rng.integers(n_users, size=EVENTS)
    items = np.fromiter(rule(users, n_users, n_items, rng), dtype=np.int64, count=EVENTS)
    return Interactions.from_ids(users, items, np.arange(EVENTS))


WORLDS: dict[str, Callable[[], Interactions]] = {
    "chain": lambda: told(chain, 800, 1_000),
    "habits": lambda: told(habits, 800, 1_000),
    "groups of 12 items": lambda: told(groups, 1_000, 12),
    "groups of 100 items": lambda: told(groups, 1_000, 100),
    "groups of 3000 items": lambda: told(groups, 1_000, 3_000),
    "flip": lambda: synthetic_stream("flip", n_events=EVENTS),
    "news": lambda: synthetic_stream("news", n_users=2_000, n_items=2_000, n_events=EVENTS),
    "drift": lambda: synthetic_stream("drift", n_events=EVENTS),
    "noise": lambda: told(noise, 800, 1_000),
}


def main() -> None:
    """Evaluate, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="?", default=",".join(WORLDS))
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    use_threads(1)
    names = asked.worlds.split(",")
    unknown = [name for name in names if name not in WORLDS]
    if unknown:
        sys.exit(f"there is no world {', '.join(unknown)}; there are: {', '.join(WORLDS)}.")
    print("| world | auto: HR@5 / NDCG@10 | auto without further inputs | best baseline |\n|---|---|---|---|")
    families: dict[str, dict[str, Comparison]] = {}
    for name in names:
        events = ranked(WORLDS[name](), asked.seeds)
        families[name] = against_the_best(name, events)
        discoveries = [each.filter(~pl.col("repeat")) for each in events]
        if 0 < len(discoveries[0]) < len(events[0]):
            families[name] |= against_the_best(f"{name}, no repeats", discoveries)
    show_conclusions("world | auto against its best baseline | metric", families)


def ranked(log: Interactions, seeds: int) -> list[pl.DataFrame]:
    """The rank of every event under `auto` and its baselines, a table for each seed."""
    tables = []
    for seed in range(seeds):
        found = {}
        for label, (recommender, settings) in MADE.items():
            asked = settle_auto({"recommender": recommender, "recommender_settings": settings, "seed": seed})
            cell = Cell(log, CellConfig(**asked, split=SPLIT, negatives=min(99, log.n_items // 2)))
            found[label] = pl.DataFrame(cell.run("").ranks)
        baselines = (pl.col(f"rank_{each}").alias(each) for each in COMPARED)
        about = found[TUNED].select("user", "item", "repeat", *baselines)
        tables.append(about.with_columns(**{label: each["rank"] for label, each in found.items()}))
    return tables


def against_the_best(name: str, events: list[pl.DataFrame]) -> dict[str, Comparison]:
    """A line of the table, and what may be said."""
    levels = {
        label: [np.mean([metric(each[label].to_numpy()).mean() for each in events]) for metric in METRICS.values()]
        for label in (*MADE, *COMPARED)
    }
    best = max((TUNED, *COMPARED), key=lambda label: sum(levels[label]))
    shown = {label: " / ".join(f"{value:.3f}" for value in levels[label]) for label in (*MADE, best)}
    print(f"| {name} | {shown['auto']} | {shown[WITHOUT]} | {best}: {shown[best]} |", flush=True)
    users, items = (events[0][side].to_numpy() for side in ("user", "item"))
    return {
        f"{name} | {best} | {metric}": compare(
            *([of(each[label].to_numpy()) for each in events] for label in ("auto", best)), users, items
        )
        for metric, of in METRICS.items()
    }


if __name__ == "__main__":
    main()
