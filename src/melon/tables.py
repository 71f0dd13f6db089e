"""Tables: the one owner of rows. Every parameter is a row; rows are read, written, grown and decayed here only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from melon.errors import LearningError, SettingsError
from melon.journal import GrowingRows, RowPart, note
from melon.kernels import policy
from melon.stream.draws import Draws
from melon.types import AnyArray, Floats, Ints, Scores, Singles

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

    storage: Scores  # the rows as they were written, not decayed, and zeros from number `rows` on
    touched: Ints
    rows: int
    now: int
    half_life: float | None

    def offsets(self, rows: Ints) -> Ints:
        """Where rows are stored; an absent row is read from a row of zeros."""
        return np.minimum(rows, self.rows)

    def decay(self, offsets: Ints | slice) -> Scores | None:
        """What time decay has left of stored rows; None where nothing decays."""
        if self.half_life is None:
            return None
        return decay_factor(self.touched[offsets], self.now, self.half_life).astype(self.storage.dtype)

    def gather(self, rows: Ints) -> Scores:
        """A copy of rows; shape of `rows` × dim."""
        offsets = self.offsets(rows)
        values, decay = self.storage.take(offsets, axis=0), self.decay(offsets)
        if decay is not None:
            values *= decay[..., None]
        return values

    def everything(self) -> Scores:
        """All rows; a view of the storage where nothing decays."""
        values, decay = self.storage[: self.rows], self.decay(slice(self.rows))
        return values if decay is None else values * decay[:, None]


class Clock:
    """The time of learning, in interactions; the updater alone moves it."""

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
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.spec = spec
        # Behind the rows stands at least one of zeros: an absent row is read from there.
        self._columns = GrowingRows(spare=1, values=RowPart(dtype, (spec.dim,)), touched=RowPart(np.int64))
        self.version = 0  # grows whenever rows are written, made or removed
        self.half_life: float | None = None
        self._clock = clock or Clock()
        self._draws = Draws(seed, f"init/{spec.name}")
        self._watches = WeakSet[Changes]()
        self._half_life: DecayFactors | None = None
        if spec.role == "shared":
            self.grow(spec.rows, np.arange(spec.rows))

    def __getstate__(self) -> dict[str, object]:
        """For copies: nobody watches them yet."""
        return {**self.__dict__, "_half_life": None, "_watches": WeakSet()}

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._columns.rows

    @property
    def _values(self) -> Scores:
        values: Scores = self._columns.arrays[0]
        return values

    @property
    def _touched(self) -> Ints:
        touched: Ints = self._columns.arrays[1]
        return touched

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """The number type of the rows."""
        return self._values.dtype

    def view(self, at: Moment | None = None) -> TableView:
        """Zero-copy view of this table at a moment, by default that of learning."""
        if at is None:
            return TableView(self._values, self._touched, self.rows, self._clock.now, self.half_life)
        return TableView(self._values, self._touched, self.rows, at.now, at.half_lives.get(self.spec.name))

    def gather(self, rows: Ints, at: Moment | None = None) -> Scores:
        """A copy of rows at a moment; shape of `rows` × dim."""
        return self.view(at).gather(rows)

    def arrays(self, at: Moment | None = None) -> tuple[Singles, Ints, float]:
        """Storage for kernels: values, last touches, and the half-life of idle rows, 0 where they do not decay.

        The arrays share memory with the table until it grows: use them for one call. Row `rows` reads as zeros.
        """
        half_life = self.half_life if at is None else at.half_lives.get(self.spec.name)
        return self._values, self._touched, half_life or 0.0

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

    def everything(self) -> Scores:
        """All rows at the moment of learning; to be read only."""
        return self.view().everything()

    def idle(self, rows: Ints) -> Ints:
        """How long ago rows were last touched, by the clock of learning; absent rows have not been idle."""
        absent = rows >= self.rows
        idle: Ints = np.maximum(self._clock.now - self._touched[np.where(absent, 0, rows)], 0)
        idle[absent] = 0
        return idle

    def scatter(self, rows: Ints, values: Scores) -> None:
        """Write distinct rows and mark them as touched now."""
        if len(rows) and int(rows.max()) >= self.rows:
            raise LearningError(f"row {int(rows.max())} of {self.spec.name!r} was written before it existed.")
        self._columns.touch(rows)
        self._values[rows] = values
        self._touched[rows] = self._clock.now
        self._record(rows)

    def lend(self) -> Singles:
        """The storage, for pre-training: it writes rows in place, where nothing decays."""
        self._record(np.arange(self.rows))
        return self._values

    def stamp(self, rows: Ints, moments: Ints) -> None:
        """Say when rows were last touched."""
        self._touched[rows] = moments
        self._record(rows)

    def grow(self, rows: int, keys: Ints) -> None:
        """Make rows up to number `rows`; the new ones are drawn by the keys of their ids, so order plays no part."""
        if rows <= self.rows:
            return
        if len(keys) != rows - self.rows:
            raise SettingsError(f"table {self.spec.name!r} needs {rows - self.rows} keys to grow, got {len(keys)}.")
        first = self.rows
        self._columns.grow(rows)
        self._values[first:rows] = self.spec.centre
        if self.spec.std > 0:
            for start in range(0, len(keys), _BLOCK):
                drawn = self._draws.normals(keys[start : start + _BLOCK], self.spec.dim)
                some = slice(first + start, first + start + len(drawn))
                self._values[some] = drawn * self.spec.std + self.spec.centre
        self._touched[first:rows] = self._clock.now
        self._record(np.arange(first, rows))

    def watch(self) -> Changes:
        """Which rows are written from now on, for a reader of its own; it ends when the reader drops it."""
        changes = Changes()
        self._watches.add(changes)
        return changes

    def state(self) -> dict[str, AnyArray]:
        """Copies of the rows and of their last touches."""
        return self._columns.state()

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Become what `state` described."""
        self._columns.restore(state)
        self._record(np.arange(self.rows))

    def _record(self, rows: Ints) -> None:
        """Rows have been written."""
        self._count_version()
        note(self._count_version)
        for watch in self._watches:
            watch.put(rows)

    def _count_version(self) -> None:
        self.version += 1


