"""Facts about items, held as columns: categories, availability, expiry, owner and attributes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from melon.data.ids import Id, IdBook
from melon.settings import Settings
from melon.types import Flags, Floats, Ints

Scalar = bool | int | float | str
AttributeValue = Scalar | list[Scalar]
#: Facts that filters compare like attributes; both are Unix seconds.
TIMES = ("published", "expires")


class Facts(Settings):
    """What is known of one item; everything may be left out."""

    categories: tuple[str, ...] = ()
    available: bool = True
    owner: str | None = None
    published: float | None = Field(None, ge=0)
    expires: float | None = Field(None, ge=0)
    attributes: dict[str, AttributeValue] = Field(default_factory=dict)


NOTHING = Facts()


class _SlotSet:
    """The slots that hold one value, as a set that changes and an array made when somebody reads."""

    def __init__(self) -> None:
        self._slots: set[int] = set()
        self._array: Ints | None = None

    def put(self, slot: int, present: bool) -> None:
        (self._slots.add if present else self._slots.discard)(slot)
        self._array = None

    @property
    def array(self) -> Ints:
        if self._array is None:
            self._array = np.fromiter(self._slots, dtype=np.int64, count=len(self._slots))
        return self._array

    def __len__(self) -> int:
        return len(self._slots)


#: An attribute that one item in so many has is kept as an array, too.
_OFTEN = 20


class _Attribute:
    """One attribute: numbers by slot, texts and truth values by their slots, lists by the slots of each member.

    It is as large as what was said of it: there may be many that few items have.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, float] = {}
        self._array: Floats | None = None
        self.scalars: dict[tuple[type, Scalar], _SlotSet] = {}
        self.members: dict[tuple[type, Scalar], _SlotSet] = {}

    def put(self, slot: int, old: AttributeValue | None, new: AttributeValue | None) -> None:
        for value, present in ((old, False), (new, True)):
            for index, key in self._keys(value):
                places = index.setdefault(key, _SlotSet())
                places.put(slot, present)
                if not len(places):
                    del index[key]
        self.numbers.pop(slot, None)
        if _is_number(new):
            self.numbers[slot] = float(new)  # type: ignore[arg-type]
        self._array = None

    def __bool__(self) -> bool:
        return bool(self.numbers or self.scalars or self.members)

    def array(self, slots: int) -> Floats:
        """The number in each of the slots; NaN where there is none. It is kept where many slots have one."""
        if self._array is not None and len(self._array) == slots:
            return self._array
        array = np.full(slots, np.nan)
        array[list(self.numbers)] = list(self.numbers.values())
        self._array = array if len(self.numbers) * _OFTEN > slots else None
        return array

    def _keys(
        self, value: AttributeValue | None
    ) -> Iterable[tuple[dict[tuple[type, Scalar], _SlotSet], tuple[type, Scalar]]]:
        if isinstance(value, list):
            yield from ((self.members, scalar_key(one)) for one in value)
        elif isinstance(value, str | bool):
            yield self.scalars, scalar_key(value)


