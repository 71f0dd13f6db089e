"""Results on the screen: tables, and long runs as they go, live or as lines."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np

from melon.data.info import StreamInfo
from melon.data.prepare import PreparationReport
from melon.evaluation import labels
from melon.evaluation.ranking import METRICS
from melon.evaluation.record import ResultLine, judged_section, lists_sentence, result_lines
from melon.evaluation.table import ResultTable, TableCell, metric_table
from melon.fitting.search import words
from melon.lab.bench import BenchResult, CellOutcome, Task
from melon.learning.rate_matrix import BatchRates, RateFacts
from melon.progress import LineProgress, counted, last_line, say, time_left

#: A filter that drops a larger share than this is worth a warning.
_MUCH = 0.1


def show_preparation(report: PreparationReport, out: Path) -> None:
    """Print what was read, dropped and written."""
    say(
        f"{out}: {counted(report.interactions, 'interaction')} of {counted(report.users, 'user')} and "
        f"{counted(report.items, 'item')}"
    )
    few = f"their user or item has fewer than {report.min_interactions} interactions"
    dropped = f", {report.filtered:,} dropped because {few}" if report.min_interactions > 1 else ""
    say(
        f"read {report.rows_read:,} rows as {report.format} in {report.seconds:.1f} s: {report.bad_rows:,} bad{dropped}"
    )
    if report.dropped_share > _MUCH:
        say(
            f"warning: the filter dropped {report.dropped_share:.0%} of the interactions, because {few}. Keep more "
            "with a lower --min-interactions; 1 keeps everything."
        )
    for text in (*report.notes, *map(str, report.bad)):
        say(indent(text, "  "))
    if any(bad.reason in ("missing user", "missing item") for bad in report.bad):
        say("  --missing sets the texts that mean a missing id")


def show_info(info: StreamInfo, *, as_json: bool) -> None:
    """Print the facts of a stream."""
    if as_json:
        say(json.dumps(info.as_dict(), ensure_ascii=False, indent=2))
        return
    for name, value in _facts(info):
        say(f"{name:<36} {value}")


def show_result(record: Mapping[str, Any]) -> None:
    """A result beside its baselines, and what was chosen."""
    stream = record["dataset"]["path"] or "the stream"
    model = f"{labels.recommender_label(record['recommender'])} on {stream}"
    if record["lists"]:
        say(lists_sentence(record))
        for track, title in LIST_TITLES.items():
            if record["lists"][track]:
                show_table(f"{model}: {title}", result_lines([record], f"lists.{track}"), columns=LIST_COLUMNS)
    show_table(
        f"{model}: the paper's protocol, among {record['protocol']['negatives']} sampled items", result_lines([record])
    )
    if record["without_repeats"] and record["without_repeats"] != record["metrics"]:
        show_table("the same without repeats of what the user already had", result_lines([record], "without_repeats"))
    cold, speed = record["cold"], record["update_ms"]
    say(
        f"{record['interactions_evaluated']:,} interactions evaluated, {record['left_out']:,} left out, "
        f"tie rate {record['tie_rate']:.4f}; {cold['users']:.1%} of the users cold"
        + (f" (HR@5 {cold['HR@5']:.3f})" if "HR@5" in cold else "")
        + (f"; update {speed['median']:.2f} ms per batch" if speed else "")
    )
    if record["left_out"] and not record["interactions_evaluated"]:
        protocol = record["protocol"]
        new = ", or its item was new" if protocol["candidates"] == "known" else ""
        say(
            f"nothing could be ranked: beside each interaction there were fewer than {protocol['negatives']} other "
            f"items that its user had not had{new}. Ask for fewer (--negatives), or use a stream with more items."
        )
    for name, choice in record["config"]["chosen"].items():
        edge = f"  (on the edge of its grid: {', '.join(choice['at_edge'])})" if choice.get("at_edge") else ""
        say(f"chosen for {name}: {words(choice['settings'])}{edge}")


#: What the table of each track is called, and what it shows.
LIST_TITLES = {
    "all": "lists of the whole catalogue, all events",
    "first_time": "lists of the whole catalogue without the user's own items, first-time pairs",
}
LIST_COLUMNS = ("HR@10", "HR@20", "NDCG@10", "MRR@10", "coverage")


def show_table(title: str, lines: Sequence[ResultLine], columns: Sequence[str] = tuple(METRICS)) -> None:
    """Metrics of several methods; on a terminal the best of each column in bold."""
    table = metric_table([line.scores for line in lines], list(columns), title)
    say(table.text(bold=sys.stdout.isatty()))


def _facts(info: StreamInfo) -> list[tuple[str, str]]:
    def moment(seconds: int) -> str:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")

    def quantiles(values: Mapping[str, float], unit: float = 1.0, suffix: str = "") -> str:
        return "  ".join(f"{name} {value / unit:,.1f}{suffix}" for name, value in values.items())

    return [
        ("users", f"{info.users:,}"),
        ("items", f"{info.items:,}"),
        ("interactions", f"{info.interactions:,}"),
        ("from", moment(info.first_time)),
        ("to", moment(info.last_time)),
        ("an item lives (days)", quantiles(info.item_life_seconds, 86_400)),
        ("an item lives (interactions)", quantiles(info.item_life_interactions)),
        ("interactions per user", quantiles(info.events_per_user)),
        ("interactions per item", quantiles(info.events_per_item)),
        ("last 5 %: on items first seen in it", f"{info.tail_new_items:.1%}"),
        ("last 5 %: users first seen in it", f"{info.tail_cold_users:.1%}"),
        ("repeats (last 5 %)", f"{info.repeats:.1%} ({info.tail_repeats:.1%})"),
        ("at the same time as the one before", f"{info.equal_times:.1%}"),
    ]


def show_rates(rates: BatchRates, out: Path, *, as_json: bool) -> None:
    """The learning-rate matrices of a batch in numbers, and where their picture is."""
    about, facts = rates.about, rates.facts()
    if as_json:
        parts = {name: part.as_dict() for name, part in facts.items()}
        say(json.dumps({**about, "picture": str(out), **parts}, ensure_ascii=False, allow_nan=False, indent=2))
        return
    say(
        f"{about['strategy']} on {about['recommender']}, {about['learned']:,} interactions learned; "
        f"{about['interactions']:,} from event {about['event']:,} on ({about['note']})"
    )
    names = {"rows": "rows of users and items", "shared": "shared weights"}
    columns = [rate_texts(part) for part in facts.values()]
    rows = [[TableCell(name), *(TableCell(column[name]) for column in columns)] for name in columns[0]]
    say(str(ResultTable(["learning rates", *(names[name] for name in facts)], rows)))
    say(facts["rows"].sentence)
    say(f"wrote {out}")


def rate_texts(facts: RateFacts) -> dict[str, str]:
    """What is said of a learning-rate matrix, by name."""

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    def signed(value: float | None) -> str:
        return "–" if value is None else f"{value:+.3f}"

    by_interaction, by_parameter = facts.from_one_rate_per_interaction, facts.from_one_rate_per_parameter
    return {
        "interactions × parameters": f"{facts.interactions:,} × {facts.parameters:,}",
        "least, mean, most": f"{facts.least:.3g}, {facts.mean:.3g}, {facts.most:.3g}",
        "numerical rank": f"{facts.rank}",
        "patterns above 1 % of the strongest": f"{facts.patterns}",
        "spread within a row": "–" if facts.within_rows is None else f"{facts.within_rows:.1%}",
        "σ₂/σ₁": f"{facts.sigma_ratio:.4f}",
        "rank correlation with the loss": signed(facts.with_loss),
        "rank correlation with |gradient|": signed(facts.with_gradient),
        "rank correlation with the gradient": signed(facts.with_signed_gradient),
        "variance by interaction": share(facts.by_interaction),
        "variance by parameter": share(facts.by_parameter),
        "variance by neither": share(facts.neither),
        "distance from one rate per interaction": f"{by_interaction.spectral:.4f}, {by_interaction.frobenius:.4f}",
        "distance from one rate per parameter": f"{by_parameter.spectral:.4f}, {by_parameter.frobenius:.4f}",
    }


class BenchProgress(LineProgress):
    """A line for each cell that has ended and, on a terminal, those that run."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = 1
        self._tasks: Sequence[Task] = ()
        self._outcomes: dict[str, CellOutcome] = {}
        self._running: dict[str, float] = {}

    def jobs(self, jobs: Sequence[Task], ended: Mapping[str, CellOutcome], workers: int) -> None:
        self._tasks, self._outcomes, self._workers = jobs, dict(ended), workers
        if ended:
            self.line(f"{len(ended)} of {len(jobs)} cells are there already")

    def started(self, job: Task) -> None:
        self._running[job.key] = time.monotonic()
        self.waiting()

    def ended(self, outcome: CellOutcome) -> None:
        self._running.pop(outcome.task.key, None)
        self._outcomes[outcome.task.key] = outcome
        self.line(f"{outcome.task.key}: {outcome_text(outcome)}  ({self._so_far()})")
        self.waiting()

    def waiting(self) -> None:
        if self.terminal:
            running = ", ".join(f"{key} ({time.monotonic() - since:.0f} s)" for key, since in self._running.items())
            self._pass(f"{self._so_far()}: {running}")

    def _so_far(self) -> str:
        """How many cells have ended, and the time left if the others take as long."""
        seconds = [outcome.seconds for outcome in self._outcomes.values() if outcome.record is not None]
        left = (len(self._tasks) - len(self._outcomes)) / self._workers
        guess = time_left(left * float(np.mean(seconds))) if seconds else "time left unknown"
        return f"{len(self._outcomes)} of {len(self._tasks)} cells, {guess}"


