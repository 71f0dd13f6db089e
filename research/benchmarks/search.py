"""Two ways to search settings, compared at equal budget on the selection windows of streams in $MELON_DATA.

    python research/benchmarks/search.py [CACHE]

`walk` is `melon.fitting.search`: the declared starts, then neighbours of the best trial so far, one by one or in rounds
of four. `tpe` is Optuna's sampler (`pip install optuna`) behind the same starts, in rounds of four; `half` gives it
half of each round and the walk's neighbours the other half. Every search sees the same deterministic score of a point
(HR@5 + NDCG@10 on the judged part of the window), so scores are computed once and kept in the folder CACHE
(`/tmp/melon-search` unless given). The test part is not read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from accuracy import DATA
from melon.data.files import load_stream
from melon.errors import LearningError
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, refit
from melon.fitting.search import Search, Trial, neighbours
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.stream.draws import Draws
from melon.stream.split import split

STREAMS = ("amazon_grocery", "amazon_electronics", "yelp", "amazon_book")
STRATEGIES = ("default", "metasgd", "mwnet", "melon")
#: Learned strategies meta-train in few passes, so that a point takes half a second.
SMALL: dict[str, dict[str, Any]] = {name: {"passes": 3} for name in ("metasgd", "mwnet", "melon")}
BUDGETS, SEEDS, ROUND, STARTUP, EVENTS, BATCH = (8, 16, 32), range(5), 4, 8, 12_000, 128
Point = dict[str, Any]
Score = Callable[[Point], float]


class Scores:
    """The score of each point on the window of one stream under one strategy, computed once."""

    def __init__(self, cache: Path, stream: str, selection: Selection, start: PretrainedState, strategy: str) -> None:
        self._file = cache / f"{stream}-{strategy}.jsonl"
        self._selection, self._start, self._strategy = selection, start, strategy
        self.fixed = SMALL.get(strategy, {})
        self.space = selection.space(strategy, self.fixed)
        walk_of_space = Search(self.space, self.fixed)
        self.axes, self.starts = walk_of_space.axes, walk_of_space.starts
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.known: dict[str, float] = dict(json.loads(line) for line in lines)
        self.seconds = 0.0

    def __call__(self, point: Point) -> float:
        key = json.dumps(point, sort_keys=True)
        if key not in self.known:
            began = time.process_time()
            try:
                updater = self._selection.at_window(self._strategy, {**point, **self.fixed}, self._start)
                score = self._selection.judged(updater)
            except LearningError:
                score = float("-inf")
            self.seconds += time.process_time() - began
            self.known[key] = score
            with self._file.open("a") as file:
                file.write(json.dumps([key, score]) + "\n")
        return self.known[key]


def walk(scores: Scores, budget: int, together: int) -> list[float]:
    """The best score after each trial of `melon.fitting.search`, `together` of them in a round."""
    search = Search(scores.space, scores.fixed, together)
    while len(search.trials) < budget and (points := search.ask()):
        for point in points:
            search.tell(Trial({**point, **scores.fixed}, scores(point)))
    return best_so_far([trial.score or 0.0 for trial in search.trials], budget)


def sampled(scores: Scores, budget: int, seed: int, beside: float) -> list[float]:
    """The same with Optuna's TPE, after so many of each round that lie beside the best."""
    import optuna
    from optuna.distributions import CategoricalDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ordered = {name: _ordered(values) for name, values in scores.axes.items()}
    kinds = {
        name: IntDistribution(0, len(values) - 1) if ordered[name] else CategoricalDistribution(values)
        for name, values in scores.axes.items()
    }

    def encoded(point: Point) -> Point:
        return {n: scores.axes[n].index(v) if ordered[n] else v for n, v in point.items()}

    def decoded(point: Point) -> Point:
        return {n: scores.axes[n][v] if ordered[n] else v for n, v in point.items()}

    study = optuna.create_study(direction="maximize")
    tried: list[Point] = []
    found: list[float] = []
    while len(tried) < budget:
        under_way: list[Any] = []
        for place in range(ROUND):
            if len(tried) < len(scores.starts):
                point: Point | None = scores.starts[len(tried)]
            elif found and place < beside * ROUND:
                point = _untried(tried[int(np.argmax(found))], tried, scores)
            else:
                drawn = int(Draws(seed, "tuning").generator(len(tried)).integers(1 << 31))
                study.sampler = optuna.samplers.TPESampler(
                    seed=drawn, n_startup_trials=STARTUP, multivariate=True, constant_liar=True
                )
                asked = study.ask(kinds)
                point = _untried(decoded(asked.params), tried, scores)
                study.tell(asked.number, state=optuna.trial.TrialState.FAIL)
            if point is None:
                break
            study.enqueue_trial(encoded(point))
            under_way.append(study.ask(kinds))
            tried.append(point)
        if not under_way:
            break
        for asked, point in zip(under_way, tried[len(found) :], strict=True):
            found.append(scores(point))
            if np.isfinite(found[-1]):
                study.tell(asked.number, found[-1])
            else:
                study.tell(asked.number, state=optuna.trial.TrialState.FAIL)
    return best_so_far(found, budget)