#: Half-lives after which the reference moment moves.
_REFERENCE = 32
#: Changes of rows are brought together after so many writes.
_MOST_RECORDS = 1_000


def decay_factor(touched: Ints, now: int, half_life: float) -> Floats:
    """What is left of a row after its idle time: 0.5^(idle / half-life), docs/methods.md 8.3."""
    factor: Floats = np.exp2(np.minimum(touched - now, 0) / half_life)
    return factor


def reference(now: int, half_life: float) -> tuple[int, np.float32]:
    """A moment that moves once in many half-lives, and the decay factor from then to now, of all rows alike.

    0.5^(idle / half-life) is a weight as of the reference, which stays while a row is idle, times this factor.
    """
    if not half_life:
        return 0, np.float32(1)
    span = max(int(_REFERENCE * half_life), 1)
    moment = now // span * span
    return moment, np.float32(2.0 ** ((moment - now) / half_life))


class Changes:
    """Rows that were written, but for those of a batch that was taken back."""

    def __init__(self) -> None:
        self._rows: list[Ints] = []

    def put(self, rows: Ints) -> None:
        """Rows that are being written."""
        rows = rows[:]  # known again from others that are equal
        self._rows.append(rows)
        note(partial(self._take_back, rows))
        if len(self._rows) > _MOST_RECORDS:  # nobody has asked for long
            self._rows = [np.unique(np.concatenate(self._rows))]

    def take(self) -> Ints:
        """Numbers of the rows written since the last call; some may stand there several times."""
        rows, self._rows = self._rows, []
        return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)

    def _take_back(self, rows: Ints) -> None:
        """The rows are as they were before: a reader who has been told of them is told again."""
        for place in reversed(range(len(self._rows))):
            if self._rows[place] is rows:
                del self._rows[place]
                return
        self._rows.append(rows)


class DecayFactors:
    """Decay factors of rows, kept from moment to moment, so that only rows that changed are computed.

    Weights depend on the reference and the last touch alone, and not on when they were read before.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._rule: tuple[int, float] = (0, 0.0)
        self._latest = 0  # no row was touched later
        self._weights: Singles = np.empty(0, dtype=np.float32)

    def read(
        self, kernels: policy.Kernels, touched: Ints, rows: int, now: int, half_life: float
    ) -> tuple[Singles, np.float32]:
        """The weights of the first rows, and the factor."""
        moment, factor = reference(now, half_life)
        changed = self._changes.take()
        if (moment, half_life) != self._rule or len(self._weights) != len(touched):
            self._rule, self._latest = (moment, half_life), 0
            self._weights, changed = np.empty(len(touched), dtype=np.float32), np.arange(len(touched))
        kernels.decayed(touched, changed, self._weights, moment, half_life)
        self._latest = max(self._latest, int(touched[changed].max(initial=0)))
        if self._latest > now and touched[:rows].max(initial=0) > now:
            # Rows are read as of a moment before they were touched: not decayed yet.
            return decay_factor(touched[:rows], now, half_life).astype(np.float32), np.float32(1)
        return self._weights[:rows], factor
