"""What was shown to whom: for rotation, for telling recommended clicks from others, and for what was taken."""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence

from melon.data.ids import Id

#: A click on something that was shown in this many seconds counts as recommended.
RECENTLY_S = 1800.0
#: Lists are remembered for a day at most, so many of one user, and as many of their items as lists of this length have.
KEPT_S, _OF_USER, _LENGTH = 86_400.0, 200, 10


#: Whom a list was made for, when, its items, and the challenger that made it ("": the served model). A plain tuple of
#: plain values: the garbage collector passes it by.
_ServedList = tuple[Id, float, tuple[Id, ...], str]


class Served:
    """The last lists, by recommendation id and by user; bounded in number and age. Safe for threads."""

    def __init__(self, most: int) -> None:
        self.most, self._items = most, 0
        #: Lists, and those from which something was taken, by who made them.
        self.lists, self.taken = Counter[str](), Counter[str]()
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, _ServedList] = OrderedDict()
        self._of_user: dict[Id, dict[str, None]] = {}
        self._taken: dict[str, set[Id]] = {}

    def record(self, user: Id, items: Sequence[Id], now: float, maker: str = "") -> str:
        """Remember a list that is about to be sent; returns its id."""
        name = f"r-{secrets.token_hex(8)}"
        with self._lock:
            self._lists[name] = (user, now, tuple(items), maker)
            names = self._of_user.setdefault(user, {})
            names[name] = None
            if len(names) > _OF_USER:  # each event of the user is compared with all of them
                self._drop(next(iter(names)))
            self.lists[maker] += 1
            self._items += len(items)
            while self._too_many() or self._oldest()[1] < now - KEPT_S:
                self._drop(next(iter(self._lists)))
        return name

    def shown(self, user: Id, since: float) -> set[Id]:
        """Items that the user was shown since a moment and did not take."""
        with self._lock:
            recent = [name for name in self._of_user.get(user, ()) if self._lists[name][1] >= since]
            taken = {item for name in recent for item in self._taken.get(name, ())}
            return {item for name in recent for item in self._lists[name][2]} - taken

    def take(self, user: Id, item: Id, recommendation: str | None, now: float) -> bool:
        """Note that a user took an item; whether it counts as recommended."""
        if user not in self._of_user:
            return False
        with self._lock:
            names = self._of_user.get(user, ())
            wanted = (recommendation or "").partition("/")[0]
            recommended = False
            for name in names:
                _, shown, items, maker = self._lists[name]
                if item in items and (name == wanted or shown >= now - RECENTLY_S):
                    self.taken[maker] += name not in self._taken
                    self._taken.setdefault(name, set()).add(item)
                    recommended = True
            return recommended

    def forget(self, user: Id) -> None:
        """Remove all lists of a user."""
        with self._lock:
            for name in list(self._of_user.get(user, ())):
                self._drop(name)

    def _too_many(self) -> bool:
        return len(self._lists) > self.most or (self._items > _LENGTH * self.most and len(self._lists) > 1)

    def _oldest(self) -> _ServedList:
        return next(iter(self._lists.values()))

    def _drop(self, name: str) -> None:
        user, _, items, _ = self._lists.pop(name)
        self._items -= len(items)
        self._taken.pop(name, None)
        names = self._of_user[user]
        del names[name]
        if not names:
            del self._of_user[user]
