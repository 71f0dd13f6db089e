"""Does practice on earlier windows pay for a head? On selection windows and on earlier ones; no test part is read.

    python benchmarks/earlier_windows.py A amazon_grocery yelp     # the selection window
    python benchmarks/earlier_windows.py E amazon_grocery yelp     # the same rule applied to the log before that window
    python benchmarks/earlier_windows.py --seed 1 A yelp

The inputs of `auto`, rows with L2 .03, rate .3, no fading. Rows stream through the window once; each arm is a head that
practises on the first 60 % of it, after none, one or two earlier windows (docs/methods.md 8.5), each with rows trained
on what precedes it. Means over three draws of the first weights of the head; ΔHR@5 and ΔNDCG@10 are paired with the
head that knows the window alone, ± one standard error over interactions.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from ablate_inputs import Arm, SideBySide
from blend import DATA, SPLITS
from melon.data.files import load_stream
from melon.evaluation.compare import gains, hits
from melon.evaluation.ranking import rank_first
from melon.fitting.auto import SETTINGS
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.practice import WindowPractice
from melon.fitting.pretrained import refit
from melon.fitting.selection import Selection
from melon.learning.pretrain import most_epochs
from melon.learning.updater import Updater
from melon.recommenders.blend.head import HIDDEN
from melon.recommenders.blend.recommender import Blend
from melon.recommenders.heads import Lesson
from melon.stream.split import DEFAULT_SPLIT, Parts, split
from melon.types import Floats

DRAWS = 3


def main() -> None:
    """Run the benchmark."""
    torch.set_num_threads(1)
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("window", choices=["A", "E"])
    words.add_argument("streams", nargs="*", default=["amazon_grocery", "amazon_electronics", "yelp", "amazon_book"])
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    for name in asked.streams:
        log, began = load_stream(DATA / f"{name}.parquet"), time.process_time()
        parts = split(log, SPLITS.get(name, DEFAULT_SPLIT))
        if asked.window == "E":
            parts = Parts(parts.window_start, parts.window_start, parts.window_start)
        plan = Plan("blend", recommender_settings=SETTINGS, protocol=EvaluationProtocol(seed=asked.seed))
        selection = Selection(log.head(parts.validation_stop), parts, plan)
        with torch.no_grad():
            ranks = ranks_of(selection, plan)
        whole = ranks[0]
        judged = f"{whole.shape[1]:,} interactions, {time.process_time() - began:.0f} s CPU"
        print(f"{name} {asked.window}{asked.seed}: {judged}; earlier windows: {parts.earlier_windows}")
        for count, arm in ranks.items():
            line = f"  {count} earlier:"
            for metric, value in (("HR@5", hits), ("NDCG@10", gains)):
                mean, usual = value(arm).mean(0), value(whole).mean(0)
                moved = mean - usual
                line += f" {metric} {mean.mean():.4f} ({moved.mean():+.4f} ± {moved.std() / len(moved) ** 0.5:.4f})"
            print(line, flush=True)


def ranks_of(selection: Selection, plan: Plan) -> dict[int, Floats]:
    """Ranks of the judged interactions, draws × interactions, by how many earlier windows the head has practised on."""
    parts = selection.parts
    updater, lessons = stretch(selection, plan, parts.window_start, parts.judged_from)
    blend, arms, earlier = updater.recommender, dict[int, list[Arm]](), list[Lesson]()
    assert isinstance(blend, Blend)
    for count, window in enumerate([None, *parts.earlier_windows[::-1]]):
        earlier = [] if window is None else stretch(selection, plan, *window)[1] + earlier
        arms[count] = [Arm(blend, (), lessons, [*earlier, *lessons], drawn(blend, draw)) for draw in range(DRAWS)]
    everybody = [arm for some in arms.values() for arm in some]
    both = SideBySide(updater, everybody)
    for first, last in ((parts.judged_from, parts.train_stop), (parts.train_stop, parts.validation_stop)):
        for point in selection._points(both, first, last):  # type: ignore[arg-type]
            for arm, scores in zip(everybody, both.given, strict=True):
                arm.ranks.append(rank_first(scores[point.usable], "a batch").rank)
    return {count: np.stack([np.concatenate(arm.ranks) for arm in some]) for count, some in arms.items()}


def stretch(selection: Selection, plan: Plan, first: int, stop: int) -> tuple[Updater, list[Lesson]]:
    """Rows that were trained on what precedes a window and have streamed through it, and lessons on the way."""
    past = selection.log.head(first)
    start = refit(plan, past, {"l2": 0.03, "epochs": most_epochs(first)})
    return WindowPractice(selection.log, first, past, plan.protocol).recorded(
        plan.make_strategy({"lr": 0.3}, "default"), start, stop, {}
    )


def drawn(blend: Blend, draw: int) -> torch.Tensor:
    """First weights of the hidden layer."""
    table = blend.tables[HIDDEN].everything()
    return torch.randn(table.shape, generator=torch.Generator().manual_seed(draw)) / (3 * table.shape[1]) ** 0.5


if __name__ == "__main__":
    main()
