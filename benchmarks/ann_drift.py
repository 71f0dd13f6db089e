"""How fast the cells of an inverted file age while rows really drift: bpr on a recorded stream, fading on.

    MELON_DATA=… python benchmarks/ann_drift.py [--stream news_globo_unfiltered] [--batches 400]

bpr is pre-trained on the first half of a stream. Its item rows, with the bias as one more entry, go into an inverted
file of faiss. Then the stream goes on in batches of 256 with fading: every batch gives the rows that it changed to the
index, and new items are added. Idle rows fade alike, so they are stored as of the start and need no update. Now and
then lists are asked for users of the last batch: how many of the exact ten the best 100 of the index hold, by how
many cells are looked into; beside an index that is made anew from the rows as they are now. Needs `pip install
faiss-cpu`, which melon does not use (docs/adr/0018-no-approximate-index.md).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from pathlib import Path

import faiss
import numpy as np

from melon import Melon
from melon.data.files import load_stream
from melon.learning.model import LiveModel
from melon.types import Ints, Singles

K, AGAIN, BATCH, HALF_LIFE = 10, 100, 256, 50_000.0
#: One cell in so many is looked into.
SHARES = (64, 16, 4)


class Lists:
    """An inverted file: rows are replaced in place, new ones are added."""

    def __init__(self, rows: Singles) -> None:
        self.cells = int(2 ** round(np.log2(np.sqrt(len(rows)))))
        self._index = faiss.IndexIVFFlat(
            faiss.IndexFlatIP(rows.shape[1]), rows.shape[1], self.cells, faiss.METRIC_INNER_PRODUCT
        )
        self._index.train(rows)
        self._index.add(rows)
        self._index.set_direct_map_type(faiss.DirectMap.Array)

    def change(self, places: Ints, rows: Singles) -> None:
        """Bring rows up to date; those behind the end are new."""
        old = places < self._index.ntotal
        if old.any():
            self._index.update_vectors(places[old], np.ascontiguousarray(rows[old]))
        if not old.all():
            self._index.add(np.ascontiguousarray(rows[~old]))

    def near(self, user: Singles, probed: int) -> Ints:
        """The best 100 of some cells."""
        self._index.nprobe = probed
        found: Ints = self._index.search(user[None, :], AGAIN)[1][0]
        return found[found >= 0]


def rows_at_start(model: LiveModel, began: int) -> Singles:
    """Rows of items with their bias, as they would have been stored at the start: fading since then undone."""
    tables, events = model.updater.recommender.tables, model.updater.history.events
    vectors = np.concatenate(
        [tables[name].view().everything().numpy() for name in ("item_factors", "item_bias")], axis=1
    )
    return np.ascontiguousarray(vectors * np.float32(2.0 ** ((events - began) / HALF_LIFE)))


def kept(index: Lists, rows: Singles, users: Singles, probed: int) -> float:
    """Which share of the exact ten is among the index's hundred."""
    shares = []
    for user in users:
        exact = np.argpartition(-(rows @ user), K)[:K]
        shares.append(len(np.intersect1d(exact, index.near(user, probed))) / K)
    return float(np.mean(shares))


def main() -> None:
    """Pre-train, index, go on, ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", default="news_globo_unfiltered")
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--every", type=int, default=50)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    log = load_stream(Path(os.environ.get("MELON_DATA", ".")) / f"{options.stream}.parquet")
    half = len(log) // 2
    settings = {"optimizer": "sgd", "lr": 0.3, "fading": HALF_LIFE}
    model = Melon("bpr", "default", budget=0, epochs=5, settings=settings, progress=False).fit(log.head(half)).live
    began = model.updater.history.events
    index, touched, sizes, took = Lists(rows_at_start(model, began)), set[int](), list[int](), list[float]()
    print(f"{options.stream}: {len(log):,} interactions, {model.rows_of('item'):,} items, {index.cells} cells")
    print("| batches | rows changed | " + " | ".join(f"{name}, 1/{share} of cells" for name in ("kept up", "made anew")
          for share in SHARES) + " |")  # fmt: skip
    before = rows_at_start(model, began)
    for batch in range(options.batches + 1):
        rows = rows_at_start(model, began)
        if batch % options.every == 0:
            users = np.unique(log.users[half + max(batch - 1, 0) * BATCH :][:BATCH])[:100]
            places = model.users.rows(log.user_ids[users])
            vectors = model.updater.recommender.tables["user_factors"].view().everything().numpy()[places[places >= 0]]
            asking = np.concatenate([vectors, np.ones((len(vectors), 1), np.float32)], axis=1)
            anew = Lists(rows)
            shares = [kept(one, rows, asking, max(one.cells // share, 1)) for one in (index, anew) for share in SHARES]
            figures = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {batch} | {len(touched):,} of {len(rows):,} | {figures} |", flush=True)
        some = slice(half + batch * BATCH, half + (batch + 1) * BATCH)
        model.learn_events(log.user_ids[log.users[some]], log.item_ids[log.items[some]], log.times[some])
        after = rows_at_start(model, began)
        same = len(before)
        faded = np.median(np.linalg.norm(after[:same], axis=1) / np.linalg.norm(before, axis=1))
        moved = np.flatnonzero(~np.isclose(after[:same], faded * before, rtol=1e-4, atol=1e-7).all(axis=1))
        changed = np.concatenate([moved, np.arange(same, len(after))])
        clock = time.process_time()
        index.change(changed, after[changed])
        took.append(time.process_time() - clock)
        sizes.append(len(changed))
        touched.update(changed.tolist())
        before = after
    print(f"a batch changes {np.median(sizes):.0f} rows; following it takes {np.median(took) * 1e3:.2f} CPU ms")


if __name__ == "__main__":
    main()
