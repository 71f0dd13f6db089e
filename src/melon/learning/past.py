"""Living through a recorded log: the history and a recommender's streaming state, as they would be after it."""

from __future__ import annotations

from melon.data.interactions import Interactions
from melon.recommenders.base import Recommender
from melon.stream.history import History
from melon.stream.split import batches

#: How much of a log is observed at a time; what comes of it does not depend on this.
_AT_ONCE = 4_096


def live_through(recommender: Recommender, history: History, log: Interactions) -> None:
    """Observe a log in order of time and append it to the history; no row is learned."""
    for start, stop in batches(0, len(log), _AT_ONCE):
        users, items = log.users[start:stop], log.items[start:stop]
        recommender.observe(users, items, log.times[start:stop], history)
        history.append(users, items)
