"""Pages as blocks, rendered by a Jinja2 template as one HTML file that fetches nothing; the page about a result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from melon.errors import require_plots
from melon.evaluation import labels
from melon.evaluation.labels import INK, LINE, SOFT, color, css_variable
from melon.evaluation.ranking import LIST_METRICS, METRICS
from melon.evaluation.record import ResultLine, is_auto, lists_sentence, method_name, result_lines
from melon.evaluation.table import ResultTable, TableCell, inline, metric_table
from melon.fitting.search import words
from melon.lab.comparisons import trailing_width
from melon.lab.figures import Drawing, StoryLine, Weight, story
from melon.progress import counted


@dataclass(frozen=True)
class Figure:
    """A drawing under the name of its files, with words for those who cannot see it."""

    name: str
    drawing: Drawing
    caption: str


@dataclass(frozen=True)
class Figures:
    """Figures side by side where there is room; a `wide` one has the line to itself."""

    figures: Sequence[Figure]
    wide: bool = False


@dataclass(frozen=True)
class Prose:
    """A paragraph; what stands between backticks is code."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Commands and settings, as they are."""

    text: str


@dataclass(frozen=True)
class Fold:
    """Details that are folded away."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Part:
    """A part of a section with a heading of its own."""

    title: str
    note: str
    blocks: Sequence[Block]


Block = ResultTable | Figures | Prose | Bullets | Code | Fold | Part


@dataclass(frozen=True)
class Section:
    """A section; its key is its address on the page."""

    key: str
    title: str
    lead: str
    blocks: Sequence[Block] = field(default_factory=tuple)


@dataclass(frozen=True)
class Document:
    """The whole report; `methods` are those that have a colour in it."""

    title: str
    lead: str
    facts: Sequence[str]
    sections: Sequence[Section]
    methods: Sequence[str] = ()

    def figures(self) -> list[Figure]:
        """Every figure, wherever it stands."""
        figures: list[Figure] = []
        waiting: list[Block] = [block for section in self.sections for block in section.blocks]
        while waiting:
            block = waiting.pop(0)
            if isinstance(block, Figures):
                figures += block.figures
            elif isinstance(block, Fold | Part):
                waiting = [*block.blocks, *waiting]
        return figures

    def inserted(self, section: Section | None, *, before: str) -> Document:
        """With one more section in front of the one of this key; None adds nothing."""
        if section is None:
            return self
        at = [each.key for each in self.sections].index(before)
        return replace(self, sections=[*self.sections[:at], section, *self.sections[at:]])


def html_page(document: Document) -> str:
    """The whole page: styles and figures are inside, light and dark, phone and desk."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    def themed(figure: Figure) -> Markup:
        return Markup(themed_svg(figure.drawing.svg, figure.name, document.methods))

    pages = Environment(loader=PackageLoader("melon.lab"), autoescape=True)
    pages.filters |= {"inline": lambda text: Markup(inline(text)), "themed": themed}
    return pages.get_template("page.html").render(page=document, palette=_palette(document.methods))


def _palette(methods: Sequence[str]) -> str:
    """The colours of methods and page as variables, for light and for dark."""
    named = {"--ink": INK, "--soft": SOFT, "--line": LINE} | {css_variable(method): color(method) for method in methods}
    light = "".join(f"{name}:{each.light};" for name, each in named.items())
    dark = "".join(f"{name}:{each.dark};" for name, each in named.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def themed_svg(svg: str, name: str, methods: Sequence[str]) -> str:
    """For a page: colours become the page's variables, and ids inside the drawing are unique on the page."""
    for method in methods:
        svg = svg.replace(color(method).light, f"var({css_variable(method)})")
    for variable, each in (("--ink", INK), ("--soft", SOFT), ("--line", LINE)):
        svg = svg.replace(each.light, f"var({variable})")
    svg = re.sub(r'(<g id="patch_1">\s*<path [^>]*?)style="fill: #ffffff"', r'\1style="fill: none"', svg, count=1)
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    return re.sub(r"url\(#", f"url(#{name}-", svg)


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
    lead = headline(records, lines)
    if first["lists"]:
        lead = f"{lists_sentence(first)} Among sampled items: {lead}"
    return Document(title or f"{own} on {stream}", lead, facts, sections, methods)


def headline(records: Records, lines: Sequence[ResultLine]) -> str:
    """Which method is best, and by how much."""
    ranked = sorted((line for line in lines if line.metrics), key=lambda line: -line.metrics["HR@5"])
    if not ranked:
        return "No event could be ranked: there are too few items beside what users have taken."
    best, *others = ranked
    events, candidates = records[0]["interactions_evaluated"], records[0]["protocol"]["negatives"] + 1
    who = f"{best.label}, the default method," if best.method == labels.AUTO else best.label
    text = f"{who} is best: the item taken is in its first five of {candidates} in {_percent(best)} of {events:,} cases"
    shown = [*_simple(others, records[0])[:1], *_updated(others, records[0])[:1]]
    shown += [line for line in others if line.method == "frozen" and line not in shown]
    rest = [f"{_percent(line)} for {line.label}" for line in shown]
    return text + (f", against {', '.join(rest)}." if rest else ".")


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
        weight: Weight = "bold" if line is ranked[0] else "thin" if line.method in crowd else "plain"
        values = np.array([np.nan if value is None else value for value in line.curve], dtype=np.float64)
        text = line.label.partition(" (")[0]
        drawn.append(StoryLine(line.method, text, values, weight))
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
    """What was chosen: all of the first record, and of each other record its strategy."""
    rows: dict[str, list[TableCell]] = {}
    for record in records:
        for name, choice in record["config"]["chosen"].items():
            if record is not records[0] and name != record["strategy"]:
                continue
            auto = is_auto(record["config"]["asked"]) and name == "default"
            text = labels.AUTO if auto else "pre-training" if name == "pretrain" else labels.label(name)
            trials = "–" if choice.get("trials") is None else str(len(choice["trials"]))
            rows.setdefault(text, list(map(TableCell, (text, words(choice["settings"]), trials))))
    return ResultTable(["", "settings", "trials"], list(rows.values()), left=2)


def _simple(lines: Sequence[ResultLine], record: Mapping[str, Any]) -> list[ResultLine]:
    """Baselines that no strategy updates."""
    return [line for line in lines if line.method in record["baselines"] and line.method != "default"]


def _updated(lines: Sequence[ResultLine], record: Mapping[str, Any]) -> list[ResultLine]:
    """Update strategies on the first record's recommender."""
    return [line for line in lines if line not in _simple(lines, record) and line.method != labels.AUTO]


def _percent(line: ResultLine) -> str:
    return f"{line.metrics['HR@5']:.0%}".replace("%", " %")
