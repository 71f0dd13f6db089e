"""Live quality: each batch is ranked before it is learned, by the served model, a frozen one and recent popularity.

Counters, not averages: any window is the difference of two totals, and a replay counts nothing twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from melon.data.ids import Id, IdBook
from melon.evaluation.lists import better_and_equal
from melon.evaluation.ranking import METRICS, rank_first
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.service.learner.replay_state import Learnable
from melon.stream.candidates import LiveCandidates
from melon.stream.pairs import pair_keys
from melon.types import Flags, Floats, Ints, Plain, Scores

MODELS = ("served", "frozen", "popular")
#: What is compared by whole lists, and on which lists: of all items, or of those that the user has not had.
LISTED, TRACKS = (*MODELS, "own"), ("all", "first")
#: Events that the service brought about itself, those that a user repeats, and all others.
PARTS = ("organic", "recommended", "repeats")
#: One event in this many is also ranked among all items, as long as that takes no more than this share of a core.
SAMPLED, _SHARE = 50, 0.02
_Z = 1.96


@dataclass(frozen=True)
class RankedEvents:
    """Events of one batch that were ranked: offsets, rows, which part each belongs to (by PARTS), and their ranks."""

    offsets: Ints
    users: Ints
    offered: Ints
    part: Ints
    moment: int
    rank: Floats

    def hits(self) -> Plain:
        """Which events were ranked, and which of them stood among the first ten: bits by offset, for challengers."""
        first = int(self.offsets[0])
        ranked = sum(1 << (offset - first) for offset in self.offsets.tolist())
        hits = sum(1 << (offset - first) for offset in self.offsets[self.rank <= 10].tolist())
        return {"ranked_from": first, "ranked": f"{ranked:x}", "hits": f"{hits:x}"}


def hits_of(about: Mapping[str, Any], offsets: Ints) -> tuple[Flags, Flags]:
    """Of each offset, whether the served model ranked it, and whether it was a hit, by what a step recorded."""
    first = about.get("ranked_from")
    if first is None:
        return np.zeros(len(offsets), dtype=bool), np.zeros(len(offsets), dtype=bool)
    bits = {name: int(about[name], 16) for name in ("ranked", "hits")}
    ranked, hits = (
        np.array([offset >= first and bool(bits[name] >> (offset - first) & 1) for offset in offsets.tolist()])
        for name in ("ranked", "hits")
    )
    return ranked, hits


class Quality:
    """Ranks events among items known before their batch, and adds up."""

    def __init__(self, negatives: int, seed: int, frozen: Updater | None = None) -> None:
        self._candidates = LiveCandidates(seed=seed, count=negatives) if negatives else None
        self.frozen = frozen
        self._began, self._spent = time.monotonic(), 0.0
        self.hits: Plain = {}

    def rank(self, model: LiveModel, events: Learnable) -> tuple[Plain, RankedEvents | None]:
        """Ranks of a batch that the model has not learned yet, and counters of what cannot be ranked."""
        if self._candidates is None or not len(events):
            return {}, None
        history = model.updater.history
        users, items = _rows(model.users, events.users), _rows(model.items, events.items)
        offsets = np.array([event.offset for event in events.stored])
        drawn = self._candidates.draw(offsets, users, items, history)
        counts: Plain = {"events": len(events), "cold": int((items >= history.known_items).sum())}
        counts["newcomers"] = int((users >= history.of_users.rows).sum())
        chosen = np.flatnonzero(drawn.usable)
        counts["unranked"] = len(events) - counts["cold"] - len(chosen)
        if not len(chosen):
            return counts, None
        users, offered = users[chosen], drawn.items[chosen]
        recommended = np.array([event.recommended for event in events.stored])[chosen]
        repeats = history.seen.contains(pair_keys(users, offered[:, 0]))
        part = np.where(repeats, 2, recommended.astype(np.int64))
        moment = max(model.last_time, int(events.times[0]))
        rank = rank_first(model.updater.score(users, offered, moment), "the live quality of 'served'").rank
        return counts, RankedEvents(offsets[chosen], users, offered, part, moment, rank)

    def measure(self, model: LiveModel, events: Learnable) -> Plain:
        """Counters of a batch that the model has not learned yet; `hits` has those of its events one by one."""
        self.hits = {}
        counts, ranked = self.rank(model, events)
        if ranked is None:
            return counts
        self.hits = ranked.hits()
        users, offered, part, moment = ranked.users, ranked.offered, ranked.part, ranked.moment
        scores: dict[str, Scores] = {"popular": model.popular.read(offered)[..., 0]}
        if self.frozen is not None:
            scores["frozen"] = self.frozen.score(users, offered, moment)
        ranks = {"served": ranked.rank}
        for name, lines in scores.items():
            ranks[name] = rank_first(lines, f"the live quality of {name!r}").rank
        for name, rank in ranks.items():
            counts[name] = {}
            for number, kind in enumerate(PARTS):
                some = part == number
                counts[name][kind] = rank_counts(rank[some])
                if name != "served":
                    counts[name][kind] |= _duel(ranks["served"][some], rank[some])
        return counts | self.whole_lists(model, ranked, baselines=True)

    def whole_lists(self, model: LiveModel, ranked: RankedEvents, *, baselines: bool = False) -> Plain:
        """Counters of exact ranks in whole lists, for a sample of the events as long as that takes a small share of a
        core: of all items, and for first-time pairs of the items that the user has not had.

        The model is `served`; baselines are the frozen one, recent popularity, and the user's own history (how often
        each of the user's last items was taken, then popularity).
        """
        started, history = time.thread_time(), model.updater.history
        known = ranked.users < history.of_users.rows
        sampled = known & (ranked.offsets * 2_654_435_761 % (1 << 32) < (1 << 32) // SAMPLED)
        if not sampled.any() or self._spent > _SHARE * (time.monotonic() - self._began):
            return {}
        updaters = {"served": model.updater}
        if baselines and self.frozen is not None:
            updaters["frozen"] = self.frozen
        n_items, ranks = history.known_items, list[Floats]()
        popular = model.popular.read(np.arange(n_items))[None, :, 0].astype(np.float64)
        for user, item in zip(ranked.users[sampled].tolist(), ranked.offered[sampled, 0].tolist(), strict=True):
            one = np.array([user]), np.array([item]), history.seen
            lines: dict[str, Scores] = {
                name: updater.score_catalogue(one[0], n_items, ranked.moment) for name, updater in updaters.items()
            }
            if baselines:
                last = history.of_users.recent(one[0]).partners[0]
                taken = np.bincount(last[(last >= 0) & (last < n_items)], minlength=n_items)
                lines |= {"popular": popular, "own": taken + popular / (1.0 + popular.max())}
            places = [
                better_and_equal(line, *one, f"the live quality of {name!r} among all items")[0]
                for name, line in lines.items()
            ]
            ranks.append(np.array([[1 + place[n] + place[n + 1] / 2 for n in (0, 2)] for place in places]))
        by_name = dict(zip(lines, np.array(ranks).transpose(1, 2, 0), strict=True))
        first, counts = ranked.part[sampled] != 2, dict[str, Plain]()
        for number, (track, chosen) in enumerate(zip(TRACKS, (np.ones(len(first), dtype=bool), first), strict=True)):
            served = by_name["served"][number, chosen]
            counts[track] = {"served": rank_counts(served)} | {
                name: rank_counts(rank[number, chosen]) | _duel(served, rank[number, chosen])
                for name, rank in by_name.items()
                if name != "served" and not (name == "own" and track == "first")
            }
        self._spent += time.thread_time() - started
        return {"lists": counts}


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
    """Metrics from the counters of one model and part; nothing where nothing was ranked."""
    ranked = counts.get("ranked", 0)
    if not ranked:
        return {}
    return {name: counts[name] / ranked for name in METRICS if name in counts}


def difference(counts: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """HR@10 of the served model less a baseline's on the same events, and its 95 % interval."""
    ranked = counts.get("ranked", 0)
    if not ranked:
        return None
    won, lost = counts.get("won@10", 0), counts.get("lost@10", 0)
    mean = (won - lost) / ranked
    spread = _Z * math.sqrt(max(won + lost - (won - lost) ** 2 / ranked, 0.0)) / ranked
    return mean, mean - spread, mean + spread


