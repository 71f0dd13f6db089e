"""A factorised score p_u · q_i + b_u + b_i: scores, and per-interaction gradients in closed form (docs/methods.md 2.1).

Functions named `compiled_…` use compiled kernels (`melon.kernels.factor`) and return None where PyTorch has to compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from threading import local

import numpy as np
import torch
from torch import Tensor

from melon.kernels import policy
from melon.models.base import SummedSteps
from melon.models.catalogue import CANDIDATES, Best, Catalogue, Near, Within, best, filled
from melon.models.evidence import Examples, Gradient, RowGradient, Values
from melon.models.losses import BPRLoss, Loss
from melon.tables import Moment, Table
from melon.types import Ints, Singles, SmallInts

#: What compiled kernels need beside their arguments, for each thread.
_SCRATCH = local()


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
    kernels = policy.load("factor", like=storage[0]) if len(storage) == len(names) else None
    if kernels is None:
        return None
    out = storage[0].new_empty(items.shape)
    rows = (tables["user_factors"].rows, tables["item_factors"].rows)
    arrays = (part.numpy() for part in storage)
    kernels.scores(users.contiguous().numpy(), items.contiguous().numpy(), rows, *arrays, out.numpy())
    return out


def compiled_dots(factors: Tensor, table: Table, rows: Tensor, named: Ints, at: Moment | None = None) -> Tensor | None:
    """factors[n] · the table's rows[named[n, c]] for every n and c."""
    kernels = policy.load("factor", like=factors)
    if kernels is None:
        return None
    out, view = factors.new_empty(named.shape), table.view(at)
    offsets = view.offsets(rows)
    decay = view.decay(offsets)
    if decay is None:
        decay = factors.new_ones(offsets.shape)
    arrays = (part.detach().contiguous().numpy() for part in (offsets, decay, factors, view.storage))
    kernels.dots(named, *arrays, out.numpy())
    return out


def compiled_pretraining(
    loss: Loss, tables: dict[str, Table], users: Ints, items: Ints, steps: SummedSteps
) -> float | None:
    """Pre-train p_u, q_i and b_i on lines of rows; returns the sum of losses."""
    storage = [tables[name].lend() for name in ("user_factors", "item_factors", "item_bias")]
    kernels = policy.load("factor", like=storage[0]) if type(loss) is BPRLoss else None
    if kernels is None:
        return None
    arrays, visits = (part.numpy() for part in storage), _visits(len(storage[0]), len(storage[1]))
    total: float = kernels.pairwise_batches(users, items, steps.batch_size, steps.lr, steps.l2, *arrays, *visits)
    return total


def _visits(*sizes: int) -> tuple[SmallInts, ...]:
    """Zeros, which pre-training leaves as zeros. A large log takes thousands of calls; each thread has its own."""
    held: tuple[SmallInts, ...] = getattr(_SCRATCH, "visits", ())
    if [len(part) for part in held] != list(sizes):
        held = _SCRATCH.visits = tuple(np.zeros(size, np.int32) for size in sizes)
    return held


