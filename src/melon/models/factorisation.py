"""A factorised score p_u · q_i + b_u + b_i in kernels (docs/methods.md 2.1): scores, pre-training and lists."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from threading import local
from typing import TYPE_CHECKING, Literal

import numpy as np

from melon.errors import LearningError, require_torch
from melon.kernels import policy
from melon.kernels.factor import StoredRows
from melon.models.base import Context, Recommender, RecommenderSettings, SummedSteps
from melon.models.catalogue import CANDIDATES, Best, Catalogue, Near, QuantisedRows, Within, best
from melon.models.losses import BPRLoss
from melon.settings import Width
from melon.tables import Moment, Table
from melon.types import Ints, Scores, Singles, SmallInts

if TYPE_CHECKING:
    from melon.models.autograd import Differentiable

#: What compiled kernels need beside their arguments, for each thread.
_SCRATCH = local()
#: A table of no rows, as compiled kernels take it.
_NO_BIAS: tuple[Singles, Ints, float] = np.empty((0, 1), dtype=np.float32), np.empty(0, dtype=np.int64), 0.0


def stored_scores(tables: Mapping[str, Table], users: Ints, items: Ints, now: int, at: Moment | None = None) -> Scores:
    """p_u · q_i + b_i of stored rows for candidates n × c, and b_u where users have a bias."""
    factors, vectors, biases = (tables[name] for name in ("user_factors", "item_factors", "item_bias"))
    own = tables.get("user_bias")
    if factors.dtype != np.float32:
        scores: Scores = np.einsum("nd,ncd->nc", factors.gather(users, at), vectors.gather(items, at))
        scores += biases.gather(items, at)[..., 0]
        return scores if own is None else scores + own.gather(users, at)
    rows = [StoredRows(*table.arrays(at)) for table in (factors, vectors, biases)]
    own_rows = StoredRows(*(_NO_BIAS if own is None else own.arrays(at)))
    out: Singles = np.empty(items.shape, dtype=np.float32)
    lines = np.ascontiguousarray(users), np.ascontiguousarray(items)
    policy.load("factor").scores(*lines, (factors.rows, vectors.rows), now, *rows, own_rows, out)
    return out


def pretrain_rows(tables: Mapping[str, Table], users: Ints, items: Ints, steps: SummedSteps) -> float:
    """Pre-train p_u, q_i and b_i on lines of rows by the pairwise loss; returns the sum of losses."""
    for numbers, name in ((users, "user_factors"), (items, "item_factors")):
        require_rows(numbers, tables[name])
    rows = [tables[name].lend() for name in ("user_factors", "item_factors", "item_bias")]
    kernels, visits = policy.load("factor"), _visits(len(rows[0]), len(rows[1]))
    total: float = kernels.pairwise_batches(users, items, steps.batch_size, steps.lr, steps.l2, *rows, *visits)
    return total


def require_rows(numbers: Ints, table: Table) -> None:
    """Raise for a number that is no row of a table: kernels do not look."""
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < table.rows:
        wrong = int(numbers.min() if numbers.min() < 0 else numbers.max())
        raise LearningError(f"row {wrong} of {table.spec.name!r} does not exist: there are {table.rows} rows.")


def _visits(*sizes: int) -> tuple[SmallInts, ...]:
    """Zeros, which pre-training leaves as zeros. A large log takes thousands of calls; each thread has its own."""
    held: tuple[SmallInts, ...] = getattr(_SCRATCH, "visits", ())
    if [len(part) for part in held] != list(sizes):
        held = _SCRATCH.visits = tuple(np.zeros(size, np.int32) for size in sizes)
    return held


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
        self._at, self._now, self.near = at, now, near

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
            with np.errstate(over="ignore", invalid="ignore"):  # a score that is not finite is an error of its own
                bias[:known] *= weights
                bias[:known] *= factor
        return bias

    def scores(self, users: Ints, *, unseen: bool = False) -> Singles:
        return self.products(users, self.bias)

    def products(self, users: Ints, bias: Singles) -> Singles:
        """The same with other biases of items."""
        out = np.empty((len(users), len(bias)), dtype=np.float32)
        vectors = self._tables["item_factors"].arrays(self._at)[0]
        known, decay, factor = self._decayed
        self._kernels.products(*self._of(users, factor), vectors, known, decay, bias, out)
        return out

    def best(self, users: Ints, k: int, within: Within) -> list[Best]:
        if self.near is not None and not len(within.boost):
            near = self.near(users, k + CANDIDATES, within)
            return [self._best_of(users[n : n + 1], k, np.sort(rows)) for n, rows in enumerate(near)]
        return super().best(users, k, within)

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
        """Rows, decayed."""
        return self._tables[name].gather(rows, self._at)


class FactorSettings(RecommenderSettings):
    """The length of rows, and how lists are made of them."""

    dim: Width = 64
    lists: Literal["exact", "two_stage"] = "exact"


class FactorModel(Recommender):
    """A recommender whose rows give p_u · q_i + b_i, and b_u where users have a bias."""

    settings: FactorSettings

    @property
    def factorised(self) -> bool:
        return type(self.loss) is BPRLoss

    def differentiable(self) -> Differentiable:
        """The score of rows alone."""
        require_torch(f"the recommender {self.name!r} with a strategy or loss that no kernel serves")
        from melon.models.autograd import FactorScore

        return FactorScore(self)

    def pretrain(self, users: Ints, items: Ints, steps: SummedSteps) -> float | None:
        return None if self.plain_steps is None else pretrain_rows(self.tables, users, items, steps)

    def row_scores(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        return stored_scores(self.tables, users, items, *self._moment(context))

    def score_catalogue(self, users: Ints, n_items: int, context: Context | None = None) -> Scores:
        if self.dtype != np.float32:
            return super().score_catalogue(users, n_items, context)
        return self.catalogue(n_items, context).scores(users)

    def row_catalogue(self, n_items: int, context: Context | None, *, two_stage: bool = False) -> FactorCatalogue:
        """Lists by rows; `two_stage` where the settings ask for it, too."""
        now, at = self._moment(context)
        common = policy.load("lists"), self.tables, n_items, at, now
        near = self._quantised.follow(*common) if two_stage and self.settings.lists == "two_stage" else None
        return FactorCatalogue(*common, near)

    def _moment(self, context: Context | None) -> tuple[int, Moment | None]:
        at = None if context is None else context.moment
        return self.clock.now if at is None else at.now, at

    @cached_property
    def _quantised(self) -> QuantisedRows:
        return QuantisedRows()
