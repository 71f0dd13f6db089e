"""What the same operations cost in two checkouts, in turns: CPU time, medians of several rounds.

    git worktree add --detach /tmp/before 0e005e6
    python benchmarks/versions.py /tmp/before --rounds 5

Only what both versions have under the same name is called. One thread, one process.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS, EVENTS = 400_000, 60_000


def measured() -> dict[str, float]:
    """CPU seconds, or milliseconds where the name says so."""
    import numpy as np
    import polars as pl

    import melon
    from melon import estimator, evaluator
    from melon.data.prepare import prepare

    estimator.cores = evaluator.cores = lambda: 1
    rng, found = np.random.default_rng(0), dict[str, float]()
    columns = {
        "user": rng.zipf(1.3, ROWS) % 20_000,
        "item": rng.zipf(1.2, ROWS) % 8_000,
        "time": 10**9 + np.arange(ROWS),
    }
    frame = pl.DataFrame(columns)
    for name, words in (("`melon --help`", ["-m", "melon", "--help"]), ("`import melon`", ["-c", "import melon"])):
        found[name] = min(_child([sys.executable, *words]) for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        frame.write_csv(f"{folder}/raw.csv")
        name = "`melon data prepare`, 400,000 rows"
        found[name] = min(
            _spent(lambda: prepare(f"{folder}/raw.csv", out=f"{folder}/s.parquet", min_interactions=1))
            for _ in range(3)
        )

    def fitted(what: str, **given: Any) -> melon.Melon:
        model = melon.Melon(progress=False, **given)
        found[f"{what}: `fit` of 60,000 events"] = _spent(lambda: model.fit(frame.head(EVENTS)))
        return model

    def learned(what: str, model: melon.Melon, size: int, rounds: int) -> None:
        spent = []
        for turn in range(rounds + 3):
            pairs = zip(rng.integers(0, 20_000, size).tolist(), rng.integers(0, 8_000, size).tolist(), strict=True)
            events = [(user, item, 2 * 10**9 + turn) for user, item in pairs]
            spent.append(_spent(lambda events=events: model.partial_fit(events)))
        found[f"{what}: `partial_fit` of {size}, ms"] = 1e3 * statistics.median(spent[3:])

    def listed(what: str, model: melon.Melon, count: int) -> None:
        users = np.unique(columns["user"][:EVENTS])[:count].tolist()
        model.recommend(users[:2], k=10)
        found[f"{what}: a list of ten, ms"] = 1e3 * _spent(lambda: model.recommend(users, k=10)) / count

    plain = {"recommender": "bpr", "strategy": "default", "budget": 0, "epochs": 3}
    fitted("bpr", **plain)  # loads kernels
    bpr = fitted("bpr", **plain)
    learned("bpr", bpr, 1, 150)
    learned("bpr", bpr, 256, 60)
    listed("bpr", bpr, 300)
    adaptive = melon.Melon("bpr", "melon", budget=0, epochs=1, settings={"passes": 0}, progress=False)
    learned("bpr with MeLON", adaptive.fit(frame.head(EVENTS)), 256, 40)
    auto = fitted("auto, one trial", budget=1, epochs=2)
    learned("auto", auto, 1, 60)
    learned("auto", auto, 256, 20)
    listed("auto", auto, 100)
    given: dict[str, Any] = {"split": (0.7, 0.05, 0.25), "budget": 0, "epochs": 2, "progress": False}
    if "lists" in inspect.signature(melon.evaluate).parameters:
        given["lists"] = False
    record = melon.evaluate(frame.head(8_000), "bpr", "default", **given).record
    found["bpr: a prequential batch of 256, ms"] = record["score_ms"]["median"] + record["update_ms"]["median"]
    return found


def _spent(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _child(words: list[str]) -> float:
    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return used() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.other is None:
        print(json.dumps(measured()))
        return
    rounds: dict[Path, list[dict[str, float]]] = {given.other: [], Path(__file__).parents[1]: []}
    for _ in range(given.rounds):
        for tree, results in rounds.items():
            environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, __file__], env=environment, capture_output=True, text=True, check=True
            )
            results.append(json.loads(done.stdout.splitlines()[-1]))
    before, now = rounds.values()
    print("| what, CPU | before | now | ratio |\n|---|---|---|---|")
    for name in now[0]:
        old, new = (statistics.median(each[name] for each in results) for results in (before, now))
        print(f"| {name} | {old:.3f} | {new:.3f} | {new / old:.2f} |")


if __name__ == "__main__":
    main()
