"""What do a user's own past as inputs of the head, and harder negatives in its training, bring by lists?

    python research/benchmarks/own_past.py amazon_grocery yelp --epochs 60
    python research/benchmarks/own_past.py shop_journey --epochs 3

On selection windows (seed 0): one pre-training, a plain step of .3, and for each arm HR@10 / NDCG@10 by lists in both
tracks and HR@5 / NDCG@10 among sampled candidates. The baselines' scores are the mean NDCG@10 of both tracks.
"""

from __future__ import annotations

import argparse
from copy import deepcopy

import numpy as np

from accuracy import DATA, SHARES
from melon.data.files import load_stream
from melon.evaluation.lists import TRACKS
from melon.evaluation.ranking import gains, hits
from melon.fitting.baselines import choose_baselines
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.stream.split import DEFAULT_SPLIT, split
from melon.types import Floats

USUAL = {"inputs": ("profiles", "preferences"), "transitions": True}
OWN = {**USUAL, "inputs": ("profiles", "preferences", "own")}
ARMS = {
    "without": USUAL,
    "popular .33": {**USUAL, "head_popular_share": 0.34},
    "own .2": {**OWN, "head_own_share": 0.2},
    "own .33": {**OWN, "head_own_share": 0.34},
    "own .2, popular .2": {**OWN, "head_own_share": 0.2, "head_popular_share": 0.2},
    "own .33, popular .33": {**OWN, "head_own_share": 0.34, "head_popular_share": 0.34},
}


def measured(name: str, settings: dict[str, object], epochs: int) -> str:
    log = load_stream(DATA / f"{name}.parquet")
    parts = split(log, SHARES.get(name, DEFAULT_SPLIT))
    plan = Plan("blend", "default", recommender_settings=settings, protocol=EvaluationProtocol(by_lists=True))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    start = refit(plan, selection.before_window, {"l2": 0.03, "epochs": epochs}, observed={})
    ranks: dict[str, list[Floats]] = {track: [] for track in (*TRACKS, "sampled")}
    updater = selection.at_window("default", {"lr": 0.3}, start)
    ranks["sampled"] = [point.ranks.rank for point in selection.through(deepcopy(updater))]
    for point in selection.through(updater, by_lists=True):
        assert point.lists is not None
        for track in TRACKS:
            ranks[track].append(point.lists.tracks[track].rank)
    texts = []
    for track, cut in (*((track, 10) for track in TRACKS), ("sampled", 5)):
        rank = np.concatenate(ranks[track])
        rank = rank[~np.isnan(rank)]
        texts.append(f"{track} {hits(rank, cut).mean():.4f} / {gains(rank).mean():.4f} ({len(rank):,})")
    return ", ".join(texts)


def baselines(name: str) -> None:
    log = load_stream(DATA / f"{name}.parquet")
    parts = split(log, SHARES.get(name, DEFAULT_SPLIT))
    for baseline, choice in choose_baselines(Selection(log.head(parts.validation_stop), parts, Plan())).items():
        print(f"{name}: {baseline} {choice.score:.4f} {choice.settings}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--epochs", type=int, default=60)
    asked = parser.parse_args()
    for name in asked.streams:
        baselines(name)
        for arm, settings in ARMS.items():
            print(f"{name}: {arm}: {measured(name, settings, asked.epochs)}", flush=True)


if __name__ == "__main__":
    main()
