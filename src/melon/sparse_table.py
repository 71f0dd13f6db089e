"""Sparse tables: rows of optimiser state that are stored once they are written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.tables import Clock, Table, TableSpec, Undo, require_made
from melon.types import Ints


class SparseTable:
    """Rows that are stored once they are written: all others read as zeros and cost four bytes each.

    For optimiser state that is wide and that most rows never get; nothing fades in it.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        clock: Clock | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if spec.role == "shared" or spec.std or spec.centre:
            raise SettingsError(f"table {spec.name!r} does not start as zeros, so its rows have to be stored at once.")
        self.spec = spec
        self.rows = 0
        self._stored = Table(spec, clock=clock, dtype=dtype, device=device)
        # Where each row is stored; -1 from self.rows on, and for rows that were never written.
        self._slots = torch.full((1,), -1, dtype=torch.int32, device=device)

    @property
    def device(self) -> torch.device:
        """Where the rows live."""
        return self._slots.device

    def gather(self, rows: Tensor) -> Tensor:
        """A copy of rows; those that are absent or were never written are zeros."""
        slots = self._slots[rows.clamp(max=self.rows)].long()
        return self._stored.gather(slots.masked_fill(slots < 0, self._stored.rows))

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Write distinct rows; those written for the first time get a place in storage."""
        require_made(rows, self.rows, self.spec.name)
        new, first = rows[self._slots[rows] < 0], self._stored.rows
        self._stored.grow(first + len(new), np.zeros(len(new), dtype=np.int64))
        self._slots[new] = torch.arange(first, self._stored.rows, dtype=torch.int32, device=self.device)
        self._stored.scatter(self._slots[rows].long(), values)

    def grow(self, rows: int, keys: Ints) -> None:
        """Make rows up to number `rows`; all of them are zeros, so keys play no part."""
        if rows <= self.rows:
            return
        if rows + 1 > len(self._slots):
            longer = self._slots.new_full((max(rows + 1, 2 * len(self._slots)),), -1)
            longer[: self.rows] = self._slots[: self.rows]
            self._slots = longer
        self.rows = rows

    def truncate(self, rows: int) -> None:
        """Remove the rows from number `rows` on."""
        self._slots[rows : self.rows] = -1
        self.rows = min(self.rows, rows)

    def undo_point(self, rows: Tensor) -> Undo:
        """Copy distinct rows that are about to be written; the returned function puts them back."""
        require_made(rows, self.rows, self.spec.name)
        slots = self._slots[rows]
        new, stored, put_back = rows[slots < 0], self._stored.rows, self._stored.undo_point(slots[slots >= 0].long())

        def undo() -> None:
            put_back()
            self._slots[new] = -1
            self._stored.truncate(stored)

        return undo

    def state(self) -> dict[str, Tensor]:
        """Copies of what is stored, in the order of the rows, and which rows these are."""
        written = torch.nonzero(self._slots[: self.rows] >= 0).squeeze(1)
        stored, slots = self._stored.state(), self._slots[written].long()
        return {"row": written, **{part: tensor[slots] for part, tensor in stored.items()}}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Become what `state` described."""
        written = state["row"].to(self.device)
        self._stored.restore({part: state[part] for part in ("values", "touched")})
        self.rows = int(written.max()) + 1 if len(written) else 0
        self._slots = self._slots.new_full((self.rows + 1,), -1)
        self._slots[written] = torch.arange(len(written), dtype=torch.int32, device=self.device)
