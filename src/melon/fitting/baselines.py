"""Baselines with settings of their own, chosen on the selection window by lists: the mean NDCG@10 of both tracks.

Every half-life of popularity and every weight of a column is tried for each baseline; the mix of all columns starts at
the best single one and moves one weight after the other. One pass through the window gathers what all trials need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from melon.evaluation.baselines import BASELINES, HALF_LIVES, SOURCES, WEIGHTS, Sources, SparseColumn
from melon.evaluation.lists import chosen_events
from melon.evaluation.ranking import gains
from melon.fitting.search import Choice, Trial, edges, words
from melon.fitting.selection import Selection
from melon.kernels import policy
from melon.models.streaming.neighbours import scratch
from melon.types import Flags, Floats, Ints, Plain, Singles, SmallInts

#: About so many events of the judged part are listed.
_JUDGED = 2_000
#: How many of a grid's trials a record keeps, the best ones.
_RECORDED_TRIALS = 20
_ROUNDS = 2


def choose_baselines(selection: Selection) -> dict[str, Choice]:
    """The best settings of recent popularity, of each simple baseline and of their mix."""
    kinds = [kind for kinds in SOURCES.values() for kind in kinds]
    judged = _gathered(selection, kinds)
    grid = BaselineGrid(judged)
    choices = {"recent_popularity": grid.best(())} | {name: grid.best(kinds) for name, kinds in SOURCES.items()}
    singles = {choice.settings["kind"]: choice for name, choice in choices.items() if name in SOURCES}
    choices["mix"] = grid.mix(singles)
    for name in ("recent_popularity", *BASELINES):
        selection.progress.note(f"{name} {words(choices[name].settings)}: {choices[name].score or 0:.4f}")
    return choices


@dataclass(frozen=True)
class _JudgedBatch:
    """Events of one batch that are listed: popularity at each half-life, columns by kind, and the users' own items."""

    popular: Singles
    columns: Mapping[str, SparseColumn]
    targets: Ints
    first_time: Flags
    own_starts: Ints
    own: SmallInts


def _gathered(selection: Selection, kinds: Sequence[str]) -> list[_JudgedBatch]:
    """Go through the window once; items that nobody has had are misses for every baseline and are left out."""
    sources, parts, judged = Sources(selection.before_window, kinds), selection.parts, list[_JudgedBatch]()
    share = _JUDGED / max(parts.validation_stop - parts.judged_from, 1)
    for batch in selection.window_batches():
        if batch.first_event >= parts.judged_from:
            some = np.flatnonzero(chosen_events(batch.events, share) & (batch.items < sources.known))
            if len(some):
                judged.append(_judged(sources, kinds, batch.users[some], batch.items[some]))
        sources.observe(batch.users, batch.items)
    return judged


def _judged(sources: Sources, kinds: Sequence[str], users: Ints, items: Ints) -> _JudgedBatch:
    columns = {kind: sources.column(kind, users) for kind in kinds}
    own = columns[SOURCES["own_history"][0]]
    first = np.array([items[n] not in own.items[own.starts[n] : own.starts[n + 1]] for n in range(len(users))])
    popular = np.ascontiguousarray(sources.popular(np.arange(sources.known)).T, dtype=np.float32)
    return _JudgedBatch(popular, columns, items, first, own.starts, own.items)


