"""What further inputs of the blend's head bring, on the selection window and on an earlier one; no test part is read.

    python research/benchmarks/inputs.py A amazon_grocery yelp     # the selection window
    python research/benchmarks/inputs.py E amazon_grocery yelp     # the same rule applied to the log before that window
    python research/benchmarks/inputs.py --arms usual,profiles A yelp
    python research/benchmarks/inputs.py --seed 1 A yelp

All arms have the same pre-trained rows and settings (L2 .03, rate .3, no time decay), as the trial that suggested these
inputs had. ΔHR@5 is paired with the first arm: ± is one standard error over interactions.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from accuracy import DATA, SHARES
from melon.data.files import load_stream
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import metrics
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, refit
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning.pretrain import most_epochs
from melon.stream.pairs import pair_keys
from melon.stream.split import DEFAULT_SPLIT, Parts, split
from melon.types import Floats, Ints

ARMS = {
    "usual": {},
    "profiles": {"inputs": ["profiles"]},
    "transitions": {"transitions": True},
    "auto": {"inputs": ["profiles", "preferences"], "transitions": True},
}


def ranks_of(selection: Selection, start: PretrainedState, settings: dict[str, object]) -> tuple[Ints, Floats]:
    """Events that are judged and their ranks, with a head that has meta-trained on the rest of the window."""
    updater = selection.at_window("default", settings, start)
    tally = Tally()
    for point in selection.through(updater):
        if point.start >= selection.parts.judged_from:
            tally.add(point)
    return tally.events, tally.rank


def main() -> None:
    use_threads(1)
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("window", choices=["A", "E"])
    words.add_argument("streams", nargs="*", default=["amazon_grocery", "amazon_electronics", "amazon_book", "yelp"])
    words.add_argument("--arms", default="usual,auto")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--without-repeats", action="store_true")
    asked = words.parse_args()
    for name in asked.streams:
        log = load_stream(DATA / f"{name}.parquet")
        parts = split(log, SHARES.get(name, DEFAULT_SPLIT))
        if asked.window == "E":
            parts = Parts(parts.window_start, parts.window_start, parts.window_start)
        log = log.head(parts.validation_stop)
        first_times = np.unique(pair_keys(log.users, log.items), return_index=True)[1]
        protocol, usual = EvaluationProtocol(seed=asked.seed), None
        rows: PretrainedState | None = None
        for arm in asked.arms.split(","):
            plan = Plan("blend", recommender_settings=ARMS[arm], protocol=protocol)
            selection = Selection(log, parts, plan)
            began = time.process_time()
            if rows is None:
                epochs = most_epochs(len(selection.before_window))
                rows = refit(plan, selection.before_window, {"l2": 0.03, "epochs": epochs})
            fresh = {table: held.state() for table, held in plan.build().tables.items()}
            tables = {table: rows.tables[table] if not table.startswith("head_") else fresh[table] for table in fresh}
            events, ranks = ranks_of(selection, PretrainedState(plan, tables, {}), {"lr": 0.3})
            if asked.without_repeats:
                ranks = ranks[np.isin(events, first_times)]
            measured = metrics(ranks)
            line = f"{name} {asked.window}{asked.seed} {arm}: HR@5 {measured['HR@5']:.4f}"
            line += f" NDCG@10 {measured['NDCG@10']:.4f}"
            if usual is None:
                usual = ranks
            else:
                moved = (ranks <= 5).astype(float) - (usual <= 5)
                gain = measured["NDCG@10"] - metrics(usual)["NDCG@10"]
                line += f", ΔHR@5 {moved.mean():+.4f} ± {moved.std() / len(moved) ** 0.5:.4f}, ΔNDCG@10 {gain:+.4f}"
            print(f"{line} ({len(ranks):,} interactions, {time.process_time() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
