"""Tables: the one owner of rows. Every parameter is a row; rows are read, written, grown and decayed here only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakSet

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from melon.errors import LearningError, SettingsError
from melon.kernels import policy
from melon.stream.draws import Draws
from melon.tables.decay import Changes, DecayFactors, decay_factor
from melon.types import Ints, Singles

Role = Literal["user", "item", "shared"]
Kind = Literal["embedding", "bias", "weight"]
Undo = Callable[[], None]
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
class Moment:
    """When rows are read: a time of the decay clock, and the half-life of each table whose idle rows decay.

    Reading at a moment changes nothing, so any number of readers may look at different moments.
    """

    now: int
    half_lives: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableView:
    """Zero-copy view of a table at a moment: row n is `decay(n) * storage[offsets(n)]`.

    Do not keep a reference: what is written or grown later shows through, or does not. Kernels read `storage`,
    `offsets` and `decay`; everybody else the methods below them.
    """

    storage: Tensor  # the rows as they were written, not decayed, and zeros from number `rows` on
    touched: Tensor
    rows: int
    now: int
    half_life: float | None

    def offsets(self, rows: Tensor) -> Tensor:
        """Where rows are stored; an absent row is read from a row of zeros."""
        return rows.clamp(max=self.rows)

    def decay(self, offsets: Tensor | slice) -> Tensor | None:
        """Decay factors of stored rows; None where nothing decays."""
        if self.half_life is None:
            return None
        return decay_factor(self.touched[offsets], self.now, self.half_life).to(self.storage.dtype)

    def gather(self, rows: Tensor) -> Tensor:
        """A copy of rows; shape of `rows` × dim."""
        offsets = self.offsets(rows)
        values, decay = F.embedding(offsets, self.storage), self.decay(offsets)
        return values if decay is None else values.mul_(decay.unsqueeze(-1))

    def blocks(self, size: int | None = None) -> Iterator[Tensor]:
        """All rows in order, `size` at a time."""
        size = size or _BLOCK
        for start in range(0, self.rows, size):
            some = slice(start, min(start + size, self.rows))
            values, decay = self.storage[some], self.decay(some)
            yield values if decay is None else values * decay.unsqueeze(-1)

    def everything(self) -> Tensor:
        """All rows; a view of the storage where nothing decays."""
        if self.half_life is None or not self.rows:
            return self.storage[: self.rows]
        return torch.cat(list(self.blocks()))


class Clock:
    """The time of learning, in interactions or in seconds; the updater alone moves it."""

    def __init__(self, now: int = 0) -> None:
        self.now = now


class Table:
    """Growable rows of float parameters. An absent row reads as zeros; an idle row decays when a half-life is set."""

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
        self.version = 0  # grows whenever rows are written, made or removed
        self.half_life: float | None = None
        self._clock = clock or Clock()
        self._draws = Draws(seed, f"init/{spec.name}")
        # Rows from self.rows on are all zero: an absent row is read from there.
        self._values = torch.zeros((1, spec.dim), dtype=dtype, device=device)
        self._touched = torch.zeros(1, dtype=torch.int64, device=device)
        self._arrays: tuple[Singles, Ints] | None = None  # the same memory, for compiled kernels
        self._changed: list[Tensor] | None = None
        self._watches = WeakSet[Changes]()
        self._half_life: DecayFactors | None = None
        if spec.role == "shared":
            self.grow(spec.rows, np.arange(spec.rows))

    def __getstate__(self) -> dict[str, object]:
        """For copies: their arrays share memory with the tensors of the copy."""
        return {**self.__dict__, "_arrays": None, "_half_life": None, "_watches": WeakSet()}

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the rows."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Where the rows live."""
        return self._values.device

    def view(self, at: Moment | None = None) -> TableView:
        """Zero-copy view of this table at a moment, by default that of learning."""
        if at is None:
            return TableView(self._values, self._touched, self.rows, self._clock.now, self.half_life)
        return TableView(self._values, self._touched, self.rows, at.now, at.half_lives.get(self.spec.name))

    def gather(self, rows: Tensor, at: Moment | None = None) -> Tensor:
        """A copy of rows at a moment; shape of `rows` × dim."""
        return self.view(at).gather(rows)

    def arrays(self, at: Moment | None = None) -> tuple[Singles, Ints, float]:
        """Storage for kernels: values, last touches, and the half-life of idle rows, 0 where they do not decay.

        The arrays share memory with the table until it grows: use them for one call. Row `rows` reads as zeros. A loop
        that writes rows exchanges them (`kernels/factor.py`) and reports them to `written`.
        """
        if self._arrays is None:
            self._arrays = self._values.numpy(), self._touched.numpy()
        half_life = self.half_life if at is None else at.half_lives.get(self.spec.name)
        return *self._arrays, half_life or 0.0

    def decayed(self, kernels: policy.Kernels, rows: int, at: Moment | None = None) -> tuple[Singles, np.float32]:
        """Decay factors of the first rows at a moment, for lists: a weight for each, and one factor for all.

        The weights are empty where nothing decays. They are this table's own, and right until it is asked again.
        """
        _, touched, half_life = self.arrays(at)
        if not half_life:
            return np.empty(0, dtype=np.float32), np.float32(1)
        if self._half_life is None:
            self._half_life = DecayFactors(self.watch())
        return self._half_life.read(kernels, touched, rows, self._clock.now if at is None else at.now, half_life)

    def written(self, rows: Ints, undo: ExitStack | None = None) -> None:
        """Record rows that a compiled kernel has written; closing `undo` takes the record back."""
        self.version += 1
        if self._changed is not None and undo is not None:
            undo.callback(self._forget_changes, len(self._changed))
        if self._changed is not None or self._watches:
            self._record(torch.from_numpy(rows.copy()))

    def everything(self) -> Tensor:
        """All rows at the moment of learning; to be read only."""
        return self.view().everything()

    def blocks(self, size: int | None = None) -> Iterator[Tensor]:
        """The same, `size` at a time."""
        return self.view().blocks(size)

    def idle(self, rows: Tensor) -> Tensor:
        """How long ago rows were last touched, by the clock of learning; absent rows have not been idle."""
        absent = rows >= self.rows
        return (self._clock.now - self._touched[rows.masked_fill(absent, 0)]).clamp(min=0).masked_fill(absent, 0)

    def scatter(self, rows: Tensor, values: Tensor) -> None:
        """Write distinct rows and mark them as touched now."""
        require_made(rows, self.rows, self.spec.name)
        self._values.index_copy_(0, rows, values)
        self._touched.index_fill_(0, rows, self._clock.now)
        self._record(rows)
        self.version += 1

    def add(self, rows: Tensor, steps: Tensor) -> None:
        """Add to rows, which may repeat: the summed plain step of pre-training, where nothing decays."""
        self._values.index_add_(0, rows, steps)
        self.version += 1
        self._record(rows)

    def lend(self) -> Tensor:
        """The storage, for compiled pre-training: it writes rows in place, where nothing decays."""
        if self._changed is not None or self._watches:
            self._record(torch.arange(self.rows, device=self.device))
        self.version += 1
        return self._values

    def stamp(self, rows: Tensor, moments: Tensor) -> None:
        """Say when rows were last touched."""
        self._touched[rows] = moments
        self.version += 1
        self._record(rows)

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
            for start in range(0, len(keys), _BLOCK):
                drawn = self._draws.normals(keys[start : start + _BLOCK], self.spec.dim)
                some = torch.from_numpy(drawn * self.spec.std + self.spec.centre)
                self._values[self.rows + start : self.rows + start + len(some)] = some.to(self.dtype)
        else:
            self._values[new] = self.spec.centre
        self._touched[new] = self._clock.now
        if self._changed is not None or self._watches:
            self._record(torch.arange(self.rows, rows, device=self.device))
        self.rows = rows
        self.version += 1

    def truncate(self, rows: int) -> None:
        """Remove the rows from number `rows` on."""
        self._values[rows : self.rows] = 0
        self._touched[rows : self.rows] = 0
        self.rows = min(self.rows, rows)
        self.version += 1

    def undo_point(self, rows: Tensor) -> Undo:
        """Copy distinct rows that are about to be written; the returned function puts them back."""
        require_made(rows, self.rows, self.spec.name)
        values, touched, recorded = self._values[rows], self._touched[rows], len(self._changed or ())

        def undo() -> None:
            self._values.index_copy_(0, rows, values)
            self._touched.index_copy_(0, rows, touched)
            self.version += 1
            self._forget_changes(recorded)

        return undo

    def record_changes(self) -> None:
        """Have `changed` tell which rows are written from now on."""
        self._changed = []

    def changed(self) -> Tensor:
        """Distinct numbers of the rows written since the last call, in ascending order; see `record_changes`."""
        if self._changed is None:
            raise LearningError(f"table {self.spec.name!r} records no changes; call record_changes first.")
        written, self._changed = self._changed, []
        rows = torch.unique(torch.cat(written)) if written else torch.empty(0, dtype=torch.int64, device=self.device)
        return rows[rows < self.rows]

    def watch(self) -> Changes:
        """Which rows are written from now on, for a reader of its own; it ends when the reader drops it."""
        changes = Changes()
        self._watches.add(changes)
        return changes

    def state(self) -> dict[str, Tensor]:
        """Copies of the rows and of their last touches."""
        return {"values": self._values[: self.rows].clone(), "touched": self._touched[: self.rows].clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Become what `state` described."""
        self.rows = len(state["values"])
        self.version += 1
        self._values = self._values.new_zeros((self.rows + 1, self.spec.dim))
        self._values[: self.rows] = state["values"]
        self._touched = self._touched.new_zeros(self.rows + 1)
        self._touched[: self.rows] = state["touched"]
        self._arrays = None
        self._record(torch.arange(self.rows, device=self.device))

    def _forget_changes(self, recorded: int) -> None:
        """Keep the first records of changes only."""
        if self._changed is not None:
            del self._changed[recorded:]

    def _record(self, rows: Tensor) -> None:
        if self._changed is not None:
            self._changed.append(rows)
        for watch in self._watches:
            watch.put(rows)

    def _reallocate(self, capacity: int) -> None:
        values = self._values.new_zeros((capacity, self.spec.dim))
        values[: self.rows] = self._values[: self.rows]
        touched = self._touched.new_zeros(capacity)
        touched[: self.rows] = self._touched[: self.rows]
        self._values, self._touched, self._arrays = values, touched, None


def require_made(rows: Tensor, stored: int, name: str) -> None:
    """Refuse to write rows that do not exist."""
    if rows.shape[0] and int(rows.max()) >= stored:
        raise LearningError(f"row {int(rows.max())} of {name!r} was written before it was made.")
