"""Readable tables in the terminal: a prepared stream, a stream's facts, a result beside its baselines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from melon.data.info import StreamInfo
from melon.data.prepare import PreparationReport

COLUMNS = ("HR@5", "HR@10", "HR@20", "NDCG@5", "NDCG@10", "NDCG@20")
LABELS = {
    "frozen": "frozen (no update)",
    "popularity": "popularity",
    "recent_popularity": "recent popularity",
    "transitions_popularity": "transitions + popularity",
    "knn_popularity": "item-kNN + popularity",
    "frozen_popularity": "frozen + popularity",
    "retrained": "retrained from scratch",
    "default": "default (tuned)",
}


def show_preparation(report: PreparationReport, out: Path) -> None:
    """Print what was read, dropped and written."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"[bold]{escape(str(out))}[/bold]: {report.interactions:,} interactions of {report.users:,} users and "
        f"{report.items:,} items"
    )
    console.print(
        f"read {report.rows_read:,} rows as {report.format} in {report.seconds:.1f} s: {report.bad_rows:,} bad, "
        f"{report.filtered:,} dropped because their user or item has fewer than {report.min_interactions} interactions"
    )
    for text in (*report.notes, *map(str, report.bad)):
        console.print(indent(text, "  "), markup=False)
    if any("(written " in bad.reason for bad in report.bad):
        console.print("  which texts mean a missing id is set with --missing", markup=False)


def show_info(info: StreamInfo, *, as_json: bool) -> None:
    """Print the facts of a stream."""
    console = Console()
    if as_json:
        console.print_json(json.dumps(info.as_dict()))
        return
    table = RichTable(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(info):
        table.add_row(name, value)
    console.print(table)


def result_rows(record: Mapping[str, Any], which: str = "metrics") -> list[tuple[str, Mapping[str, float]]]:
    """The baselines and the strategy, in the order a table shows them."""

    def of(summary: Mapping[str, Any]) -> Mapping[str, float]:
        found: Mapping[str, float] = summary if which == "metrics" else (summary.get(which) or {})
        return found

    rows = [(LABELS.get(name, name), of(found)) for name, found in record["baselines"].items()]
    if record["strategy"] == "default" and record["pretrain"] == "shared":
        return rows
    return [*rows, (record["strategy"], record[which] or {})]


def show_result(record: Mapping[str, Any]) -> None:
    """A result beside its baselines, and what was chosen."""
    console = Console(soft_wrap=True)
    stream = escape(record["dataset"]["path"] or "the stream")
    show_table(console, f"{record['recommender']} on {stream}", result_rows(record))
    if record["without_repeats"] and record["without_repeats"] != record["metrics"]:
        show_table(console, "without repeats of what the user already had", result_rows(record, "without_repeats"))
    if record["full_ranking"]:
        show_table(console, "ranked among the whole catalogue", result_rows(record, "full_ranking"))
    cold, speed = record["cold"], record["update_ms"]
    console.print(
        f"{record['interactions_evaluated']:,} interactions evaluated, {record['set_aside']:,} set aside, "
        f"tie rate {record['tie_rate']:.4f}; {cold['users']:.1%} of the users cold"
        + (f" (HR@5 {cold['HR@5']:.3f})" if "HR@5" in cold else "")
        + (f"; update {speed['median']:.2f} ms per batch" if speed else "")
    )
    if record["set_aside"] and not record["interactions_evaluated"]:
        protocol = record["protocol"]
        new = ", or its item was new" if protocol["candidates"] == "born" else ""
        console.print(
            f"nothing could be ranked: beside each interaction there were fewer than {protocol['negatives']} other "
            f"items that its user had not had{new}. Ask for fewer (--negatives), or bring a stream with more items."
        )
    for name, choice in record["config"]["chosen"].items():
        chosen = ", ".join(f"{key}={value}" for key, value in choice["settings"].items()) or "defaults"
        edge = f"  (on the edge of its grid: {', '.join(choice['at_edge'])})" if choice.get("at_edge") else ""
        console.print(f"chosen for {name}: {chosen}{edge}", markup=False)


def show_table(console: Console, title: str, rows: Iterable[tuple[str, Mapping[str, float]]]) -> None:
    """Metrics of several methods, the best of each column in bold."""
    lines = list(rows)
    table = RichTable(title=title, title_justify="left")
    table.add_column("")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    best = {column: max((found.get(column, 0.0) for _, found in lines), default=0.0) for column in COLUMNS}
    for name, found in lines:
        cells = []
        for column in COLUMNS:
            value = found.get(column)
            text = shown(value)
            cells.append(f"[bold]{text}[/bold]" if value is not None and value == best[column] else text)
        table.add_row(name, *cells)
    console.print(table)


def shown(value: float | None) -> str:
    """A metric as tables print it."""
    return "–" if value is None else f"{value:.3f}"


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
        ("last 5 %: on items born in it", f"{info.tail_new_items:.1%}"),
        ("last 5 %: users first seen in it", f"{info.tail_cold_users:.1%}"),
        ("repeats (last 5 %)", f"{info.repeats:.1%} ({info.tail_repeats:.1%})"),
        ("at the time of the one before", f"{info.equal_times:.1%}"),
    ]
