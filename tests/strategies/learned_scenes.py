"""Small scenes for the tests of any learned strategy: lively recommenders with a past, look-aheads, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.learning import checkpoint
from melon.learning.updater import Updater
from melon.models.autograd import TorchRecommender, torch_type
from melon.models.base import Recommender, RecommenderSettings
from melon.models.bpr import BPR
from melon.models.evidence import Values
from melon.models.ncf import NCF
from melon.strategies.base import Situation
from melon.strategies.learned import LearnedStrategy, MetaLoss
from melon.stream.batch import Batch
from melon.tables import TableSpec
from melon.testing import state_of, toy_batches
from situations import assert_close, equal, situation_of, tensors_of

KINDS = ("bpr", "ncf")
#: Central differences are exact up to h², unless a ReLU flips within h; then a smaller h goes round it.
STEPS = (3e-6, 1e-6, 3e-7)
RELATIVE, ABSOLUTE = 1e-5, 1e-9


def slow(*values: Any) -> Any:
    """Values of a parametrised test that only `make test-slow` tries: the rest of a sweep."""
    return pytest.param(*values, marks=pytest.mark.slow)


def recommender_of(kind: str, dtype: Any = np.float64, **settings: Any) -> Recommender:
    if kind == "bpr":
        return BPR({"dim": 4, **settings}, dtype=dtype, seed=3)
    return NCF({"dim": 3, "layers": (5, 4), **settings}, dtype=dtype, seed=3)


def updater_of(
    kind: str,
    strategy: LearnedStrategy,
    past: Sequence[Batch] = (),
    *,
    dtype: Any = np.float64,
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
        held, rows = table.state(), np.arange(table.rows)
        drawn = torch.randn(held["values"].shape, generator=generator, dtype=torch_type(np.dtype(dtype)))
        table.scatter(rows, held["values"] + noise * drawn.numpy())
        table.stamp(rows, held["touched"])
    with torch.no_grad():
        for value in strategy.parameters().values():
            value.add_(phi_noise * torch.randn(value.shape, generator=generator, dtype=value.dtype))
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
    return tensors_of(updater.recommender)


def finite(updater: Updater) -> bool:
    return all(np.isfinite(array).all() for array in state_of(updater).values())


# Central differences.


def directions(gradient: Tensor, entries: int) -> list[Tensor]:
    """Where differences are taken of a tensor: all entries at once, each up or down, and some entries by themselves.

    Those are the ones with the largest gradients, and some from all over the tensor. The first direction alone shows a
    wrong gradient of any entry; single entries say which one.
    """
    generator = torch.Generator().manual_seed(gradient.numel())
    signs = torch.randint(0, 2, gradient.shape, generator=generator).to(gradient.dtype) * 2 - 1
    flat = gradient.flatten()
    ranked = flat.abs().argsort(descending=True).tolist()
    spread = torch.linspace(0, len(flat) - 1, min(3, len(flat))).long().tolist()
    single = list(dict.fromkeys([*ranked[:2], *spread, *ranked]))[:entries]
    every = torch.arange(len(flat))
    return [signs, *((every == at).to(gradient.dtype).view(gradient.shape) for at in single)]


def difference(
    strategy: LearnedStrategy, situation: Situation, loss: MetaLoss, value: Tensor, direction: Tensor, h: float
) -> float:
    """Along a direction of a tensor, or of its leading rows."""
    target = value.detach()[: len(direction)]
    middle, losses = target.clone(), []
    for moved in (middle + h * direction, middle - h * direction):
        target.copy_(moved)
        losses.append(float(loss(strategy.look_ahead(situation))))
    target.copy_(middle)
    return (losses[0] - losses[1]) / (2 * h)


@torch.no_grad()
def worst_error(
    strategy: LearnedStrategy,
    situation: Situation,
    meta_loss: MetaLoss,
    tensors: Mapping[str, Tensor] | None = None,
    entries: int = 0,
) -> dict[str, float]:
    """For each tensor, the largest |difference − gradient| / (|gradient| + absolute / relative) of its directions.

    The tensors are the meta-parameters, unless others are given under the names of their gradients.
    """
    gradients, _ = strategy.meta_gradient(situation, meta_loss)
    worst: dict[str, float] = {}
    for name, value in (strategy.parameters() if tensors is None else tensors).items():
        worst[name] = 0.0
        for direction in directions(gradients[name], entries):
            exact = float((gradients[name] * direction).sum())
            best = float("inf")
            for h in STEPS:
                apart = abs(difference(strategy, situation, meta_loss, value, direction, h) - exact)
                best = min(best, apart / (abs(exact) + ABSOLUTE / RELATIVE))
                if best < RELATIVE:
                    break
            worst[name] = max(worst[name], best)
    return worst


def require_exact_reach(strategy: LearnedStrategy, situation: Situation, meta_loss: MetaLoss) -> None:
    """Rows that cannot reach the loss are dropped, which changes nothing but the time it takes."""
    assert any(situation.reached(table) < len(values) for table, values in situation.values.items())
    short, loss = strategy.meta_gradient(situation, meta_loss)
    full, loss_too = strategy.meta_gradient(replace(situation, reach=None), meta_loss)
    # Fewer lines may be multiplied in another order.
    assert float(loss) == pytest.approx(float(loss_too), rel=1e-13)
    for name, gradient in short.items():
        reached, rest = full[name][: len(gradient)], full[name][len(gradient) :]
        assert_close(gradient, reached, rtol=1e-9, atol=1e-14, msg=name)
        assert not rest.any()


def require_others_untouched(updater: Updater, batch: Batch) -> None:
    """A batch is learned; rows of users and items that it does not touch keep their bytes, and their state too."""
    compact, _ = situation_of(updater, batch)
    tables = dict(updater.recommender.tables)
    tables |= {f"{name}.{key}": each for name, kept in updater.row_state.items() for key, each in kept.items()}
    before = {name: table.gather(np.arange(table.rows)) for name, table in tables.items()}
    updater.learn(batch)
    moved = 0
    for name, table in tables.items():
        if table.spec.role == "shared":
            continue
        others = np.setdiff1d(np.arange(table.rows), compact.users if table.spec.role == "user" else compact.items)
        now = table.gather(np.arange(table.rows))
        assert len(others)
        assert equal(now[others], before[name][others]), name
        moved += int((now != before[name]).sum())
    assert moved


class Mixed(TorchRecommender):
    """A user's own: a bilinear score through a shared matrix, a shared shift for each dimension, and no closed form."""

    name = "mixed"
    settings_type = RecommenderSettings

    def declare(self) -> tuple[TableSpec, ...]:
        return (
            TableSpec("taste", "user", "embedding", 3, 0.3),
            TableSpec("flavour", "item", "embedding", 4, 0.3),
            TableSpec("fame", "item", "bias", 1, 0.1),
            TableSpec("mix", "shared", "weight", 4, 0.5, rows=3),
            TableSpec("shift", "shared", "weight", 4, 0.5, rows=1),
        )

    def scores(self, values: Values, users: Tensor, items: Tensor) -> Tensor:
        flavour = torch.tanh(values["flavour"][items] + values["shift"][0])
        return ((values["taste"][users] @ values["mix"]) * flavour).sum(-1) + values["fame"][items, 0]


def require_saved_goes_on(updater: Updater, folder: Path, *following: Batch) -> dict[str, Any]:
    """A saved model learns what follows as the one that stayed does, bit for bit; returns the state after it."""
    checkpoint.save(folder, updater)
    again = checkpoint.load(folder).updater
    for each in (updater, again):
        for batch in following:
            each.learn(batch)
    one, other = state_of(updater), state_of(again)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name
    return one
