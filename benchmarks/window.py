"""Settings side by side on the selection window of a stream in $MELON_DATA; the test part is not read.

    python benchmarks/window.py yelp default:lr=0.3 melon:most_rate=0.6,meta_lr=0.003 melon:most_rate=2.0

Each line is one configuration, scored by HR@5 + NDCG@10 on what settings are judged by (docs/evaluation.md): one
pre-trained recommender (L2 0.03, all epochs), which learned strategies practise on before they are judged.
RECOMMENDER and SEED (bpr and 0) choose another recommender and seed.
"""

from __future__ import annotations

import os
import re
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from accuracy import DATA
from melon.bench.config import parse_assignments
from melon.data.files import load_stream
from melon.errors import LearningError
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.learning.pretrain import most_epochs
from melon.stream.split import DEFAULT_SPLIT, split

SPLITS = {"amazon_grocery": (0.8, 0.02, 0.18), "amazon_electronics": (0.9, 0.01, 0.09)}


def main(stream: str, configurations: list[str], recommender: str = "bpr", seed: int = 0) -> None:
    torch.set_num_threads(1)
    log = load_stream(DATA / f"{stream}.parquet")
    parts = split(log, SPLITS.get(stream, DEFAULT_SPLIT))
    plan = Plan(recommender, protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    epochs = most_epochs(len(selection.before_window))
    start = refit(plan, selection.before_window, {"l2": 0.03, "epochs": epochs}, observed={})
    print(f"| {stream}, {recommender}, seed {seed} | score | s |\n|---|---|---|", flush=True)
    for text in configurations:
        name, _, assigned = text.partition(":")
        # A comma within a value is followed by no `name=`.
        settings = parse_assignments([each for each in re.split(r",(?=\w+=)", assigned) if each])["strategy"]
        began = time.perf_counter()
        try:
            score = f"{selection.judged(selection.at_window(name, settings, start)):.4f}"
        except LearningError as problem:
            score = f"broke: {problem}"
        print(f"| {name} {assigned or 'as it is'} | {score} | {time.perf_counter() - began:.0f} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:], os.environ.get("RECOMMENDER", "bpr"), int(os.environ.get("SEED", "0")))
