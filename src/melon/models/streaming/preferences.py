"""What each user tends to take: popular or rare, new or old, busy or idle things."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from melon.kernels import policy
from melon.models.streaming.counts import ItemCounts
from melon.stream.pairs import distinct
from melon.stream.saved import MOST, SavedArrays, saved_array
from melon.types import Arrays, Floats, Ints, Singles

#: The features of items: two decayed counts, idle time and age, as log(1 + x).
OF_ITEMS = ("count_300", "count_5k", "idle", "age")
#: No logarithm of a count or of a time is larger.
_LARGEST = 64.0


class Preferences:
    """Exponential means, user by user, of features of items as they were when taken; and of all events together.

    A user's preferences are the difference of the two, drawn towards nothing while little is known: times n / (n + 3).
    """

    def __init__(self, half_lives: tuple[float, float] = (300.0, 5_000.0)) -> None:
        self._rates: Floats = 1 / np.array(half_lives)
        self._count = 0
        self._means: Singles = np.zeros((0, len(OF_ITEMS)), dtype=np.float32)
        #: How much each user took.
        self._taken: Ints = np.zeros(0, dtype=np.int64)
        self._overall: Floats = np.zeros(len(OF_ITEMS) + 1)

    @property
    def usual(self) -> Floats:
        """The means of all events."""
        return self._overall[: len(OF_ITEMS)]

    def observe(self, users: Ints, items: Ints, counts: ItemCounts) -> None:
        """Follow a batch; `counts` are those before it."""
        if not len(users):
            return
        self._grow(int(users.max()) + 1)
        named, places = np.unique(items, return_inverse=True)
        seen = counts.before(named, self._rates)
        batch = np.array(users), places, *seen, self._rates, counts.events  # a log's users may be read-only
        policy.load("profiles").follow_preferences(
            *batch, self._means[: self._count], self._taken[: self._count], self._overall
        )

    def read(self, users: Ints) -> Floats:
        """Preferences of users: n × 4."""
        out = np.empty((len(users), len(OF_ITEMS)))
        own = self._means[: self._count], self._taken[: self._count], self._overall
        policy.load("profiles").preferences(np.ascontiguousarray(users), *own, out)
        return out

    def write(self, users: Ints, features: Ints, first: int, out: Singles) -> None:
        """Write inputs of lines n × c from input `first` on: preferences, and those times the candidate's own features.

        `features` are the inputs that hold the latter.
        """
        policy.load("profiles").write_preferences(features, self.read(users), self.usual, first, out)

    def forget_user(self, user: int) -> None:
        """Know nothing of a user any more."""
        if user < self._count:
            self._means[user], self._taken[user] = 0, 0

    def undo_point(self, users: Ints) -> Callable[[], None]:
        """A function that takes back the next `observe` of these users."""
        count, held, overall = self._count, distinct(users[users < self._count]), self._overall.copy()
        means, taken = self._means[held], self._taken[held]

        def undo() -> None:
            self._means[held], self._taken[held] = means, taken
            self._means[count : self._count], self._taken[count : self._count] = 0, 0
            self._count, self._overall = count, overall

        return undo

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same preferences."""
        means, taken = self._means[: self._count].copy(), self._taken[: self._count].copy()
        return {"means": means, "taken": taken, "overall": self._overall.copy()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no preferences can have are a `CheckpointError`."""
        means = saved_array(state, "means", np.float32, (None, len(OF_ITEMS)), least=-_LARGEST, most=_LARGEST)
        taken = saved_array(state, "taken", np.int64, (len(means),), least=0, most=MOST)
        overall = saved_array(state, "overall", np.float64, self._overall.shape, least=0, most=float(MOST))
        self._means, self._taken, self._overall, self._count = means, taken, overall, len(means)

    def _grow(self, count: int) -> None:
        if count > len(self._means):
            room = max(count, 2 * len(self._means), 1024) - len(self._means)
            self._means = np.concatenate([self._means, np.zeros((room, len(OF_ITEMS)), np.float32)])
            self._taken = np.concatenate([self._taken, np.zeros(room, dtype=np.int64)])
        self._count = max(self._count, count)
