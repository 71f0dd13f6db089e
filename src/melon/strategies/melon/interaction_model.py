"""The interaction side (docs/methods.md 4.2–4.4): attention over past partners, one vector per (user, item)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from melon.kernels.melon.forms import SideTargets, SideWeights, UnitLayer
from melon.strategies.base import Surroundings
from melon.strategies.melon.kernel import InteractionKernel, interaction_kernel
from melon.strategies.melon.settings import RateSettings
from melon.strategies.parameters import Parameters
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
from melon.tables import TableSpec
from melon.types import Ints

_EPS = 1e-5
_OPPOSITE = {"user": "item", "item": "user"}


@dataclass(frozen=True)
class Side:
    """Distinct targets of one side: their node features, their partners' features, and which partners are there."""

    nodes: Tensor
    partners: Tensor
    there: Tensor

    def joined(self, other: Side) -> Side:
        """These targets, and then others."""
        both = ((self.nodes, other.nodes), (self.partners, other.partners), (self.there, other.there))
        return Side(*(torch.cat(pair) for pair in both))

    def at(self, places: Tensor) -> Side:
        """Some of the targets."""
        return Side(*(part.index_select(0, places) for part in (self.nodes, self.partners, self.there)))


class TargetCache:
    """The targets of one side that were looked up at one moment, by their place in the compact copy.

    The situations of a step start with the same compact rows, so what they share is read once.
    """

    def __init__(self) -> None:
        self._held: Ints = np.empty(0, dtype=np.int64)  # where the target of each compact row stands, or -1
        self._side: Side | None = None

    def targets(self, positions: Ints, rows: int, look_up: Callable[[Ints], Side]) -> SideTargets:
        """Units about these of the compact rows, which may repeat; those not known yet are looked up."""
        wanted = np.zeros(rows, dtype=bool)
        wanted[positions] = True
        targets, order = np.flatnonzero(wanted), np.cumsum(wanted) - 1
        if rows > len(self._held):
            self._held = np.concatenate([self._held, np.full(rows - len(self._held), -1)])
        places = self._held[targets]
        if self._side is None or (places < 0).any():
            missing = targets[places < 0]
            self._add(missing, look_up(missing))
            places = self._held[targets]
        side = self._side
        assert side is not None
        return SideTargets(side.nodes, side.partners, side.there, places, order[positions])

    def _add(self, rows: Ints, new: Side) -> None:
        first = 0 if self._side is None else self._side.nodes.shape[0]
        self._held[rows] = np.arange(first, first + len(rows))
        self._side = new if self._side is None else self._side.joined(new)


