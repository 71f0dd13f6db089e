"""Whether stopping trials early chooses worse: the walk with and without the race, on selection windows.

    MELON_DATA=folder python research/benchmarks/choosing.py [STREAM …]

For each stream in $MELON_DATA and each of auto, bpr with default and bpr with melon: eight trials, once with every
trial streamed to its end and once as `fit` makes them, where a trial that is clearly behind the best so far is given up
(`Curve.hopeless`). Each point is streamed once, and the race is run on its recorded curve. The score is HR@5 + NDCG@10
on the judged part of the window; the test part is not read.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")


from accuracy import DATA
from melon.data.files import load_stream
from melon.errors import LearningError
from melon.fitting.plan import Plan
from melon.fitting.search import Curve, Trial, search
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.stream.split import split
from melon.types import Plain

SPLITS = {
    "amazon_grocery": (0.8, 0.02, 0.18),
    "amazon_electronics": (0.9, 0.01, 0.09),
    "yelp": (0.95, 0.005, 0.045),
    "amazon_book": (0.95, 0.005, 0.045),
    "news_globo": (0.95, 0.005, 0.045),
}
METHODS = {
    "auto": Plan("blend", "default", half_life="auto"),
    "bpr + default": Plan("bpr", "default"),
    "bpr + melon": Plan("bpr", "melon"),
}
BUDGET = 8


class Curves:
    """The whole curve of each point, streamed once."""

    def __init__(self, selection: Selection, plan: Plan) -> None:
        self._selection, self._plan = selection, plan
        _, self._start = selection.pretraining()
        self._known: dict[str, Trial] = {}
        self.batches = 0

    def whole(self, point: Plain, _: Curve | None) -> Trial:
        """The trial to its end."""
        if repr(point) not in self._known:
            try:
                updater = self._selection.at_window(self._plan.strategy, point, self._start)
                self._known[repr(point)] = self._selection.raced(point, updater, None)
            except LearningError as problem:
                self._known[repr(point)] = Trial(point, None, str(problem))
        trial = self._known[repr(point)]
        self.batches += len(trial.curve.ranked) if trial.curve else 0
        return trial

    def raced(self, point: Plain, opponent: Curve | None) -> Trial:
        """The trial until it is given up."""
        before, trial = self.batches, self.whole(point, None)
        if trial.curve is None or opponent is None:
            return trial
        for seen in range(1, len(trial.curve.ranked) + 1):
            if Curve(trial.curve.ranked[:seen], trial.curve.gained[:seen]).hopeless(opponent):
                self.batches = before + seen
                return Trial(point, None, "given up")
        return trial


def main(streams: list[str]) -> None:
    use_threads(1)
    print("| stream | method | whole trials | with the race | difference | judged batches saved | CPU s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for stream in streams:
        log = load_stream(DATA / f"{stream}.parquet")
        parts = split(log, SPLITS[stream])
        for method, plan in METHODS.items():
            began = time.process_time()
            selection = Selection(log.head(parts.validation_stop), parts, plan)
            curves = Curves(selection, plan)
            space, fixed = selection.space(plan.strategy, plan.fixed()), plan.fixed()
            best, batches = [], []
            for judge in (curves.whole, curves.raced):
                curves.batches = 0
                choice = search(space, BUDGET, judge, fixed)
                best.append(choice.score or 0.0)
                batches.append(curves.batches)
            saved = f"{batches[0] - batches[1]} of {batches[0]}"
            cells = (f"{best[0]:.4f}", f"{best[1]:.4f}", f"{best[1] - best[0]:+.4f}", saved)
            took = f"{time.process_time() - began:.0f}"
            print(f"| {stream} | {method} | " + " | ".join((*cells, took)) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(SPLITS))