#: Of the boundary below: how its epochs grow, the power by which error is spent on them, the zeta function of that, and
#: the number of events won or lost from which it is meant to be narrow.
_GROWTH, _POWER, _ZETA, _FROM = 2.0, 1.4, 3.10555, 25.0


def anytime_difference(counts: Mapping[str, Any], error: float = 0.05) -> tuple[float, float, float] | None:
    """The same with an interval that holds at all times at once, however often and for however long one looks.

    An empirical Bernstein confidence sequence for the mean difference so far (Howard, Ramdas, McAuliffe and Sekhon,
    2021: theorem 4 with the prediction 0, and the stitched boundary). Each event is −1, 0 or 1, so that won and lost
    events are all that it needs. It holds where differences drift and depend on the past, from a fixed first event on.
    """
    ranked = counts.get("ranked", 0)
    if not ranked:
        return None
    won, lost = counts.get("won@10", 0), counts.get("lost@10", 0)
    variance = max(float(won + lost), _FROM)
    spent = math.log(_ZETA / (error / 2 * math.log(_GROWTH) ** _POWER))
    level = _POWER * math.log(math.log(_GROWTH * variance / _FROM)) + spent
    root, slope = (_GROWTH**0.25 + _GROWTH**-0.25) / math.sqrt(2.0), (math.sqrt(_GROWTH) + 1.0) / 2.0
    spread = math.sqrt(root**2 * variance * level + (slope * level) ** 2) + slope * level
    mean = (won - lost) / ranked
    return mean, max(mean - spread / ranked, -1.0), min(mean + spread / ranked, 1.0)


