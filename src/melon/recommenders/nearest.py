"""Lists from very many items: candidates from an inverted file (faiss) that follows the rows, scored exactly after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from melon.kernels import policy
from melon.recommenders.base import Catalogue
from melon.recommenders.factorisation import FactorCatalogue
from melon.tables import Changes, Moment, Table
from melon.types import Flags, Floats, Ints, Singles, SmallInts

#: Fewer items than this are scanned, which takes less than following them does.
FROM = 100_000
#: One cell in so many is looked into, and at least so many.
_SHARE, _FEWEST = 32, 8
#: Cells are made from so many rows each, and made anew once there are twice as many items as then.
_TRAINED_BY, _OUTGROWN = 64, 2
#: Rows are stored as of a moment, since all idle ones fade alike; it moves up after so many half-lives.
_REFERENCE = 32
_NO_BOOST: Singles = np.empty(0, dtype=np.float32)


class InvertedFile:
    """The vectors and biases of items in cells. Rows are replaced as they change; a copy begins anew."""

    def __init__(self) -> None:
        self._index: Any = None
        self._watched: list[tuple[Table, Changes]] = []
        self._half_life, self._reference, self._trained = 0.0, 0, 0

    def __deepcopy__(self, _: dict[int, Any]) -> InvertedFile:
        return InvertedFile()

    def follow(self, tables: Mapping[str, Table], at: Moment | None) -> bool:
        """Bring the rows up to date; False where an order by one product is not to be had: rows fade at two rates."""
        sides = [tables[name] for name in ("item_factors", "item_bias")]
        views = [table.view(at) for table in sides]
        half_life, now, count = views[0].half_life or 0.0, views[0].now, views[0].rows
        if half_life != (views[1].half_life or 0.0) or views[1].rows != count:
            return False
        watched = [table for table, _ in self._watched] == sides
        fits = watched and half_life == self._half_life and len(self) <= count < _OUTGROWN * self._trained
        if not fits or (half_life and now - self._reference > _REFERENCE * half_life):
            self._watched = [(table, table.watch()) for table in sides]
            self._half_life, self._reference, self._trained = half_life, now, count
            self._make(self._rows(np.arange(count)))
            return True
        changed = np.unique(np.concatenate([changes.take() for _, changes in self._watched]))
        old = changed[changed < len(self)]
        if len(old):
            self._index.update_vectors(old, self._rows(old))
        if count > len(self):
            self._index.add(self._rows(np.arange(len(self), count)))
        return True

    def __len__(self) -> int:
        return 0 if self._index is None else int(self._index.ntotal)

    def near(self, user: Singles, many: int) -> tuple[Ints, Singles]:
        """Items that are probably among the best for a user's vector, best first, and their products."""
        products, rows = self._index.search(np.append(user, np.float32(1))[None, :], min(many, len(self)))
        found = rows[0] >= 0
        return rows[0][found], products[0][found]

    def _rows(self, places: Ints) -> Singles:
        """Vectors and biases of items as of the reference."""
        parts = []
        for table, _ in self._watched:
            values, touched, _half_life = table.arrays()
            rows = values[places]
            if self._half_life:
                since: Floats = (touched[places] - self._reference) / self._half_life
                rows *= np.exp2(since).astype(np.float32)[:, None]
            parts.append(rows)
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def _make(self, rows: Singles) -> None:
        faiss = import_module("faiss")
        cells = max(int(2 ** round(np.log2(max(len(rows), 1)) / 2)) // 2, 1)  # putting a row into one takes cells × dim
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(rows.shape[1]), rows.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1
        index.train(np.ascontiguousarray(rows[:: max(len(rows) // (cells * _TRAINED_BY), 1)]))
        index.add(rows)
        index.set_direct_map_type(faiss.DirectMap.Array)
        index.nprobe = max(cells // _SHARE, min(_FEWEST, cells))
        self._index = index


class NearestCatalogue(Catalogue):
    """Quick scores by an inverted file; everything else, and what it does not find, by a scan of all rows."""

    def __init__(
        self,
        index: InvertedFile,
        tables: Mapping[str, Table],
        n_items: int,
        at: Moment | None,
        make: Callable[[], FactorCatalogue],
    ) -> None:
        self._index, self._tables, self._n_items, self._at, self._make = index, tables, n_items, at, make

    @cached_property
    def _exact(self) -> FactorCatalogue:
        return self._make()

    def scores(self, users: Tensor) -> Tensor:
        return self._exact.scores(users)

    def scan(self, boost: Singles) -> Callable[..., int]:
        return self._exact.scan(boost)

    def first_stage(self) -> Catalogue:
        return _FirstStage(self)

    def fill(
        self,
        users: Ints,
        allowed: Flags,
        slots: Ints,
        bits: int,
        starts: Ints,
        past: SmallInts,
        rows: Ints,
        values: Singles,
        counts: Ints,
    ) -> int:
        """As `melon.kernels.best.scan`, with what the inverted file finds; a user for whom that is too little is
        served by the scan.
        """
        loops, wanted = policy.load("stream"), rows.shape[1]
        vectors = self._tables["user_factors"].gather(from_numpy(users), self._at).numpy()
        for line, user in enumerate(users.tolist()):
            found = np.empty(0, dtype=np.int64)
            if not allowed.size and loops is not None:
                found, scores = self._index.near(vectors[line], 2 * wanted)
                held = np.zeros(len(found), dtype=np.bool_)
                if slots.size:
                    loops.contains(slots, bits, starts, past, (user << 32) | found, held)
                kept = np.flatnonzero(~held & (found < self._n_items))[:wanted]
                found, scores = found[kept], scores[kept]
            if len(found) < min(wanted, self._n_items):
                some = slice(line, line + 1)
                pairs, out = (slots, bits, starts, past), (rows[some], values[some], counts[some])
                broken = self._exact.scan(_NO_BOOST)(users[some], allowed, *pairs, *out)
                if broken >= 0:
                    return line
                continue
            rows[line], values[line], counts[line] = found, scores, len(found)
        return -1


class _FirstStage(Catalogue):
    def __init__(self, nearest: NearestCatalogue) -> None:
        self._nearest = nearest

    def scores(self, users: Tensor) -> Tensor:
        return self._nearest.scores(users)

    def scan(self, boost: Singles) -> Callable[..., int]:
        return self._nearest.fill
