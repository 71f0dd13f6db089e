"""Candidates from an approximate index (usearch) whose rows change at every batch, beside a scan of all rows.

    python benchmarks/ann.py --items 1000000

Vectors lie in clusters, as trained rows do. Every batch changes 500 rows, which are removed and added again; fading
costs the index nothing, since idle rows that fade alike keep their order when rows are stored at one reference moment.
The best 100 of the index are scored again exactly. CPU milliseconds, one thread, d = 64. Aim: .95 of the exact ten in
5 ms a list, at no more for an update than the batch itself costs (1 to 10 ms). Needs `pip install usearch`, which melon
does not use (docs/adr/0018-no-approximate-index.md).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable

import numpy as np
from usearch.index import Index

from melon.kernels import policy
from melon.learning.lists import best
from melon.types import Singles

DIM, K, CHANGED, AGAIN = 64, 10, 500, 100


def timed(work: Callable[[], object]) -> float:
    """CPU milliseconds."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def rows(rng: np.random.Generator, centres: Singles, n: int) -> Singles:
    """Rows around centres, of unlike length."""
    near = centres[rng.integers(0, len(centres), n)] + 0.5 * rng.normal(size=(n, DIM))
    return (near * rng.lognormal(0, 0.5, (n, 1))).astype(np.float32)


def main() -> None:
    """Build, change, ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--expansions", default="64,256,1024")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, DIM)).astype(np.float32)
    items, users = rows(rng, centres, options.items), rows(rng, centres, 200)
    index = Index(ndim=DIM, metric="ip", dtype="f32")
    built = timed(lambda: index.add(np.arange(options.items), items, threads=1))
    print(
        f"{options.items:,} items: built in {built / 1e3:.0f} CPU s ({built / options.items * 1e3:.0f} µs a row)",
        flush=True,
    )
    updates = []
    for _ in range(options.batches):
        changed = rng.choice(options.items, CHANGED, replace=False)
        items[changed] += 0.2 * rng.normal(size=(CHANGED, DIM)).astype(np.float32)

        def update(changed: np.ndarray = changed) -> None:
            index.remove(changed, threads=1)
            index.add(changed, items[changed], threads=1)

        updates.append(timed(update))
    print(f"an update of {CHANGED} rows: {np.median(updates):.0f} ms", flush=True)
    loops, nothing, none = policy.load("lists"), np.zeros(1, np.float32), np.empty(0, np.float32)
    assert loops is not None
    bias, out = np.zeros(options.items, np.float32), np.empty((1, options.items), np.float32)

    def scan(user: Singles) -> np.ndarray:
        loops.products(user[None, :], nothing, items, options.items, none, bias, out)
        return best(out, K)[0][0]

    exact = [scan(user) for user in users]
    print(f"exact, all rows: {np.median([timed(lambda user=user: scan(user)) for user in users[:50]]):.1f} ms a list")
    for expansion in map(int, options.expansions.split(",")):
        index.expansion_search = expansion

        def ask(user: Singles) -> np.ndarray:
            keys = np.asarray(index.search(user, AGAIN, threads=1).keys, dtype=np.int64)
            return keys[np.argsort(-(items[keys] @ user), kind="stable")[:K]]

        kept = [len(np.intersect1d(ask(user), known)) / K for user, known in zip(users, exact, strict=True)]
        taken = np.median([timed(lambda user=user: ask(user)) for user in users])
        print(f"index, expansion {expansion}: {np.mean(kept):.3f} of the exact ten, {taken:.2f} ms a list", flush=True)


if __name__ == "__main__":
    main()
