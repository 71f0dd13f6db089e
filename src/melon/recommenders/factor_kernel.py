"""Which implementation computes a factorised score: loops compiled by numba, or PyTorch (MELON_KERNEL).

The choice depends on nothing but what is installed and asked for, so that a run that is taken up again goes on with
the same arithmetic.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from melon.kernels.policy import loaded, may_compile
from melon.recommenders.evidence import Examples, Values
from melon.recommenders.losses import BPRLoss, Loss
from melon.tables import Moment, Table
from melon.types import Ints


def quick_scores(tables: dict[str, Table], users: Tensor, items: Tensor, at: Moment | None = None) -> Tensor | None:
    """p_u · q_i + b_u + b_i of stored rows for candidates n × c; None where PyTorch has to do it."""
    names = ("user_factors", "item_factors", "user_bias", "item_bias")
    views = [tables[name].view(at) for name in names]
    storage = [view.storage for view in views if view.half_life is None]
    loops = _loops_for(storage[0]) if len(storage) == len(names) else None
    if loops is None:
        return None
    out = storage[0].new_empty(items.shape)
    known = (tables["user_factors"].rows, tables["item_factors"].rows)
    arrays = (each.numpy() for each in storage)
    loops.scores(users.contiguous().numpy(), items.contiguous().numpy(), known, *arrays, out.numpy())
    return out


def quick_dots(factors: Tensor, table: Table, rows: Tensor, named: Ints, at: Moment | None = None) -> Tensor | None:
    """factors[n] · the table's rows[named[n, c]] for every n and c; None where PyTorch has to do it."""
    loops = _loops_for(factors)
    if loops is None:
        return None
    out, view = factors.new_empty(named.shape), table.view(at)
    offsets = view.offsets(rows)
    decay = view.decay(offsets)
    if decay is None:
        decay = factors.new_ones(offsets.shape)
    given = (each.detach().contiguous().numpy() for each in (offsets, decay, factors, view.storage))
    loops.dots(named, *given, out.numpy())
    return out


def quick_evidence(loss: Loss, values: Values, examples: Examples) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Losses, slopes by each score, and gradients by users' and items' vectors; None where PyTorch has to do it."""
    loops = _loops_for(values["user_factors"]) if type(loss) is BPRLoss else None
    if loops is None:
        return None
    users, items, dim = examples.users, examples.items.contiguous(), values["user_factors"].shape[1]
    shapes = (users.shape, items.shape, (*users.shape, dim), (*items.shape, dim))
    losses, slopes, to_user, to_items = (values["user_factors"].new_empty(shape) for shape in shapes)
    rows = (values[name].detach().contiguous().numpy() for name in ("user_factors", "item_factors", "item_bias"))
    out = (each.numpy() for each in (losses, slopes, to_user, to_items))
    loops.pairwise_evidence(users.contiguous().numpy(), items.numpy(), *rows, *out)
    return losses, slopes, to_user, to_items


def _loops_for(like: Tensor) -> ModuleType | None:
    if like.dtype != torch.float32 or like.device.type != "cpu":
        return None
    return _loops() if may_compile() else None


def warm_up() -> None:
    """Have every loop compiled, by asking each of them for next to nothing."""
    loops, place, number = _loops(), np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.float32)
    if loops is None:
        return
    flat, cube = number[0].copy(), number[None].copy()
    loops.pairwise_evidence(place, place[None], number, number, number, flat, number.copy(), number.copy(), cube)
    loops.scores(place, place[None], (1, 1), number, number, number, number, number.copy())
    loops.dots(place[None], place, flat, number, number, number.copy())


def _loops() -> ModuleType | None:
    return loaded("melon.kernels.factor")
