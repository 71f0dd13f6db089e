"""A batch as a strategy would meet it, for tests of steps."""

from typing import Any

import torch

from melon.learning.general_step import Compact
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.strategies.base import Situation
from melon.stream.batch import Batch


def situation_of(updater: Updater, batch: Batch) -> tuple[Compact, Situation]:
    """The batch now, and which stored rows it is about."""
    situation = updater.situation(batch)
    assert situation.around is not None
    return Compact(situation.around.users, situation.around.items), situation


def as_tensor(numbers: Any) -> torch.Tensor:
    """Arrays and tensors alike."""
    return torch.as_tensor(numbers).detach()


def equal(one: Any, other: Any) -> bool:
    """Whether arrays or tensors are equal."""
    return torch.equal(as_tensor(one), as_tensor(other))


def assert_close(one: Any, other: Any, **limits: Any) -> None:
    """Arrays or tensors are nearly equal."""
    torch.testing.assert_close(as_tensor(one), as_tensor(other), **limits)


def tensors_of(recommender: Recommender) -> dict[str, torch.Tensor]:
    """Copies of all rows, as tensors."""
    return {name: torch.from_numpy(table.state()["values"]) for name, table in recommender.tables.items()}
