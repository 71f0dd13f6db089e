"""MeLON in full ranking, by what it is meta-trained among; on selection windows, test parts are not read.

    python research/benchmarks/full_ranking.py yelp amazon_electronics --seeds 2
    python research/benchmarks/full_ranking.py yelp --earlier --arms default melon:999

Arms: `default` is the tuned plain step; `melon:99` is meta-trained among 99 candidates, as the product does, `melon:999`
among more, and `melon:popular` among 99 that are drawn by the square root of their counts in the meta-trained log.
BPR without time decay. Each event of the judged part is ranked among 99 candidates and among all items at once; differences
to the first arm are paired, with 95 % intervals by user.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from accuracy import DATA, show_conclusions
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.compare import Sides, compare_mean
from melon.evaluation.lists import Lister
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.ranking import gains, hits, metrics
from melon.fitting import meta_training
from melon.fitting.config import CellConfig, read_config
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning.meta_training.loop import meta_training_candidates
from melon.learning.updater import Updater
from melon.stream.candidates import Candidates, CandidateSet
from melon.stream.split import Parts, split
from meta_training import CONFIGS

KINDS = ("among 99", "among all")


class PopularCandidates(Candidates):
    """Others are drawn by the square root of their counts in the log so far; what the user takes now is left out."""

    def __init__(self, log: Interactions, seed: int, count: int) -> None:
        super().__init__(log, seed=seed, count=count)
        self._seed = seed
        chances = np.sqrt(np.bincount(log.items, minlength=log.n_items))
        self._sums = np.cumsum(chances / chances.sum())

    def draw(self, start: int, stop: int) -> CandidateSet:
        usual = super().draw(start, stop)
        drawn = np.random.default_rng([self._seed, start]).random((stop - start, self.count))
        others = np.minimum(np.searchsorted(self._sums, drawn), self._log.n_items - 1)
        others = np.where(others == usual.items[:, :1], usual.items[:, 1:], others)
        return CandidateSet(np.concatenate([usual.items[:, :1], others], axis=1), usual.usable, usual.pool)


@contextmanager
def meta_training_among(kind: str) -> Iterator[None]:
    """Let meta-training on windows draw other candidates."""
    usual = meta_training.meta_training_candidates

    def drawn(log: Interactions, seed: int, count: int) -> Candidates:
        if kind == "popular":
            return PopularCandidates(log, seed + 1_000, count)
        return meta_training_candidates(log, seed, int(kind or count))

    meta_training.meta_training_candidates = drawn
    try:
        yield
    finally:
        meta_training.meta_training_candidates = usual


def judged(selection: Selection, updater: Updater) -> Tally:
    """Every judged event, ranked in both ways."""
    parts, protocol, log = selection.parts, selection.protocol, selection.log
    for first, last in selection._batches(parts.window_start, parts.judged_from):
        updater.learn(meta_training.batch_of(log, first, last))
    candidates, tally = Candidates(log, seed=protocol.seed, count=protocol.negatives), Tally()
    lister = Lister(log, parts.judged_from)
    for first, last in pairwise((parts.judged_from, parts.train_stop, parts.validation_stop)):
        for point in prequential(updater, log, candidates, first, last, lister=lister):
            tally.add(point)
    return tally


def ranks(tally: Tally, kind: str) -> np.ndarray:
    return np.asarray(tally.rank if kind == KINDS[0] else tally.list_rank("all"))


def main(stream: str, asked: argparse.Namespace) -> None:
    log = load_stream(DATA / f"{stream}.parquet")
    tallies: dict[str, list[Tally]] = {arm: [] for arm in asked.arms}
    for seed in range(asked.seeds):
        tuned = read_config(CONFIGS / f"{stream}-bpr-default.toml")
        config = CellConfig(**{**tuned, "seed": seed})
        parts, plan = split(log, config.split), config.plan
        if asked.earlier:
            parts = Parts(parts.window_start, parts.window_start, parts.window_start)
        selection = Selection(log.head(parts.validation_stop), parts, plan)
        start = refit(plan, selection.before_window, plan.pretrain_settings, observed={})
        for arm in asked.arms:
            strategy, _, kind = arm.partition(":")
            settings = config.fixed if strategy == "default" else {"lr": tuned["settings"]["lr"]}
            with meta_training_among(kind):
                tallies[arm].append(judged(selection, selection.at_window(strategy, settings, start)))
            levels = []
            for way in KINDS:
                level = metrics(ranks(tallies[arm][-1], way))
                levels.append(f"{way}: HR@5 {level['HR@5']:.4f}, NDCG@10 {level['NDCG@10']:.4f}")
            print(f"{stream}, seed {seed}, {arm}: {'; '.join(levels)}", flush=True)
    events, first = tallies[asked.arms[0]][0].events, asked.arms[0]
    for arm in asked.arms[1:]:
        family = {}
        for kind in KINDS:
            for metric, value in (("HR@5", hits), ("NDCG@10", gains)):
                sides = [[value(ranks(tally, kind)) for tally in tallies[each]] for each in (arm, first)]
                family[f"{kind}, {metric}"] = compare_mean([Sides(*sides, log.users[events], log.items[events])])
        where = "earlier window" if asked.earlier else "window"
        show_conclusions(f"{stream}, {where}: {arm} − {first}", {stream: family})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--arms", nargs="+", default=["default", "melon:99", "melon:999", "melon:popular"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--earlier", action="store_true", help="on an earlier window")
    use_threads(1)
    chosen = parser.parse_args()
    for each in chosen.streams:
        main(each, chosen)
