"""The record of one cell (DESIGN.md): what was asked and chosen, what came of it, and the rank of every event."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import melon
from melon.bench.config import CellConfig
from melon.bench.summaries import batch_record, step_size, summary, timing
from melon.data.interactions import Interactions
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import metrics
from melon.evaluation.rivals import RIVALS
from melon.stream.split import Parts
from melon.types import Plain

Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Recorded:
    """One cell at its end. The tally of the strategy is under `strategy`, those of baselines under their names."""

    config: CellConfig
    path: str
    log: Interactions
    parts: Parts
    choices: Plain
    tallies: Mapping[str, Tally]
    pretrain_s: float
    notes: Sequence[str] = ()

    @property
    def _ours(self) -> Tally:
        return self.tallies["strategy"]

    @property
    def _baselines(self) -> dict[str, Tally]:
        return {name: tally for name, tally in self.tallies.items() if name != "strategy"}

    @property
    def _known_users(self) -> int:
        return self.log.head(self.parts.train_stop).n_users

    def record(self) -> Plain:
        """Everything but the ranks, JSON-ready."""
        config, log, ours = self.config, self.log, self._ours
        events = ours.events
        repeats = log.repeats[events]
        cold = log.users[events] >= self._known_users
        test_users = np.unique(log.users[self.parts.validation_stop :])
        baselines = {name: summary(tally, repeats, full=config.full_ranking) for name, tally in self._baselines.items()}
        for name in ("recent_popularity", *RIVALS):
            baselines[name] |= self.choices[name]["settings"]
        return {
            "dataset": {
                "path": self.path,
                "sha256": log.sha256,
                "users": log.n_users,
                "items": log.n_items,
                "interactions": len(log),
                "split": list(config.split),
            },
            **({"label": config.label} if config.label else {}),
            "recommender": config.recommender,
            "strategy": config.strategy,
            "preset": config.preset,
            "pretrain": config.pretrain,
            "fading": None if config.fading == "off" else self.choices[config.strategy]["settings"].get("fading"),
            "seed": config.seed,
            "epochs": self.choices["pretrain"]["settings"].get("epochs"),
            "version": melon.__version__,
            "config": {"asked": config.plain(), "chosen": self.choices},
            **({"notes": list(self.notes)} if self.notes else {}),
            "protocol": {
                "candidates": config.candidates,
                "negatives": config.negatives,
                "ties": "mid",
                "batch_size": config.batch_size,
                "threads": config.threads,
                "align_ties": config.align_ties,
                "training_negatives": "uniform over items that exist by then, minus the user's own so far",
            },
            **summary(ours, repeats, full=config.full_ranking, keyed=True),
            "set_aside": ours.set_aside,
            "cumulative_loss": ours.loss,
            "baselines": baselines,
            "tie_rate": float(np.mean(ours.ties > 0)) if len(ours.ties) else 0.0,
            "interactions_evaluated": len(events),
            "cold": {"users": float(np.mean(test_users >= self._known_users)), **metrics(ours.rank[cold])},
            "warm": metrics(ours.rank[~cold]),
            "step": step_size(ours, self.tallies["default"]),
            "update_ms": timing([point.update_ms for point in ours.points]),
            "score_ms": timing([point.score_ms for point in ours.points]),
            "pretrain_s": self.pretrain_s,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "batches": [batch_record(number, point) for number, point in enumerate(ours.points)],
            "baseline_batches": {
                name: [metrics(point.ranks.rank).get("HR@5") for point in tally.points]
                for name, tally in self._baselines.items()
            },
        }

    def ranks(self) -> Columns:
        """The rank of every evaluated event under every method, and what is known of the event."""
        log, events = self.log, self._ours.events
        columns: Columns = {
            "event": events,
            "user": log.users[events],
            "item": log.items[events],
            "repeat": log.repeats[events],
            "cold": log.users[events] >= self._known_users,
            "rank": self._ours.rank,
            **{f"rank_{name}": tally.rank for name, tally in self._baselines.items()},
        }
        if self._ours.full_rank is not None:
            columns["full_rank"] = self._ours.full_rank
        return columns
