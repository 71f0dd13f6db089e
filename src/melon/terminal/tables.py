"""Tables on the screen: a prepared stream, a stream's facts, a result beside its baselines, learning rates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from melon import display
from melon.bench.record import ResultLine, result_lines
from melon.console import shown
from melon.data.info import StreamInfo
from melon.data.prepare import PreparationReport
from melon.explain.matrix import BatchRates, RateFacts


def show_preparation(report: PreparationReport, out: Path) -> None:
    """Print what was read, dropped and written."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"[bold]{escape(str(out))}[/bold]: {display.counted(report.interactions, 'interaction')} of "
        f"{display.counted(report.users, 'user')} and {display.counted(report.items, 'item')}"
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


def show_result(record: Mapping[str, Any]) -> None:
    """A result beside its baselines, and what was chosen."""
    console = Console(soft_wrap=True)
    stream = escape(record["dataset"]["path"] or "the stream")
    show_table(f"{display.recommender_label(record['recommender'])} on {stream}", result_lines([record]))
    if record["without_repeats"] and record["without_repeats"] != record["metrics"]:
        show_table("without repeats of what the user already had", result_lines([record], "without_repeats"))
    if record["full_ranking"]:
        show_table("ranked among the whole catalogue", result_lines([record], "full_ranking"))
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


def show_table(title: str, lines: Sequence[ResultLine], console: Console | None = None) -> None:
    """Metrics of several methods, the best of each column in bold."""
    table = RichTable(title=title, title_justify="left")
    table.add_column("")
    for column in display.COLUMNS:
        table.add_column(column, justify="right")
    best = {column: max((line.metrics.get(column, 0.0) for line in lines), default=0.0) for column in display.COLUMNS}
    for line in lines:
        cells = []
        for column in display.COLUMNS:
            value = line.metrics.get(column)
            cells.append(
                f"[bold]{shown(value)}[/bold]" if value is not None and value == best[column] else shown(value)
            )
        table.add_row(escape(line.label), *cells)
    (console or Console(soft_wrap=True)).print(table)


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


def show_rates(rates: BatchRates, out: Path, *, as_json: bool) -> None:
    """The learning-rate matrices of a batch in numbers, and where their picture is."""
    console, about, facts = Console(soft_wrap=True), rates.about, rates.facts()
    if as_json:
        parts = {name: part.as_dict() for name, part in facts.items()}
        console.print_json(json.dumps({**about, "picture": str(out), **parts}, allow_nan=False))
        return
    console.print(
        f"[bold]{escape(about['strategy'])}[/bold] on {escape(about['recommender'])}, {about['learned']:,} interactions"
        f" learned; {about['interactions']:,} from event {about['event']:,} on ({about['note']})"
    )
    table = RichTable()
    table.add_column("learning rates")
    for name in facts:
        table.add_column({"rows": "rows of users and items", "shared": "shared weights"}[name], justify="right")
    columns = [_rate_lines(part) for part in facts.values()]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)
    console.print(f"wrote {out}", markup=False, highlight=False)


def _rate_lines(facts: RateFacts) -> dict[str, str]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    def signed(value: float | None) -> str:
        return "–" if value is None else f"{value:+.3f}"

    by_interaction, by_parameter = facts.from_one_rate_per_interaction, facts.from_one_rate_per_parameter
    return {
        "interactions × parameters": f"{facts.interactions:,} × {facts.parameters:,}",
        "least, mean, most": f"{facts.least:.4g}, {facts.mean:.4g}, {facts.most:.4g}",
        "numerical rank": f"{facts.rank}",
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
