"""Losses by name and by hand, and their slopes against autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from melon.errors import SettingsError
from melon.models.losses import BPRLoss, CrossEntropyLoss, Loss, SquaredLoss, make_loss

SCORES = (
    st.integers(1, 4)
    .flatmap(
        lambda negatives: st.lists(
            st.lists(st.floats(-30, 30), min_size=1 + negatives, max_size=1 + negatives), min_size=1, max_size=6
        )
    )
    .map(lambda lines: torch.tensor(lines, dtype=torch.float64))
)


class Hinge(Loss):
    """A loss that a user might write: max(0, 1 − (s⁺ − max s⁻))."""

    shift_invariant = True

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.relu(1 - scores[..., 0] + scores[..., 1:].amax(-1))


@pytest.mark.parametrize("loss", [BPRLoss(), SquaredLoss(), CrossEntropyLoss(), Hinge()])
@given(scores=SCORES)
def test_slopes_are_the_derivatives(loss: Loss, scores: torch.Tensor) -> None:
    free = scores.clone().requires_grad_()
    losses = loss(free)
    (expected,) = torch.autograd.grad(losses.sum(), free)
    with torch.no_grad():
        values, slopes = loss.slopes(scores)
    assert not values.requires_grad
    assert not slopes.requires_grad
    assert torch.allclose(values, losses.detach(), rtol=1e-12)
    # torch takes softplus as linear beyond 20.
    assert torch.allclose(slopes, expected, rtol=1e-8, atol=1e-8)


@given(scores=SCORES, shift=st.floats(-5, 5))
def test_shift_invariance_is_true_where_it_is_claimed(scores: torch.Tensor, shift: float) -> None:
    assert torch.allclose(BPRLoss()(scores + shift), BPRLoss()(scores), rtol=1e-9, atol=1e-9)
    assert not SquaredLoss.shift_invariant
    assert not CrossEntropyLoss.shift_invariant


def test_bpr_is_minus_log_sigmoid_of_the_margin() -> None:
    losses, slopes = BPRLoss().slopes(torch.tensor([[0.5, -0.2]], dtype=torch.float64))
    sigmoid = 1 / (1 + math.exp(-0.7))
    assert losses.item() == pytest.approx(-math.log(sigmoid))
    assert slopes.tolist()[0] == pytest.approx([-(1 - sigmoid), 1 - sigmoid])


def test_several_negatives_are_averaged() -> None:
    scores = torch.tensor([[1.0, 0.0, 2.0, -1.0]], dtype=torch.float64)
    pairs = [BPRLoss()(scores[:, [0, column]]).item() for column in (1, 2, 3)]
    assert BPRLoss()(scores).item() == pytest.approx(sum(pairs) / 3)
    assert SquaredLoss()(scores).item() == pytest.approx(0 + (0 + 4 + 1) / 3)
    chances = [math.log(1 + math.exp(score)) for score in (0.0, 2.0, -1.0)]
    assert CrossEntropyLoss()(scores).item() == pytest.approx(math.log(1 + math.exp(-1.0)) + sum(chances) / 3)


@pytest.mark.parametrize("margin", [200.0, -200.0, 1e6, -1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_scores_have_finite_losses_and_slopes(margin: float, dtype: torch.dtype) -> None:
    losses, slopes = BPRLoss().slopes(torch.tensor([[margin, 0.0]], dtype=dtype))
    assert losses.item() == pytest.approx(max(-margin, 0.0))
    assert torch.isfinite(slopes).all()
    assert slopes.tolist()[0] == pytest.approx([-1.0, 1.0] if margin < 0 else [0.0, 0.0])


def test_losses_by_name() -> None:
    assert isinstance(make_loss("bpr"), BPRLoss)
    assert isinstance(make_loss("squared"), SquaredLoss)
    assert isinstance(make_loss("bce"), CrossEntropyLoss)
    mine = Hinge()
    assert make_loss(mine) is mine
    with pytest.raises(
        SettingsError, match=r"unknown loss 'bpn'. Did you mean 'bpr'\? Choose one of: bce, bpr, squared"
    ):
        make_loss("bpn")
