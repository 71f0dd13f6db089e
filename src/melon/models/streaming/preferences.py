"""What each user tends to take: popular or rare, new or old, busy or idle things."""

from __future__ import annotations

import numpy as np

from melon.journal import GrowingRows, RowPart, keep
from melon.kernels import policy
from melon.models.streaming.counts import ItemCounts
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
        #: The means of each user, and how much the user took.
        self._users = GrowingRows(means=RowPart(np.float32, (len(OF_ITEMS),)), taken=RowPart(np.int64))
        self._overall: Floats = np.zeros(len(OF_ITEMS) + 1)

    @property
    def usual(self) -> Floats:
        """The means of all events."""
        return self._overall[: len(OF_ITEMS)]

    def observe(self, users: Ints, items: Ints, counts: ItemCounts) -> None:
        """Follow a batch; `counts` are those before it."""
        if not len(users):
            return
        keep(self, "_overall")
        self._users.touch(users)
        named, places = np.unique(items, return_inverse=True)
        seen = counts.before(named, self._rates)
        batch = np.array(users), places, *seen, self._rates, counts.events  # a log's users may be read-only
        policy.load("profiles").follow_preferences(*batch, *self._users.held, self._overall)

    def read(self, users: Ints) -> Floats:
        """Preferences of users: n × 4."""
        out = np.empty((len(users), len(OF_ITEMS)))
        policy.load("profiles").preferences(np.ascontiguousarray(users), *self._users.held, self._overall, out)
        return out

    def write(self, users: Ints, features: Ints, first: int, out: Singles) -> None:
        """Write inputs of lines n × c from input `first` on: preferences, and those times the candidate's own features.

        `features` are the inputs that hold the latter.
        """
        policy.load("profiles").write_preferences(features, self.read(users), self.usual, first, out)

    def forget_user(self, user: int) -> None:
        """Know nothing of a user any more."""
        for array in self._users.held:
            array[user : user + 1] = 0

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same preferences."""
        return {**self._users.state(), "overall": self._overall.copy()}

    def restore(self, state: SavedArrays) -> None:
        """Become what `state` described; arrays that no preferences can have are a `CheckpointError`."""
        means = saved_array(state, "means", np.float32, (None, len(OF_ITEMS)), least=-_LARGEST, most=_LARGEST)
        taken = saved_array(state, "taken", np.int64, (len(means),), least=0, most=MOST)
        overall = saved_array(state, "overall", np.float64, self._overall.shape, least=0, most=float(MOST))
        self._users.restore({"means": means, "taken": taken})
        self._overall = overall
