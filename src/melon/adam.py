"""Adam as a pure function: running means of gradients and of their squares, and the step that they give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Running means of gradients (`first`) and of their squares (`second`)."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros_like(cls, values: Tensor) -> Moments:
        """Before the first step."""
        return cls(torch.zeros_like(values), torch.zeros_like(values))


@dataclass(frozen=True)
class Adam:
    """Adam's constants; it holds no state."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    eps: float = 1e-8

    def moments(self, before: Moments, gradient: Tensor) -> Moments:
        """The running means after one more gradient."""
        first = torch.lerp(before.first, gradient, 1 - self.beta_1)
        second = torch.mul(before.second, self.beta_2).addcmul_(gradient, gradient, value=1 - self.beta_2)
        return Moments(first, second)

    def step(self, values: Tensor, moments: Moments, steps: int | Tensor, lr: float) -> Tensor:
        """New values; `steps` counts the gradients in the moments, for all rows or (rows × 1) for each."""
        scale = torch.div(moments.second, 1 - self.beta_2**steps).sqrt_().add_(self.eps)
        if isinstance(steps, Tensor):
            return values - lr * (moments.first / (1 - self.beta_1**steps) / scale)
        return torch.addcdiv(values, moments.first, scale, value=-lr / (1 - self.beta_1**steps))
