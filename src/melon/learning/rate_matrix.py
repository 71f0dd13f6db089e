"""The learning-rate matrix of a batch in numbers: rank, what it follows, its two directions.

See docs/methods.md 1.3, 5.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from melon.data.ids import IdBook
from melon.data.interactions import Interactions
from melon.errors import DataError, SettingsError
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.strategies.base import LearningRates
from melon.stream.batch import Batch
from melon.types import Floats

if TYPE_CHECKING:
    from torch import Tensor

    from melon.models.evidence import Evidence, Gradient

#: This many weights of each shared table stand for all of them, evenly spaced: the same ones for every batch.
SHARED_WEIGHTS = 64


@dataclass(frozen=True)
class RateCells:
    """A learning-rate matrix, interactions × parameters, beside the gradient of each cell and each line's loss.

    `groups` says whose parameters the columns are: (name, how many columns), in order.
    """

    rates: Floats
    gradients: Floats
    losses: Floats
    groups: tuple[tuple[str, int], ...]
    precision: float


@dataclass(frozen=True)
class Distance:
    """How far a matrix is from another, relative to its own norm."""

    spectral: float
    frobenius: float


@dataclass(frozen=True)
class RateFacts:
    """A learning-rate matrix in numbers. What a constant matrix has no answer to is None.

    `with_…` are rank correlations: of an interaction's mean rate with its loss, and of a cell's rate with the magnitude
    of its gradient and with the signed gradient. `by_interaction`, `by_parameter` and `neither` are shares of the
    variance. `patterns` counts singular values above 1 % of the largest; `within_rows` is how far rates spread across
    the entries of one row, relative to their mean, and None where rows have one entry.
    """

    interactions: int
    parameters: int
    least: float
    mean: float
    most: float
    rank: int
    patterns: int
    within_rows: float | None
    sigma_ratio: float
    with_loss: float | None
    with_gradient: float | None
    with_signed_gradient: float | None
    by_interaction: float | None
    by_parameter: float | None
    neither: float | None
    from_one_rate_per_interaction: Distance
    from_one_rate_per_parameter: Distance

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """What the matrix shows, in words."""
        if self.most - self.least <= 1e-5 * abs(self.most):
            return (
                f"All rates are equal ({self.mean:.3g}): these are plain steps. Rates that differ come from a learned "
                "strategy that was meta-trained: melon pretrain … --recommender bpr --strategy melon."
            )
        spread = self.within_rows
        within = "the same across a row" if not spread or spread < 1e-3 else f"spread by {spread:.0%} within a row"
        return (
            f"Rates from {self.least:.2g} to {self.most:.2g}: {within}, "
            f"{_share(self.by_interaction)} of their variance by interaction, {_share(self.by_parameter)} by parameter "
            f"and {_share(self.neither)} by the pair; {self.patterns} patterns above 1 % of the strongest."
        )


@dataclass(frozen=True)
class BatchRates:
    """One batch and its learning-rate matrices: of users' and items' rows, and of shared weights if there are any."""

    about: Mapping[str, Any]
    rows: RateCells
    shared: RateCells | None

    def parts(self) -> dict[str, RateCells]:
        """The matrices by name."""
        parts = {"rows": self.rows, "shared": self.shared}
        return {name: cells for name, cells in parts.items() if cells is not None}

    def facts(self) -> dict[str, RateFacts]:
        """The numbers of each matrix."""
        return {name: describe_rates(cells) for name, cells in self.parts().items()}


def explain_batch(model: LiveModel, log: Interactions, *, at: int | None, batch_size: int) -> BatchRates:
    """The batch that starts at event `at` of a log, as if it were learned now."""
    _require_same_ids(model, log)
    start, note = _start(model, log, at, batch_size)
    if batch_size < 1 or not 0 <= start < len(log):
        raise SettingsError(
            f"there is no batch of {batch_size} interactions from event {start} on in a stream of {len(log):,}; "
            "choose another --at or --batch-size."
        )
    return batch_rates(model.updater, model.look_ahead(log, start, min(start + batch_size, len(log))), start, note)


def batch_rates(updater: Updater, batch: Batch, start: int, note: str) -> BatchRates:
    """The learning rates of a batch that starts at an event of its stream, as if it were learned now."""
    situation = updater.situation(batch)
    rates = updater.strategy.learning_rates(situation)
    about = {
        "recommender": updater.recommender.name,
        "strategy": updater.strategy.name,
        "learned": updater.history.events,
        "event": start,
        "interactions": len(batch),
        "note": note,
    }
    return BatchRates(about, row_cells(rates, situation.evidence), shared_cells(rates, situation.evidence))


def row_cells(rates: LearningRates, evidence: Evidence) -> RateCells:
    """The slot-aligned matrix of users' and items' rows, before a row's several touches are averaged."""
    matrix = rates.rows if rates.raw is None else rates.raw
    # Columns stand in the order of `slots`; a strategy may leave a table out.
    held = {g.table: g.expand() for g in evidence.row_gradients}
    blocks, groups = [], []
    for table, slot, width in _runs(rates.slots):
        many = held[table].shape[1] > 1
        blocks.append(_array(held[table][:, slot, :width]))
        groups.append((f"{table}, {_slot_name(slot)}" if many else table, width))
    return _cells([matrix], blocks, evidence.losses, tuple(groups))