class InteractionModel:
    """h_x for pairs of (user, item); node features are constants, so no meta-gradient reaches the recommender."""

    def __init__(
        self, specs: Mapping[str, TableSpec], settings: RateSettings, parameters: Parameters, seed: int
    ) -> None:
        self._settings, self._phi = settings, parameters
        self._tables = {
            role: [s.name for s in specs.values() if s.role == role and s.kind == "embedding"]
            for role in ("user", "item")
        }
        self._draws = Draws(seed, "neighbours")
        width, hidden = settings.extended_width, settings.interaction_width
        for role in ("user", "item"):
            own, other = (sum(specs[name].dim for name in self._tables[r]) for r in (role, _OPPOSITE[role]))
            parameters.weight(f"{role}.attention", 1, own + other)
            if settings.extended == "joint":
                parameters.weight(f"{role}.extend", width, own + other)
                parameters.zeros(f"{role}.extend.bias", width)
            else:
                parameters.weight(f"{role}.self", width, own)
                parameters.zeros(f"{role}.self.bias", width)
                parameters.weight(f"{role}.neighbour", width, other)
                parameters.zeros(f"{role}.neighbour.bias", width)
                parameters.weight(f"{role}.fuse", width, 2 * width)
        sizes = [2 * width, *[hidden] * settings.interaction_layers]
        for layer, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
            parameters.weight(f"interaction.{layer}", outputs, inputs)
            parameters.zeros(f"interaction.{layer}.bias", outputs)
            if settings.norm != "none":
                parameters.ones(f"interaction.{layer}.scale", outputs)
                parameters.zeros_exactly(f"interaction.{layer}.shift", outputs)

    def targets(self, users: Ints, items: Ints, around: Surroundings) -> tuple[SideTargets, SideTargets]:
        """Units, each a compact user with a compact item, and what is looked up around both."""
        return self._targets("user", users, around), self._targets("item", items, around)

    def units(self, users: SideTargets, items: SideTargets) -> Tensor:
        """h for units."""
        device = users.nodes.device
        chosen = [
            Side(side.nodes, side.partners, side.there).at(torch.from_numpy(side.places).to(device))
            for side in (users, items)
        ]
        user_at, item_at = (torch.from_numpy(side.at).to(device) for side in (users, items))
        return self.represent(chosen[0], chosen[1], user_at, item_at)

    def kernel(self) -> InteractionKernel | None:
        """The compiled form, which is there for the default shape; PyTorch has all others."""
        settings = self._settings
        if settings.extended != "joint" or settings.norm != "layer" or settings.interaction_layers != 1:
            return None
        return interaction_kernel(settings.role_width, self._phi["user.attention"])

    @property
    def weights(self) -> tuple[tuple[SideWeights, SideWeights], UnitLayer]:
        """All weights of the default shape."""
        user, item = (
            SideWeights(*(self._phi[f"{role}.{part}"] for part in ("attention", "extend", "extend.bias")))
            for role in ("user", "item")
        )
        layer = UnitLayer(*(self._phi[f"interaction.1{part}"] for part in ("", ".bias", ".scale", ".shift")))
        return (user, item), layer

    def _targets(self, role: str, positions: Ints, around: Surroundings) -> SideTargets:
        """What was looked up goes with the surroundings, which are those of one step."""
        stored = around.users if role == "user" else around.items
        cache: TargetCache = around.notes.setdefault((self, role), TargetCache())
        return cache.targets(positions, len(stored), lambda missing: self.side(role, stored[missing], around))

    def side(self, role: str, targets: Ints, around: Surroundings) -> Side:
        """Targets (stored rows) with at most `neighbours` of their partners from strictly before the batch."""
        rings: PartnerRings = around.history.of_users if role == "user" else around.history.of_items
        partner_rows = rings.sample(targets, self._draws, around.history.events, self._settings.neighbours).partners
        partners = self._features(_OPPOSITE[role], np.maximum(partner_rows, 0), around)
        return Side(self._features(role, targets, around), partners, torch.from_numpy(partner_rows >= 0))

    def represent(self, users: Side, items: Side, user_at: Tensor, item_at: Tensor) -> Tensor:
        """h for units, each the user at `user_at` with the item at `item_at`."""
        # The gradient of `index_select` is several times quicker than that of indexing.
        both = (
            self._extend("user", users).index_select(0, user_at),
            self._extend("item", items).index_select(0, item_at),
        )
        extended = torch.cat(both, dim=-1)
        hidden = extended
        for layer in range(1, self._settings.interaction_layers + 1):
            hidden = F.linear(hidden, self._phi[f"interaction.{layer}"], self._phi[f"interaction.{layer}.bias"])
            hidden = torch.relu(self._normalised(hidden, layer))
        return hidden

    def _features(self, role: str, rows: Ints, around: Surroundings) -> Tensor:
        read = [torch.from_numpy(around.tables[name].gather(rows)) for name in self._tables[role]]
        return read[0] if len(read) == 1 else torch.cat(read, dim=-1)

    def _extend(self, role: str, side: Side) -> Tensor:
        attention = self._phi[f"{role}.attention"][0]
        own = side.nodes.shape[1]
        # Scores of partners first, then the target's own term: as one vector on [target ; partner].
        scores = (side.nodes @ attention[:own]).unsqueeze(1) + side.partners @ attention[own:]
        scores = F.leaky_relu(scores, self._settings.slope).masked_fill(~side.there, float("-inf"))
        # A target without partners has an empty sum, never a softmax over nothing.
        alone = ~side.there.any(1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(alone, 0.0), dim=1).masked_fill(~side.there, 0.0)
        gathered = torch.bmm(weights.unsqueeze(1), side.partners).squeeze(1)
        if self._settings.extended == "joint":
            joined = torch.cat([side.nodes, gathered], dim=1)
            return torch.relu(F.linear(joined, self._phi[f"{role}.extend"], self._phi[f"{role}.extend.bias"]))
        own_part = torch.relu(F.linear(side.nodes, self._phi[f"{role}.self"], self._phi[f"{role}.self.bias"]))
        others = torch.relu(F.linear(gathered, self._phi[f"{role}.neighbour"], self._phi[f"{role}.neighbour.bias"]))
        return torch.relu(F.linear(torch.cat([own_part, others], dim=1), self._phi[f"{role}.fuse"]))

    def _normalised(self, hidden: Tensor, layer: int) -> Tensor:
        norm = self._settings.norm
        if norm == "none":
            return hidden
        axis = 0 if norm == "batch" else -1
        centred = hidden - hidden.mean(axis, keepdim=True)
        variance = centred.square().mean(axis, keepdim=True)
        scaled = centred / torch.sqrt(variance + _EPS)
        return scaled * self._phi[f"interaction.{layer}.scale"] + self._phi[f"interaction.{layer}.shift"]
