"""The compiled pair function of the published form against PyTorch in float64: both rates and every gradient."""

import pytest
import torch
from torch import Tensor

from melon.strategies.melon.published import PairNetwork, rates, shared_move


def drawn(width: int, lines: int, entries: int, inputs: int = 3) -> tuple[Tensor, Tensor, list[Tensor]]:
    """θ, gradients of every size and sign with exact zeros among them, and a network."""
    generator = torch.Generator().manual_seed(width + lines + entries)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).double()

    sizes = 10 ** (2 - 9 * torch.rand(lines, entries, generator=generator).double())
    gradient = torch.where(torch.rand(lines, entries, generator=generator) < 0.1, 0.0, normal(lines, entries) * sizes)
    shapes = [(lines, width), (lines, 2), (width, inputs), (width, width), (width,), (2, width)]
    return normal(lines, entries), gradient.float().double(), [0.5 * normal(*shape) for shape in shapes]


def close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=0, atol=float(other.abs().max()) * 5e-6)


@pytest.mark.parametrize(
    ("width", "lines", "entries", "inputs"), [(20, 7, 64, 3), (5, 3, 1, 3), (6, 2, 1100, 2), (24, 1, 512, 3)]
)
def test_rates_and_their_gradients(width: int, lines: int, entries: int, inputs: int) -> None:
    theta, gradient, network = drawn(width, lines, entries, inputs)
    by, found = torch.randn(2, lines, entries, generator=torch.Generator().manual_seed(9)), list[list[Tensor]]()
    for dtype in (torch.float32, torch.float64):
        free = [part.to(dtype).requires_grad_() for part in network]
        out = rates(theta.to(dtype), gradient.to(dtype), PairNetwork(*free))
        found.append([out.detach(), *torch.autograd.grad(out, free, by.to(dtype))])
    close(*found)


@pytest.mark.parametrize("at_once", [1 << 18, 100])
def test_a_weight_that_all_units_touch(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melon.strategies.melon.published.PAIRS_AT_ONCE", at_once)
    theta, gradient, network = drawn(20, 9, 48)
    by, found = torch.randn(48, generator=torch.Generator().manual_seed(9)), list[list[Tensor]]()
    for dtype in (torch.float32, torch.float64):
        free, steps = [part.to(dtype).requires_grad_() for part in network], gradient.to(dtype)
        move = shared_move(
            theta[0].to(dtype), 9, lambda a, b, g=steps: (g[a:b], g[a:b]), PairNetwork(*free), 0.3, 1 / 9
        )
        found.append([move.detach(), *torch.autograd.grad(move, free, by.to(dtype))])
    close(*found)


def test_nan_in_is_nan_out() -> None:
    theta, gradient, network = drawn(20, 2, 8)
    gradient[1, 3] = float("nan")
    out = rates(theta.float(), gradient.float(), PairNetwork(*(part.float() for part in network)))
    assert torch.isnan(out).nonzero().tolist() == [[0, 1, 3], [1, 1, 3]]
