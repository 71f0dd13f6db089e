"""Small scenes for the tests of learned rates: lively recommenders with a past, and the look-ahead of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from melon.checks.toys import toy_batches
from melon.learning.updater import Updater
from melon.recommenders.base import Recommender
from melon.recommenders.bpr import BPR
from melon.recommenders.ncf import NCF
from melon.strategies.base import Situation
from melon.strategies.learned import MetaLoss
from melon.strategies.melon import MeLON
from melon.strategies.melon_i import MeLONI
from melon.strategies.melon_p import MeLONP
from melon.strategies.rates.strategy import RateStrategy
from melon.stream.batch import Batch

KINDS = ("bpr", "ncf")
FAMILY = {"melon": MeLON, "melon_i": MeLONI, "melon_p": MeLONP}
#: Small widths, so that a test sees every entry.
SMALL = {"extended_width": 6, "interaction_width": 5, "role_width": 5}


def recommender_of(kind: str, dtype: torch.dtype = torch.float64, **settings: Any) -> Recommender:
    if kind == "bpr":
        return BPR({"dim": 4, **settings}, dtype=dtype, seed=3)
    return NCF({"dim": 3, "layers": (5, 4), **settings}, dtype=dtype, seed=3)


def strategy_of(name: str = "melon", seed: int = 5, **settings: Any) -> RateStrategy:
    return FAMILY[name]({**SMALL, **settings}, seed=seed)


def updater_of(
    kind: str,
    strategy: RateStrategy,
    past: Sequence[Batch] = (),
    *,
    dtype: torch.dtype = torch.float64,
    noise: float = 0.0,
    phi_noise: float = 0.0,
    **settings: Any,
) -> Updater:
    """An updater that has learned `past`; then rows and meta-parameters are shaken, so that no gradient is tiny."""
    updater = Updater(recommender_of(kind, dtype, **settings), strategy, seed=7)
    for batch in past:
        updater.learn(batch)
    generator = torch.Generator().manual_seed(11)
    for table in updater.recommender.tables.values():
        held, rows = table.state(), torch.arange(table.rows)
        table.scatter(
            rows, held["values"] + noise * torch.randn(held["values"].shape, generator=generator, dtype=dtype)
        )
        table.stamp(rows, held["touched"])
    with torch.no_grad():
        for value in strategy.parameters().values():
            value.add_(phi_noise * torch.randn(value.shape, generator=generator, dtype=dtype))
    return updater


def past_and_batch(batches: int = 6) -> tuple[list[Batch], Batch]:
    *past, batch = toy_batches()[: batches + 1]
    return past, batch


class _Seen(Exception):
    """Carries a look-ahead out of a step before anything is written."""

    def __init__(self, situation: Situation, meta_loss: MetaLoss) -> None:
        self.situation, self.meta_loss = situation, meta_loss


def look_ahead_of(updater: Updater, batch: Batch) -> tuple[Situation, MetaLoss]:
    """What the strategy is shown before a batch is learned: the last interactions, and the loss of the batch."""
    strategy = updater.strategy

    def seen(situation: Situation, meta_loss: MetaLoss) -> Any:
        raise _Seen(situation, meta_loss)

    strategy.meta_gradient = seen  # type: ignore[attr-defined]
    try:
        updater.learn(batch)
    except _Seen as carried:
        return carried.situation, carried.meta_loss
    finally:
        del strategy.meta_gradient  # type: ignore[attr-defined]
    raise AssertionError("the step did not look ahead")


def tables_of(updater: Updater) -> dict[str, Tensor]:
    return {name: table.state()["values"] for name, table in updater.recommender.tables.items()}


def set_phi(strategy: RateStrategy, values: Mapping[str, float | Tensor], *, others: float | None = None) -> None:
    """Give meta-parameters; with `others`, all the rest are that number."""
    with torch.no_grad():
        for name, value in strategy.parameters().items():
            if name in values:
                value.copy_(torch.as_tensor(values[name], dtype=value.dtype).expand_as(value))
            elif others is not None:
                value.fill_(others)


def constant_rates(strategy: RateStrategy, learning: float, forgetting_logit: float = 40.0) -> None:
    """Make every w the same number, and every f σ(forgetting_logit)."""
    ratio = learning / strategy.settings.most_rate
    logit = np.log(ratio / (1 - ratio))
    set_phi(strategy, {"head.bias": torch.tensor([[logit], [forgetting_logit]], dtype=torch.float64)}, others=0.0)
