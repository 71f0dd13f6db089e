"""What was shown to whom: for rotation, for telling recommended clicks from others, and for what was taken."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from melon.data.ids import Id

#: A click on something that was shown in this many seconds counts as recommended.
RECENTLY_S = 1800.0
#: Lists are remembered for a day at most.
KEPT_S = 86_400.0


@dataclass(slots=True)
class _Served:
    user: Id
    time: float
    items: tuple[Id, ...]
    taken: set[Id] = field(default_factory=set)


class Served:
    """The last lists, by recommendation id and by user; bounded in number and age. Safe for threads."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lists = 0
        self.taken = 0
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, _Served] = OrderedDict()
        self._of_user: dict[Id, list[str]] = {}

    def record(self, user: Id, items: Sequence[Id], now: float) -> str:
        """Remember a list that is about to be sent; returns its id."""
        name = f"r-{secrets.token_hex(8)}"
        with self._lock:
            self._lists[name] = _Served(user, now, tuple(items))
            self._of_user.setdefault(user, []).append(name)
            self.lists += 1
            while len(self._lists) > self.most or self._oldest().time < now - KEPT_S:
                self._drop(next(iter(self._lists)))
        return name

    def shown(self, user: Id, since: float) -> set[Id]:
        """Items that the user was shown since a moment and did not take."""
        with self._lock:
            recent = [one for one in self._lists_of(user) if one.time >= since]
            taken = {item for one in recent for item in one.taken}
            return {item for one in recent for item in one.items} - taken

    def take(self, user: Id, item: Id, recommendation: str | None, now: float) -> bool:
        """Note that a user took an item; whether it counts as recommended."""
        with self._lock:
            names = self._of_user.get(user, ())
            wanted = (recommendation or "").partition("/")[0]
            recommended = False
            for name in names:
                one = self._lists[name]
                if item in one.items and (name == wanted or one.time >= now - RECENTLY_S):
                    self.taken += not one.taken
                    one.taken.add(item)
                    recommended = True
            return recommended

    def forget(self, user: Id) -> None:
        """Remove all lists of a user."""
        with self._lock:
            for name in list(self._of_user.get(user, ())):
                self._drop(name)

    def _lists_of(self, user: Id) -> list[_Served]:
        return [self._lists[name] for name in self._of_user.get(user, ())]

    def _oldest(self) -> _Served:
        return next(iter(self._lists.values()))

    def _drop(self, name: str) -> None:
        user = self._lists.pop(name).user
        names = self._of_user[user]
        names.remove(name)
        if not names:
            del self._of_user[user]
