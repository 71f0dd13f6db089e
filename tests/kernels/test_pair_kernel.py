"""MeLON's compiled pair function against PyTorch in float64: every output and gradient."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.kernels.melon import layout
from melon.kernels.melon.forms import RateNetwork, RowTouches, UnitTerms
from melon.models.evidence import FactorGradient
from melon.strategies.melon import reference
from melon.strategies.melon.kernel import PairKernel, pair_kernel
from melon.strategies.melon.lines import SharedLines

#: Of the largest number of each tensor: what float32 gives, with weights as drawn and with large ones.
CLOSE, STRONG_CLOSE = 2e-6, 1e-5


def slow(*cases: Any) -> list[Any]:
    """Cases of a sweep that `make test` leaves out."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]


@pytest.fixture(autouse=True)
def kernel_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MELON_KERNEL", raising=False)


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Drawn:
    """Draws that are the same in both number types."""

    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "generator", torch.Generator().manual_seed(self.seed))

    def normal(self, *shape: int, size: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=self.generator) * size).double()  # type: ignore[attr-defined]

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator).double()  # type: ignore[attr-defined]

    def places(self, count: int, below: int) -> np.ndarray:
        return torch.randint(0, below, (count,), generator=self.generator).numpy()  # type: ignore[attr-defined]

    def gradients(self, *shape: int) -> Tensor:
        """Of every size and sign, exact zeros among them."""
        drawn = self.normal(*shape) * 10 ** (2 - 9 * self.uniform(*shape))
        return torch.where(self.uniform(*shape) < 0.1, 0.0, drawn).float().double()

    def network(self, width: int, inputs: int = 3, *, strong: bool = False) -> list[Tensor]:
        """Role weights: as drawn at the start, or as large and lopsided as training may leave them."""
        size = 1.0 if strong else 0.3
        shapes = [(width, inputs), (width, width), (width,), (2, width)]
        return [self.normal(*shape, size=size) - (0.3 if strong else 0.0) for shape in shapes]


def both_ways(make: Any, leaves: list[Tensor], slope: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """(result, gradient of each leaf) by the reference in float64 and by the compiled kernel."""
    found = []
    for dtype in (torch.float64, torch.float32):
        free = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        out = make(dtype, free)
        found.append([out.detach(), *torch.autograd.grad(out, free, slope.to(dtype))])
    return found[0], found[1]


def kernel_for(network: RateNetwork, like: Tensor) -> PairKernel:
    if like.dtype == torch.float64:
        return reference
    kernel = pair_kernel(network, like)
    assert kernel is not reference
    return kernel


def assert_close(exact: list[Tensor], found: list[Tensor], most: float = CLOSE) -> None:
    for place, (one, other) in enumerate(zip(exact, found, strict=True)):
        apart = (other.double() - one).abs().max() / one.abs().max().clamp(min=1e-30)
        assert float(apart) < most, (place, float(apart))


def rows_both_ways(draw: Drawn, lines: int, entries: int, width: int = 20, inputs: int = 3, **more: Any) -> Any:
    """Lines on fewer rows, from fewer units, whose gradients stand in another order; some rows have no line."""
    rows, units = lines // 2 + 2, lines // 3 + 1
    values, gradient = draw.normal(rows, entries, size=0.2), draw.gradients(lines + 3, entries)
    feature = draw.gradients(lines + 3, entries) if more.pop("apart", False) else gradient
    scale, share = draw.uniform(rows), draw.uniform(rows) if more.pop("forgets", True) else None
    leaves = [values, draw.normal(units, width, size=0.3), draw.normal(units, 2), *draw.network(width, inputs, **more)]
    row, unit = draw.places(lines, rows - 1), draw.places(lines, units)
    source = draw.places(lines, lines + 3)

    def make(dtype: torch.dtype, free: list[Tensor]) -> Tensor:
        old, hidden, logits, *weights = free
        given = (gradient.to(dtype), feature.to(dtype), scale.numpy(), None if share is None else share.numpy())
        touches = RowTouches(values.to(dtype), old, row, unit, source, *given)
        network = RateNetwork(0.7, *weights)
        return kernel_for(network, old).moved_rows([touches], UnitTerms(hidden, logits), network)[0]

    return both_ways(make, leaves, draw.normal(rows, entries))


def shared_both_ways(
    draw: Drawn, units: int, branches: int, rows: int, dim: int, share: float = 0.0, width: int = 20, **more: Any
) -> Any:
    theta = draw.normal(rows * dim, size=0.2)
    left = draw.normal(units, branches, rows, size=0.02) * (draw.uniform(units, branches, rows) < 0.6)
    right = draw.gradients(units, branches, dim).clamp(-1, 1)
    if more.pop("half_off", False):
        right = right.relu()
    leaves = [draw.normal(units, width, size=0.3), draw.normal(units, 2), *draw.network(width, **more)]

    def make(dtype: torch.dtype, free: list[Tensor]) -> Tensor:
        hidden, logits, *weights = free
        gradient = FactorGradient("weights", left.to(dtype), right.to(dtype))
        lines, network = SharedLines("weights", units, units, rows * dim, gradient, False), RateNetwork(0.7, *weights)
        kernel = kernel_for(network, hidden)
        return kernel.shared_move(theta.to(dtype), lines, UnitTerms(hidden, logits), network, 0.3, share)

    return both_ways(make, leaves, draw.normal(rows * dim))


class TestRows:
    @pytest.mark.parametrize(("lines", "entries"), [(40, 64), (50, 5), *slow((300, 1), (3, 300), (1, 1), (700, 24))])
    @pytest.mark.parametrize("strong", [False, True])
    def test_moves_and_every_gradient(self, lines: int, entries: int, strong: bool) -> None:
        assert_close(*rows_both_ways(Drawn(lines), lines, entries, strong=strong), STRONG_CLOSE if strong else CLOSE)

    @pytest.mark.parametrize(
        "pairs", [layout.TILE, layout.TILE + 1, *slow(*(layout.TILE + more for more in (-9, -8, -1, 7, 8)))]
    )
    def test_every_rest_of_a_tile(self, pairs: int) -> None:
        assert_close(*rows_both_ways(Drawn(pairs), 1, pairs))

    @pytest.mark.parametrize("width", [5, *slow(1, 20, 23)])  # 23 is compiled apart
    @pytest.mark.parametrize("inputs", [2, 3])
    def test_other_widths_and_features(self, width: int, inputs: int) -> None:
        assert_close(*rows_both_ways(Drawn(width), 30, 12, width, inputs))

    def test_without_forgetting(self) -> None:
        assert_close(*rows_both_ways(Drawn(), 30, 12, forgets=False))

    def test_what_is_applied_may_differ_from_what_is_seen(self) -> None:
        assert_close(*rows_both_ways(Drawn(), 30, 12, apart=True))


class TestSharedWeights:
    @pytest.mark.parametrize("strong", [False, True])
    @pytest.mark.parametrize("share", [0.0, 0.02])
    @pytest.mark.parametrize(
        ("units", "branches", "rows", "dim"), [(40, 2, 24, 40), *slow((17, 1, 1, 64), (20, 4, 5, 13), (1, 1, 1, 1))]
    )
    def test_moves_and_every_gradient(
        self, units: int, branches: int, rows: int, dim: int, share: float, strong: bool
    ) -> None:
        assert_close(
            *shared_both_ways(Drawn(units), units, branches, rows, dim, share, strong=strong),
            STRONG_CLOSE if strong else CLOSE,
        )

    @pytest.mark.parametrize("width", [3, *slow(20, 23)])
    def test_other_widths(self, width: int) -> None:
        assert_close(*shared_both_ways(Drawn(width), 12, 2, 9, 11, width=width, half_off=True))

    def test_a_gradient_of_zeros_moves_nothing(self) -> None:
        network = RateNetwork(1.0, *[part.float() for part in Drawn().network(20)])
        nothing = FactorGradient("weights", torch.zeros(3, 2, 4), torch.ones(3, 2, 5))
        lines, terms = SharedLines("weights", 3, 3, 20, nothing, False), UnitTerms(torch.ones(3, 20), torch.ones(3, 2))
        move = kernel_for(network, terms.logits).shared_move(torch.ones(20), lines, terms, network, 1.0, 0.0)
        assert not move.any()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["value", "gradient", "term", "weight"])