def compiled_evidence(loss: Loss, values: Values, examples: Examples) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Losses, slopes by each score, and gradients by users' and items' vectors."""
    if torch.is_grad_enabled() and any(value.requires_grad for value in values.values()):
        return None  # kernels are constants to a gradient
    kernels = policy.load("factor", like=values["user_factors"]) if type(loss) is BPRLoss else None
    if kernels is None:
        return None
    users, items, dim = examples.users, examples.items.contiguous(), values["user_factors"].shape[1]
    shapes = (users.shape, items.shape, (*users.shape, dim), (*items.shape, dim))
    losses, slopes, to_user, to_items = (values["user_factors"].new_empty(shape) for shape in shapes)
    rows = (values[name].detach().contiguous().numpy() for name in ("user_factors", "item_factors", "item_bias"))
    out = (part.numpy() for part in (losses, slopes, to_user, to_items))
    kernels.pairwise_evidence(users.contiguous().numpy(), items.numpy(), *rows, *out)
    return losses, slopes, to_user, to_items


#: A table of no rows, as compiled kernels take it.
_NO_BIAS: tuple[Singles, Ints, float] = np.empty((0, 1), dtype=np.float32), np.empty(0, dtype=np.int64), 0.0


class FactorCatalogue(Catalogue):
    """p_u · q_i + b_i, and b_u where users have a bias, for all items by compiled kernels.

    Vectors are read as they are stored; biases, and the decay factor of vectors, are computed once. With a
    pre-filter `near`, only its candidates are scored.
    """

    def __init__(
        self,
        kernels: policy.Kernels,
        tables: Mapping[str, Table],
        n_items: int,
        at: Moment | None,
        now: int,
        near: Near | None = None,
    ) -> None:
        """`now` is the time of the decay clock: that of the moment, where one is given."""
        self._kernels, self._tables, self._n_items = kernels, tables, n_items
        self._at, self._now, self._near = at, now, near

    @cached_property
    def _decayed(self) -> tuple[int, Singles, np.float32]:
        """How many items have vectors, and the decay factor of these."""
        vectors = self._tables["item_factors"]
        known = min(vectors.rows, self._n_items)
        return known, *vectors.decayed(self._kernels, known, self._at)

    @cached_property
    def bias(self) -> Singles:
        """The biases of all items."""
        biases = self._tables["item_bias"]
        known = min(biases.rows, self._n_items)
        weights, factor = biases.decayed(self._kernels, known, self._at)
        bias: Singles = np.zeros(self._n_items, dtype=np.float32)
        bias[:known] = biases.arrays(self._at)[0][:known, 0]
        if len(weights):
            bias[:known] *= weights
            bias[:known] *= factor
        return bias

    def scores(self, users: Tensor, *, unseen: bool = False) -> Tensor:
        return torch.from_numpy(self.products(users.numpy(), self.bias))

    def products(self, users: Ints, bias: Singles) -> Singles:
        """The same with other biases of items."""
        out = np.empty((len(users), len(bias)), dtype=np.float32)
        vectors = self._tables["item_factors"].view().storage.numpy()
        known, decay, factor = self._decayed
        self._kernels.products(*self._of(users, factor), vectors, known, decay, bias, out)
        return out

    def best(self, users: Ints, k: int, within: Within) -> list[Best]:
        if self._near is not None and not len(within.boost):
            near = self._near(users, k + CANDIDATES, within)
            return [self._best_of(users[n : n + 1], k, np.sort(rows)) for n, rows in enumerate(near)]
        tables, at, (known, decay, factor) = self._tables, self._at, self._decayed
        vectors, biases = tables["user_factors"], tables.get("user_bias")
        own = (*_NO_BIAS, 0) if biases is None else (*biases.arrays(at), biases.rows)
        of_users = *vectors.arrays(at), vectors.rows, *own, self._now, factor
        of_items = tables["item_factors"].arrays(at)[0], known, decay, self.bias
        scan = partial(self._kernels.scan, *of_users, *of_items, within.boost)
        return filled(scan, len(self.bias), np.float32, users, k, within)

    def _best_of(self, user: Ints, k: int, items: Ints) -> Best:
        """The best of some items for one user."""
        factors, own = self._of(user, np.float32(1))
        scores = self._own("item_factors", items) @ factors[0] + self._own("item_bias", items)[:, 0] + own
        places, values = best(scores[None, :], k)[0]
        return items[places], values

    def _of(self, users: Ints, factor: np.float32) -> tuple[Singles, Singles]:
        """The users' vectors, times what has decayed of all items alike, and their biases."""
        own = self._own("user_bias", users)[:, 0] if "user_bias" in self._tables else np.zeros(len(users), np.float32)
        factors = self._own("user_factors", users)
        factors *= factor
        return factors, np.ascontiguousarray(own)

    def _own(self, name: str, rows: Ints) -> Singles:
        """Rows, decayed: a few of them, for which numpy is quicker than PyTorch."""
        view = self._tables[name].view(self._at)
        at = np.minimum(rows, view.rows)
        values: Singles = view.storage.numpy()[at]
        if view.half_life is not None:
            idle = np.minimum(view.touched.numpy()[at] - view.now, 0)
            values *= np.exp2(idle / view.half_life).astype(np.float32)[:, None]
        return values
