"""Candidates from an approximate index whose rows change at every batch, beside a scan of all rows.

    python research/benchmarks/ann.py --items 200000
    python research/benchmarks/ann.py --items 1000000 --kinds lists

`usearch` and `graph` (faiss) are graphs (HNSW), `lists` is faiss's inverted file. Vectors lie in clusters, as trained
rows do. Every batch changes 500 rows; time decay costs an index nothing, since idle rows that decay alike keep their order
when rows are stored at one reference moment. usearch removes and adds rows, a graph of faiss cannot remove and gets
them added as new ones, the inverted file replaces them in place and keeps the cells that it was trained with. The best
100 of an index are scored again exactly. CPU milliseconds, one thread, d = 64. Aim: .95 of the exact ten in 5 ms a
list, at no more for an update than the batch itself costs (1 to 10 ms). Needs `pip install usearch faiss-cpu`
(docs/adr/0018-an-inverted-file-for-very-many-items.md).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable

import faiss
import numpy as np
from usearch.index import Index

from melon.data.interactions import Taken
from melon.kernels import policy
from melon.types import Ints, Singles

DIM, K, CHANGED, AGAIN = 64, 10, 500, 100


class Usearch:
    """A graph whose rows are removed and added again; effort is how many of them a search keeps in view."""

    efforts = (64, 256, 1024)

    def __init__(self, items: Singles) -> None:
        self._index = Index(ndim=DIM, metric="ip", dtype="f32")
        self._index.add(np.arange(len(items)), items, threads=1)

    def change(self, rows: Ints, values: Singles) -> None:
        """Replace rows."""
        self._index.remove(rows, threads=1)
        self._index.add(rows, values, threads=1)

    def search(self, user: Singles, effort: int) -> Ints:
        """Rows that are probably near."""
        self._index.expansion_search = effort
        return np.asarray(self._index.search(user, AGAIN, threads=1).keys, dtype=np.int64)


class Graph:
    """The graph of faiss: what changes is added, and the number of the row is looked up."""

    efforts = (64, 256, 1024)

    def __init__(self, items: Singles) -> None:
        self._index = faiss.IndexHNSWFlat(DIM, 16, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = 128
        self._index.add(items)
        self._row_of = np.arange(len(items))

    def change(self, rows: Ints, values: Singles) -> None:
        """Add rows; the old ones stay in the way."""
        self._index.add(values)
        self._row_of = np.concatenate([self._row_of, rows])

    def search(self, user: Singles, effort: int) -> Ints:
        """The same."""
        self._index.hnsw.efSearch = effort
        return np.unique(self._row_of[self._index.search(user[None, :], AGAIN)[1][0]])


class Lists:
    """The inverted file of faiss; effort is how many cells are looked into."""

    efforts = (8, 32, 128)

    def __init__(self, items: Singles) -> None:
        cells = faiss.IndexFlatIP(DIM)
        self._index = faiss.IndexIVFFlat(cells, DIM, 1024, faiss.METRIC_INNER_PRODUCT)
        self._index.train(items[:: max(len(items) // 50_000, 1)])
        self._index.add(items)
        self._index.set_direct_map_type(faiss.DirectMap.Array)

    def change(self, rows: Ints, values: Singles) -> None:
        """Replace rows."""
        self._index.update_vectors(rows, values)

    def search(self, user: Singles, effort: int) -> Ints:
        """The same."""
        self._index.nprobe = effort
        found = self._index.search(user[None, :], AGAIN)[1][0]
        return found[found >= 0]


KINDS = {"usearch": Usearch, "graph": Graph, "lists": Lists}


def timed(work: Callable[[], object]) -> float:
    """CPU milliseconds."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def rows(rng: np.random.Generator, centres: Singles, n: int) -> Singles:
    """Rows around centres, of unlike length."""
    near = centres[rng.integers(0, len(centres), n)] + 0.5 * rng.normal(size=(n, DIM)).astype(np.float32)
    return (near * rng.lognormal(0, 0.5, (n, 1))).astype(np.float32)


def scan(items: Singles, user: Singles) -> Ints:
    """The exact ten, as BPR makes them."""
    kernels, nothing = policy.load("lists"), np.empty(0, np.float32)
    assert kernels is not None
    own = (user[None, :], np.zeros(1, np.int64), 0.0, 1, np.zeros((1, 1), np.float32), np.zeros(1, np.int64), 0.0, 1)
    found, values, counts = np.empty((1, K), np.int64), np.empty((1, K), np.float32), np.zeros(1, np.int64)
    of_items = 0, np.float32(1), items, len(items), nothing, np.zeros(len(items), np.float32), nothing
    within = np.zeros(1, np.int64), np.empty(0, np.bool_), np.empty(0, np.int64), 0, *Taken.none()
    kernels.scan(*own, *of_items, *within, found, values, counts)
    return found[0]


def measure(kind: str, items: Singles, users: Singles, batches: int, rng: np.random.Generator) -> None:
    """Build, change, ask."""
    updates: list[float] = []
    began = time.process_time()
    index = KINDS[kind](items)
    built = (time.process_time() - began) * 1e6 / len(items)
    for _ in range(batches):
        changed = rng.choice(len(items), CHANGED, replace=False)
        items[changed] += 0.2 * rng.normal(size=(CHANGED, DIM)).astype(np.float32)
        values = items[changed]
        updates.append(timed(lambda changed=changed, values=values: index.change(changed, values)))
    print(f"{kind}: built in {built:.0f} µs a row, a batch changed in {np.median(updates):.1f} ms", flush=True)
    exact = [scan(items, user) for user in users]
    for effort in index.efforts:

        def ask(user: Singles, effort: int = effort) -> Ints:
            near = index.search(user, effort)
            return near[np.argsort(-(items[near] @ user), kind="stable")[:K]]

        kept = [len(np.intersect1d(ask(user), known)) / K for user, known in zip(users, exact, strict=True)]
        taken = np.median([timed(lambda user=user: ask(user)) for user in users])
        print(f"{kind}, effort {effort}: {np.mean(kept):.3f} of the exact ten, {taken:.2f} ms a list", flush=True)


def main() -> None:
    """Run the kinds that are asked for, on the same rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--kinds", default="usearch,graph,lists")
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    policy.warm_up("lists")
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, DIM)).astype(np.float32)
    start, users = rows(rng, centres, options.items), rows(rng, centres, 100)
    print(f"{options.items:,} items, {options.batches} batches of {CHANGED} changed rows", flush=True)
    alone = np.median([timed(lambda user=user: scan(start, user)) for user in users[:50]])
    print(f"exact, all rows: {alone:.2f} ms a list", flush=True)
    for kind in options.kinds.split(","):
        measure(kind, start.copy(), users, options.batches, rng)


if __name__ == "__main__":
    main()
