"""A factorised score p_u · q_i + b_u + b_i: scores, and per-interaction gradients in closed form (docs/methods.md 2.1).

Functions named `compiled_…` use compiled loops (`melon.kernels.factor`) and return None where PyTorch has to compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from melon.kernels import policy
from melon.recommenders.evidence import Examples, Gradient, RowGradient, Values
from melon.recommenders.losses import BPRLoss, Loss
from melon.tables import Moment, Table
from melon.types import Ints, Singles, SmallInts

#: The tables of a factorised score that a pairwise loss teaches.
TAUGHT = ("user_factors", "item_factors", "item_bias")
_Block = tuple[Table, Ints, Singles, Ints]  # a table, distinct rows of it, their values and last touches


def factor_scores(values: Values, users: Tensor, items: Tensor) -> Tensor:
    """Differentiable p_u · q_i + b_i, and b_u where users have a bias."""
    scores = (values["user_factors"][users] * values["item_factors"][items]).sum(-1) + values["item_bias"][items, 0]
    return scores + values["user_bias"][users, 0] if "user_bias" in values else scores


def factor_evidence(
    loss: Loss, values: Values, examples: Examples, *, per_branch: bool = False
) -> tuple[Tensor, list[Gradient]]:
    """Losses, and gradients on the rows of users and items."""
    users, items = examples.users, examples.items
    compiled = None if per_branch else compiled_evidence(loss, values, examples)
    if compiled is not None:
        losses, slopes, to_user, to_items = compiled
        return losses, [
            RowGradient("user_factors", users[:, None], to_user.unsqueeze(1)),
            RowGradient("item_factors", items, to_items),
            RowGradient("item_bias", items, slopes.unsqueeze(-1)),
        ]
    factors, offered = values["user_factors"][users], values["item_factors"][items]
    # Many short products: multiplying and adding up is several times quicker than a batched matrix product.
    scores = (offered * factors.unsqueeze(1)).sum(-1) + values["item_bias"][items, 0]
    with_bias = "user_bias" in values
    losses, slopes = loss.slopes(scores + values["user_bias"][users] if with_bias else scores)
    branches = users[:, None].expand_as(items) if per_branch else users[:, None]
    to_user = slopes.unsqueeze(-1) * offered
    if not per_branch:
        to_user = to_user.sum(1, keepdim=True)
    gradients: list[Gradient] = [
        RowGradient("user_factors", branches, to_user),
        RowGradient("item_factors", items, slopes.unsqueeze(-1) * factors.unsqueeze(1)),
        RowGradient("item_bias", items, slopes.unsqueeze(-1)),
    ]
    if with_bias and per_branch:
        gradients.append(RowGradient("user_bias", branches, slopes.unsqueeze(-1)))
    elif with_bias and not loss.shift_invariant:
        gradients.append(RowGradient("user_bias", branches, slopes.sum(-1)[:, None, None]))
    return losses, gradients


def compiled_scores(tables: dict[str, Table], users: Tensor, items: Tensor, at: Moment | None = None) -> Tensor | None:
    """p_u · q_i + b_u + b_i of stored rows for candidates n × c."""
    names = ("user_factors", "item_factors", "user_bias", "item_bias")
    views = [tables[name].view(at) for name in names]
    storage = [view.storage for view in views if view.half_life is None]
    loops = policy.load("factor", like=storage[0]) if len(storage) == len(names) else None
    if loops is None:
        return None
    out = storage[0].new_empty(items.shape)
    rows = (tables["user_factors"].rows, tables["item_factors"].rows)
    arrays = (part.numpy() for part in storage)
    loops.scores(users.contiguous().numpy(), items.contiguous().numpy(), rows, *arrays, out.numpy())
    return out


def compiled_dots(factors: Tensor, table: Table, rows: Tensor, named: Ints, at: Moment | None = None) -> Tensor | None:
    """factors[n] · the table's rows[named[n, c]] for every n and c."""
    loops = policy.load("factor", like=factors)
    if loops is None:
        return None
    out, view = factors.new_empty(named.shape), table.view(at)
    offsets = view.offsets(rows)
    decay = view.decay(offsets)
    if decay is None:
        decay = factors.new_ones(offsets.shape)
    arrays = (part.detach().contiguous().numpy() for part in (offsets, decay, factors, view.storage))
    loops.dots(named, *arrays, out.numpy())
    return out


