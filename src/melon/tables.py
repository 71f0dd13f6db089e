"""The one owner of rows: every parameter is a table; rows are gathered, scattered, grown and faded here only."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from melon.errors import LearningError, SettingsError
from melon.stream.draws import Draws
from melon.types import Ints

Role = Literal["user", "item", "shared"]
Kind = Literal["embedding", "bias", "weight"]
_BLOCK = 65_536


@dataclass(frozen=True)
class TableSpec:
    """What a table is: its rows belong to users, to items or to everybody, and start as Normal(centre, std²)."""

    name: str
    role: Role
    kind: Kind
    dim: int
    std: float = 0.0
    centre: float = 0.0
    rows: int = 0  # only shared tables have a fixed number of rows


@dataclass(frozen=True)
class Standing:
    """Rows where they stand, for loops that read them without a copy: row n is `left[n] * values[places[n]]`."""

    values: Tensor
    places: Tensor
    left: Tensor


class Clock:
    """The moment at which rows are read: in interactions or in seconds, advanced by the updater alone."""

    def __init__(self, now: int = 0) -> None:
        self.now = now


class Table:
    """Growable rows of float parameters. An absent row reads as zeros; an idle row fades when a half-life is set."""

    def __init__(
        self,
        spec: TableSpec,
        *,
        clock: Clock | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec = spec
        self.rows = 0
        self.half_life: float | None = None
        self._clock = clock or Clock()
        self._draws = Draws(seed, f"init/{spec.name}")
        # Rows from self.rows on are all zero: an absent row is read from there.
        self._values = torch.zeros((1, spec.dim), dtype=dtype, device=device)
        self._touched = torch.zeros(1, dtype=torch.int64, device=device)
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        if spec.role == "shared":
            self.grow(spec.rows, np.arange(spec.rows))

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the rows."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Where the rows live."""
        return self._values.device

    def gather(self, rows: Tensor) -> Tensor:
        """A copy of the rows as they are now; shape of `rows` × dim."""
        places = rows.clamp(max=self.rows)
        values = F.embedding(places, self._values)
        if self.half_life is None:
            return values
        return values.mul_(fade(self._touched[places], self._clock.now, self.half_life).to(values.dtype).unsqueeze(-1))

    def standing(self, rows: Tensor) -> Standing:
        """The storage itself, where in it rows are, and what fading has left of each; read it and let go."""
        places = rows.clamp(max=self.rows)
        if self.half_life is None:
            return Standing(self._values, places, self._values.new_ones(places.shape))
        left = fade(self._touched[places], self._clock.now, self.half_life)
        return Standing(self._values, places, left.to(self._values.dtype))

    def storage(self) -> Tensor | None:
        """The storage itself, for loops that read rows where they stand: a row from number `rows` on is absent, and
        what stands at `rows` are zeros. None where rows fade as they are read.
        """
        return self._values if self.half_life is None else None

    def everything(self) -> Tensor:
        """All rows as they are now; a view of the storage where nothing fades, so read it and let go."""
        if self.half_life is None or not self.rows:
            return self._values[: self.rows]
        return torch.cat(list(self.blocks()))

    def blocks(self, size: int = _BLOCK) -> Iterator[Tensor]:
        """All rows in order, `size` at a time."""
        for start in range(0, self.rows, size):
            stop = min(start + size, self.rows)
            values = self._values[start:stop]
            if self.half_life is not None:
                rate = fade(self._touched[start:stop], self._clock.now, self.half_life)
                values = values * rate.to(values.dtype).unsqueeze(-1)
            yield values

    def idle(self, rows: Tensor) -> Tensor:
        """How long ago rows were last touched, by the clock of fading; absent rows have not been idle."""
        absent = rows >= self.rows
        return (self._clock.now - self._touched[rows.masked_fill(absent, 0)]).clamp(min=0).masked_fill(absent, 0)

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Write distinct rows and mark them as touched now; every live snapshot keeps what it saw."""
        if rows.shape[0] and int(rows.max()) >= self.rows:
            raise LearningError(f"row {int(rows.max())} of {self.spec.name!r} was written before it was made.")
        self._preserve(rows)
        self._values.index_copy_(0, rows, values)
        self._touched.index_fill_(0, rows, self._clock.now)

    def add(self, rows: Tensor, steps: Tensor) -> None:
        """Add to rows, which may repeat: the summed plain step of pre-training, where nothing fades."""
        self._preserve(rows)
        self._values.index_add_(0, rows, steps)

    def stamp(self, rows: Tensor, moments: Tensor) -> None:
        """Say when rows were last touched."""
        self._preserve(rows)
        self._touched[rows] = moments

    def grow(self, rows: int, keys: Ints) -> None:
        """Make rows up to number `rows`; the new ones are drawn by the keys of their ids, so order plays no part."""
        if rows <= self.rows:
            return
        if len(keys) != rows - self.rows:
            raise SettingsError(f"table {self.spec.name!r} needs {rows - self.rows} keys to grow, got {len(keys)}.")
        if rows + 1 > len(self._values):
            self._reallocate(max(rows + 1, len(self._values) * 2))
        new = slice(self.rows, rows)
        if self.spec.std > 0:
            normal = self._draws.normals(keys, self.spec.dim) * self.spec.std + self.spec.centre
            self._values[new] = torch.from_numpy(normal).to(self.dtype)
        else:
            self._values[new] = self.spec.centre
        self._touched[new] = self._clock.now
        self.rows = rows

    def snapshot(self) -> Snapshot:
        """A read-only view of this moment that costs nothing until rows are written."""
        taken = Snapshot(self._values, self._touched, self.rows, self._clock.now, self.half_life)
        self._snapshots.add(taken)
        return taken

    def state(self) -> dict[str, Tensor]:
        """Copies of the rows and of their last touches."""
        return {"values": self._values[: self.rows].clone(), "touched": self._touched[: self.rows].clone()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Become what `state` described."""
        self.rows = len(state["values"])
        self._values = self._values.new_zeros((self.rows + 1, self.spec.dim))
        self._values[: self.rows] = state["values"]
        self._touched = self._touched.new_zeros(self.rows + 1)
        self._touched[: self.rows] = state["touched"]
        self._snapshots = weakref.WeakSet()

    def _preserve(self, rows: Tensor) -> None:
        for snapshot in list(self._snapshots):
            snapshot.keep(rows, self._values, self._touched)

    def _reallocate(self, capacity: int) -> None:
        # Snapshots go on reading the old storage, which nobody writes any more.
        values = self._values.new_zeros((capacity, self.spec.dim))
        values[: self.rows] = self._values[: self.rows]
        touched = self._touched.new_zeros(capacity)
        touched[: self.rows] = self._touched[: self.rows]
        self._values, self._touched = values, touched
        self._snapshots = weakref.WeakSet()


