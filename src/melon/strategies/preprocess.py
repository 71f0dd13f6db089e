"""Preprocessing of gradients and losses (docs/methods.md 4.5): scale and sign as two numbers of order one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

P = 10.0
SMALL = math.exp(-P)
_EPSILON = 1e-8


def preprocess(values: Tensor, epsilon: float = _EPSILON) -> tuple[Tensor, Tensor]:
    """(log(|v| + ε)/p, sign v) where |v| ≥ e^-p, else (-1, e^p v). Never differentiated: its slope reaches e^p."""
    values = values.detach()
    size = values.abs()
    large = size >= SMALL
    scale = torch.where(large, (size + epsilon).log() / P, -1.0)
    direction = torch.where(large, values.sign(), values * math.exp(P))
    return scale, direction
