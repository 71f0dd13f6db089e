"""Profiles in a space of rows, such as those of implicit ALS: who takes an item, and what a user took last.

And preferences, user by user: popular or rare, new or old, busy or idle things.
"""

from __future__ import annotations

import numpy as np

from melon.journal import GrowingRows, RowPart, keep, note
from melon.kernels import policy
from melon.kernels.profiles import ProfileRows, Tastes
from melon.models.streaming.counts import ItemCounts
from melon.models.streaming.ials import ImplicitALS
from melon.stream.history import History
from melon.stream.saved import MOST, SavedArrays, part_of, require, saved_array
from melon.types import Arrays, Floats, Ints, Singles

#: Interactions after which a taker counts half, and what is left of an item in a user's profile when the next is taken.
_HALF_LIFE, _DECAY = 20_000.0, 0.9
#: What `match` gives for each pair.
MATCHES = ("takers", "profile", "profile_takers")


class Profiles:
    """Rows of implicit ALS, and the sum of the directions of each item's takers in their space.

    A taker's weight halves with time. A user's profile is read from the history: the directions of the last items,
    each weighing .9 of the next one's.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.rows = ImplicitALS(seed=seed)
        sums = RowPart(np.float32, (self.rows.dim,))
        #: The sums of takers' directions, how many takers weigh in them, and the event that took the item last.
        self._items = GrowingRows(takers=sums, weight=RowPart(np.float64), last=RowPart(np.int64))
        self._start_factors()

    def fit(self, users: Ints, items: Ints) -> None:
        """Solve rows for a whole log, which is then observed."""
        self.rows.fit(users, items)
        self._start_factors()

    @property
    def _sides(self) -> tuple[Singles, Singles]:
        """The rows of users and of items."""
        return self.rows.users.rows, self.rows.items.rows

    def _start_factors(self) -> None:
        """Have `prepare` compute all factors: of each item, and the event that it was last taken at then."""
        self._factors: Singles = np.empty((0, len(MATCHES)), dtype=np.float32)
        self._factored_at: Ints = np.empty(0, dtype=np.int64)

    def observe(self, users: Ints, items: Ints, past: History) -> None:
        """Add a batch to the profiles of its items, by users' rows as they were, and solve the rows that it touches."""
        if not len(users):
            return
        note(self._start_factors)
        self._items.touch(items)
        events = np.array(users), np.array(items), past.events  # copies, because those of a log may be read-only
        policy.load("profiles").take(*events, 1 / _HALF_LIFE, self.rows.users.rows, *self._items.held)
        self.rows.observe(users, items, past)

    def storage(self, past: History) -> ProfileRows:
        """Zero-copy view for kernels, as of now."""
        return ProfileRows._make((*self._sides, *self._items.held, past.events, 1 / _HALF_LIFE, _DECAY))

    def match(self, users: Ints, items: Ints, past: History, out: Singles, first: int = 0) -> None:
        """How candidates n × c go with their users, three ways (`MATCHES`): into `out`, from input `first` on.

        The user's own part in what is said of an item is left out.
        """
        pairs = np.ascontiguousarray(users), np.ascontiguousarray(items), past.of_users.rings, past.of_items.rings
        policy.load("profiles").match(*pairs, self.storage(past), first, out)

    def prepare(self, n_items: int, past: History) -> Singles:
        """Factors of the first items for lists of all items, as of now; they are right until this is asked again.

        The rows of items change only where items are taken, so the others keep what they have.
        """
        known = min(n_items, self.rows.items.count, self._items.rows)
        last = self._items.held[2][:known]
        if known > len(self._factored_at):
            room = len(self._items.arrays[0])
            self._factors = np.empty((room, len(MATCHES)), dtype=np.float32)
            self._factored_at = np.full(room, -1)
        left = np.exp2((past.events - last).astype(np.float32) * np.float32(-1 / _HALF_LIFE))
        changed = np.flatnonzero(last != self._factored_at[:known])
        policy.load("profiles").prepare(self.storage(past), left, changed, self._factors)
        self._factored_at[changed] = last[changed]
        return self._factors[:known]

    def forget_user(self, user: int) -> None:
        """Take a user's row out; what others' rows and profiles have from it stays."""
        self.rows.forget_user(user)

    def state(self) -> Arrays:
        """Arrays that `restore` turns back into the same profiles."""
        return {**{f"rows.{name}": array for name, array in self.rows.state().items()}, **self._items.state()}

    def restore(self, state: SavedArrays, events: int) -> None:
        """Become what `state` described, after `events` events; else a `CheckpointError`."""
        weight = saved_array(state, "weight", np.float64, (None,), least=0, most=events)
        shape, rows = (len(weight), self.rows.dim), part_of(state, "rows")
        sums = saved_array(state, "takers", np.float32, shape, least=-2.0 * events, most=2.0 * events)
        last = saved_array(state, "last", np.int64, (len(weight),), least=0, most=max(events - 1, 0))
        require(len(rows.get("items", ())) == len(weight), "takers and rows are of different items")
        self.rows.restore(rows)
        self._items.restore({"takers": sums, "weight": weight, "last": last})
        self._start_factors()


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
    def storage(self) -> Tastes:
        """Zero-copy view for kernels."""
        return Tastes._make((*self._users.held, self._overall))

    def observe(self, users: Ints, items: Ints, counts: ItemCounts) -> None:
        """Follow a batch; `counts` are those before it."""
        if not len(users):
            return
        keep(self, "_overall")
        self._users.touch(users)
        named, places = np.unique(items, return_inverse=True)
        seen = counts.before(named, self._rates)
        batch = np.array(users), places, *seen, self._rates, counts.events  # a log's users may be read-only
        policy.load("profiles").follow_preferences(*batch, self.storage)

    def read(self, users: Ints) -> Floats:
        """Preferences of users: n × 4."""
        out = np.empty((len(users), len(OF_ITEMS)))
        policy.load("profiles").preferences(np.ascontiguousarray(users), self.storage, out)
        return out

    def write(self, users: Ints, features: Ints, first: int, out: Singles) -> None:
        """Write inputs of lines n × c from input `first` on: preferences, and those times the candidate's own features.

        `features` are the inputs that hold the latter.
        """
        policy.load("profiles").write_preferences(features, self.read(users), self._overall, first, out)

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