def show_bench(result: BenchResult) -> int:
    """The table and the failed cells; returns the exit code of the command."""
    records = [outcome.record for outcome in result.outcomes.values() if outcome.record is not None]
    repeats = any(judged_section(record) == "without_repeats" for record in records)
    without = "; streams with repeats of what a user already had: without them, as melon report judges"
    title = f"HR@5, mean over seeds{without if repeats else ''}"
    for line in _lists_lines(result):
        say(line)
    say(str(replace(bench_table(result.tasks, result.outcomes), title=title)))
    failed = result.failed
    for outcome in failed:
        say(f"{outcome.task.key} {outcome_text(outcome)}")
    if failed:
        count = f"{len(failed)} of {len(result.tasks)} cells failed"
        say(f"{count} ({result.out}/*.failed.txt say why); run the same command to try them again.")
    say(f"records in {result.out}: melon report {result.out}")
    return 1 if failed else 0


def _lists_lines(result: BenchResult) -> list[str]:
    """For each stream and recommender, the first sentence of its best result by lists, which names the nearest."""
    best: dict[tuple[str, str], tuple[float, str]] = {}
    for task in result.tasks:
        outcome = result.outcomes.get(task.key)
        record = outcome.record if outcome is not None else None
        if record is None or not record["lists"]:
            continue
        score = record["lists"]["all"].get("NDCG@10", 0.0)
        pair = task.stream, task.config.recommender
        if pair not in best or score > best[pair][0]:
            best[pair] = score, f"{task.stream}, {task.config.recommender}: {lists_sentence(record)}"
    return [line for _, line in best.values()]


