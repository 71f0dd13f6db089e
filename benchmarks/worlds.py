"""`auto` on made-up streams of many kinds, none of which its design was settled on, beside every simple rival.

    python benchmarks/worlds.py                     # every world, one seed: about a minute each on one core
    python benchmarks/worlds.py chain,habits --seeds 3

Everything is chosen on the selection window. For each world: `auto`, the same with the blend's inputs of transitions,
the rival that did best on the test part (which favours it: it is chosen by what is reported), and the difference; the
same for events that are no repeats.
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
import numpy.typing as npt
import polars as pl
import torch

from melon.data.interactions import Interactions, Ints
from melon.data.synthetic import World, world
from melon.evaluate.auto import settle_auto
from melon.evaluate.compare import Comparison, compare, gains, hits
from melon.evaluate.rivals import RIVALS
from melon.experiments.cell import Cell
from melon.experiments.config import CellConfig
from verdicts import show_verdicts

SPLIT = (0.8, 0.02, 0.18)
METRICS = {"HR@5": hits, "NDCG@10": gains}
COMPARED = ("recent_popularity", *RIVALS)
FOLLOWS, TUNED = "auto with transitions", "bpr, default + fading"
#: Recommenders that are evaluated, each under the tuned Default with fading, and their settings.
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "auto": ("blend", {}),
    FOLLOWS: ("blend", {"transitions": True}),
    TUNED: ("bpr", {}),
}
Floats = npt.NDArray[np.float64]


class Told(World):
    """A world whose users choose one event after the other; nobody asks it for the answer."""

    def score(self, users: Ints, items: Ints, events: Ints) -> Floats:
        raise NotImplementedError

    def draw(self, rng: np.random.Generator) -> None:
        """How popular items are, with a heavy tail."""
        popular = rng.pareto(1.0, self.n_items) + 0.05
        self.edges = np.cumsum(popular / popular.sum())

    def anything(self, rng: np.random.Generator) -> int:
        """An item by popularity."""
        return min(int(np.searchsorted(self.edges, rng.random())), self.n_items - 1)

    def choose(self, users: Ints, rng: np.random.Generator) -> Ints:
        return np.fromiter(self.taken(users, rng), dtype=np.int64, count=len(users))

    def taken(self, users: Ints, rng: np.random.Generator) -> Iterator[int]:
        """The item of each event in turn."""
        raise NotImplementedError


class Chain(Told):
    """Half of the events follow from the user's last one: each item has one successor."""

    def taken(self, users: Ints, rng: np.random.Generator) -> Iterator[int]:
        successor, last = rng.permutation(self.n_items), rng.integers(0, self.n_items, self.n_users)
        for user in users:
            last[user] = successor[last[user]] if rng.random() < 0.5 else self.anything(rng)
            yield int(last[user])


class Habits(Told):
    """Users mostly take again what they have taken; the rest is by popularity."""

    def taken(self, users: Ints, rng: np.random.Generator) -> Iterator[int]:
        own = [[self.anything(rng)] for _ in range(self.n_users)]
        for user in users:
            if rng.random() < 0.3:
                own[user].append(self.anything(rng))
                yield own[user][-1]
            else:
                yield own[user][int(rng.integers(len(own[user])))]


class Groups(Told):
    """Six groups of users with tastes of their own, which move ten times in the course of the stream."""

    groups, moves = 6, 10

    def taken(self, users: Ints, rng: np.random.Generator) -> Iterator[int]:
        group = rng.integers(0, self.groups, self.n_users)
        taste = rng.gamma(0.3, 1.0, (self.groups, self.n_items)) * (rng.pareto(1.2, self.n_items) + 0.1)
        for event, user in enumerate(users):
            if event % (self.n_events // self.moves) == 0:
                taste = taste * rng.lognormal(0.0, 0.7, taste.shape)
                edges = np.cumsum(taste, axis=1)
            own = edges[group[user]]
            yield min(int(np.searchsorted(own, rng.random() * own[-1])), self.n_items - 1)


class Noise(Told):
    """There is nothing to learn: any item for anybody."""

    def taken(self, users: Ints, rng: np.random.Generator) -> Iterator[int]:
        yield from rng.integers(0, self.n_items, len(users)).tolist()


WORLDS: dict[str, Callable[[], World]] = {
    "chain": lambda: Chain(800, 1_000, 40_000, 0),
    "habits": lambda: Habits(800, 1_000, 40_000, 0),
    "groups of 12 items": lambda: Groups(1_000, 12, 40_000, 0),
    "groups of 100 items": lambda: Groups(1_000, 100, 40_000, 0),
    "groups of 3000 items": lambda: Groups(1_000, 3_000, 40_000, 0),
    "flip": lambda: world("flip", n_events=40_000),
    "news": lambda: world("news", n_users=2_000, n_items=2_000, n_events=40_000),
    "drift": lambda: world("drift", n_events=40_000),
    "noise": lambda: Noise(800, 1_000, 40_000, 0),
}


def main() -> None:
    """Evaluate, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="?", default=",".join(WORLDS))
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = asked.worlds.split(",")
    unknown = [name for name in names if name not in WORLDS]
    if unknown:
        sys.exit(f"there is no world {', '.join(unknown)}; there are: {', '.join(WORLDS)}.")
    print("| world | auto: HR@5 / NDCG@10 | auto with transitions | best rival |\n|---|---|---|---|")
    families: dict[str, dict[str, Comparison]] = {}
    for name in names:
        events = ranked(WORLDS[name]().interactions(), asked.seeds)
        families[name] = against_the_best(name, events)
        discoveries = [each.filter(~pl.col("repeat")) for each in events]
        if 0 < len(discoveries[0]) < len(events[0]):
            families[name] |= against_the_best(f"{name}, no repeats", discoveries)
    show_verdicts("world | auto against its best rival | metric", families)


def ranked(log: Interactions, seeds: int) -> list[pl.DataFrame]:
    """The rank of every event under `auto` and its rivals, a table for each seed."""
    tables = []
    for seed in range(seeds):
        found = {}
        for label, (recommender, settings) in MADE.items():
            told = settle_auto({"recommender": recommender, "recommender_settings": settings, "seed": seed})
            cell = Cell(log, CellConfig(**told, split=SPLIT, negatives=min(99, log.n_items // 2)))
            found[label] = pl.DataFrame(cell.run("").ranks)
        rivals = (pl.col(f"rank_{each}").alias(each) for each in COMPARED)
        about = found[TUNED].select("user", "item", "repeat", *rivals)
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
    print(f"| {name} | {shown['auto']} | {shown[FOLLOWS]} | {best}: {shown[best]} |", flush=True)
    users, items = (events[0][side].to_numpy() for side in ("user", "item"))
    return {
        f"{name} | {best} | {metric}": compare(
            *([of(each[label].to_numpy()) for each in events] for label in ("auto", best)), users, items
        )
        for metric, of in METRICS.items()
    }


if __name__ == "__main__":
    main()