def shared_cells(rates: LearningRates, evidence: Evidence, most: int = SHARED_WEIGHTS) -> RateCells | None:
    """The matrix of a fixed choice of shared weights, if there are any; here a column is one parameter."""
    chosen, blocks, groups = [], [], []
    for gradient in evidence.shared_gradients:
        if gradient.table not in rates.shared:
            continue
        of_table = (rates.shared if rates.raw_shared is None else rates.raw_shared)[gradient.table]
        columns = evenly_spaced(of_table.shape[1], most)
        chosen.append(of_table[:, columns])
        blocks.append(_entries(gradient, of_table.shape[1])[:, columns])
        groups.append((gradient.table, len(columns)))
    if not chosen:
        return None
    return _cells(chosen, blocks, evidence.losses, tuple(groups))


def describe_rates(cells: RateCells) -> RateFacts:
    """The matrix in numbers."""
    matrix = cells.rates
    singular = np.asarray(np.linalg.svd(matrix, compute_uv=False), dtype=np.float64)
    rank = numerical_rank(singular, matrix.shape, cells.precision)
    shares = variance_shares(matrix, cells.precision)
    return RateFacts(
        interactions=len(matrix),
        parameters=matrix.shape[1],
        least=float(matrix.min()),
        mean=float(matrix.mean()),
        most=float(matrix.max()),
        rank=rank,
        patterns=int((singular > 0.01 * singular[0]).sum()),
        within_rows=_mean(list(variation_within_rows(cells).values())),
        sigma_ratio=float(singular[1] / singular[0]) if rank > 1 else 0.0,  # below that it is rounding
        with_loss=rank_correlation(matrix.mean(1), cells.losses, cells.precision),
        with_gradient=rank_correlation(matrix.ravel(), np.abs(cells.gradients).ravel(), cells.precision),
        with_signed_gradient=rank_correlation(matrix.ravel(), cells.gradients.ravel(), cells.precision),
        by_interaction=shares and shares[0],
        by_parameter=shares and shares[1],
        neither=shares and shares[2],
        from_one_rate_per_interaction=distance(matrix, matrix.mean(1, keepdims=True)),
        from_one_rate_per_parameter=distance(matrix, matrix.mean(0, keepdims=True)),
    )


def variation_within_rows(cells: RateCells) -> dict[str, float]:
    """By group of columns, one row each: the mean over interactions of the coefficient of variation of its rates."""
    ends = np.cumsum([size for _, size in cells.groups])
    found = {}
    for (name, size), end in zip(cells.groups, ends, strict=True):
        own = cells.rates[:, end - size : end]
        if size > 1:
            found[name] = float((own.std(1) / np.maximum(np.abs(own.mean(1)), 1e-30)).mean())
    return found


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"


def numerical_rank(singular: Floats, shape: tuple[int, ...], precision: float) -> int:
    """How many singular values are more than rounding; `precision` is that of the numbers the matrix was made of."""
    return int((singular > singular[0] * max(shape) * precision).sum()) if len(singular) and singular[0] > 0 else 0