def bench_table(tasks: Sequence[Task], outcomes: Mapping[str, CellOutcome]) -> ResultTable:
    """HR@5 so far: streams and recommenders down, strategies across, the mean over finished seeds."""
    strategies = list(dict.fromkeys(task.config.strategy for task in tasks))
    lines: dict[tuple[str, str], dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for task in tasks:
        lines[task.stream, task.config.recommender][task.config.strategy].append(task)
    rows = [
        [*map(TableCell, cell), *(TableCell(_table_cell(line[name], outcomes)) for name in strategies)]
        for cell, line in lines.items()
    ]
    return ResultTable(["stream", "recommender", *strategies], rows, left=2)


def _table_cell(tasks: Sequence[Task], outcomes: Mapping[str, CellOutcome]) -> str:
    ended = [outcomes[task.key] for task in tasks if task.key in outcomes]
    if ended and all(outcome.not_applicable for outcome in ended):
        return "N/A"
    records = [outcome.record for outcome in ended if outcome.record is not None]
    rates = [record[judged_section(record)]["HR@5"] for record in records if record["metrics"]]
    text = f"{np.mean(rates):.3f}" if rates else "–"
    marks = "✗" * sum(outcome.problem is not None for outcome in ended)
    return f"{text} {len(rates)}/{len(tasks)}{marks}" if len(rates) < len(tasks) else f"{text}{marks}"


def outcome_text(outcome: CellOutcome) -> str:
    """How a cell ended, in a line."""
    if outcome.record is not None and not outcome.record["metrics"]:
        return "no event could be ranked: there are too few items beside what users have taken (--negatives)"
    if outcome.record is not None:
        section = judged_section(outcome.record)
        without = " without repeats" if section == "without_repeats" else ""
        return f"HR@5 {outcome.record[section]['HR@5']:.4f}{without} in {outcome.seconds:.0f} s"
    if outcome.not_applicable is not None:
        return f"N/A: {outcome.not_applicable}"
    return f"failed: {last_line(outcome.problem)}"
