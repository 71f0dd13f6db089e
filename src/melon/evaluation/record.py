"""The record of one cell: what was asked and chosen, metrics, the rank of every event; and its files.

See docs/design.md.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import melon
from melon.atomic import replacing, write_text
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation import labels
from melon.evaluation.baselines import BASELINES
from melon.evaluation.lists import TRACKS, list_summaries
from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import metrics
from melon.evaluation.table import number
from melon.fitting.auto import settle_auto
from melon.fitting.config import CellConfig
from melon.stream.split import Parts
from melon.types import Flags, Plain

RankColumns = dict[str, np.ndarray[Any, Any]]
WARM_UP_BATCHES = 10


@dataclass(frozen=True)
class CellRecord:
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
        tested = slice(self.parts.validation_stop, self.parts.stop)
        baselines: dict[str, Plain] = {
            name: {**metrics(tally.rank), "without_repeats": metrics(tally.rank[~repeats])}
            for name, tally in self._baselines.items()
        }
        lists = {name: list_summaries(tally.lists, log.users[tested]) for name, tally in self.tallies.items()}
        for name, summary in baselines.items():
            summary["lists"] = lists[name]
        for name in ("recent_popularity", *BASELINES):
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
            "half_life": None
            if config.half_life == "off"
            else self.choices[config.strategy]["settings"].get("half_life"),
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
                "training_negatives": "uniform over items that exist by then, minus the user's own so far",
            },
            "lists": lists["strategy"],
            "nearest": self._nearest(baselines),
            "metrics": metrics(ours.rank),
            "without_repeats": metrics(ours.rank[~repeats]),
            "left_out": ours.left_out,
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

    def ranks(self) -> RankColumns:
        """The rank of every evaluated event under every method, and what is known of the event; NaN for no rank."""
        log, events = self.log, self._ours.events
        columns: RankColumns = {
            "event": events,
            "user": log.users[events],
            "item": log.items[events],
            "repeat": log.repeats[events],
            "cold": log.users[events] >= self._known_users,
            "rank": self._ours.rank,
            **{f"rank_{name}": tally.rank for name, tally in self._baselines.items()},
        }
        places = events - self.parts.validation_stop
        for track in TRACKS:
            for name, tally in self.tallies.items():
                rank = tally.list_rank(track)
                if rank is not None:
                    columns[f"list_{track}" if name == "strategy" else f"list_{track}_{name}"] = rank[places]
        return columns

    def _nearest(self, baselines: Mapping[str, Plain]) -> str | None:
        """The simple baseline that was best on the selection window; without a window, the best one in lists of all
        events.
        """
        names = ("recent_popularity", *BASELINES)
        scores = {name: self.choices[name].get("score") for name in names}
        if all(score is None for score in scores.values()):
            scores = {name: (baselines[name]["lists"] or {}).get("all", {}).get("NDCG@10") for name in names}
        known = {name: score for name, score in scores.items() if score is not None}
        return max(known, key=lambda name: known[name]) if known else None


def section(summary: Mapping[str, Any], which: str) -> Mapping[str, float]:
    """The metrics of one part of a summary, `lists.all` being `all` of its lists; empty where there are none."""
    found: Any = summary
    for name in which.split("."):
        found = (found or {}).get(name)
    return found or {}


def step_size(ours: Tally, default: Tally) -> Plain:
    """How far a batch moved the rows it touched (mean ‖Δ‖), and how that compares with the tuned Default."""
    moved, plain = (
        float(np.mean([p.moved for p in tally.points])) if tally.points else 0.0 for tally in (ours, default)
    )
    return {"moved": moved, "default": plain, "relative": moved / plain if plain else None}


def timing(milliseconds: list[float]) -> Plain:
    """Median, mean and 95th percentile, after the first batches have warmed the machine up."""
    taken = milliseconds[WARM_UP_BATCHES:] if len(milliseconds) > 2 * WARM_UP_BATCHES else milliseconds
    if not taken:
        return {}
    return {
        "median": float(np.median(taken)),
        "mean": float(np.mean(taken)),
        "p95": float(np.percentile(taken, 95)),
        "batches": len(taken),
    }


def batch_record(number: int, point: Point) -> Plain:
    """One line of the curve."""
    scores = metrics(point.ranks.rank)
    n = point.stop - point.start
    return {
        "t": number,
        "n": n,
        "HR@5": scores.get("HR@5"),
        "NDCG@10": scores.get("NDCG@10"),
        "update_ms": point.update_ms,
    }


def write_result(record: Plain, ranks: Mapping[str, np.ndarray[Any, Any]], path: Path) -> Plain:
    """Write `NAME.json` and `NAME.ranks.parquet`, each whole or not at all; returns the record as written."""
    beside = path.with_suffix(".ranks.parquet")
    written = {**record, "ranks": beside.name}
    with replacing(beside) as unfinished:
        pl.DataFrame(dict(ranks)).fill_nan(None).write_parquet(unfinished, compression="zstd")
    write_text(path, json.dumps(written, indent=1, allow_nan=False) + "\n")
    return written


def read_json(path: Path) -> Plain:
    """A JSON object from a file of a bench; an error names the file and says what to do."""
    content = read_any_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a file of a melon bench: it holds no JSON object. Remove it from the folder.")
    return content


def read_any_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}.") from None
    except (ValueError, RecursionError) as problem:
        raise DataError(
            f"{path} is not valid JSON ({problem}): it may have been cut short. Remove it, and run the bench again."
        ) from None


def lists_sentence(record: Mapping[str, Any]) -> str:
    """The first sentence of a result: NDCG@10 by lists in both tracks, beside the nearest baseline."""
    name, nearest = record.get("label") or method_name(record), record["nearest"]
    texts = []
    for track, text in (("all", "all events"), ("first_time", "first-time pairs")):
        ours, theirs = (section(each, f"lists.{track}") for each in (record, record["baselines"].get(nearest, {})))
        if ours and theirs:
            texts.append((f"{number(ours['NDCG@10'])} ({text})", number(theirs["NDCG@10"])))
    if not texts:
        return f"{labels.label(name)} made no lists."
    own, beside = (" and ".join(one) for one in zip(*texts, strict=True))
    return (
        f"In lists of the whole catalogue, {labels.label(name)} has NDCG@10 {own}. The best simple method on the "
        f"selection window, {labels.label(nearest)}, has {beside}."
    )


def judged(repeats: Flags) -> Flags:
    """The events that conclusions are about: without repeats where a stream has some (docs/methods.md 5.8)."""
    return ~repeats if repeats.any() and not repeats.all() else np.ones(len(repeats), dtype=bool)


def judged_section(record: Mapping[str, Any]) -> str:
    """The part of a record with the metrics of these events."""
    without = record["without_repeats"]
    return "without_repeats" if without and without != record["metrics"] else "metrics"


@dataclass(frozen=True)
class ResultLine:
    """One method of a result: its line in a table, and its HR@5 batch by batch."""

    method: str
    label: str
    metrics: Mapping[str, float]
    curve: Sequence[float | None]

    @property
    def scores(self) -> tuple[str, str, Mapping[str, float]]:
        """Its line of a table."""
        return self.label, self.method, self.metrics


def method_name(record: Mapping[str, Any]) -> str:
    """A record's strategy, with its preset or way of pre-training where that is not the usual one."""
    strategy, preset = str(record["strategy"]), record.get("preset", "default")
    if strategy == "default" and record.get("pretrain") == "own":
        strategy = "default, own pre-training"
    return strategy if preset == "default" else f"{strategy} ({preset})"