class BaselineGrid:
    """Scores of baselines on events of the window, for many settings at a time."""

    def __init__(self, judged: Sequence[_JudgedBatch]) -> None:
        self._judged = judged

    def best(self, kinds: Sequence[str]) -> Choice:
        """The best half-life, kind and weight; without a kind, popularity alone."""
        trials = []
        for half_life in HALF_LIVES:
            scores = self._scores(half_life, [[kind] for kind in kinds] or [[]], _single_weights(kinds))
            for kind, by_weight in zip(kinds or ("",), scores, strict=True):
                for weight, score in zip(WEIGHTS if kind else (0.0,), by_weight.tolist(), strict=True):
                    point: Plain = {"kind": kind, "half_life": half_life, "weight": weight}
                    trials.append(Trial(point if kind else {"half_life": half_life}, score))
        axes: dict[str, tuple[object, ...]] = {"half_life": HALF_LIVES}
        return _choice(trials, axes | ({"weight": WEIGHTS} if kinds else {}))

    def mix(self, singles: Mapping[str, Choice]) -> Choice:
        """All columns together: one weight after the other, twice, and the half-life in between."""
        kinds = sorted(singles, key=lambda kind: -(singles[kind].score or 0.0))
        first = singles[kinds[0]].settings
        half_life, trials = first["half_life"], list[Trial]()
        weights = np.zeros(len(kinds))
        weights[0] = first["weight"]

        def try_all(half_lives: Sequence[int], lines: Floats) -> None:
            nonlocal half_life, weights
            for each in half_lives:
                scores = self._scores(each, [kinds], lines)[0]
                for line, score in zip(lines, scores.tolist(), strict=True):
                    point = {"half_life": each, "weights": dict(zip(kinds, line.tolist(), strict=True))}
                    trials.append(Trial(point, score))
            top = max(trials, key=lambda trial: trial.score or 0.0).settings
            half_life, weights = top["half_life"], np.array(list(top["weights"].values()))

        for number in range(_ROUNDS):
            for at in range(len(kinds)):
                lines = np.tile(weights, (len(WEIGHTS) + 1, 1))
                lines[:, at] = (0.0, *WEIGHTS)
                try_all((half_life,), lines)
            if number == 0:
                try_all(HALF_LIVES, weights[None, :].copy())
        return _choice(trials, {"half_life": HALF_LIVES})

    def _scores(self, half_life: int, together: Sequence[Sequence[str]], weights: Floats) -> list[Floats]:
        """For each group of kinds, the mean NDCG@10 of both tracks under each line of weights."""
        found: list[list[tuple[Floats, Floats]]] = [[] for _ in together]
        for batch in self._judged:
            popular = batch.popular[HALF_LIVES.index(half_life)].astype(np.float64)
            ordered = np.sort(popular)
            for kinds, ranks in zip(together, found, strict=True):
                both = _ranks(batch, [batch.columns[kind] for kind in kinds], weights, popular, ordered)
                ranks.append((gains(both[0]), gains(both[1][batch.first_time])))
        return [np.array(_mean_of_tracks(ranks, len(weights))) for ranks in found]


def _mean_of_tracks(gained: Sequence[tuple[Floats, Floats]], width: int) -> Floats:
    """The mean over events of each track, then of both; a track without an event does not count."""
    tracks = [np.concatenate(each) for each in zip(*gained, strict=True)] if gained else []
    means = [each.mean(0) for each in tracks if len(each)]
    return np.mean(means, axis=0) if means else np.zeros(width)


def _ranks(
    batch: _JudgedBatch, columns: Sequence[SparseColumn], weights: Floats, popular: Floats, ordered: Floats
) -> tuple[Floats, Floats]:
    kernels, lines = policy.load("baselines"), len(batch.targets)
    ranks, first_ranks = np.empty((lines, len(weights))), np.empty((lines, len(weights)))
    with scratch(len(popular)) as slots:
        starts, items, table = _joined(kernels.join_columns, columns, lines, slots)
        kernels.rank_mixtures(
            *(starts, items, table, weights, popular, ordered, batch.targets, batch.own_starts, batch.own, slots),
            *(ranks, first_ranks),
        )
    return ranks, first_ranks


def _joined(
    join: Callable[..., None], columns: Sequence[SparseColumn], lines: int, slots: SmallInts
) -> tuple[Ints, SmallInts, Singles]:
    """Several columns as one table; a single one as it is."""
    if len(columns) == 1:
        starts, items, values = columns[0]
        return starts, items, values[None, :]
    starts, size = np.zeros(lines + 1, dtype=np.int64), sum(len(column.items) for column in columns)
    items, table = np.empty(size, dtype=np.int32), np.empty((len(columns), size), dtype=np.float32)
    if columns:
        bounds = np.stack([column.starts for column in columns])
        firsts = np.cumsum([0, *(len(column.items) for column in columns[:-1])])
        parts = np.concatenate([column.items for column in columns])
        join(bounds, firsts, parts, np.concatenate([column.values for column in columns]), slots, starts, items, table)
    return starts, items[: starts[-1]], np.ascontiguousarray(table[:, : starts[-1]])


def _single_weights(kinds: Sequence[str]) -> Floats:
    return np.array(WEIGHTS)[:, None] if kinds else np.empty((1, 0))


def _choice(trials: list[Trial], axes: Mapping[str, tuple[object, ...]]) -> Choice:
    ranked = sorted(trials, key=lambda trial: -(trial.score or 0.0))
    best = ranked[0]
    return Choice(best.settings, best.score, tuple(ranked[:_RECORDED_TRIALS]), edges(axes, best.settings))
