"""What a step of MeLON needs at least, beside what one core of this machine does: arithmetic and memory.

    python benchmarks/limits.py
    python benchmarks/limits.py --recommenders bpr --batches 40

The core's own speed is measured first: a product of large float32 matrices (GFLOP/s), a copy that no cache holds, and
rows of 256 bytes read at random from a table of 60 MB (GB/s). Then a step on tables of 60 + 75 thousand rows is timed,
and its pairs and rows are counted as it runs: the pair network forward and, where the look-ahead is differentiated,
back; the interaction side; and the rows that are read and written. CPU time, one thread, medians; `share` is the time
that the counted work would take at the measured speed over the time that the step took.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from melon.kernels import policy
from melon.kernels.threads import use_threads
from melon.strategies.melon import kernel as pair_kernels
from melon.strategies.melon.interaction_model import InteractionModel
from step import Sized

ROUNDS, WIDTH, DIM, NEIGHBOURS, EXTENDED = 15, 20, 64, 10, 64
#: Multiplications and additions for a pair: two layers and two heads, and the way back, which computes them again.
FORWARD = 2 * (3 * WIDTH + WIDTH**2 + 2 * WIDTH)
BACKWARD = FORWARD + 2 * (2 * WIDTH**2 + 7 * WIDTH)


@dataclass
class Count:
    """Pairs with and without a way back, and targets and units of the interaction side likewise."""

    forward: int = 0
    backward: int = 0
    targets: int = 0
    targets_back: int = 0

    def flop(self, features: int) -> float:
        """Floating-point operations."""
        # A target: attention over partners, the joint layer, its half of a unit's layer; twice that on the way back.
        target = 2 * (2 * NEIGHBOURS * features + 2 * features * EXTENDED + EXTENDED * WIDTH)
        pairs = self.forward * FORWARD + self.backward * BACKWARD
        return pairs + target * (self.targets + 2 * self.targets_back)

    def bytes(self, features: int) -> float:
        """Bytes of rows that have to be read, partners above all; once a step, whoever asks for them."""
        return self.targets_back * (1 + NEIGHBOURS) * features * 4.0


def best(work: Callable[[], Any]) -> float:
    """The median CPU seconds of some work."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return float(np.median(times))


def machine() -> tuple[float, float, float]:
    """GFLOP/s of a matrix product, GB/s of a long copy, GB/s of rows at random."""
    one, long = torch.randn(1024, 1024), torch.randn(16_000_000)
    table, rows = torch.randn(240_000, DIM), torch.randint(0, 240_000, (50_000,))
    out, short = torch.empty_like(long), torch.empty(len(rows), DIM)
    flops = 2 * 1024**3 / best(lambda: torch.mm(one, one))
    copied = 2 * long.nbytes / best(lambda: out.copy_(long))
    gathered = short.nbytes / best(lambda: torch.index_select(table, 0, rows, out=short))
    return flops / 1e9, copied / 1e9, gathered / 1e9


def counting(count: Count) -> None:
    """Let the kernels say how much they are asked for."""
    kernel = pair_kernels.CompiledKernel
    moved, shared, targets = kernel.moved_rows, kernel.shared_move, InteractionModel.targets

    def add(pairs: int) -> None:
        count.forward += pairs
        count.backward += pairs if torch.is_grad_enabled() else 0

    def moved_rows(self: Any, touches: Any, *more: Any) -> Any:
        add(sum(len(each.row) * each.values.shape[1] for each in touches))
        return moved(self, touches, *more)

    def shared_move(self: Any, theta: Any, lines: Any, *more: Any) -> Any:
        left, right = (part.ne(0).any(1).sum(1) for part in (lines.gradient.left, lines.gradient.right))
        add(int((left * right).sum()))
        return shared(self, theta, lines, *more)

    def looked_up(self: Any, *given: Any) -> Any:
        found = targets(self, *given)
        number = sum(len(side.places) for side in found)
        count.targets += number
        count.targets_back += number if torch.is_grad_enabled() else 0
        return found

    kernel.moved_rows, kernel.shared_move, InteractionModel.targets = moved_rows, shared_move, looked_up


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recommenders", default="bpr,ncf")
    parser.add_argument("--batches", type=int, default=20)
    asked = parser.parse_args()
    use_threads(1)
    flops, copied, gathered = machine()
    print(f"one core: {flops:.0f} GFLOP/s (matrices), {copied:.1f} GB/s copied, {gathered:.1f} GB/s rows at random")
    titles = ("", "pairs", "and back", "MFLOP", "at best", "MB", "at best", "step", "share")
    print("".join(f"{title:>{width}}" for title, width in zip(titles, (6, 12, 12, 9, 10, 7, 10, 10, 8), strict=True)))
    policy.warm_up("stream", "factor", ("melon", WIDTH))
    for recommender in asked.recommenders.split(","):
        sized = Sized(recommender, "melon", {}, users=60_000, items=75_000)
        batches = asked.batches if recommender == "bpr" else max(asked.batches // 4, 3)
        step = float(np.median([sized.learn() for _ in range(3 + batches)][3:]))
        count, features = Count(), DIM if recommender == "bpr" else 2 * DIM
        counting(count)
        sized.learn()
        work, moved = count.flop(features), count.bytes(features)
        arithmetic, memory = work / flops / 1e9, moved / gathered / 1e9
        print(
            f"{recommender:6}{count.forward:12,}{count.backward:12,}{work / 1e6:9,.0f}{1e3 * arithmetic:7.2f} ms"
            f"{moved / 1e6:7.1f}{1e3 * memory:7.2f} ms{1e3 * step:7.1f} ms{(arithmetic + memory) / step:8.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
