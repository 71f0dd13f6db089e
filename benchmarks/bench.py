"""Every strategy on every recommender in one table: cost of a batch, throughput, memory, growth with the tables.

    python benchmarks/bench.py
    python benchmarks/bench.py --strategies default,melon --recommenders bpr --record

Each pairing has processes of its own, one thread each. The batch is timed on tables of 60 thousand users and 75
thousand items, in turns with Default under Adam on touched rows, and the ratio is that of medians; `interactions/s` is
the whole prequential loop (candidates, scoring, metrics, update) on a synthetic news stream; `peak` is the process that
does the timing; `growth` is a batch on 1 million rows over one on 10 thousand. CPU time, so that other work on the
machine counts little. With --record the table becomes benchmarks/recorded.json, which later runs are compared with by
their ratios to Default: milliseconds differ between machines, ratios much less.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ.get("MELON_BENCH_THREADS", "1")
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from melon.kernels.threads import use_threads

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
LAZY = ("default", {"optimizer": "adam_lazy", "lr": 0.01})
#: What stands behind a name in the table where that is not the strategy's default.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": LAZY,
    "default (sgd)": ("default", {"optimizer": "sgd", "lr": 0.1}),
    "default (dense)": ("default", {"optimizer": "adam_dense", "lr": 0.001}),
}
SIZES = {"10 thousand": 10_000, "1 million": 1_000_000}
#: Enough batches for a median, fewer where one takes long; the seconds a measurement may take.
BATCHES, PATIENCE = 60, 45.0
_MOST = "MELON_BENCH_BATCHES"


def cost(recommender: str, name: str) -> dict[str, float]:
    """A batch on tables of 60k + 75k rows, in turns with lazy Adam; milliseconds, ratio and peak memory."""
    from step import Sized

    strategy, settings = VARIANTS.get(name, (name, {}))
    ours = Sized(recommender, strategy, settings, users=60_000, items=75_000)
    lazy = Sized(recommender, *LAZY, users=60_000, items=75_000)
    pairs = in_turns(ours, lazy)
    median, plain = np.median(pairs, axis=0) * 1e3
    return {
        "ms": float(median),
        "p95": float(np.percentile(pairs[:, 0], 95) * 1e3),
        "ratio": float(median / plain),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def growth(recommender: str, name: str) -> dict[str, float]:
    """A batch on 1 million rows over one on 10 thousand."""
    from step import Sized

    strategy, settings = VARIANTS.get(name, (name, {}))
    if settings.get("optimizer") == "adam_dense":
        return {}  # grows with the tables by its nature
    small, large = (Sized(recommender, strategy, settings, users=n // 2, items=n // 2) for n in SIZES.values())
    few, many = np.median(in_turns(small, large), axis=0)
    return {"growth": float(many / few)}


def throughput(recommender: str, name: str) -> dict[str, float]:
    """Interactions a second through the whole loop."""
    from melon.data.synthetic import synthetic_stream
    from melon.kernels.policy import warm_up
    from melon.strategies.registry import STRATEGIES
    from prequential import one_round

    warm_up("stream", "factor", "neighbours", "blend")
    strategy, settings = VARIANTS.get(name, (name, {}))
    events = 256 * 20
    log = synthetic_stream("news", n_users=20_000, n_items=10_000, n_events=20 * 256 + 2 * events)
    make = STRATEGIES[strategy].load()
    one_round(log, len(log) - 10 * 256, recommender, make(settings))  # loads what is loaded at first use
    spent, _, _ = one_round(log, len(log) - events, recommender, make(settings))
    return {"per_second": events / sum(spent.values())}


def in_turns(one: Any, other: Any) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """CPU seconds of batches of two updaters that take turns, after a few to warm up."""
    first = [(one.learn(), other.learn()) for _ in range(3)]
    most = int(os.environ.get(_MOST, BATCHES))
    batches = int(np.clip(PATIENCE / max(sum(first[-1]), 1e-9), 3, most))
    return np.array([(one.learn(), other.learn()) for _ in range(batches)])


def measured(recommender: str, name: str) -> dict[str, float]:
    """All figures of a pairing, each from a process of its own."""
    figures: dict[str, float] = {}
    for what in (cost, growth, throughput):
        command = [sys.executable, __file__, "--one", what.__name__, recommender, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{recommender} with {name}: {done.stderr.strip().splitlines()[-1]}")
        figures |= json.loads(done.stdout.splitlines()[-1])
    return figures


def line(recommender: str, name: str, found: dict[str, float], before: dict[str, float] | None) -> str:
    """One row of the table; the last column says how the ratio stands to the recorded one."""
    grown = f"{found['growth']:.2f}" if "growth" in found else "–"
    change = "" if before is None else f"{before['ratio']:.1f} → {found['ratio']:.1f}"
    return (
        f"| {recommender} | {name} | {found['ms']:.2f} | {found['p95']:.2f} | {found['ratio']:.1f} | "
        f"{found['per_second']:,.0f} | {found['peak_mb']:,.0f} | {grown} | {change} |"
    )


def main() -> None:
    """Run the benchmark."""
    from melon.strategies.registry import ALL_STRATEGIES

    every = ["default", "default (sgd)", "default (dense)", *ALL_STRATEGIES[1:]]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recommenders", default="bpr,ncf")
    parser.add_argument("--strategies", default=",".join(every))
    parser.add_argument("--batches", type=int, default=BATCHES, help="at most; fewer where one takes long")
    parser.add_argument("--record", action="store_true", help="keep the figures for later runs to be compared with")
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "RECOMMENDER", "NAME"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        use_threads(int(os.environ["OMP_NUM_THREADS"]))
        what, recommender, name = asked.one
        print(json.dumps({"cost": cost, "growth": growth, "throughput": throughput}[what](recommender, name)))
        return
    os.environ[_MOST] = str(asked.batches)
    recorded: dict[str, dict[str, float]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    print(
        "| recommender | strategy | ms | p95 | × Default | interactions/s | peak MB | growth | × Default before → now |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for recommender in asked.recommenders.split(","):
        for name in asked.strategies.split(","):
            found = measured(recommender, name)
            print(line(recommender, name, found, recorded.get(f"{recommender} {name}")), flush=True)
            recorded[f"{recommender} {name}"] = found
    if asked.record:
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