def compiled_evidence(loss: Loss, values: Values, examples: Examples) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Losses, slopes by each score, and gradients by users' and items' vectors."""
    loops = policy.load("factor", like=values["user_factors"]) if type(loss) is BPRLoss else None
    if loops is None:
        return None
    users, items, dim = examples.users, examples.items.contiguous(), values["user_factors"].shape[1]
    shapes = (users.shape, items.shape, (*users.shape, dim), (*items.shape, dim))
    losses, slopes, to_user, to_items = (values["user_factors"].new_empty(shape) for shape in shapes)
    rows = (values[name].detach().contiguous().numpy() for name in ("user_factors", "item_factors", "item_bias"))
    out = (part.numpy() for part in (losses, slopes, to_user, to_items))
    loops.pairwise_evidence(users.contiguous().numpy(), items.numpy(), *rows, *out)
    return losses, slopes, to_user, to_items


@dataclass(frozen=True)
class FactorStep:
    """A plain step that compiled loops have computed and not yet written.

    `broken` names what is not finite in it, if anything; `moved` is how far a touched vector moves on average.
    """

    loss: float
    moved: float
    broken: str | None
    _loops: policy.Loops
    _blocks: list[_Block]

    def write(self, undo: ExitStack | None = None) -> None:
        """Put the new rows into the tables; closing `undo` puts the old ones back."""
        self._exchange()
        if undo is not None:
            undo.callback(self._exchange)

    def _exchange(self) -> None:
        for table, rows, block, stamps in self._blocks:
            values, touched, _ = table.arrays()
            self._loops.exchange(rows, block, stamps, values, touched)
            table.written(rows)


def plain_steps(loss: Loss, tables: Mapping[str, Table]) -> PlainSteps | None:
    """Compiled plain steps for a factorised score, if the loss is BPR's."""
    return PlainSteps(tables) if type(loss) is BPRLoss else None


class PlainSteps:
    """Plain steps of one factorised model under BPR's loss, where compiled loops serve it."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = [tables[name] for name in TAUGHT]
        self._places: list[SmallInts] = [np.zeros(0, dtype=np.int32) for _ in ("users", "items")]

    def of(self, users: Ints, lines: Ints, weights: Singles, decay: Mapping[str, float], now: int) -> FactorStep | None:
        """The step for lines of items n × (1 + negatives), the item taken first, on rows that exist.

        A line's gradient on its user counts weights[n, 0] times, that on its item c weights[n, 1 + c] times. A touched
        row loses the share `decay` of itself, by table.
        """
        loops = policy.load("factor", like=self._tables[0].view().storage)
        if loops is None:
            return None
        arrays = [table.arrays() for table in self._tables]
        user_rows, item_rows = np.empty(len(users), dtype=np.int64), np.empty(lines.size, dtype=np.int64)
        blocks = [
            np.empty((len(rows), values.shape[1]), dtype=np.float32)
            for rows, (values, *_) in zip((user_rows, item_rows, item_rows), arrays, strict=True)
        ]
        shares = np.array([decay.get(name, 0.0) for name in TAUGHT], dtype=np.float32)
        rows = (part for each in arrays for part in each)
        n_users, n_items, loss, *moved = loops.plain_step(
            users, lines, weights, shares, now, *rows, *self._scratch(arrays), user_rows, item_rows, *blocks
        )
        broken = None if np.isfinite(loss) else "the loss"
        if broken is None and not np.isfinite(sum(moved)):
            broken = next(f"the new value of {name}" for name, far in zip(TAUGHT, moved, strict=True) if far - far != 0)
        touched = user_rows[:n_users], item_rows[:n_items], item_rows[:n_items]
        written = [
            (table, rows, block[: len(rows)], np.full(len(rows), now))
            for table, rows, block in zip(self._tables, touched, blocks, strict=True)
        ]
        return FactorStep(loss, (moved[0] + moved[1]) / (n_users + n_items), broken, loops, written)

    def _scratch(self, arrays: list[tuple[Singles, Ints, float]]) -> list[SmallInts]:
        """A number for each stored user and item."""
        for n, (_, touched, _) in enumerate(arrays[:2]):
            if len(self._places[n]) < len(touched):
                self._places[n] = np.zeros(len(touched), dtype=np.int32)
        return self._places