def is_auto(request: Mapping[str, Any]) -> bool:
    """Whether a record's request is `auto`: what runs when no recommender and no strategy is named."""
    usual = {**settle_auto({}), "preset": "default", "pretrain": "shared"}
    apart = ("minutes", "auto", "recommender_settings")  # others than the usual ones are written in the label
    return all(request.get(name) == value for name, value in usual.items() if name not in apart)


def result_lines(records: Sequence[Mapping[str, Any]], which: str = "metrics") -> list[ResultLine]:
    """Every method of one or several results on the same stream once, baselines of the first record first.

    `which` is `metrics`, `without_repeats`, `lists.all` or `lists.first_time`.
    """
    first = records[0]
    lines: dict[str, ResultLine] = {}
    for name, summary_of in first["baselines"].items():
        values = summary_of if which == "metrics" else section(summary_of, which)
        method = labels.AUTO if name == "default" and is_auto(first["config"]["asked"]) else name
        text, search = labels.label(method), first["config"]["chosen"].get(name)
        if search is not None and not search["trials"]:
            text = text.removesuffix(" (tuned)")  # nothing was searched: a budget of 0, or settings that were given
        lines[method] = ResultLine(method, text, values, first["baseline_batches"].get(name, ()))
    for record in records:
        method, same = method_name(record), record["recommender"] == first["recommender"]
        if same and method == "default":  # a baseline of the first record; the strategy comes last
            own = labels.AUTO if is_auto(first["config"]["asked"]) else "default"
            lines[own] = lines.pop(own)
            continue
        text = labels.label(method)
        if not same and is_auto(record["config"]["asked"]):
            method = text = labels.AUTO
        elif not same:
            other = labels.recommender_label(record["recommender"])
            method, text = f"{method} ({other})", f"{text.removesuffix(' (tuned)')} on {other}"
        lines[method] = ResultLine(method, text, section(record, which), [batch["HR@5"] for batch in record["batches"]])
    return list(lines.values())
