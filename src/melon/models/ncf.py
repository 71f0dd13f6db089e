"""NCF (docs/methods.md 2.2): a product part and a ReLU network, with gradients of shared weights as factors."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from melon.models.autograd import TorchRecommender
from melon.models.base import RecommenderSettings
from melon.models.evidence import Evidence, Examples, FactorGradient, Gradient, RowGradient, Values
from melon.models.losses import BPRLoss
from melon.settings import Width
from melon.tables import TableSpec


class NCFSettings(RecommenderSettings):
    """`init="paper"` draws everything with deviation 0.01, which silences the network (docs/methods.md 2.2)."""

    dim: Width = 64
    layers: tuple[Width, ...] = Field((64, 64, 64, 64), min_length=1, max_length=16)
    init: Literal["he", "paper"] = "he"


class NCF(TorchRecommender):
    """score(u, i) = w · [PG_u ⊙ QG_i ; mlp(PM_u, QM_i)] + b_u + b_i."""

    name = "ncf"
    settings_type: ClassVar[type[RecommenderSettings]] = NCFSettings
    settings: NCFSettings

    def __init_subclass__(cls, **more: Any) -> None:
        """A class with other scores or gradients has not the quick forms of these."""
        super().__init_subclass__(**more)
        if {"scores", "evidence"} & vars(cls).keys():
            cls.line_scores = TorchRecommender.line_scores  # type: ignore[method-assign]
            cls.open_evidence = TorchRecommender.open_evidence  # type: ignore[method-assign]

    def declare(self) -> tuple[TableSpec, ...]:
        dim, widths = self.settings.dim, self.settings.layers
        paper = self.settings.init == "paper"
        std, bias_std = (0.01, 0.01) if paper else (0.05, 0.0)
        inputs = (2 * dim, *widths)
        tables = [
            TableSpec("user_gmf", "user", "embedding", dim, std),
            TableSpec("item_gmf", "item", "embedding", dim, std),
            TableSpec("user_mlp", "user", "embedding", dim, std),
            TableSpec("item_mlp", "item", "embedding", dim, std),
            TableSpec("user_bias", "user", "bias", 1, bias_std),
            TableSpec("item_bias", "item", "bias", 1, bias_std),
        ]
        for number, (fan_in, width) in enumerate(zip(inputs, widths, strict=False), start=1):
            spread = 0.01 if paper else (2 / fan_in) ** 0.5
            tables.append(TableSpec(f"layer_{number}", "shared", "weight", fan_in, spread, rows=width))
        # With `he` the product part starts as plain matrix factorisation: its weights are 1.
        tables.append(TableSpec("product", "shared", "weight", dim, 0.01 if paper else 0.0, 0.0 if paper else 1.0, 1))
        tables.append(TableSpec("output", "shared", "weight", widths[-1], 0.01, rows=1))
        return tuple(tables)

    def scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        product = values["user_gmf"][users] * values["item_gmf"][items]
        hidden = torch.cat([values["user_mlp"][users], values["item_mlp"][items]], -1)
        for layer in self._layers():
            hidden = torch.relu(hidden @ values[layer].T)
        scores = product @ values["product"][0] + hidden @ values["output"][0]
        return scores + values["user_bias"][users, 0] + values["item_bias"][items, 0]

    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        users, items = examples.users, examples.items
        user_gmf, item_gmf = values["user_gmf"][users].unsqueeze(1), values["item_gmf"][items]
        user_mlp, item_mlp = values["user_mlp"][users].unsqueeze(1), values["item_mlp"][items]
        weights = [values[layer] for layer in self._layers()]
        product = user_gmf * item_gmf
        activations = [torch.cat([user_mlp.expand_as(item_mlp), item_mlp], -1)]
        for weight in weights:
            activations.append(torch.relu(activations[-1] @ weight.T))
        gmf_weights, output = values["product"][0], values["output"][0]
        scores = product @ gmf_weights + activations[-1] @ output
        scores = scores + values["item_bias"][items, 0] + values["user_bias"][users]
        losses, slopes = self.loss.slopes(scores)
        kappa = slopes.unsqueeze(-1)

        # Deltas of the score, layer by layer from the top; the slopes enter once, as the left factor.
        delta = (activations[-1] > 0) * output
        gradients: list[Gradient] = []
        for number in range(len(weights), 0, -1):
            gradients.append(FactorGradient(f"layer_{number}", kappa * delta, activations[number - 1]))
            delta = delta @ weights[number - 1]
            if number > 1:
                delta = delta * (activations[number - 1] > 0)
        reaching = kappa * delta
        dim = self.settings.dim
        through_gmf = kappa * gmf_weights
        branches = users[:, None].expand_as(items) if per_branch else users[:, None]

        def to_user(gradient: Tensor) -> Tensor:
            return gradient if per_branch else gradient.sum(1, keepdim=True)

        gradients += [
            FactorGradient("product", kappa, product),
            FactorGradient("output", kappa, activations[-1]),
            RowGradient("user_gmf", branches, to_user(through_gmf * item_gmf)),
            RowGradient("item_gmf", items, through_gmf * user_gmf),
            RowGradient("user_mlp", branches, to_user(reaching[..., :dim])),
            RowGradient("item_mlp", items, reaching[..., dim:]),
            RowGradient("item_bias", items, kappa),
        ]
        if per_branch or not self.loss.shift_invariant:
            gradients.append(RowGradient("user_bias", branches, to_user(kappa)))
        return Evidence(losses, tuple(gradients))

    @property
    def open_evidence(self) -> bool:
        return type(self.loss) is BPRLoss

    def line_scores(self, values: Values, items: Tensor) -> Tensor:
        first, *rest = (values[layer] for layer in self._layers())
        n, dim = len(items), self.settings.dim
        # Each half of the first layer is computed once: for a user, and for an item however many lines it stands in.
        halves = values["user_mlp"] @ first[:, :dim].T, values["item_mlp"] @ first[:, dim:].T
        hidden = torch.relu(F.embedding(items, halves[1]) + halves[0][:, None]).view(-1, len(first))
        for weight in rest:
            hidden = torch.relu(hidden @ weight.T)
        product = torch.bmm(F.embedding(items, values["item_gmf"]), (values["user_gmf"] * values["product"])[..., None])
        scores = product[..., 0] + (hidden @ values["output"][0]).view(n, -1)
        return scores + F.embedding(items, values["item_bias"])[..., 0] + values["user_bias"]

    def _layers(self) -> list[str]:
        return [f"layer_{number}" for number in range(1, len(self.settings.layers) + 1)]
