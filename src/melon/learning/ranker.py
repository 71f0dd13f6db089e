"""The best items of users, by a scorer of all items that is kept while the model stays the same."""

from __future__ import annotations

from melon.learning.updater import Updater
from melon.recommenders.catalogue import Best, Catalogue, Limits
from melon.types import Ints


class Ranker:
    """Makes lists for an updater. It writes nothing that is learned; the caller holds the model's lock."""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self._version: tuple[object, ...] = ()
        self._kept: Catalogue | None = None

    def best(self, users: Ints, k: int, n_items: int, time: int, limits: Limits) -> list[Best]:
        """The k best of items 0 … n_items-1 for rows of users; each list depends on its user and the version alone."""
        updater = self._updater
        version = (n_items, *updater.version(time))
        if self._kept is None or self._version != version:
            self._version, self._kept = version, updater.catalogue(n_items, time)
        return self._kept.best(users, k, limits.within(n_items, updater.history.seen))