def scalar_key(value: Scalar) -> tuple[type, Scalar]:
    """Equal values have equal keys, and `true` is not 1."""
    return (bool, value) if isinstance(value, bool) else (str, value) if isinstance(value, str) else (float, value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ItemFacts:
    """All facts, in slots of their own: items may be described before the model meets them, and after.

    Every change gives a new `version`. An item without facts is available, never expires and has no categories.
    """

    def __init__(self) -> None:
        self.version = 0
        self.lock = threading.Lock()  # held by a thread that writes, or that reads more than one item
        self.book = IdBook("item")
        self._facts: list[Facts] = []
        self._available: Flags = np.ones(1024, dtype=np.bool_)
        self._columns: dict[str, _Attribute] = {}
        self._categories: dict[str, _SlotSet] = {}
        self._owners: dict[str, _SlotSet] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def get(self, item: Id) -> Facts | None:
        """The facts of an item, or None."""
        slot = self._slot(item)
        return self._facts[slot] if slot >= 0 and self._facts[slot] is not NOTHING else None

    def put(self, items: Mapping[Id, Facts | None]) -> None:
        """Replace the facts of items; None removes them. One new version for all."""
        slots = self.book.rows(list(items), add=True)
        while len(self._facts) < len(self.book):
            self._facts.append(NOTHING)
        if len(self.book) > len(self._available):
            more = max(len(self.book), 2 * len(self._available)) - len(self._available)
            self._available = np.append(self._available, np.ones(more, dtype=np.bool_))
        for slot, facts in zip(slots.tolist(), items.values(), strict=True):
            self._write(slot, facts or NOTHING)
        self.version += 1

    def without_owner(self, owner: str) -> dict[Id, Facts | None]:
        """The facts of all items of an owner, as they are without the owner."""
        slots = self._owners.get(owner)
        items = [] if slots is None else self.book.ids(np.sort(slots.array)).tolist()
        return {item: self._facts[self._slot(item)].model_copy(update={"owner": None}) for item in items}

    # Reading by slot; the slot behind the last stands for items without facts.

    @property
    def slots(self) -> int:
        return len(self._facts) + 1

    def facts_at(self, slot: int) -> Facts:
        return self._facts[slot] if 0 <= slot < len(self._facts) else NOTHING

    def available(self) -> Flags:
        return np.append(self._available[: len(self._facts)], True)

    def numbers(self, field: str) -> Floats:
        """The field as a number in each slot; NaN where it is something else or absent."""
        column = self._columns.get(field)
        return np.full(self.slots, np.nan) if column is None else column.array(self.slots)

    def places(self, field: str, value: Scalar, *, within_list: bool) -> Ints:
        """The slots whose field is this text or truth value, or whose list has it as a member."""
        column = self._columns.get(field)
        if column is None:
            return _NO_SLOTS
        places = (column.members if within_list else column.scalars).get(scalar_key(value))
        return _NO_SLOTS if places is None else places.array

    def has_scalar(self, field: str) -> Flags:
        """Whether the field of each slot is a number, a text or a truth value."""
        flags = ~np.isnan(self.numbers(field))
        for places in self._columns[field].scalars.values() if field in self._columns else ():
            flags[places.array] = True
        return flags

    def in_category(self, category: str) -> Ints:
        return self._categories[category].array if category in self._categories else _NO_SLOTS

    def owned_by(self, owner: str) -> Ints:
        return self._owners[owner].array if owner in self._owners else _NO_SLOTS

    def _slot(self, item: Id) -> int:
        # The kind of this book is the kind of the first item described; another kind is simply not in it.
        return self.book._row_of.get(item, -1)

    def _write(self, slot: int, new: Facts) -> None:
        old, self._facts[slot] = self._facts[slot], new
        self._available[slot] = new.available
        for facts, present in ((old, False), (new, True)):
            for category in facts.categories:
                _mark(self._categories, category, slot, present)
            if facts.owner is not None:
                _mark(self._owners, facts.owner, slot, present)
        before, after = _attributes(old), _attributes(new)
        for name in {**before, **after}:
            column = self._columns.setdefault(name, _Attribute())
            column.put(slot, before.get(name), after.get(name))
            if not column:
                del self._columns[name]


_NO_SLOTS: Ints = np.empty(0, dtype=np.int64)


def _attributes(facts: Facts) -> dict[str, AttributeValue]:
    times = {name: value for name in TIMES if (value := getattr(facts, name)) is not None}
    return {**facts.attributes, **times}


def _mark(index: dict[str, _SlotSet], name: str, slot: int, present: bool) -> None:
    index.setdefault(name, _SlotSet()).put(slot, present)
    if not len(index[name]):
        del index[name]


class RowFacts:
    """Facts by the model's item rows: which slot each row has. It follows a book that only grows."""

    def __init__(self, facts: ItemFacts, book: IdBook) -> None:
        self.facts, self.book = facts, book
        self._slot_of: Ints = np.empty(0, dtype=np.int64)
        self._row_of: dict[int, int] = {}
        self._described = 0
        self._slots: Ints | None = None

    def slots(self, rows: int) -> Ints:
        """The slot of each of the first rows; those without facts have the slot behind the last."""
        new_rows, new_slots = rows > len(self._slot_of), len(self.facts) > self._described
        if new_rows:
            start = len(self._slot_of)
            ids = self.book.ids(np.arange(start, rows)).tolist()
            slots = np.fromiter((self.facts._slot(one) for one in ids), dtype=np.int64, count=len(ids))
            self._slot_of = np.append(self._slot_of, slots)
            for place in np.flatnonzero(slots >= 0).tolist():
                self._row_of[int(slots[place])] = start + place
        if new_slots:
            for slot in range(self._described, len(self.facts)):
                row = self.book._row_of.get(self.facts.book._ids[slot], -1)
                if 0 <= row < len(self._slot_of):
                    self._slot_of[row], self._row_of[slot] = slot, row
            self._described = len(self.facts)
        if new_rows or new_slots or self._slots is None or len(self._slots) != rows:
            self._slots = np.where(self._slot_of[:rows] < 0, len(self.facts), self._slot_of[:rows])
        return self._slots

    def rows(self, slots: Ints) -> Ints:
        """The rows of slots that the model has met; call `slots` first."""
        rows = [self._row_of[slot] for slot in slots.tolist() if slot in self._row_of]
        return np.array(sorted(rows), dtype=np.int64)