def _duel(served: Floats, baseline: Floats) -> Plain:
    """Events that only one of two models has among its first ten."""
    return {
        "won@10": int(((served <= 10) & (baseline > 10)).sum()),
        "lost@10": int(((served > 10) & (baseline <= 10)).sum()),
    }


#: The sum of squares that the interval of NDCG@10 needs.
SQUARES = "NDCG@10 squared"


def rank_counts(ranks: Floats) -> Plain:
    """Counters of some ranks: how many, the sum of each metric, and the squares of one that is no yes or no."""
    sums = {name: float(value(ranks).sum()) for name, value in METRICS.items()}
    return {"ranked": len(ranks), **sums, SQUARES: float(np.square(METRICS["NDCG@10"](ranks)).sum())}


def mean_interval(counts: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The 95 % interval of a metric's mean; of a hit rate by Wilson, of NDCG@10 by its variance."""
    ranked = counts.get("ranked", 0)
    if not ranked or (name == "NDCG@10" and SQUARES not in counts):
        return None
    mean = counts[name] / ranked
    if name == "NDCG@10":
        spread = _Z * math.sqrt(max(counts[SQUARES] / ranked - mean * mean, 0.0) / ranked)
        return max(mean - spread, 0.0), min(mean + spread, 1.0)
    square = _Z * _Z
    centre, spread = (
        mean + square / (2 * ranked),
        _Z * math.sqrt(mean * (1 - mean) / ranked + square / (2 * ranked) ** 2),
    )
    return (centre - spread) / (1 + square / ranked), (centre + spread) / (1 + square / ranked)


def _rows(book: IdBook, ids: list[Id]) -> Ints:
    """Rows of ids; unknown ones have a row that no model has yet."""
    rows = book.rows(ids)
    return np.where(rows < 0, len(book), rows)
