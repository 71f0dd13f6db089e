"""One mini-batch of a stream, and the batches of a recorded one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from melon.data.interactions import Interactions
from melon.journal import rows_needed
from melon.types import Ints


@dataclass(frozen=True)
class Batch:
    """Consecutive interactions; `first_event` is the number of the first one, keys belong to the ids of its rows."""

    first_event: int
    users: Ints
    items: Ints
    times: Ints
    user_keys: Ints
    item_keys: Ints
    #: Rows of users and of items that the batch needs at least.
    rows: tuple[int, int] = field(init=False, repr=False, compare=False)
    #: Event numbers.
    events: Ints = field(init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.users)

    def __post_init__(self) -> None:
        rows = rows_needed(self.users), rows_needed(self.items)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "events", np.arange(self.first_event, self.first_event + len(self.users)))

    def in_epoch(self, epoch: int) -> Batch:
        """The same interactions with the random draws of one pass over the past."""
        return replace(self, first_event=self.first_event + (epoch + 1) * (1 << 40))


def batch_of(log: Interactions, start: int, stop: int) -> Batch:
    """Events start … stop-1 of a recorded log.

    Kernels take writable arrays only, so a log that is read-only (shared memory of a cluster) is copied here.
    """
    users, items, times = (np.require(part[start:stop], requirements="W") for part in (log.users, log.items, log.times))
    return Batch(start, users, items, times, log.user_keys[users], log.item_keys[items])
