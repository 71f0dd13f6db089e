"""How large a live batch should be, by lists in both tracks and among samples; on selection windows, no test part is read.

    python research/benchmarks/live_batch.py yelp                            # 256, 16 and 1 interactions at a time
    python research/benchmarks/live_batch.py news_globo --budget 1 --share 0.05
    python research/benchmarks/live_batch.py sessions                        # every six events a new user, by rule

`auto`'s blend, pre-trained once on what precedes the window (L2 .03); the step's length and time decay are chosen at each
size from --budget settings by lists (1: the first of the grid). NDCG@10 by lists of all events and of first-time pairs,
HR@5 among samples, and CPU milliseconds for each interaction, listed and learned. --share cuts the log: its last part
only, which keeps a long stream affordable. Where many interactions share a time stamp, their order is the file's, which
flatters small batches: the share is printed.
"""

from __future__ import annotations

import argparse
import os
import time
from copy import deepcopy
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from accuracy import DATA, SHARES
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.lists import TRACKS
from melon.evaluation.ranking import gains, hits
from melon.fitting.auto import RECOMMENDER, SETTINGS
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning.pretrain import most_epochs
from melon.stream.split import DEFAULT_SPLIT, Parts, split


def sessions(n_users: int = 4_000, n_items: int = 500, length: int = 6) -> Interactions:
    """Every session is a new user's; an item is followed by one of three others."""
    rng = np.random.default_rng(1)
    followers, items = np.stack([rng.permutation(n_items)[:3] for _ in range(n_items)]), list[int]()
    for event in range(n_users * length):
        start = event % length == 0
        items.append(int(rng.integers(n_items)) if start else int(followers[items[-1], rng.integers(3)]))
    return Interactions.from_ids(np.arange(len(items)) // length, np.array(items), np.arange(len(items)))


def main() -> None:
    """Run the benchmark."""
    use_threads(1)
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("streams", nargs="+")
    words.add_argument("--sizes", default="256,16,1")
    words.add_argument("--budget", type=int, default=1)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--share", type=float, default=1.0, help="of the log before the test part, from its end")
    words.add_argument("--recommender", default=RECOMMENDER)
    asked = words.parse_args()
    print("| stream | live batch | chosen | all events, NDCG@10 | first-time pairs | HR@5 among samples | CPU ms |")
    print("|---|---|---|---|---|---|---|")
    for name in asked.streams:
        log = sessions() if name == "sessions" else load_stream(DATA / f"{name}.parquet")
        parts = split(log, SHARES.get(name, DEFAULT_SPLIT))
        log = log.head(parts.validation_stop)
        if asked.share < 1:
            skipped = round((1 - asked.share) * len(log))
            users, items = log.user_ids[log.users[skipped:]], log.item_ids[log.items[skipped:]]
            log = Interactions.from_ids(users, items, log.times[skipped:])
            parts = Parts(parts.train_stop - skipped, parts.validation_stop - skipped, parts.validation_stop - skipped)
        judged = log.times[parts.judged_from :]
        shared = float((np.diff(judged) == 0).mean())
        plan = Plan(
            asked.recommender,
            recommender_settings=SETTINGS if asked.recommender == RECOMMENDER else {},
            half_life="auto",
            budget=asked.budget,
            protocol=EvaluationProtocol(seed=asked.seed, by_lists=True),
        )
        before = log.head(parts.window_start)
        rows = refit(plan, before, {"l2": 0.03, "epochs": most_epochs(len(before))}, observed={})
        for size in map(int, asked.sizes.split(",")):
            selection = Selection(log, parts, replace(plan, protocol=replace(plan.protocol, batch_size=size)))
            settings = first = {"lr": 0.3, "half_life": 10_000.0, "optimizer": "sgd", "reduction": "sum"}
            if asked.budget > 1:
                settings = selection.strategy("default", rows, {"optimizer": "sgd", "reduction": "sum"}).settings
            updater = selection.at_window("default", dict(settings), rows)
            sampled = np.concatenate([point.ranks.rank for point in selection.through(deepcopy(updater))])
            began, ranks = time.process_time(), {track: [] for track in TRACKS}
            for point in selection.through(updater, by_lists=True):
                for track in TRACKS:
                    ranks[track].append(point.lists.tracks[track].rank)
            spent = 1e3 * (time.process_time() - began) / len(judged)
            levels = []
            for parts_of_track in ranks.values():
                rank = np.concatenate(parts_of_track)
                levels.append(f"{gains(rank[~np.isnan(rank)]).mean():.4f} ({(~np.isnan(rank)).sum():,})")
            told = "first of the grid" if settings is first else f"lr {settings['lr']:g}, {settings.get('half_life')}"
            print(
                f"| {name} ({shared:.0%} share a stamp) | {size} | {told} | {' | '.join(levels)} | "
                f"{hits(sampled).mean():.4f} | {spent:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