def best_so_far(found: list[float], budget: int) -> list[float]:
    best = np.maximum.accumulate(found[:budget]).tolist()
    return best + [best[-1]] * (budget - len(best))


def _untried(point: Point, tried: list[Point], scores: Scores) -> Point | None:
    seen, queue = [point], deque([point])
    while queue:
        here = queue.popleft()
        if here not in tried:
            return here
        for beside in neighbours(here, scores.axes):
            if beside not in seen:
                seen.append(beside)
                queue.append(beside)
    return None


def _ordered(values: tuple[Any, ...]) -> bool:
    numbers = [value for value in values if value is not None]
    return len(numbers) > 1 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers)


def main(cache: Path) -> None:
    use_threads(1)
    cache.mkdir(parents=True, exist_ok=True)
    most = max(BUDGETS)
    print(
        f"the last {EVENTS:,} events of each stream, batches of {BATCH}, bpr, time decay open: best score by budget\n"
    )
    print("| stream | strategy | points | search | " + " | ".join(map(str, BUDGETS)) + " |")
    print("|---|---|---|---|" + "---|" * len(BUDGETS), flush=True)
    gaps: dict[str, list[list[float]]] = {}
    for stream in STREAMS:
        log = load_stream(DATA / f"{stream}.parquet")
        log = log.tail(max(len(log) - EVENTS, 0))
        parts = split(log, (0.85, 0.05, 0.1))
        plan = Plan("bpr", protocol=EvaluationProtocol(batch_size=BATCH))
        selection = Selection(log.head(parts.validation_stop), parts, plan)
        start = refit(plan, selection.before_window, {"l2": 0.03, "epochs": 20}, observed={})
        for strategy in STRATEGIES:
            scores = Scores(cache, stream, selection, start, strategy)
            curves = {
                "walk": [walk(scores, most, 1)],
                "walk in rounds": [walk(scores, most, ROUND)],
                "half TPE": [sampled(scores, most, seed, 0.5) for seed in SEEDS],
                "TPE": [sampled(scores, most, seed, 0.0) for seed in SEEDS],
            }
            for name, lines in curves.items():
                at = [[line[budget - 1] for budget in BUDGETS] for line in lines]
                gaps.setdefault(name, []).append(np.mean(at, axis=0) - [curves["walk"][0][b - 1] for b in BUDGETS])
                cells = " | ".join(
                    f"{np.mean(column):.4f}" + (f" ± {np.std(column, ddof=1):.4f}" if len(column) > 1 else "")
                    for column in zip(*at, strict=True)
                )
                print(f"| {stream} | {strategy} | {len(scores.known)} | {name} | {cells} |", flush=True)
            print(f"  {scores.seconds:.0f} CPU s", file=sys.stderr, flush=True)
    print("\nmean difference to the walk over streams and strategies, and in how many of them it is ahead or behind")
    for name, lines in gaps.items():
        told = " | ".join(
            f"{np.mean(column):+.4f} ({sum(g > 1e-9 for g in column)} ahead, {sum(g < -1e-9 for g in column)} behind)"
            for column in zip(*lines, strict=True)
        )
        print(f"| {name} | {told} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/tmp/melon-search"))
