"""Live quality: each batch is ranked before it is learned, by the served model, a frozen one and recent popularity.

Counters, not averages: any window is the difference of two totals, and a replay counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from melon.data.ids import Id, IdBook
from melon.evaluation.ranking import CUTS, rank_first
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.service.learner.course import Learnable
from melon.stream.candidates import LiveCandidates
from melon.stream.pairs import pair_keys
from melon.types import Floats, Ints, Plain

MODELS = ("served", "frozen", "popular")
#: Events that the service brought about itself, those that a user repeats, and all others.
PARTS = ("organic", "recommended", "repeats")


class Quality:
    """Ranks events among items born before their batch, and adds up."""

    def __init__(self, negatives: int, seed: int, frozen: Updater | None = None) -> None:
        self._candidates = LiveCandidates(seed=seed, count=negatives) if negatives else None
        self.frozen = frozen

    def measure(self, model: LiveModel, events: Learnable) -> Plain:
        """Counters of a batch that the model has not learned yet."""
        if self._candidates is None or not len(events):
            return {}
        history = model.updater.history
        users, items = _rows(model.users, events.users), _rows(model.items, events.items)
        offsets = np.array([event.offset for event in events.stored])
        drawn = self._candidates.draw(offsets, users, items, history)
        counts: Plain = {"events": len(events), "cold": int((items >= history.items_born).sum())}
        chosen = np.flatnonzero(drawn.usable)
        counts["unranked"] = len(events) - counts["cold"] - len(chosen)
        if not len(chosen):
            return counts
        users, offered = users[chosen], drawn.items[chosen]
        recommended = np.array([event.recommended for event in events.stored])[chosen]
        repeats = history.seen.contains(pair_keys(users, offered[:, 0]))
        part = np.where(repeats, 2, recommended.astype(np.int64))
        time = max(model.last_time, int(events.times[0]))
        scores = {"served": model.updater.score(users, offered, time), "popular": model.popular.read(offered)[..., 0]}
        if self.frozen is not None:
            scores["frozen"] = self.frozen.score(users, offered, time)
        for name, lines in scores.items():
            ranks = rank_first(lines, f"the live quality of {name!r}").rank
            counts[name] = {kind: _counts(ranks[part == number]) for number, kind in enumerate(PARTS)}
        return counts


def added(totals: Mapping[str, Any], counts: Mapping[str, Any]) -> Plain:
    """Totals with the counters of one more batch."""
    total = dict(totals)
    for name, value in counts.items():
        before = total.get(name)
        total[name] = added(before or {}, value) if isinstance(value, Mapping) else (before or 0) + value
    return total


def between(later: Mapping[str, Any], earlier: Mapping[str, Any]) -> Plain:
    """The counters of a window: what its end has more than its beginning."""
    window: Plain = {}
    for name, value in later.items():
        before = earlier.get(name)
        window[name] = between(value, before or {}) if isinstance(value, Mapping) else value - (before or 0)
    return window


def shares(counts: Mapping[str, Any]) -> dict[str, float]:
    """HR and NDCG from the counters of one model and part; nothing where nothing was ranked."""
    ranked = counts.get("ranked", 0)
    if not ranked:
        return {}
    hits = {f"HR@{cut}": counts[f"hits@{cut}"] / ranked for cut in CUTS}
    return hits | {f"NDCG@{cut}": counts[f"gain@{cut}"] / ranked for cut in CUTS}


def _counts(ranks: Floats) -> Plain:
    gains = 1.0 / np.log2(ranks + 1)
    counts: Plain = {"ranked": len(ranks)}
    counts |= {f"hits@{cut}": int((ranks <= cut).sum()) for cut in CUTS}
    return counts | {f"gain@{cut}": float(gains[ranks <= cut].sum()) for cut in CUTS}


def _rows(book: IdBook, ids: list[Id]) -> Ints:
    """Rows of ids; unknown ones have a row that no model has yet."""
    rows = book.rows(ids)
    return np.where(rows < 0, len(book), rows)
