"""Facts and spline of the rate model in PyTorch, for recommenders whose meta-training is differentiated by autograd."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from melon.kernels.melon.rates import LEAST_LOSS, MOST_LOG_RATE
from melon.strategies.melon.rates import KNOTS
from melon.types import Scores


def touch_rates(columns: Scores, losses: Tensor, roles: list[int], phi: Mapping[str, Tensor]) -> Tensor:
    """Rates of touches with these facts (n × slots × facts): n × slots, differentiable in losses and φ."""
    weights, losses = phi["facts"][roles], losses.double()
    logs = (torch.from_numpy(columns) * weights[:, 1:]).sum(-1) + weights[:, 0]
    at = torch.log(losses + LEAST_LOSS).clamp(KNOTS[0], KNOTS[-1])
    right = torch.from_numpy(np.searchsorted(KNOTS, at.detach().numpy()).clip(1, len(KNOTS) - 1))
    knots, splines = torch.from_numpy(KNOTS), phi["splines"][roles]
    part = (at - knots[right - 1]) / (knots[right] - knots[right - 1])
    logs = logs + (splines[:, right - 1] * (1 - part) + splines[:, right] * part).T
    return torch.exp(logs.clamp(max=MOST_LOG_RATE))
