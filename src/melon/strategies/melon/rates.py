"""Log-linear rates (docs/methods.md 4.12): what they see of an interaction and a row, and what they make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from melon.errors import CheckpointError
from melon.kernels.meta_training.forms import LEAST_LOSS, MOST_LOG_RATE
from melon.models.plain import NO_SPLINES, Splines
from melon.tables import TableSpec
from melon.types import Floats, Ints

#: What rates can see. `rates` are the item's recent counts at two half-lives, `loss` is that of the interaction.
LinearInput = Literal["age", "new", "idle", "touches", "rates", "partner", "loss"]
INPUTS: tuple[LinearInput, ...] = ("age", "new", "idle", "touches", "rates", "partner", "loss")
#: Which input each column of a row's inputs belongs to; the first column of φ is a constant.
COLUMNS: tuple[LinearInput, ...] = ("age", "new", "idle", "touches", "rates", "rates", "partner")
#: Losses at which the loss's part of a log rate bends; it is linear in log L between them and constant outside.
KNOTS: Floats = np.log([0.03, 0.15, 0.5, 1.2, 2.5])
#: A row that is touched keeps 1 − D / 10 of itself, and D is at most this.
MOST_DECAY, DECAY_UNIT = 5.0, 0.1

Phi = dict[str, Tensor]


def row_inputs(met: Ints, idle: Ints, touches: Ints, recent: Floats, partner: Ints) -> Floats:
    """Inputs of touches: … × columns.

    `met` is how many interactions the row has had, `idle` for how long nobody touched it, `touches` how many lines of
    the batch touch it; `recent` (… × 2) are counts of its item, and `partner` is how many the other side has had.
    """
    columns = [
        np.log1p(met) / 3 - 1,
        np.asarray(met == 0, dtype=np.float64),
        np.log1p(idle) / 10,
        np.log(touches) / 3,
        np.log1p(recent[..., 0]) / 3,
        np.log1p(recent[..., 1]) / 3,
        np.log1p(partner) / 3 - 1,
    ]
    return np.stack(columns, axis=-1)


@dataclass(frozen=True)
class Roles:
    """Which line of φ a touch of a table belongs to: its first touch (the user, or the item taken) and any other."""

    first: Mapping[str, int]
    other: Mapping[str, int]
    count: int

    @classmethod
    def apart(cls, specs: Mapping[str, TableSpec]) -> Roles:
        """Each table its own, and an item that is taken another than one that is drawn."""
        first, other, count = {}, {}, 0
        for name, spec in specs.items():
            first[name], count = count, count + 1
            other[name] = count if spec.role == "item" else first[name]
            count += spec.role == "item"
        return cls(first, other, count)

    @classmethod
    def by_table(cls, specs: Mapping[str, TableSpec]) -> Roles:
        """Each table its own, whatever part its row plays in an interaction."""
        places = {name: place for place, name in enumerate(specs)}
        return cls(places, places, len(places))

    @classmethod
    def one(cls, specs: Mapping[str, TableSpec]) -> Roles:
        """The same for everything."""
        places = dict.fromkeys(specs, 0)
        return cls(places, places, 1)

    def of(self, table: str, slots: int) -> list[int]:
        """The roles of a table's touches by one interaction."""
        return [self.first[table], *[self.other[table]] * (slots - 1)]


