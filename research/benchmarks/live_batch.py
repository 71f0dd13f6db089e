"""How large a live batch should be: settings chosen anew at each size, on the selection window; no test part is read.

    python research/benchmarks/live_batch.py yelp                            # 256, 64 and 16 interactions at a time
    python research/benchmarks/live_batch.py news_globo --budget 4 --share 0.3
    python research/benchmarks/live_batch.py yelp_unfiltered --recommender bpr

`auto`'s blend, pre-trained once on what precedes the window (L2 .03); the step's length and time decay are chosen at each
size from --budget settings. HR@5 and NDCG@10 on the judged part of the window, and CPU milliseconds for each
interaction, predicted among 100 and learned. --share cuts the log: its last part only, which keeps a long stream
affordable. Where many interactions share a time stamp, their order is the file's, which flatters small batches: the
share is printed.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from accuracy import DATA, SHARES
from melon.data.files import load_stream
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import metrics
from melon.fitting.auto import RECOMMENDER, SETTINGS
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning.pretrain import most_epochs
from melon.stream.split import DEFAULT_SPLIT, Parts, split


def main() -> None:
    """Run the benchmark."""
    use_threads(1)
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("streams", nargs="+")
    words.add_argument("--sizes", default="256,64,16")
    words.add_argument("--budget", type=int, default=6)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--share", type=float, default=1.0, help="of the log before the test part, from its end")
    words.add_argument("--recommender", default=RECOMMENDER)
    asked = words.parse_args()
    print("| stream | live batch | chosen | HR@5 | NDCG@10 | CPU ms for each interaction |\n|---|---|---|---|---|---|")
    for name in asked.streams:
        log = load_stream(DATA / f"{name}.parquet")
        parts = split(log, SHARES.get(name, DEFAULT_SPLIT))
        log = log.head(parts.validation_stop)
        if asked.share < 1:
            skipped = round((1 - asked.share) * len(log))
            log = log.tail(skipped)
            parts = Parts(parts.train_stop - skipped, parts.validation_stop - skipped, parts.validation_stop - skipped)
        judged = log.times[parts.judged_from :]
        shared = float((np.diff(judged) == 0).mean())
        plan = Plan(
            asked.recommender,
            recommender_settings=SETTINGS if asked.recommender == RECOMMENDER else {},
            half_life="auto",
            budget=asked.budget,
            protocol=EvaluationProtocol(seed=asked.seed),
        )
        before = log.head(parts.window_start)
        rows = refit(plan, before, {"l2": 0.03, "epochs": most_epochs(len(before))})
        for size in map(int, asked.sizes.split(",")):
            plan = replace(plan, protocol=replace(plan.protocol, batch_size=size))
            selection = Selection(log, parts, plan)
            chosen = selection.strategy("default", rows, {"optimizer": "sgd", "reduction": "sum"})
            updater, tally = selection.at_window("default", dict(chosen.settings), rows), Tally()
            began = time.process_time()
            for point in selection.through(updater):
                tally.add(point)
            spent = 1e3 * (time.process_time() - began) / (parts.validation_stop - parts.judged_from)
            measured = metrics(tally.rank)
            settings = f"lr {chosen.settings['lr']:g}, half-life {chosen.settings.get('half_life')}"
            print(
                f"| {name} ({shared:.0%} share a stamp) | {size} | {settings} | {measured['HR@5']:.4f} | "
                f"{measured['NDCG@10']:.4f} | {spent:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