def test_what_is_not_finite_shows(broken: float, where: str) -> None:
    draw = Drawn()
    network = RateNetwork(1.0, *[part.float() for part in draw.network(20)])
    theta, gradient = draw.normal(4, 70).float(), draw.normal(4, 70).float()
    hidden, logits = draw.normal(4, 20).float(), draw.normal(4, 2).float()
    if where == "weight":
        if broken == float("inf"):
            pytest.skip("an infinite weight turns into a rate of 0 or 1, by PyTorch too")
        network.second[3, 4] = broken  # type: ignore[index]
        hidden[:, 4] = 5.0
    elif where == "term":
        hidden[2] = broken
    else:
        {"value": theta, "gradient": gradient}[where][2, 66] = broken
    terms = UnitTerms(hidden, logits)
    each = np.arange(4)
    touches = RowTouches(theta, theta, each, each, each, gradient, gradient, np.ones(4), np.ones(4))
    (moved,), (exact,) = (k.moved_rows([touches], terms, network) for k in (kernel_for(network, theta), reference))
    assert torch.equal(torch.isfinite(moved), torch.isfinite(exact))
    lines = SharedLines("weights", 4, 4, 70, FactorGradient("weights", torch.ones(4, 1, 1), gradient[:, None]), False)
    move = kernel_for(network, theta).shared_move(theta[2], lines, terms, network, 1.0, 0.1)
    wanted = reference.shared_move(theta[2], lines, terms, network, 1.0, 0.1)
    assert torch.equal(torch.isfinite(move), torch.isfinite(wanted))


def test_the_number_of_threads_changes_no_bit(threads: Any) -> None:
    def everything() -> list[Tensor]:
        rows = rows_both_ways(Drawn(1), 900, 40)[1]
        return [*rows, *shared_both_ways(Drawn(2), 70, 2, 16, 24)[1]]

    threads(1)
    alone = everything()
    for count in (2, 3):
        threads(count)
        assert all(torch.equal(one, other) for one, other in zip(alone, everything(), strict=True))


def test_what_is_not_covered_goes_to_the_reference() -> None:
    first, _, _, head = (part.float() for part in Drawn().network(20))
    affine = RateNetwork(1.0, first, head=head)
    for network, like in ((affine, torch.ones(1)), (RateNetwork(1.0), torch.ones(1))):
        assert pair_kernel(network, like) is reference
    wide = RateNetwork(1.0, *Drawn().network(20))
    assert pair_kernel(wide, torch.ones(1, dtype=torch.float64)) is reference
