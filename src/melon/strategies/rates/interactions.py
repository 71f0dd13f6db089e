"""The interaction side (METHODS.md 4.2–4.4): attention over past partners, and one vector for each (user, item)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from melon.data.interactions import Ints
from melon.strategies.base import Surroundings
from melon.strategies.rates.parameters import Parameters
from melon.strategies.rates.settings import RateSettings
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
from melon.tables import TableSpec

_EPS = 1e-5
_OPPOSITE = {"user": "item", "item": "user"}


@dataclass(frozen=True)
class Side:
    """Distinct targets of one side: their node features, their partners' features, and which partners are there."""

    nodes: Tensor
    partners: Tensor
    there: Tensor


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

    def side(self, role: str, rows: Tensor, around: Surroundings) -> Side:
        """Targets (stored rows) with at most `neighbours` of their partners from strictly before the batch."""
        rings: PartnerRings = around.history.of_users if role == "user" else around.history.of_items
        targets: Ints = rows.cpu().numpy()
        found = rings.sample(targets, self._draws, around.history.events, self._settings.neighbours)
        partners = torch.from_numpy(np.maximum(found.partners, 0)).to(rows.device)
        there = torch.from_numpy(found.partners >= 0).to(rows.device)
        return Side(self._features(role, rows, around), self._features(_OPPOSITE[role], partners, around), there)

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

    def _features(self, role: str, rows: Tensor, around: Surroundings) -> Tensor:
        read = [around.tables[name].gather(rows).detach() for name in self._tables[role]]
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
