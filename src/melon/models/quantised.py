"""8-bit quantised rows of items, the pre-filter of two-stage lists; they follow the rows as these change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from melon.kernels import policy
from melon.kernels.quantised import BLOCK, TOGETHER
from melon.models.catalogue import Near, Within, filled
from melon.tables import Changes, Moment, Table, reference
from melon.types import Ints, Singles, TinyInts


class QuantisedRows:
    """The vectors and biases of items, vectors in 8 bits, at a reference moment of the decay clock; a copy begins anew.

    What is stored of a row depends on that row alone, and not on when it was stored.
    """

    def __init__(self) -> None:
        self._watched: list[tuple[Table, Changes]] = []
        self._rule: tuple[object, ...] = ()
        self._codes: TinyInts = np.empty((0, 0, BLOCK), dtype=np.int8)
        self._scales: Singles = np.empty(0, dtype=np.float32)
        self._bias: Singles = np.empty(0, dtype=np.float32)

    def __deepcopy__(self, _: dict[int, Any]) -> QuantisedRows:
        return QuantisedRows()

    def follow(
        self, kernels: policy.Kernels, tables: Mapping[str, Table], n_items: int, at: Moment | None, now: int
    ) -> Near:
        """Bring the rows up to date, and return what finds about the best of items 0 … n_items-1, in no order.

        It is right until the rows are written again.
        """
        sides = [tables["item_factors"], tables["item_bias"]]
        arrays, count = [table.arrays(at) for table in sides], min(table.rows for table in sides)
        moments = [reference(now, half_life) for *_, half_life in arrays]
        rule = *((moment, half_life) for (moment, _), (*_, half_life) in zip(moments, arrays, strict=True)), *sides
        if rule != self._rule or count > len(self._scales):
            self._rule, self._watched = rule, [(table, table.watch()) for table in sides]
            blocks, dim = -(-2 * count // BLOCK), sides[0].spec.dim
            self._codes = np.zeros((blocks, -(-dim // TOGETHER) * TOGETHER, BLOCK), dtype=np.int8)
            self._scales, self._bias = np.zeros((2, blocks * BLOCK), dtype=np.float32)
            changed = np.arange(count)
        else:
            changed = np.concatenate([changes.take() for _, changes in self._watched])
            changed = changed[changed < count]
        stored = (part for each, (moment, _) in zip(arrays, moments, strict=True) for part in (*each, moment))
        kernels.quantise(changed, *stored, self._codes, self._scales, self._bias)
        size = min(count, n_items)
        of_items = self._codes, self._scales[:size], self._bias[:size], *(factor for _, factor in moments)
        users = tables["user_factors"]
        scan = partial(kernels.quantised_scan, *users.arrays(at), users.rows, now, *of_items)

        def near(users: Ints, many: int, within: Within) -> list[Ints]:
            return [rows for rows, _ in filled(scan, size, np.float32, users, many, within)]

        return near