class LazyTable(Table):
    """Rows that are stored once they are written: all others read as zeros and cost four bytes each.

    For state that is wide and that most rows never get; nothing fades in it.
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
            raise SettingsError(f"table {spec.name!r} is not all zeros at first, so that its rows cannot wait.")
        super().__init__(spec, clock=clock, dtype=dtype, device=device)
        self._stored = Table(spec, clock=clock, dtype=dtype, device=device)
        # Where each row is stored; -1 from self.rows on, and for rows that were never written.
        self._slots = torch.full((1,), -1, dtype=torch.int32, device=device)

    def gather(self, rows: Tensor) -> Tensor:
        slots = self._slots[rows.clamp(max=self.rows)].long()
        return self._stored.gather(slots.masked_fill(slots < 0, self._stored.rows))

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        if len(rows) and int(rows.max()) >= self.rows:
            raise LearningError(f"row {int(rows.max())} of {self.spec.name!r} was written before it was made.")
        new, first = rows[self._slots[rows] < 0], self._stored.rows
        self._stored.grow(first + len(new), np.zeros(len(new), dtype=np.int64))
        self._slots[new] = torch.arange(first, self._stored.rows, dtype=torch.int32, device=self.device)
        self._stored.scatter(self._slots[rows].long(), values)

    def grow(self, rows: int, keys: Ints) -> None:
        if rows <= self.rows:
            return
        if rows + 1 > len(self._slots):
            longer = self._slots.new_full((max(rows + 1, 2 * len(self._slots)),), -1)
            longer[: self.rows] = self._slots[: self.rows]
            self._slots = longer
        self.rows = rows

    def state(self) -> dict[str, Tensor]:
        """Copies of what is stored, in the order of the rows, and which rows these are."""
        written = torch.nonzero(self._slots[: self.rows] >= 0).squeeze(1)
        stored, slots = self._stored.state(), self._slots[written].long()
        return {"row": written, **{part: tensor[slots] for part, tensor in stored.items()}}

    def restore(self, state: dict[str, Tensor]) -> None:
        written = state["row"].to(self.device)
        self._stored.restore({part: state[part] for part in ("values", "touched")})
        self.rows = int(written.max()) + 1 if len(written) else 0
        self._slots = self._slots.new_full((self.rows + 1,), -1)
        self._slots[written] = torch.arange(len(written), dtype=torch.int32, device=self.device)


class Snapshot:
    """A table at one moment. It shares the live storage; rows that are overwritten later are kept here beforehand.

    The writer keeps the old rows before it writes, and a reader looks at the storage before it looks at what was
    kept, so a reader in another thread never sees a row half-written or from another moment.
    """

    def __init__(self, values: Tensor, touched: Tensor, rows: int, now: int, half_life: float | None) -> None:
        self.rows = rows
        self._values, self._touched = values, touched
        self._now, self._half_life = now, half_life
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(self, rows: Tensor, values: Tensor, touched: Tensor) -> None:
        """Called by the table just before it overwrites rows."""
        mine = torch.unique(rows[rows < self.rows])
        self._kept.append((mine, values[mine], touched[mine]))

    def gather(self, rows: Tensor) -> Tensor:
        """The rows as they were; absent rows are zeros."""
        flat = rows.reshape(-1)
        absent = flat >= self.rows
        places = flat.masked_fill(absent, 0)
        values, touched = self._values[places], self._touched[places]
        for kept_rows, kept_values, kept_touched in reversed(self._kept):
            if not len(kept_rows):
                continue
            at = torch.searchsorted(kept_rows, places).clamp(max=len(kept_rows) - 1)
            hit = kept_rows[at] == places
            values = torch.where(hit.unsqueeze(-1), kept_values[at], values)
            touched = torch.where(hit, kept_touched[at], touched)
        if self._half_life is not None:
            values = values * fade(touched, self._now, self._half_life).to(values.dtype).unsqueeze(-1)
        return values.masked_fill(absent.unsqueeze(-1), 0).reshape(*rows.shape, -1)

    def blocks(self, size: int = _BLOCK) -> Iterator[Tensor]:
        """All rows in order, `size` at a time."""
        for start in range(0, self.rows, size):
            yield self.gather(torch.arange(start, min(start + size, self.rows), device=self._values.device))


def fade(touched: Tensor, now: int, half_life: float) -> Tensor:
    """What is left of a row after its idle time: 0.5^(idle / half-life), METHODS.md 8.3."""
    return torch.exp2((touched - now).clamp(max=0).to(torch.float64) / half_life)
