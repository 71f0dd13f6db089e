"""Adam as a pure function: PyTorch's steps, in any order of operations, with one step count or one for each row."""

import torch
from torch import Tensor

from melon.strategies.adam import Adam, Moments

STEPS = 7


def draws(*shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(STEPS)]


def test_it_is_pytorchs() -> None:
    adam = Adam(0.8, 0.99, 1e-6)
    values = torch.ones(3, 4, dtype=torch.float64)
    theirs = values.clone().requires_grad_()
    twin = torch.optim.Adam([theirs], lr=0.05, betas=(0.8, 0.99), eps=1e-6)
    moments = Moments.zeros_like(values)
    for number, gradient in enumerate(draws(3, 4), start=1):
        moments = adam.moments(moments, gradient)
        values = adam.step(values, moments, number, 0.05)
        theirs.grad = gradient
        twin.step()
    torch.testing.assert_close(values, theirs.detach(), rtol=1e-11, atol=1e-13)


def test_rows_may_count_their_own_steps() -> None:
    adam, values = Adam(), torch.ones(3, 4, dtype=torch.float64)
    moments = Moments.zeros_like(values)
    for number, gradient in enumerate(draws(3, 4), start=1):
        moments = adam.moments(moments, gradient)
        each = adam.step(values, moments, torch.full((3, 1), float(number), dtype=torch.float64), 0.05)
        values = adam.step(values, moments, number, 0.05)
        torch.testing.assert_close(each, values, rtol=1e-12, atol=1e-14)


def test_it_writes_nothing() -> None:
    adam, values, gradient = Adam(), torch.ones(2, 2), torch.ones(2, 2)
    before = Moments.zeros_like(values)
    adam.step(values, adam.moments(before, gradient), 1, 0.1)
    assert torch.equal(values, torch.ones(2, 2))
    assert not before.first.any()
    assert not before.second.any()