def variance_shares(matrix: Floats, precision: float = 0.0) -> tuple[float, float, float] | None:
    """Shares of the variance that an interaction's mean, a parameter's mean and neither of them account for."""
    mean = matrix.mean()
    total = float(np.square(matrix - mean).mean())
    if _constant(matrix, precision):
        return None
    by_row = float(np.square(matrix.mean(1) - mean).mean())
    by_column = float(np.square(matrix.mean(0) - mean).mean())
    return by_row / total, by_column / total, max(1 - (by_row + by_column) / total, 0.0)


def distance(matrix: Floats, other: Floats) -> Distance:
    """Between a matrix and another, which may be one line or column to be repeated.

    A matrix of one rate per interaction (or per parameter) is nearest, in both norms, where the rates are the means:
    (W − a1ᵀ) with any a keeps the part of W that is orthogonal to 1, and with the means it is that part alone.
    """
    apart = matrix - other
    norms = [(float(np.linalg.norm(apart, kind)), float(np.linalg.norm(matrix, kind))) for kind in (2, "fro")]
    return Distance(*(part / whole if whole else 0.0 for part, whole in norms))


def rank_correlation(one: Floats, other: Floats, precision: float = 0.0) -> float | None:
    """Spearman's, with mid ranks for ties; None where one of the two does not vary."""
    if len(one) < 2 or _constant(one, precision) or _constant(other, precision):
        return None
    return float(np.corrcoef(_mid_ranks(one), _mid_ranks(other))[0, 1])


def evenly_spaced(size: int, most: int) -> list[int]:
    """At most `most` of the places 0 … size-1, from the first to the last."""
    return list(range(size)) if size <= most else np.linspace(0, size - 1, most).round().astype(int).tolist()


def _constant(values: Floats, precision: float) -> bool:
    """Whether the values differ by no more than a few roundings."""
    return float(np.ptp(values)) <= 8 * precision * float(np.abs(values).max(initial=0.0))


def _mid_ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle: Floats = (ends - (counts - 1) / 2)[inverse.reshape(-1)]
    return middle


def _cells(
    rates: list[Tensor], gradients: list[Floats], losses: Tensor, groups: tuple[tuple[str, int], ...]
) -> RateCells:
    precision = float(np.finfo(str(rates[0].dtype).removeprefix("torch.")).eps)
    matrix = np.concatenate([_array(part) for part in rates], axis=1)
    return RateCells(matrix, np.concatenate(gradients, axis=1), _array(losses), groups, precision)


def _runs(slots: tuple[tuple[str, int], ...]) -> Iterator[tuple[str, int, int]]:
    """(table, slot, columns) of neighbouring columns that belong together."""
    start = 0
    for at in range(1, len(slots) + 1):
        if at == len(slots) or slots[at] != slots[start]:
            yield (*slots[start], at - start)
            start = at


def _slot_name(slot: int) -> str:
    return "taken" if slot == 0 else "negative" if slot == 1 else f"negative {slot}"


def _entries(gradient: Gradient, columns: int) -> Floats:
    """The gradient on a shared table as interactions × columns; where rates are for pairs, so is the gradient."""
    from melon.models.evidence import FactorGradient

    whole = _array(gradient.expand().flatten(1))
    if whole.shape[1] == columns or not isinstance(gradient, FactorGradient):
        return whole
    pairs: Floats = np.einsum("nbr,nbd->nbrd", _array(gradient.left), _array(gradient.right))
    return pairs.reshape(len(pairs), -1)


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().double().numpy()
    return array


def _start(model: LiveModel, log: Interactions, at: int | None, batch_size: int) -> tuple[int, str]:
    if at is not None:
        return at, "as asked"
    later = int(np.searchsorted(log.times, model.last_time, side="right"))
    if later < len(log):
        return later, "the first events after those that the model has learned"
    return max(len(log) - batch_size, 0), "the model has learned all of this stream: these are its last events"


def _require_same_ids(model: LiveModel, log: Interactions) -> None:
    """Raise where a model cannot have learned from this stream: other kinds of ids, or no id in common."""

    def known(book: IdBook, ids: Any) -> bool:
        try:
            return bool((book.rows(ids) >= 0).any())
        except DataError as problem:
            raise DataError(
                f"model and stream differ: {problem} Give the stream that the model learned from."
            ) from None

    if not (known(model.users, log.user_ids) | known(model.items, log.item_ids)):
        raise DataError(
            f"model and stream differ: the model knows none of the stream's {log.n_users:,} users and {log.n_items:,} "
            "items. Give the stream that the model learned from."
        )
