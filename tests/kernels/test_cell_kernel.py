"""S2Meta's compiled cell against PyTorch in float64: every output and gradient."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from melon.kernels.s2meta import cells, functions
from melon.strategies.s2meta.cell import Carried, TorchCell, cell_kernel

#: Of the largest number of each tensor: what float32 gives.
CLOSE = 3e-6
LIKE = torch.ones(1)


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


class Drawn:
    """A cell of some shape and the scalars it runs over, the same in both number types."""

    def __init__(self, units: int, inputs: int, scalars: int, *, persist: bool, size: float = 0.5) -> None:
        self._generator = torch.Generator().manual_seed(units + 100 * inputs + scalars)
        fresh = (self._normal(scalars) > 0).double()
        self.features = self._normal(inputs, scalars)
        self.carried = Carried(self._normal(units, scalars) * (1 - fresh), fresh) if persist else None
        self.learned = [
            size * self._normal(4 * units, inputs),
            size * self._normal(4 * units),
            self._normal(units),
            size * self._normal(2, units),
        ]
        self.slopes = self._normal(2, scalars)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).double()

    def kept(self, dtype: torch.dtype) -> Carried | None:
        return None if self.carried is None else Carried(self.carried.cell.to(dtype), self.carried.fresh.to(dtype))

    def logits_and_gradients(self, kernel: Any, dtype: torch.dtype, *, normalise: bool) -> list[Tensor]:
        free = [each.to(dtype).requires_grad_() for each in self.learned]
        logits = kernel.cell_logits(self.features.to(dtype), *free, self.kept(dtype), normalise=normalise)
        return [logits.detach(), *torch.autograd.grad(logits, free, self.slopes.to(dtype))]

    def state(self, kernel: Any, dtype: torch.dtype, *, normalise: bool) -> list[Tensor]:
        weights = [each.to(dtype) for each in self.learned[:3]]
        return [*kernel.cell_state(self.features.to(dtype), *weights, self.kept(dtype), normalise=normalise)]

    def everything(self, kernel: Any, dtype: torch.dtype, *, normalise: bool) -> list[Tensor]:
        both = (self.logits_and_gradients, self.state)
        return [each for part in both for each in part(kernel, dtype, normalise=normalise)]


def compiled_cell() -> Any:
    kernel = cell_kernel(LIKE)
    assert not isinstance(kernel, TorchCell)
    return kernel


def assert_close(exact: list[Tensor], found: list[Tensor], most: float = CLOSE) -> None:
    for place, (one, other) in enumerate(zip(exact, found, strict=True)):
        assert one.shape == other.shape
        if one.numel():
            apart = (other.double() - one).abs().max() / one.abs().max().clamp(min=1e-30)
            assert float(apart) < most, (place, float(apart))


class TestCompiledCell:
    @pytest.mark.parametrize("normalise", [False, True])
    @pytest.mark.parametrize("persist", [False, True])
    @pytest.mark.parametrize(
        ("units", "inputs", "scalars"), [(5, 21, 300), *slow((16, 4, 9000), (20, 2, 600), (1, 1, 3))]
    )
    def test_states_logits_and_every_gradient(
        self, units: int, inputs: int, scalars: int, persist: bool, normalise: bool
    ) -> None:
        normalise = normalise and units > 1  # one unit alone is its own mean
        drawn = Drawn(units, inputs, scalars, persist=persist)
        exact = drawn.everything(TorchCell(), torch.float64, normalise=normalise)
        assert_close(exact, drawn.everything(compiled_cell(), torch.float32, normalise=normalise))

    @given(
        units=st.integers(4, 9),
        inputs=st.integers(1, 9),
        scalars=st.integers(0, 2 * cells.TILE + 3),
        persist=st.booleans(),
        normalise=st.booleans(),
    )
    @settings(max_examples=40, deadline=None)
    @pytest.mark.slow
    def test_any_shape(self, units: int, inputs: int, scalars: int, persist: bool, normalise: bool) -> None:
        drawn = Drawn(units, inputs, scalars, persist=persist)
        exact = drawn.everything(TorchCell(), torch.float64, normalise=normalise)
        found = drawn.everything(compiled_cell(), torch.float32, normalise=normalise)
        for one, other in zip(exact, found, strict=True):
            # Where units say nearly the same, LayerNorm magnifies what float32 rounds off.
            torch.testing.assert_close(other.double(), one, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("scalars", [functions.SCALARS + 1, *slow(cells.TILE - 1, cells.TILE, cells.TILE + 1)])
    def test_every_rest_of_a_tile_and_block(self, scalars: int) -> None:
        drawn = Drawn(6, 4, scalars, persist=False)
        exact = drawn.everything(TorchCell(), torch.float64, normalise=True)
        assert_close(exact, drawn.everything(compiled_cell(), torch.float32, normalise=True))

    @pytest.mark.parametrize("normalise", [False, True])
    def test_strong_weights(self, normalise: bool) -> None:
        drawn = Drawn(16, 4, 2000, persist=False, size=4.0)
        exact = drawn.everything(TorchCell(), torch.float64, normalise=normalise)
        assert_close(exact, drawn.everything(compiled_cell(), torch.float32, normalise=normalise), 1e-5)

    def test_far_features_are_finite(self) -> None:
        drawn = Drawn(5, 4, 40, persist=False)
        weights = [each.float() for each in drawn.learned]
        assert torch.isfinite(compiled_cell().cell_logits(1e6 * drawn.features.float(), *weights, normalise=True)).all()

    @pytest.mark.parametrize("broken", [float("nan"), float("inf")])
    def test_what_is_not_finite_stays_with_its_scalar(self, broken: float) -> None:
        drawn = Drawn(5, 4, 40, persist=False)
        weights, features = [each.float() for each in drawn.learned], drawn.features.float()
        whole = compiled_cell().cell_logits(features, *weights, normalise=True)
        features[1, 7] = broken
        found = compiled_cell().cell_logits(features, *weights, normalise=True)
        wanted = TorchCell().cell_logits(features, *weights, normalise=True)
        assert torch.equal(torch.isnan(found), torch.isnan(wanted))
        others = torch.arange(40) != 7
        torch.testing.assert_close(found[:, others], whole[:, others], rtol=1e-6, atol=1e-6)

    def test_what_it_sees_of_numbers(self) -> None:
        values = torch.tensor([1e-3, -1e-6, 0.0, 5.0, -2e4, 4.5e-5, 4.6e-5, 1e-20, float("nan")])
        other = values.flip(0).contiguous()
        found, wanted = compiled_cell().scale_and_sign(values, other), TorchCell().scale_and_sign(values, other)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7, equal_nan=True)

    def test_the_loops_mean_what_they_say_as_plain_python(self) -> None:
        drawn = Drawn(3, 5, 7, persist=True)
        weights = [each.float() for each in drawn.learned]
        kept = drawn.kept(torch.float32)
        given_to_loops = functions._arguments(drawn.features.float(), *weights[:3], kept, True)
        logits = np.empty((2, 7), np.float32)
        cells.cell_logits((0, 1), *given_to_loops, weights[3].numpy(), logits)
        wanted = compiled_cell().cell_logits(drawn.features.float(), *weights, kept, normalise=True)
        torch.testing.assert_close(torch.from_numpy(logits), wanted, rtol=1e-5, atol=1e-6)


def test_the_number_of_threads_changes_no_bit(threads: Any) -> None:
    drawn = Drawn(16, 4, 5 * functions.SCALARS + 77, persist=False)
    threads(1)
    alone = drawn.everything(compiled_cell(), torch.float32, normalise=True)
    for count in (2, 3):
        threads(count)
        found = drawn.everything(compiled_cell(), torch.float32, normalise=True)
        assert all(torch.equal(one, other) for one, other in zip(alone, found, strict=True))


@pytest.mark.parametrize("scalars", [3 * cells.TILE, *slow(cells.TILE, 1 << 20)])
def test_the_size_of_blocks_changes_next_to_nothing(scalars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(6, 4, 2000, persist=True)
    exact = drawn.everything(TorchCell(), torch.float64, normalise=True)
    monkeypatch.setattr(functions, "SCALARS", scalars)
    assert_close(exact, drawn.everything(compiled_cell(), torch.float32, normalise=True))


def test_float64_goes_to_pytorch() -> None:
    assert isinstance(cell_kernel(LIKE.double()), TorchCell)
