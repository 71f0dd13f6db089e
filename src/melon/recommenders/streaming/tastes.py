"""What each user tends to take: popular or rare, new or old, busy or idle things; and when the user was last there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from melon.kernels import policy
from melon.kernels import profiles as python_loops
from melon.recommenders.streaming.counts import ItemCounts
from melon.stream.pairs import distinct
from melon.stream.saved import MOST, SavedArrays, saved_array
from melon.types import Arrays, Floats, Ints

#: What is said of an item when it is taken, in this order: two decayed counts, idle time and age, as log(1 + x).
LOOKS = ("count_300", "count_5k", "idle", "age")
#: No logarithm of a count or of a time is larger.
_LARGEST = 64.0


class Tastes:
    """Exponential means, user by user, of how items looked when they were taken (`LOOKS`), and of all events together.

    A user's leaning is the difference of the two, drawn towards nothing while little is known: times n / (n + 3).
    """

    def __init__(self, half_lives: tuple[float, float] = (300.0, 5_000.0), dtype: npt.DTypeLike = np.float32) -> None:
        self._rates: Floats = 1 / np.array(half_lives)
        self._count = 0
        self._means: npt.NDArray[np.floating] = np.zeros((0, len(LOOKS)), dtype=dtype)
        #: How much each user took, and the time and number of the last event.
        self._moments: Ints = np.zeros((0, 3), dtype=np.int64)
        self._overall: Floats = np.zeros(len(LOOKS) + 1)

    @property
    def usual(self) -> Floats:
        """The means of all events."""
        return self._overall[: len(LOOKS)]

    def observe(self, users: Ints, items: Ints, times: Ints, counts: ItemCounts) -> None:
        """Follow a batch; `counts` are those before it."""
        if not len(users):
            return
        self._grow(int(users.max()) + 1)
        named, places = np.unique(items, return_inverse=True)
        seen = counts.before(named, self._rates)
        loops = policy.load("profiles", like=torch.from_numpy(self._means)) or python_loops
        # Copies, because those of a log may be read-only.
        batch = np.array(users), np.array(times), places, *seen, self._rates, counts.events
        loops.taste(*batch, self._means[: self._count], self._moments[: self._count], self._overall)

    def read(self, users: Ints, time: int, events: int, *, gaps: bool = True) -> Floats:
        """Leanings of users at a time of the stream, after `events` events, and log gaps in days and events; and how
        much is known of them, from −1 to about 1: n × 7; without `gaps` leanings alone, n × 4.
        """
        out = np.empty((len(users), len(LOOKS) + 3 * gaps))
        loops = policy.load("profiles", like=torch.from_numpy(self._means)) or python_loops
        own = self._means[: self._count], self._moments[: self._count], self._overall
        loops.lean(np.ascontiguousarray(users), time, events, *own, out)
        return out

    def forget_user(self, user: int) -> None:
        """Know nothing of a user any more."""
        if user < self._count:
            self._means[user], self._moments[user] = 0, 0

    def undo_point(self, users: Ints) -> Callable[[], None]:
        """A function that takes back the next `observe` of these users."""
        count, held, overall = self._count, distinct(users[users < self._count]), self._overall.copy()
        means, moments = self._means[held], self._moments[held]

        def undo() -> None:
            self._means[held], self._moments[held] = means, moments
            self._means[count : self._count], self._moments[count : self._count] = 0, 0
            self._count, self._overall = count, overall

        return undo

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same tastes."""
        means, moments = self._means[: self._count].copy(), self._moments[: self._count].copy()
        return {"means": means, "moments": moments, "overall": self._overall.copy()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no tastes can have are a `CheckpointError`."""
        means = saved_array(state, "means", self._means.dtype, (None, len(LOOKS)), least=-_LARGEST, most=_LARGEST)
        moments = saved_array(state, "moments", np.int64, (len(means), 3), least=-MOST, most=MOST)
        overall = saved_array(state, "overall", np.float64, self._overall.shape, least=0, most=float(MOST))
        self._means, self._moments, self._overall, self._count = means, moments, overall, len(means)

    def _grow(self, count: int) -> None:
        if count > len(self._means):
            room = max(count, 2 * len(self._means), 1024) - len(self._means)
            self._means = np.concatenate([self._means, np.zeros((room, len(LOOKS)), self._means.dtype)])
            self._moments = np.concatenate([self._moments, np.zeros((room, 3), dtype=np.int64)])
        self._count = max(self._count, count)
