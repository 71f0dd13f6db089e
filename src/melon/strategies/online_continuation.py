"""Rates that go on learning on the stream: Adam's state, and the last step, through which the next batch judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from melon.adam import Moments
from melon.errors import CheckpointError
from melon.strategies.melon.rates import Phi

_FIRST, _SECOND, _LAST, _ROWS = "online/first/", "online/second/", "online/last/", "online/rows/"
_STEPS = "online/steps"


@dataclass(frozen=True)
class LastStep:
    """The batch that was learned last: what it touched, and the rows as they were stored before.

    users (n) and items (n × slots) are stored rows, `inputs` what rates saw of each touch, `now` the moment. `touched`
    says when each of the distinct items, in order, had been touched before; `rows` holds the distinct rows of users and
    of items in order, and shared weights as a whole, by table.
    """

    users: Tensor
    items: Tensor
    inputs: Tensor
    now: Tensor
    touched: Tensor
    rows: dict[str, Tensor]


@dataclass(frozen=True)
class OnlineContinuation:
    """State of learning online; nothing has been learned and no batch been met at first."""

    moments: dict[str, Moments] = field(default_factory=dict)
    steps: int = 0
    last: LastStep | None = None

    def memory(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        parts = {_STEPS: torch.tensor(self.steps, device="cpu")}
        for name, moments in self.moments.items():
            parts |= {f"{_FIRST}{name}": moments.first.clone(), f"{_SECOND}{name}": moments.second.clone()}
        if self.last is not None:
            own = ("users", "items", "inputs", "now", "touched")
            parts |= {f"{_LAST}{name}": getattr(self.last, name).clone() for name in own}
            parts |= {f"{_ROWS}{name}": rows.clone() for name, rows in self.last.rows.items()}
        return parts

    @classmethod
    def from_memory(cls, memory: Mapping[str, Tensor], phi: Phi, owner: str) -> OnlineContinuation:
        """What `memory` described; what this strategy cannot have is a `CheckpointError`."""
        steps = int(memory.get(_STEPS, 0))
        moments = {}
        for name, value in phi.items() if steps > 0 else ():
            both = memory.get(f"{_FIRST}{name}"), memory.get(f"{_SECOND}{name}")
            if any(each is None or each.shape != value.shape or not torch.isfinite(each).all() for each in both):
                raise CheckpointError(f"{owner} cannot go on learning: what Adam knows of {name} is missing or broken.")
            first, second = both
            assert first is not None and second is not None  # noqa: PT018
            moments[name] = Moments(first.cpu(), second.cpu())
        last = {name.removeprefix(_LAST): part.cpu() for name, part in memory.items() if name.startswith(_LAST)}
        if not last:
            return cls(moments, steps)
        rows = {name.removeprefix(_ROWS): part.cpu() for name, part in memory.items() if name.startswith(_ROWS)}
        if not _is_a_step(last, rows):
            raise CheckpointError(f"{owner} cannot go on learning: the last batch in its memory is no batch.")
        return cls(moments, steps, LastStep(**last, rows=rows))


def _is_a_step(parts: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> bool:
    """Whether the parts of a last step belong together."""
    if parts.keys() != {"users", "items", "inputs", "now", "touched"} or not rows:
        return False
    users, items, inputs = parts["users"], parts["items"], parts["inputs"]
    whole = all(not parts[name].is_floating_point() for name in ("users", "items", "now", "touched"))
    if not whole or users.ndim != 1 or items.ndim != 2 or inputs.ndim != 3 or parts["now"].numel() != 1:
        return False
    if not len(users) == len(items) == len(inputs) or inputs.shape[1] != 1 + items.shape[1]:
        return False
    distinct = len(torch.unique(items))
    finite = all(torch.isfinite(part).all() for part in (inputs, *rows.values()))
    return bool(finite and (users >= 0).all() and (items >= 0).all() and len(parts["touched"]) == distinct)
