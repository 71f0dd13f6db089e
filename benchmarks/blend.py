"""What a blend costs: a prequential step, the whole catalogue for one user, its state, and what bounded slots keep.

    python benchmarks/blend.py              # 5 thousand and 100 thousand items, one thread
    python benchmarks/blend.py flat         # the same batches beside few and beside many rows that they do not touch
    python benchmarks/blend.py state        # size of the state with 1 million users and 10 million interactions
    python benchmarks/blend.py state auto   # the same with the further inputs of `auto`
    python benchmarks/blend.py recall       # slots against unbounded ones, on the training parts of $MELON_DATA
    python benchmarks/blend.py window       # blend, bpr and simple baselines on the selection windows of $MELON_DATA

CPU milliseconds, medians after some batches to warm up. Users, items and candidates are drawn; popularity has a heavy
tail. With compiled kernels a step of 256 interactions with 100 candidates is to stay below 30 ms, and the
catalogue of 100 thousand items below 100 ms.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.fitting.auto import SETTINGS
from melon.fitting.baselines import choose_baselines
from melon.fitting.plan import Plan
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning import checkpoint
from melon.learning.pretrain import live_through, most_epochs
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.streaming.neighbours import ItemNeighbours
from melon.strategies.default import Default
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.stream.split import DEFAULT_SPLIT, batches, split
from melon.types import Ints

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / "shared" / "data"))
SPLITS = {"amazon_grocery": (0.8, 0.02, 0.18), "amazon_electronics": (0.9, 0.01, 0.09)}
BATCH, CANDIDATES, STEPS, WARM_UP = 256, 100, 40, 10


class Drawn:
    """Users at random, items by a heavy-tailed popularity."""

    def __init__(self, users: int, items: int) -> None:
        self.users, self.items, self._rng = users, items, np.random.default_rng(0)

    def log(self, n: int) -> Interactions:
        who, what = self._rng.integers(0, self.users, n), self._popular(n)
        return Interactions(who, what, np.arange(n), np.arange(self.users), np.arange(self.items))

    def batch(self, first: int) -> Batch:
        who, what = self._rng.integers(0, self.users, BATCH), self._popular(BATCH)
        return Batch(first, who, what, np.full(BATCH, first), who, what)

    def candidates(self, positives: Ints) -> Ints:
        return np.concatenate([positives[:, None], self._rng.integers(0, self.items, (BATCH, CANDIDATES - 1))], axis=1)

    def _popular(self, n: int) -> Ints:
        return np.minimum((self._rng.pareto(0.8, n) * self.items / 50).astype(np.int64), self.items - 1)


def lived(
    drawn: Drawn, past: int, users: int = 0, items: int = 0, settings: Mapping[str, Any] | None = None
) -> Updater:
    """A blend with a past and a head that speaks; with rows for more users and items, if that is said."""
    blend, history = Blend(settings), History()
    users, items = max(users, drawn.users), max(items, drawn.items)
    blend.grow(users, np.arange(users), items, np.arange(items))
    began = time.process_time()
    live_through(blend, history, drawn.log(past))
    print(f"  observing {past:,} interactions: {(time.process_time() - began) / past * 1e6:.1f} µs each", flush=True)
    linear = blend.tables["head_linear"]
    linear.scatter(np.arange(1), np.random.default_rng(0).normal(size=(1, linear.spec.dim)))
    return Updater(blend, Default({"lr": 0.3, "half_life": 30_000.0}), history)


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def steps(users: int, items: int, past: int) -> None:
    """Score and learn, batch by batch, then the whole catalogue for one user."""
    print(f"{users:,} users, {items:,} items:")
    drawn = Drawn(users, items)
    updater = lived(drawn, past)
    taken = [step_ms(updater, drawn) for _ in range(WARM_UP + STEPS)]
    score, learn = np.median(np.array(taken[WARM_UP:]), axis=0)
    print(
        f"  a step of {BATCH} × {CANDIDATES}: {score + learn:.1f} ms (score {score:.1f}, learn {learn:.1f}); bound 30"
    )
    for asked in (1, 10):
        who = np.arange(asked)
        taken_ms = [timed(lambda who=who: updater.score_catalogue(who, items, 0)) for _ in range(8)][3:]
        print(f"  the catalogue for {asked} user(s): {np.median(taken_ms):.0f} ms; bound 100 for one, exact")


def step_ms(updater: Updater, drawn: Drawn) -> tuple[float, float]:
    """Milliseconds for scoring a batch, and for learning it."""
    batch = drawn.batch(updater.history.events)
    offered = drawn.candidates(batch.items)
    score = timed(lambda: updater.score(batch.users, offered, 0))
    return score, timed(lambda: updater.learn(batch))


def flat(users: int = 1_000_000, items: int = 100_000) -> None:
    """Steps on 5 thousand users and items, in turns: with rows for these alone, and for many more."""
    drawn = [Drawn(5_000, 5_000) for _ in range(2)]
    few, many = lived(drawn[0], 100_000), lived(drawn[1], 100_000, users, items)
    taken = [(sum(step_ms(few, drawn[0])), sum(step_ms(many, drawn[1]))) for _ in range(WARM_UP + 3 * STEPS)]
    one, other = np.median(np.array(taken[WARM_UP:]), axis=0)
    print(f"  a step beside no other rows: {one:.1f} ms; beside {users:,} users and {items:,} items: {other:.1f} ms")


def state(settings: Mapping[str, Any], users: int = 1_000_000, items: int = 100_000, past: int = 10_000_000) -> None:
    """Bytes of everything that is saved."""
    updater = lived(Drawn(users, items), past, settings=settings)
    with TemporaryDirectory() as folder:
        checkpoint.save(folder, updater)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    blend = updater.recommender
    assert isinstance(blend, Blend)
    slots = sum(array.nbytes for array in blend.stream.neighbours.storage[:3])
    print(f"  {users:,} users, {items:,} items, {past:,} interactions: {size / 1e9:.2f} GB saved; bound 1.6")
    print(f"  of which slots in memory: {slots / 1e6:.0f} MB")


def recall(names: list[str]) -> None:
    """The share of the twenty nearest neighbours that bounded slots keep, on training parts."""
    print("| stream | " + " | ".join(f"{slots} slots" for slots in (64, 128, 256)) + " |\n|---|---|---|---|")
    for name in names:
        log = load_stream(DATA / f"{name}.parquet")
        training = log.head(split(log, SPLITS.get(name, DEFAULT_SPLIT)).train_stop)
        nearest = {slots: _nearest(training, slots) for slots in (training.n_items, 64, 128, 256)}
        whole = nearest.pop(training.n_items)
        kept = [
            np.mean([len(a & b) / 20 for a, b in zip(whole, some, strict=True) if len(a) == 20])
            for some in nearest.values()
        ]
        print(f"| {name} | " + " | ".join(f"{each:.3f}" for each in kept) + " |", flush=True)


def _nearest(log: Interactions, slots: int) -> list[set[int]]:
    neighbours, history = ItemNeighbours(slots=slots), History()
    for start, stop in batches(0, len(log), 4_096):
        run = log.users[start:stop], log.items[start:stop]
        neighbours.observe(*run, history.of_users)
        history.append(*run)
    total = np.sqrt(np.bincount(log.items, minlength=log.n_items) + 5.0)
    found = []
    for item in range(log.n_items):
        ids, counts, _ = (each[0] for each in neighbours.of(np.array([item])))
        known = ids >= 0
        order = np.argsort(-counts[known] / total[ids[known]], kind="stable")[:20]
        found.append(set(ids[known][order].tolist()))
    return found


def window(names: list[str]) -> None:
    """HR@5 + NDCG@10 on what settings are judged by; the test part is not read."""
    steps_of = {"blend": [{"lr": 0.3}, {"lr": 0.3, "half_life": 30_000.0}, {"lr": 0.3, "half_life": 10_000.0}]}
    steps_of["bpr"] = [{"lr": lr} for lr in (0.1, 0.3, 0.5, 1.0)]
    steps_of["bpr"] += [{"lr": lr, "half_life": half} for lr in (0.3, 0.7) for half in (3e4, 1e4, 3e3, 1e3)]
    for name in names:
        log = load_stream(DATA / f"{name}.parquet")
        parts = split(log, SPLITS.get(name, DEFAULT_SPLIT))
        selection = Selection(log.head(parts.validation_stop), parts, Plan())
        starts = {}
        for recommender, settings in steps_of.items():
            epochs = most_epochs(len(selection.before_window))
            start = refit(Plan(recommender), selection.before_window, {"l2": 0.03, "epochs": epochs}, observed={})
            starts[recommender] = start
            for half_life in (False, True):
                some = [each for each in settings if ("half_life" in each) == half_life]
                score, at = max(
                    (selection.judged(selection.at_window("default", each, start)), str(each)) for each in some
                )
                print(f"{name}: {recommender}{' with half_life' if half_life else ''} {score:.4f} {at}", flush=True)
        for baseline, choice in choose_baselines(selection).items():
            print(f"{name}: {baseline} {choice.score:.4f} {choice.settings}", flush=True)


def main(words: list[str]) -> None:
    use_threads(1)
    streams = ["amazon_grocery", "yelp", "amazon_book", "amazon_electronics"]
    if words[:1] == ["flat"]:
        flat()
    elif words[:1] == ["state"]:
        state(SETTINGS if words[1:] == ["auto"] else {})
    elif words[:1] == ["recall"]:
        recall(words[1:] or streams)
    elif words[:1] == ["window"]:
        window(words[1:] or streams)
    else:
        steps(5_000, 5_000, 100_000)
        steps(100_000, 100_000, 400_000)


if __name__ == "__main__":
    main(sys.argv[1:])
