"""One page about results on a single stream: who did best, the curve over time, the table, then the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from melon.errors import require_plots
from melon.evaluation import labels
from melon.evaluation.ranking import LIST_METRICS, METRICS
from melon.evaluation.record import ResultLine, is_auto, method_name, result_lines
from melon.evaluation.table import ResultTable, TableCell, metric_table
from melon.lab.comparisons import trailing_width
from melon.lab.figures import StoryLine, story
from melon.lab.page import Bullets, Document, Figure, Figures, Fold, Section, html_page
from melon.progress import counted
from melon.types import Plain

Records = Sequence[Mapping[str, Any]]
#: Few enough columns for a phone; the others are folded away.
_SHORT = ("HR@5", "HR@10", "NDCG@10")
#: Baselines that tell a story; mixtures of them stand in the table.
_DRAWN = ("frozen", "popularity", "recent_popularity")
#: More lines than this are drawn thin, except the best.
_MOST_LINES = 3


def result_page(records: Records, title: str = "") -> str:
    """HTML of one or several results on the same stream; baselines are taken from the first."""
    return html_page(result_document(records, title))


def result_document(records: Records, title: str = "") -> Document:
    """The same as blocks."""
    require_plots("a page with results")
    first, lines = records[0], result_lines(records)
    stream = Path(str(first["dataset"]["path"] or "stream")).stem
    own = labels.AUTO if is_auto(first["config"]["asked"]) else labels.label(method_name(first))
    dataset = first["dataset"]
    facts = [counted(dataset[f"{noun}s"], noun) for noun in ("user", "item", "interaction")]
    sections = [
        Section("time", "", "", [result_figure(records)]),
        Section("table", "", "", [_table(lines, _SHORT), *_details(records, lines)]),
    ]
    methods = [line.method for line in lines]
    return Document(title or f"{own} on {stream}", headline(records, lines), facts, sections, methods)


def headline(records: Records, lines: Sequence[ResultLine]) -> str:
    """Who did best, by how much, and what a model that is never updated loses."""
    record, ranked = (
        records[0],
        sorted((line for line in lines if line.metrics), key=lambda line: -line.metrics["HR@5"]),
    )
    if not ranked:
        return "No event could be ranked: there are too few items beside what users have taken."
    best, events, candidates = ranked[0], record["interactions_evaluated"], record["protocol"]["negatives"] + 1
    simple, updated = _simple(ranked, record), _updated(ranked[1:], record)
    rest = []
    if best not in simple:
        rest.append(f"{_percent(simple[0])} for {simple[0].label}, the best simple baseline")
    if updated:
        of = f"the best of {len(updated)} update strategies on" if len(updated) > 1 else "the update strategy on"
        name = updated[0].label.removesuffix(" (tuned)")
        rest.append(f"{_percent(updated[0])} for {name}, {of} {labels.recommender_label(record['recommender'])}")
    rest += [
        f"{_percent(line)} for a model that is never updated"
        for line in ranked
        if line.method == "frozen" and line not in (best, simple[0])
    ]
    who = f"{best.label}, which is what melon runs if you name nothing," if best.method == labels.AUTO else best.label
    text = (
        f"{who} did best: in {_percent(best)} of {events:,} cases the item that was taken stood among its first five "
    )
    return text + f"of {candidates}" + (f", against {_listed(rest)}." if rest else ".")


def result_figure(records: Records) -> Figures:
    """HR@5 over time: baselines, update strategies as thin lines, the best of them and the best of all marked."""
    first, lines = records[0], result_lines(records)
    ranked = sorted(lines, key=lambda line: -line.metrics.get("HR@5", 0.0))
    updated = _updated(ranked, first)
    crowd = {line.method for line in updated[1:] if len(updated) > _MOST_LINES} - {ranked[0].method}
    drawn = []
    for line in lines:
        mixture = line in _simple(lines, first) and line.method not in _DRAWN
        if mixture and line is not ranked[0]:
            continue
        weight = "bold" if line is ranked[0] else "thin" if line.method in crowd else "plain"
        values = np.array([np.nan if value is None else value for value in line.curve], dtype=np.float64)
        text = line.label.partition(" (")[0]
        drawn.append(StoryLine(line.method, text, values, weight))  # type: ignore[arg-type]
    width = trailing_width(len(first["batches"]))
    thin = f"{len(crowd)} other strategies"
    caption = f"HR@5 on each batch before it is learned, the mean over the last {width} batches. " + (
        f"Thin: {', '.join(line.label for line in lines if line.method in crowd)}." if crowd else ""
    )
    return Figures([Figure("result", story("result", drawn, width, thin), caption.strip())], wide=True)


def _details(records: Records, lines: Sequence[ResultLine]) -> list[Fold]:
    """What is folded away: all metrics, other views, settings and protocol."""
    first = records[0]
    folds = [Fold("All metrics", [_table(lines, list(METRICS))])]
    if first["without_repeats"] and first["without_repeats"] != first["metrics"]:
        without = result_lines(records, "without_repeats")
        folds.append(Fold("Without repeats of what the user already had", [_table(without, list(METRICS))]))
    if first["lists"]:
        for track, title in (("all", "Lists, all events"), ("first_time", "Lists, first-time pairs")):
            folds.append(Fold(title, [_table(result_lines(records, f"lists.{track}"), list(LIST_METRICS))]))
    folds.append(Fold("Settings, chosen before the test part was read", [_settings(records)]))
    dataset, protocol = first["dataset"], first["protocol"]
    about = [
        f"{counted(first['interactions_evaluated'], 'interaction')} evaluated, {first['left_out']:,} left out",
        f"each batch of {protocol['batch_size']} was predicted first, then learned",
        f"candidates: {protocol['candidates']}, 1 + {protocol['negatives']}; ties: {protocol['ties']} rank",
        f"seed {first['seed']}; melon {first['version']}; data sha256 {dataset['sha256'][:12]}",
    ]
    return [*folds, Fold("How it was measured", [Bullets(about)])]


def _table(lines: Sequence[ResultLine], columns: Sequence[str]) -> ResultTable:
    """Methods down, the best first."""
    ranked = sorted(lines, key=lambda line: -line.metrics.get("HR@5", 0.0))
    return metric_table([line.scores for line in ranked], columns)


def _settings(records: Records) -> ResultTable:
    first = records[0]
    rows: list[list[TableCell]] = []
    for record in records:
        same = record["recommender"] == first["recommender"]
        for name, choice in record["config"]["chosen"].items():
            if record is not first and name not in (record["strategy"], "pretrain" if not same else ""):
                continue
            text = "pre-training" if name == "pretrain" else labels.label(name)
            if is_auto(record["config"]["asked"]) and name == "default":
                text = labels.AUTO
            elif not same or name == "pretrain":
                text += f" of {labels.recommender_label(record['recommender'])}"
            if text not in [row[0].text for row in rows]:
                trials = choice.get("trials")
                rows.append(
                    [
                        TableCell(text),
                        TableCell(_chosen(choice)),
                        TableCell("–" if trials is None else str(len(trials))),
                    ]
                )
    return ResultTable(["", "settings", "trials"], rows, left=2)


def _chosen(choice: Plain) -> str:
    return ", ".join(f"{name} = {value}" for name, value in choice["settings"].items()) or "defaults"


def _simple(lines: Sequence[ResultLine], record: Mapping[str, Any]) -> list[ResultLine]:
    """Baselines that no strategy updates."""
    return [line for line in lines if line.method in record["baselines"] and line.method != "default"]


def _updated(lines: Sequence[ResultLine], record: Mapping[str, Any]) -> list[ResultLine]:
    """Update strategies on the first record's recommender."""
    return [line for line in lines if line not in _simple(lines, record) and line.method != labels.AUTO]


def _percent(line: ResultLine) -> str:
    return f"{line.metrics['HR@5']:.0%}".replace("%", " %")


def _listed(parts: Sequence[str]) -> str:
    return "; ".join(parts[:-1]) + ("; and " if len(parts) > 1 else "") + parts[-1]
