"""The last sections: which settings were chosen, and what made the report."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

import melon
from melon.display import counted, label, recommender_label
from melon.report.contests import REFERENCE, Bench, Contest, Run
from melon.report.document import Block, Bullets, Code, Fold, Part, Section, TextCell, TextTable
from melon.report.results import where
from melon.types import Plain

_NOT_OPTIONS = ("recommender", "strategy", "seed", "settings", "preset", "split")


def choices(bench: Bench) -> Section:
    """What was chosen before the test part was read, with how many trials, and how far each strategy moves."""
    rows = []
    for contest in bench.main:
        for method in ("pretrain", "recent_popularity", REFERENCE, *contest.strategies):
            runs = contest.runs_of(method if method in contest.methods else REFERENCE)
            chosen = [choice for run in runs if (choice := run.record["config"]["chosen"].get(_key(method, run)))]
            steps = [run.record["step"]["relative"] for run in runs if run.method == method and run.record.get("step")]
            moved = [step for step in steps if step is not None]
            dot = "" if method == "pretrain" else method
            rows.append(
                [
                    TextCell(where(contest)),
                    TextCell("pre-training" if method == "pretrain" else contest.label(method), method=dot),
                    TextCell(_settings([choice["settings"] for choice in chosen])),
                    TextCell(_trials(contest, method, chosen), "soft"),
                    TextCell(
                        ", ".join(sorted({axis for choice in chosen for axis in choice.get("at_edge", ())})), "soft"
                    ),
                    TextCell(f"{np.mean(moved):.2f}×" if moved else "–"),
                ]
            )
    lead = (
        f"{_equal_trials(bench)} The step is how far a batch moves the rows that it touches, relative to that of "
        f"{label(REFERENCE)}: one that barely moves shows here."
    )
    head = ["", "method", "chosen settings", "trials", "at the edge of its grid", "step"]
    caption = (
        "Where seeds chose differently, all of their values. A choice at the edge might do better on a wider grid."
    )
    return Section("choices", "Choices", lead, [TextTable(head, rows, caption, left=5, grouped=True)])


def made_of(bench: Bench, command: str) -> Section:
    """Versions, commands, configurations, data, and what is missing."""
    versions = sorted({str(run.record.get("version", "unknown")) for run in bench.runs})
    hashes = dict.fromkeys((run.stream, str(run.record["dataset"]["sha256"])) for run in bench.runs)
    hours = sum(run.record.get("seconds") or 0.0 for run in bench.runs) / 3600
    blocks: list[Block] = [
        Bullets(
            [
                f"records by melon {', '.join(versions)}; this report by melon {melon.__version__}",
                counted(len(bench.runs), "record") + (f", {hours:.1f} hours of computing" if hours >= 0.05 else ""),
                *(f"data: {stream}, sha256 {sha[:16]}" for stream, sha in hashes),
            ]
        ),
        Part("Commands", "As the records have them; the last one made this report.", [Code(_commands(bench, command))]),
    ]
    if bench.gaps:
        seeds_of: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for gap in bench.gaps:
            seeds_of[gap.stream, gap.recommender, gap.strategy, gap.kind, gap.reason].append(gap.seed)
        rows = [
            [
                TextCell(kind, "bad" if kind == "failed" else "soft"),
                TextCell(f"{stream} · {recommender_label(recommender)}"),
                TextCell(label(strategy), method=strategy),
                TextCell(", ".join(map(str, seeds))),
                TextCell(reason, "soft"),
            ]
            for (stream, recommender, strategy, kind, reason), seeds in seeds_of.items()
        ]
        blocks.append(
            Part("Cells without a result", "", [TextTable(["", "", "strategy", "seeds", "why"], rows, left=5)])
        )
    if bench.notes:
        blocks.append(Bullets(bench.notes))
    settings = {json.dumps(contest.arrangement, indent=1, sort_keys=True): None for contest in bench.contests}
    blocks.append(Fold("The options that all cells of a table share", [Code(text) for text in settings]))
    return Section("made", "What made this", "", blocks)


def _equal_trials(bench: Bench) -> str:
    """Whether strategies had the same number of trials; who had none, and whose settings were given, is said."""
    runs = [run for contest in bench.main for run in contest.runs]
    counts = {run.trials for run in runs if run.trials}
    untuned = sorted({label(m) for c in bench.main for m in (REFERENCE, *c.strategies) if not c.searched(m)})
    given = sorted({label(run.method) for run in runs if run.trials is None and run.request.get("settings")})
    text = "Settings were chosen on the selection window, before the test part was read"
    if counts:
        least, most = min(counts), max(counts)
        text += f": {least} trials for each strategy" if least == most else f": {least} to {most} trials for a strategy"
    if untuned:
        text += f". Not tuned, because nothing was searched for it: {', '.join(untuned)}; compare it with care"
    if given:
        text += f". Settings were given for {', '.join(given)}"
    return text + "."


def _trials(contest: Contest, method: str, chosen: Sequence[Plain]) -> str:
    if not contest.searched(method):
        return "not tuned"
    if any(run.trials is None and run.request.get("settings") for run in contest.runs if run.method == method):
        return "given"
    counts = sorted({len(choice["trials"]) for choice in chosen if "trials" in choice})
    return " | ".join(map(str, counts)) or "–"


def _commands(bench: Bench, command: str) -> str:
    folders: dict[str, list[Run]] = defaultdict(list)
    for run in bench.runs:
        folders[str(run.path.parent)].append(run)
    lines = []
    for folder, runs in folders.items():
        words = ["melon", "bench", *(f"{stream}.parquet" for stream in dict.fromkeys(run.stream for run in runs))]
        for option, name in (("--recommenders", "recommender"), ("--strategies", "strategy")):
            words += [option, ",".join(dict.fromkeys(str(run.record[name]) for run in runs))]
        words += ["--seeds", str(1 + max(run.seed for run in runs))]
        splits = {run.stream: ",".join(f"{share:g}" for share in run.record["dataset"]["split"]) for run in runs}
        words += [word for stream, split in splits.items() for word in ("--split", f"{stream}={split}")]
        words += _options(runs[0].request)
        words += ["--rates"] if any(run.rates for run in runs) else []
        lines.append(shlex.join([*words, "--out", folder]))
    return "\n".join([*lines, command])


def _options(request: Mapping[str, object]) -> list[str]:
    """What was asked for beyond the defaults, as words of a command."""
    from melon.bench.config import CellConfig

    usual = CellConfig().plain()
    words = []
    for name, value in request.items():
        if name in _NOT_OPTIONS or value == usual.get(name) or name not in usual:
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(value, dict):
            section = name.partition("_")[0]
            words += [word for key, each in value.items() for word in ("--set", f"{section}.{key}={json.dumps(each)}")]
        elif value is True:
            words.append(option)
        else:
            words += [option, str(value)]
    return words


def _key(method: str, run: Run) -> str:
    """Under which name a record keeps a method's choice."""
    return str(run.record["strategy"]) if method == run.method else method


def _settings(chosen: Sequence[Plain]) -> str:
    """Settings of all seeds in one line."""
    names = dict.fromkeys(name for settings in chosen for name in settings)
    values = {name: {_plain(settings[name]) for settings in chosen if name in settings} for name in names}
    parts = (f"{name} = {' | '.join(sorted(texts, key=_by_size))}" for name, texts in values.items())
    return ", ".join(parts) or "defaults"


def _by_size(text: str) -> tuple[float, str]:
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def _plain(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
