"""MeLON's compiled interaction side against PyTorch in float64: terms of units and every gradient."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.kernels.melon.forms import SideTargets
from melon.strategies.melon.interaction_model import InteractionModel
from melon.strategies.melon.kernel import interaction_kernel
from melon.strategies.melon.pair_model import PairModel
from melon.strategies.melon.settings import RateSettings
from melon.strategies.parameters import Parameters
from melon.tables import TableSpec


def targets_of(
    generator: torch.Generator, held: int, used: int, units: int, most: int, own: int, other: int
) -> SideTargets:
    """Targets with any number of partners, none included, some of which no unit is about."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).double()

    there = torch.rand(held, most, generator=generator) < torch.rand(held, 1, generator=generator)
    places = torch.randperm(held, generator=generator)[:used].numpy()
    at = torch.randint(0, used, (units,), generator=generator).numpy()
    return SideTargets(normal(held, own), normal(held, most, other), there, places, at)


def in_type(targets: SideTargets, dtype: torch.dtype) -> SideTargets:
    return replace(targets, nodes=targets.nodes.to(dtype), partners=targets.partners.to(dtype))


class TestCompiledUnits:
    @pytest.mark.parametrize("sees_parameter", [True, False])
    @pytest.mark.parametrize(
        ("own", "other", "most", "width", "hidden"), [(64, 64, 10, 64, 20), (5, 9, 3, 7, 4), (6, 6, 0, 8, 5)]
    )
    def test_terms_and_every_gradient(
        self, own: int, other: int, most: int, width: int, hidden: int, sees_parameter: bool
    ) -> None:
        generator = torch.Generator().manual_seed(own + most)
        users = targets_of(generator, 40, 30, 50, most, own, other)
        items = targets_of(generator, 25, 25, 50, most, other, own)
        losses = torch.rand(50, generator=generator).double() * 3 + 1e-6
        slopes = torch.randn(50, 2, generator=generator).double(), torch.randn(50, 20, generator=generator).double()
        chosen = RateSettings(extended_width=width, interaction_width=hidden, slope=0.1)
        specs = {"p": TableSpec("p", "user", "embedding", own), "q": TableSpec("q", "item", "embedding", other)}
        found: list[dict[str, Tensor]] = []
        for dtype in (torch.float64, torch.float32):
            phi = Parameters(3, dtype, "xavier")
            model = InteractionModel(specs, chosen, phi, 3)
            pairs = PairModel(chosen, phi, sees_interaction=True, sees_parameter=sees_parameter)
            _shake(phi)
            given_targets = in_type(users, dtype), in_type(items, dtype)
            if dtype == torch.float64:
                assert interaction_kernel(20, phi["user.attention"]) is None
                terms = pairs.unit_terms(losses, model.units(*given_targets))
            else:
                kernel = interaction_kernel(20, phi["user.attention"])
                assert kernel is not None
                terms = kernel.unit_terms(losses.float(), given_targets, 0.1, *model.weights, pairs.heads)
            total = (terms.logits * slopes[0].to(dtype)).sum()
            if terms.hidden is not None:
                total = total + (terms.hidden * slopes[1].to(dtype)).sum()
            names = [name for name in phi.tensors if phi[name].requires_grad]
            gradients = torch.autograd.grad(total, [phi[name] for name in names], allow_unused=True)
            found.append({"logits": terms.logits.detach()})
            if terms.hidden is not None:
                found[-1]["hidden"] = terms.hidden.detach()
            found[-1] |= {name: g for name, g in zip(names, gradients, strict=True) if g is not None}
        exact, quick = found
        assert exact.keys() == quick.keys()
        assert ("hidden" in exact) is sees_parameter
        for name, one in exact.items():
            size = max(float(one.abs().max()), 1e-6)
            assert float((quick[name].double() - one).abs().max()) / size < 1e-5, name

    def test_what_is_not_finite_shows(self) -> None:
        chosen, generator = RateSettings(), torch.Generator().manual_seed(0)
        specs = {"p": TableSpec("p", "user", "embedding", 8), "q": TableSpec("q", "item", "embedding", 8)}
        phi = Parameters(3, torch.float32, "xavier")
        model = InteractionModel(specs, chosen, phi, 3)
        pairs = PairModel(chosen, phi, sees_interaction=True, sees_parameter=True)
        kernel = interaction_kernel(20, phi["user.attention"])
        assert kernel is not None
        whole = in_type(targets_of(generator, 6, 6, 6, 3, 8, 8), torch.float32)
        for broken in (float("nan"), float("inf")):
            nodes = whole.nodes.clone()
            nodes[int(whole.places[2]), 1] = broken
            sides = replace(whole, nodes=nodes, at=np.arange(6)), replace(whole, at=np.arange(6))
            logits = kernel.unit_terms(torch.ones(6), sides, 0.01, *model.weights, pairs.heads).logits
            assert torch.isfinite(logits).all(1).tolist() == [True, True, False, True, True, True]

    @pytest.mark.parametrize(
        ("settings", "compiled"),
        [({}, True), ({"extended": "split"}, False), ({"norm": "none"}, False), ({"interaction_layers": 2}, False)],
    )
    def test_the_default_shape_is_covered(self, settings: dict[str, Any], compiled: bool) -> None:
        specs = {"p": TableSpec("p", "user", "embedding", 8), "q": TableSpec("q", "item", "embedding", 8)}
        model = InteractionModel(specs, RateSettings(**settings), Parameters(3, torch.float32, "xavier"), 3)
        assert (model.kernel() is not None) is compiled


def _shake(phi: Parameters) -> None:
    """Weights of every size, the same in both number types."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for value in phi.tensors.values():
            value.add_(torch.randn(value.shape, generator=generator).to(value.dtype) * 0.3)