class LinearRates:
    """log w = c₀ + c · inputs + spline(log L), and what else meta-training learns.

    φ is `rates` (roles × constant and columns), `splines` (roles × knots), `decay` (D by table of rows), `half_lives`
    (logarithms, by table of items) and `temperature` (the logarithm of τ).
    """

    def __init__(
        self, specs: Mapping[str, TableSpec], roles: Roles, inputs: tuple[LinearInput, ...], lr: float
    ) -> None:
        self.roles = roles
        self.row_tables = [name for name, spec in specs.items() if spec.role != "shared"]
        self.item_tables = [name for name, spec in specs.items() if spec.role == "item"]
        self._seen = np.array([name in inputs for name in COLUMNS], dtype=np.float64)
        self.sees_loss = "loss" in inputs
        self._start = float(np.log(lr))
        self._columns: tuple[Phi, tuple[Floats, Splines, dict[str, float]]] | None = None
        shapes: dict[str, tuple[int, ...]] = {
            "rates": (roles.count, 1 + len(COLUMNS)),
            "splines": (roles.count, len(KNOTS)),
            "decay": (len(self.row_tables),),
            "half_lives": (len(self.item_tables),),
            "temperature": (1,),
        }
        self.phi: Phi = {name: torch.from_numpy(np.zeros(shape)) for name, shape in shapes.items()}
        self.phi["rates"][:, 0] = self._start

    def seen(self, columns: Floats) -> Floats:
        """Inputs, with those that are left out as 0."""
        return columns * self._seen

    def base(self, columns: Floats, roles: list[int]) -> Floats:
        """Log rates of touches (n × slots × columns) before splines: n × slots."""
        weights: Floats = self.phi["rates"].numpy()[roles]
        base: Floats = (columns * weights[:, 1:]).sum(-1) + weights[:, 0]
        return base

    def rates(self, columns: Floats, losses: Tensor, roles: list[int], phi: Phi | None = None) -> Tensor:
        """Rates of touches: n × slots, differentiable in losses and in a φ that is given."""
        chosen = self.phi if phi is None else phi
        weights, losses = chosen["rates"][roles], losses.double()
        logs = (torch.from_numpy(columns) * weights[:, 1:]).sum(-1) + weights[:, 0]
        if self.sees_loss:
            at = torch.log(losses + LEAST_LOSS).clamp(KNOTS[0], KNOTS[-1])
            right = torch.from_numpy(np.searchsorted(KNOTS, at.detach().numpy()).clip(1, len(KNOTS) - 1))
            knots, splines = torch.from_numpy(KNOTS), chosen["splines"][roles]
            part = (at - knots[right - 1]) / (knots[right] - knots[right - 1])
            logs = logs + (splines[:, right - 1] * (1 - part) + splines[:, right] * part).T
        return torch.exp(logs.clamp(max=MOST_LOG_RATE))

    def in_columns(self, tables: Sequence[str], slots: int) -> tuple[Floats, Splines, dict[str, float]]:
        """φ as compiled steps of a factorised score take it: weights by column, splines, and decay by table."""
        if self._columns is None or self._columns[0] is not self.phi or len(self._columns[1][0]) != 1 + 2 * slots:
            roles = [role for name in tables for role in self.roles.of(name, 1 if name == tables[0] else slots)]
            weights = self.phi["rates"].numpy()[roles] * np.append(1.0, self._seen)
            splines = (KNOTS, self.phi["splines"].numpy()[roles]) if self.sees_loss else NO_SPLINES
            decay = {name: 1 - float(self.kept(name)) for name in tables}
            self._columns = self.phi, (weights, splines, decay)
        return self._columns[1]

    def kept(self, table: str, phi: Phi | None = None) -> Tensor:
        """What a touch leaves of a row."""
        decay = (self.phi if phi is None else phi)["decay"]
        return 1 - DECAY_UNIT * decay[self.row_tables.index(table)]

    def half_lives(self) -> dict[str, float]:
        """Of the tables of items."""
        return dict(zip(self.item_tables, torch.exp(self.phi["half_lives"]).tolist(), strict=True))

    def take(self, phi: Mapping[str, Tensor], owner: str) -> None:
        """Become another φ of the same shape; one that meta-training cannot give is a `CheckpointError`."""
        for name, own in self.phi.items():
            given = phi.get(name)
            if given is None or given.shape != own.shape or given.dtype != own.dtype:
                shape = "nothing" if given is None else f"{given.dtype} of shape {tuple(given.shape)}"
                raise CheckpointError(
                    f"this is not what strategy {owner!r} with these settings has learned: {name} is {shape} instead "
                    f"of shape {tuple(own.shape)}. It was saved with another strategy, preset or recommender; load it "
                    "with the settings it was saved with."
                )
            sound = torch.isfinite(given).all()
            if name == "decay":
                sound &= ((given >= 0) & (given <= MOST_DECAY)).all()
            if not sound:
                raise CheckpointError(
                    f"{name} of strategy {owner!r} has numbers that meta-training cannot give: {given}."
                )
        self.phi = {name: phi[name].detach().clone() for name in self.phi}
