"""A small self-contained page: the table, the curve over time, and what was chosen."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from melon.extras import require_plots
from melon.terminal.tables import COLUMNS, LABELS, result_rows, shown
from melon.types import Floats

_STYLE = """
:root { color-scheme: light dark;
  --ink: #1c2430; --soft: #667085; --line: #e4e7ec; --paper: #ffffff; --mark: #1f7a4d; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e8ecf1; --soft: #9aa4b2; --line: #2c3440; --paper: #14181f; --mark: #5ecb97; } }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1rem 4rem; font: 16px/1.55 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.lead { color: var(--soft); margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td.left { text-align: left; }
td.left { white-space: normal; }
thead th { color: var(--soft); font-weight: 600; }
td.best { font-weight: 700; color: var(--mark); }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: .5rem; padding: .5rem; }
figure svg { width: 100%; height: auto; }
code { font-size: .85em; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
"""


def page(title: str, lead: str, records: Sequence[Mapping[str, Any]]) -> str:
    """HTML of one or several results on the same stream; baselines are taken from the first."""
    rows, first = merged_rows(records), records[0]
    chosen = {
        f"{record['recommender']}: {name}" if _other(record, first) else name: choice
        for record in records
        for name, choice in record["config"]["chosen"].items()
        if not _other(record, first) or name in ("pretrain", record["strategy"])
    }
    lines = "".join(
        f"<tr><td>{html.escape(name)}</td><td class=left><code>{html.escape(_settings(choice))}</code></td></tr>"
        for name, choice in chosen.items()
    )
    dataset, protocol = first["dataset"], first["protocol"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1><p class="lead">{html.escape(lead)}</p>
<h2>How often the item taken was among the best five, ten, twenty of {protocol["negatives"] + 1} candidates</h2>
<div class="scroll">{_table(rows)}</div>
<h2>HR@5 over time</h2><figure>{curve(records)}</figure>
<h2>Chosen before the test part was read</h2><div class="scroll"><table><tbody>{lines}</tbody></table></div>
<footer>{dataset["interactions"]:,} interactions, {dataset["users"]:,} users, {dataset["items"]:,} items;
{first["interactions_evaluated"]:,} evaluated, {first["set_aside"]:,} set aside. Candidates: {protocol["candidates"]},
ties: {protocol["ties"]} rank, batches of {protocol["batch_size"]}, seed {first["seed"]}.
melon {first["version"]}, data {dataset["sha256"][:12]}.
</footer></body></html>
"""


def merged_rows(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, float]]]:
    """Each method once, in the order in which results came; another recommender than the first is named with it."""
    rows = dict(result_rows(records[0]))
    for record in records[1:]:
        rows |= {_label(record, records[0]): record["metrics"]} if _other(record, records[0]) else result_rows(record)
    return list(rows.items())


def _other(record: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    return bool(record["recommender"] != first["recommender"])


def _label(record: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """A result's own row, where the baselines are those of the first."""
    name: str = record["strategy"]
    return f"{record['recommender']} with {name}" if _other(record, first) else name


def curve(records: Sequence[Mapping[str, Any]]) -> str:
    """HR@5 per batch as an SVG: the raw line faint, its trailing mean on top."""
    require_plots()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    lines = {LABELS.get(name, name): values for name, values in records[0]["baseline_batches"].items()}
    for record in records:
        if _other(record, records[0]) or record["strategy"] != "default" or record["pretrain"] == "own":
            lines[_label(record, records[0])] = [batch["HR@5"] for batch in record["batches"]]
    figure = Figure(figsize=(9, 4))
    axes = figure.subplots()
    for name, values in lines.items():
        raw = np.array([np.nan if value is None else value for value in values])
        (drawn,) = axes.plot(trailing_mean(raw), label=name, linewidth=2)
        axes.plot(raw, color=drawn.get_color(), alpha=0.2, linewidth=0.8)
    axes.set_xlabel("batch")
    axes.set_ylabel("HR@5")
    axes.grid(alpha=0.2)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    drawing = io.StringIO()
    # Names inside the drawing are salted with this instead of chance, so that the same result is the same page.
    with rc_context({"svg.hashsalt": "melon"}):
        figure.savefig(drawing, format="svg", metadata={"Date": None, "Creator": None})
    text = drawing.getvalue()
    return text[text.index("<svg") :]


def trailing_mean(values: Floats, width: int = 10) -> Floats:
    """The mean of the last `width` values that are known, at each place."""
    trailing = (values[max(0, at - width + 1) : at + 1] for at in range(len(values)))
    known = (some[~np.isnan(some)] for some in trailing)
    return np.array([some.mean() if len(some) else np.nan for some in known])


def _table(rows: list[tuple[str, Mapping[str, float]]]) -> str:
    best = {column: max(found.get(column, 0.0) for _, found in rows) for column in COLUMNS}
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    body = ""
    for name, found in rows:
        cells = "".join(f"<td{_best_class(found, best, column)}>{shown(found.get(column))}</td>" for column in COLUMNS)
        body += f"<tr><td>{html.escape(name)}</td>{cells}</tr>"
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _settings(choice: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in choice["settings"].items()) or "defaults"


def _best_class(found: Mapping[str, float], best: Mapping[str, float], column: str) -> str:
    return " class=best" if found.get(column) == best[column] else ""
