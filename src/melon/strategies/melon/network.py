"""The published meta-model (docs/methods.md 4.2–4.6): attention over past partners, h_x of each interaction, two heads.

Where paper and published code differ (4.9), `form` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from melon.settings import Width
from melon.strategies.base import Surroundings
from melon.strategies.learned import LearnedSettings
from melon.strategies.melon.pairs import PairNetwork
from melon.strategies.parameters import Parameters, preprocess
from melon.stream.draws import Draws
from melon.tables import TableSpec
from melon.types import Ints

_EPS = 1e-5
_SLOPE = 0.01
#: Logits of learning rates and of forgetting rates at the start, and how far around these they are drawn.
BIASES, SPREADS = np.array([[-4.5], [5.0]]), np.array([[0.5], [1.0]])
_OPPOSITE = {"user": "item", "item": "user"}


class PublishedSettings(LearnedSettings):
    """MeLON as published. `form = code` differs from the paper in what docs/methods.md 4.9 lists.

    Its units are (user, item) pairs, rates see the batch's mean loss and not θ, the role is affine, two normalised
    layers make h, and several touches of a row are averaged.
    """

    form: Literal["paper", "code"] = "paper"
    meta_lr: float = Field(1e-3, ge=0)
    role_width: Width = 20
    interaction_width: Width = 20
    extended_width: Width = 64
    neighbours: int = Field(10, ge=0, le=1_000)
    forgetting: bool = True


class InteractionModel:
    """h_x for pairs of (user, item); node features are constants, so no meta-gradient reaches the recommender."""

    def __init__(
        self, specs: Mapping[str, TableSpec], settings: PublishedSettings, parameters: Parameters, seed: int
    ) -> None:
        self._phi, self._code, self._neighbours = parameters, settings.form == "code", settings.neighbours
        self._tables = {
            role: [s.name for s in specs.values() if s.role == role and s.kind == "embedding"]
            for role in ("user", "item")
        }
        self._draws = Draws(seed, "neighbours")
        width, hidden = settings.extended_width, settings.interaction_width
        for role in ("user", "item"):
            own, other = (sum(specs[name].dim for name in self._tables[r]) for r in (role, _OPPOSITE[role]))
            parameters.weight(f"{role}.attention", 1, own + other)
            for name, inputs in (("self", own), ("neighbour", other)) if self._code else (("extend", own + other),):
                parameters.weight(f"{role}.{name}", width, inputs)
                parameters.zeros(f"{role}.{name}.bias", width)
            if self._code:
                parameters.weight(f"{role}.fuse", width, 2 * width)
        self._layers = 2 if self._code else 1
        for layer, (inputs, outputs) in enumerate(pairwise([2 * width, *[hidden] * self._layers]), start=1):
            parameters.weight(f"interaction.{layer}", outputs, inputs)
            parameters.zeros(f"interaction.{layer}.bias", outputs)
            if self._code:
                parameters.ones(f"interaction.{layer}.scale", outputs)
                parameters.zeros_exactly(f"interaction.{layer}.shift", outputs)

    def units(self, users: Ints, items: Ints, around: Surroundings) -> Tensor:
        """h for units, each a compact user with a compact item."""
        hidden = torch.cat([self._extended("user", users, around), self._extended("item", items, around)], dim=1)
        for layer in range(1, self._layers + 1):
            hidden = self._linear(f"interaction.{layer}", hidden)
            if self._code:  # over the batch, always
                centred = hidden - hidden.mean(0)
                scaled = centred / torch.sqrt(centred.square().mean(0) + _EPS)
                hidden = scaled * self._phi[f"interaction.{layer}.scale"] + self._phi[f"interaction.{layer}.shift"]
            hidden = torch.relu(hidden)
        return hidden

    def _extended(self, role: str, positions: Ints, around: Surroundings) -> Tensor:
        """The extended embedding of compact rows, which may repeat."""
        stored, history = around.users if role == "user" else around.items, around.history
        targets, places = np.unique(positions, return_inverse=True)
        partners = history.neighbours(role, stored[targets], self._draws, self._neighbours).partners
        nodes = self._features(role, stored[targets], around)
        others = self._features(_OPPOSITE[role], np.maximum(partners, 0), around)
        extended = self.extend(role, nodes, others, torch.from_numpy(partners >= 0))
        # The gradient of `index_select` is several times quicker than that of indexing.
        return extended.index_select(0, torch.from_numpy(places.reshape(-1)))

    def _features(self, role: str, rows: Ints, around: Surroundings) -> Tensor:
        return torch.cat([torch.from_numpy(around.tables[name].gather(rows)) for name in self._tables[role]], dim=-1)

    def extend(self, role: str, nodes: Tensor, partners: Tensor, there: Tensor) -> Tensor:
        """Extended embeddings: of nodes (targets × features) and of those partners (targets × places × features) that
        are there.
        """
        attention, own = self._phi[f"{role}.attention"][0], nodes.shape[1]
        scores = (nodes @ attention[:own]).unsqueeze(1) + partners @ attention[own:]
        scores = F.leaky_relu(scores, _SLOPE).masked_fill(~there, float("-inf"))
        # A target without partners has an empty sum, never a softmax over nothing.
        alone = ~there.any(1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(alone, 0.0), dim=1).masked_fill(~there, 0.0)
        gathered = torch.bmm(weights.unsqueeze(1), partners).squeeze(1)
        if not self._code:
            return torch.relu(self._linear(f"{role}.extend", torch.cat([nodes, gathered], dim=1)))
        both = [self._linear(f"{role}.self", nodes), self._linear(f"{role}.neighbour", gathered)]
        return torch.relu(F.linear(torch.relu(torch.cat(both, dim=1)), self._phi[f"{role}.fuse"]))

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self._phi[name], self._phi[f"{name}.bias"])


class PairModel:
    """Role representation and heads. `sees_interaction` and `sees_parameter` say which inputs are kept (4.8)."""

    def __init__(
        self, settings: PublishedSettings, parameters: Parameters, *, sees_interaction: bool, sees_parameter: bool
    ) -> None:
        self._phi, self._sees_parameter, code = parameters, sees_parameter, settings.form == "code"
        self._affine, width = code, settings.role_width
        if sees_parameter:
            # Inputs: loss (2), gradient (2), and the parameter's value.
            parameters.weight("role.1", width, 4 if code else 5)
            parameters.zeros("role.1.bias", width)
            if not code:
                parameters.weight("role.2", width, width)
                parameters.zeros("role.2.bias", width)
            parameters.uniform("head.role", 2, width, 0.01)
        if sees_interaction:
            parameters.uniform("head.interaction", 2, settings.interaction_width, 0.01)
        parameters.uniform("head.bias", 2, 1, SPREADS, BIASES)

    def network(self, losses: Tensor, interaction: Tensor | None) -> PairNetwork:
        """The pair function for units with these losses and representations."""
        phi = self._phi
        logits = phi["head.bias"].T
        if interaction is None:
            logits = logits.expand(len(losses), 2)
        else:
            logits = torch.addmm(logits, interaction, phi["head.interaction"].T)
        if not self._sees_parameter:
            return PairNetwork(None, logits)
        first = phi["role.1"]
        hidden = torch.addmm(phi["role.1.bias"], torch.stack(preprocess(losses), dim=1), first[:, :2].T)
        network = PairNetwork(hidden, logits, first[:, 2:], head=phi["head.role"])
        return network if self._affine else network._replace(second=phi["role.2"], bias=phi["role.2.bias"])
