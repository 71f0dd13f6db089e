"""Heads: parts of a recommender that are trained apart from its rows, first out of sample and then online.

A head weighs what the rows say against what streaming state says (docs/methods.md 8.5). Trained on data that its rows
have seen it would trust them too far, so it *practises* on the selection window beside rows that have not seen the
window, and what it has learned is taken over by the recommender that was trained on everything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from melon.recommenders.base import Context, Recommender
from melon.recommenders.evidence import Values

#: What a head has learned, by name.
HeadPractice = dict[str, Tensor]


@dataclass(frozen=True)
class Lesson:
    """What a batch teaches a head: inputs n × (1 + negatives) × features, the item taken first.

    `allowed` is False for negatives that do not count, because they are the user's own.
    """

    inputs: Tensor
    allowed: Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class HeadStep:
    """New values of the head's tables, and what its optimiser will remember once they are written."""

    values: dict[str, Tensor]
    memory: dict[str, Tensor]


class Head(ABC):
    """The head of a recommender. It proposes; the updater alone writes its tables."""

    #: Whether the head makes its own step at each batch; otherwise the update strategy drives its tables.
    own: bool
    #: How many items that were not taken stand beside each one that was.
    negatives: int
    #: Whether it learns from repeats, too: events on items that the user has had.
    repeats: bool = True

    @abstractmethod
    def step(self, values: Values, lesson: Lesson) -> HeadStep:
        """One online step from the present values of its tables; pure."""

    @abstractmethod
    def keep(self, memory: Mapping[str, Tensor]) -> None:
        """Store the optimiser's state after a step has been written."""

    @abstractmethod
    def memory(self) -> dict[str, Tensor]:
        """Everything that is no table: scales and what the optimiser remembers."""

    @abstractmethod
    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Become what `memory` described; what no such head can have is a `CheckpointError`."""

    @abstractmethod
    def practise(self, values: Values, lessons: Sequence[Lesson]) -> HeadPractice:
        """Train on recorded lessons in order of time, several times over, from the given values; pure."""

    @abstractmethod
    def take_over(self, practice: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Load what was practised: scales are stored here, and new values of the head's tables are returned."""


class HeadedRecommender(Recommender):
    """A recommender with a head, which the updater teaches and the selection window trains."""

    head: Head
    #: Whether streaming state follows what is learned; without it the rows can be judged by themselves, and quicker.
    observes: bool = True

    @abstractmethod
    def lesson(self, users: Tensor, items: Tensor, allowed: Tensor, context: Context) -> Lesson:
        """What interactions teach the head: users n, items n × (1 + negatives), from the stored model as it is now."""
