"""Where the time of a step goes: CPU milliseconds per batch by function, for one pairing.

    python benchmarks/step_profile.py --recommender bpr --strategy melon
    python benchmarks/step_profile.py --recommender ncf --strategy default --set optimizer=adam_lazy --lines 20
    python benchmarks/step_profile.py --parts
    python benchmarks/step_profile.py --parts --recommender ncf --threads 2

The batches are those of benchmarks/step.py at 60 + 75 thousand rows, where each touches 256 users and 512 items. The
profiler makes Python itself look slower than it is: compare shares, and take totals from step.py. `--parts` does
without it: it times some functions of the step alone, one inside another, and shows the median of each. With more
than one thread these are wall-clock times; `spread` is what threads share, and kernels add up those of all threads.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from melon.kernels import policy
from melon.kernels.melon import functions
from melon.kernels.modules import MODULES
from melon.kernels.threads import allowed, use_threads
from melon.learning.examples import Offers
from melon.learning.general_step import Gatherer
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.strategies.melon.interaction_model import InteractionModel
from melon.strategies.melon.strategy import RateStrategy
from melon.stream.history import History
from step import BATCH, WARM_UP, Sized

USERS, ITEMS = 60_000, 75_000


def parts() -> list[tuple[Any, str]]:
    """What `--parts` times: the pieces of a step, from the outside in."""
    kernels = policy.load("melon", 20)
    found: list[tuple[Any, str]] = [
        (Updater, "learn"), (Offers, "of"), (Offers, "last"), (Updater, "step"),
        (Gatherer, "touched"), (Gatherer, "extended"), (Gatherer, "situation"), (Recommender, "losses_once"),
        (RateStrategy, "meta_gradient"), (RateStrategy, "look_ahead"), (torch.autograd, "grad"),
        (RateStrategy, "adapt"), (RateStrategy, "propose"), (InteractionModel, "targets"), (InteractionModel, "side"),
        (RateStrategy, "_unit_terms"), (RateStrategy, "_updated"), (Updater, "_write"), (History, "append"),
        (functions, "spread"),
    ]  # fmt: skip
    return found if kernels is None else found + [(kernels, name) for name in MODULES["melon"].signatures]


def watch(owner: Any, name: str, spent: dict[str, list[float]], clock: Callable[[], float]) -> None:
    """Write down the seconds of every call."""
    inner: Callable[..., Any] = getattr(owner, name)

    def timed(*given: Any, **more: Any) -> Any:
        began = clock()
        try:
            return inner(*given, **more)
        finally:
            spent[name].append(clock() - began)

    setattr(owner, name, timed)


def show_parts(sized: Sized, batches: int) -> None:
    """The median milliseconds of each part, all of its calls in a batch together."""
    spent: dict[str, list[float]] = defaultdict(list)
    clock = time.process_time if allowed() == 1 else time.perf_counter
    for owner, name in parts():
        watch(owner, name, spent, clock)
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for _ in range(batches):
        spent.clear()
        sized.learn()
        for name, times in spent.items():
            found[name].append((sum(times), len(times)))
    print(f"{'ms':>8}{'calls':>8}  part")
    for name, each in sorted(found.items(), key=lambda entry: -float(np.median([t for t, _ in entry[1]]))):
        print(f"{1e3 * np.median([t for t, _ in each]):8.2f}{np.median([n for _, n in each]):8.0f}  {name}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--strategy", default="melon")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the strategy")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--parts", action="store_true", help="time the pieces of a step instead of every function")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    use_threads(asked.threads)
    settings: dict[str, object] = dict(one.split("=", 1) for one in asked.set)
    sized = Sized(asked.recommender, asked.strategy, settings, users=USERS, items=ITEMS)
    for _ in range(WARM_UP):
        sized.learn()
    if asked.parts:
        show_parts(sized, asked.batches)
        return
    profile = cProfile.Profile(time.process_time)
    plain = sum(sized.learn() for _ in range(asked.batches)) / asked.batches
    profile.enable()
    for _ in range(asked.batches):
        sized.learn()
    profile.disable()
    print(
        f"{asked.recommender} with {asked.strategy}, {asked.batches} batches of {BATCH}: {1e3 * plain:.2f} ms a batch"
    )
    print(f"{'own ms':>8}{'with what it calls':>20}{'calls':>8}  function")
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (path, line, name), (_, calls, own, whole, _) in sorted(found.items(), key=lambda entry: -entry[1][2])[
        : asked.lines
    ]:
        place = f"{Path(path).name}:{line} " if line else ""
        own_ms, whole_ms = (1e3 * seconds / asked.batches for seconds in (own, whole))
        print(f"{own_ms:8.2f}{whole_ms:20.2f}{calls / asked.batches:8.1f}  {place}{name}")


if __name__ == "__main__":
    main()
