"""EASE (Steck, 2019): item-item weights with zero diagonal that best rebuild users' sets of items, in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from melon.types import Floats, Ints


class Sets:
    """The distinct items of every user, in the order in which they were first taken."""

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}
        self.items = 0

    def append(self, users: Ints, items: Ints) -> list[tuple[list[int], int]]:
        """Take interactions in; gives for each new pair what the user had before, and the item."""
        fresh = []
        for user, item in zip(users.tolist(), items.tolist(), strict=True):
            had = self._of.setdefault(user, [])
            if item not in had:
                fresh.append((had[:], item))
                had.append(item)
        self.items = max(self.items, int(items.max(initial=-1)) + 1)
        return fresh

    def of(self, user: int) -> list[int]:
        return self._of.get(user, [])

    def all(self) -> list[tuple[int, list[int]]]:
        return list(self._of.items())


class EASE:
    """Weights from the counts of pairs so far, solved again every so many batches; users' sets are always up to date.

    Settings: `l2`, `last` (a user's score adds up over so many of the last items, None: all), `every` (batches).
    """

    def __init__(self, catalogue: int, past: tuple[Ints, Ints], settings: Any) -> None:
        self._settings, self._sets, self._batches = settings, Sets(), 0
        self._pairs = np.zeros((catalogue, catalogue), dtype=np.float32)
        self._sets.append(*past)
        for _, items in self._sets.all():
            self._pairs[np.ix_(items, items)] += 1
        self._solve()

    def score(self, users: Ints, items: Ints) -> Floats:
        last = self._settings["last"]
        scores = np.zeros(items.shape)
        for line, (user, offered) in enumerate(zip(users.tolist(), items, strict=True)):
            had = [item for item in self._sets.of(user)[-last if last else 0 :] if item < self.known]
            within = np.flatnonzero(offered < self.known)
            scores[line, within] = self._weights[np.ix_(had, offered[within])].sum(0)
        return scores

    def learn(self, users: Ints, items: Ints) -> None:
        for had, item in self._sets.append(users, items):
            self._pairs[item, had] += 1
            self._pairs[had, item] += 1
            self._pairs[item, item] += 1
        self._batches += 1
        if self._batches % self._settings["every"] == 0:
            self._solve()

    def _solve(self) -> None:
        self.known = count = self._sets.items
        pairs = torch.from_numpy(self._pairs[:count, :count]).clone()
        pairs.diagonal().add_(self._settings["l2"])
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(pairs))
        weights = inverse.div_(-inverse.diagonal().clone())
        weights.fill_diagonal_(0)
        self._weights = weights.numpy()
