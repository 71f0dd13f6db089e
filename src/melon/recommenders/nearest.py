"""Lists from very many items: candidates from an inverted file (faiss) that follows the rows, scored exactly after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from melon.fading import Changes
from melon.recommenders.catalogue import Best, Catalogue, Within, best
from melon.recommenders.factorisation import FactorCatalogue
from melon.stream.pairs import pair_keys
from melon.tables import Moment, Table
from melon.types import Floats, Ints, Singles

#: Fewer items than this are scanned, which takes less than following them does.
FROM = 100_000
#: One cell in so many is looked into, and at least so many.
_SHARE, _FEWEST = 32, 8
#: Cells are made from so many rows each, and made anew once there are twice as many items as then.
_TRAINED_BY, _OUTGROWN = 64, 2
#: Rows are stored as of a moment, since all idle ones fade alike; it moves up after so many half-lives.
_REFERENCE = 32
#: This many best products, beside the list's length, are scored again.
CANDIDATES = 100


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

    def near(self, user: Singles, many: int) -> Ints:
        """Items that are probably among the best for a user's vector, best first."""
        _, (rows,) = self._index.search(np.append(user, np.float32(1))[None, :], min(many, len(self)))
        found: Ints = rows[rows >= 0]
        return found

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
    """The best of what an inverted file finds, scored exactly; everything else by a scan of all rows."""

    def __init__(
        self,
        index: InvertedFile,
        tables: Mapping[str, Table],
        n_items: int,
        at: Moment | None,
        exact: Callable[[], FactorCatalogue],
        score: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self._index, self._tables, self._n_items, self._at = index, tables, n_items, at
        self._make_exact, self._score = exact, score

    @cached_property
    def _exact(self) -> FactorCatalogue:
        return self._make_exact()

    def scores(self, users: Tensor, *, unseen: bool = False) -> Tensor:
        return self._exact.scores(users)

    def best(self, users: Ints, k: int, within: Within) -> list[Best]:
        if len(within.allowed) or len(within.boost):
            return self._exact.best(users, k, within)
        vectors = self._tables["user_factors"].gather(from_numpy(users), self._at).numpy()
        return [self._best_of(user, vector, k, within) for user, vector in zip(users[:, None], vectors, strict=True)]

    def _best_of(self, user: Ints, vector: Singles, k: int, within: Within) -> Best:
        """One user's list; one for whom too little is found is served by the scan."""
        wanted = k + CANDIDATES
        found = self._index.near(vector, 2 * wanted)
        found = found[found < self._n_items]
        if within.seen is not None:
            found = found[~within.seen.contains(pair_keys(np.repeat(user, len(found)), found))]
        found = np.sort(found[:wanted])
        if len(found) < min(wanted, self._n_items):
            return self._exact.best(user, k, within)[0]
        places, values = best(self._score(from_numpy(user), from_numpy(found[None, :])).numpy(), k)[0]
        return found[places], values
