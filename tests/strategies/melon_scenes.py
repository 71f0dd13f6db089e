"""Small scenes for the tests of learned rates, on top of those for any learned strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from learned_scenes import KINDS, look_ahead_of, past_and_batch, recommender_of, tables_of, updater_of
from torch import Tensor

from melon.strategies.melon.published import PublishedMeLON, PublishedMeLONI, PublishedMeLONP, PublishedStrategy

__all__ = [
    "FAMILY",
    "KINDS",
    "SMALL",
    "constant_rates",
    "look_ahead_of",
    "past_and_batch",
    "recommender_of",
    "set_phi",
    "strategy_of",
    "tables_of",
    "updater_of",
]
FAMILY = {"melon": PublishedMeLON, "melon_i": PublishedMeLONI, "melon_p": PublishedMeLONP}
#: Small widths, so that a test sees every entry.
SMALL = {"extended_width": 6, "interaction_width": 5, "role_width": 5}


def strategy_of(name: str = "melon", seed: int = 5, **settings: Any) -> PublishedStrategy:
    return FAMILY[name]({**SMALL, **settings}, seed=seed)


def set_phi(strategy: PublishedStrategy, values: Mapping[str, float | Tensor], *, others: float | None = None) -> None:
    """Give meta-parameters; with `others`, all the rest are that number."""
    with torch.no_grad():
        for name, value in strategy.parameters().items():
            if name in values:
                value.copy_(torch.as_tensor(values[name], dtype=value.dtype).expand_as(value))
            elif others is not None:
                value.fill_(others)


def constant_rates(strategy: PublishedStrategy, learning: float, forgetting_logit: float = 40.0) -> None:
    """Make every w the same number, and every f σ(forgetting_logit)."""
    logit = np.log(learning / (1 - learning))
    set_phi(strategy, {"head.bias": torch.tensor([[logit], [forgetting_logit]], dtype=torch.float64)}, others=0.0)
