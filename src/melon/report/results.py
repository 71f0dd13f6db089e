"""The first sections: who won, the overview, and every contest's table with its comparisons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from melon.display import AUTO, COLUMNS, counted, label, recommender_label
from melon.evaluation.compare import Comparison
from melon.report.contests import REFERENCE, Bench, Contest, View
from melon.report.document import (
    Block,
    Figure,
    Figures,
    Fold,
    Mark,
    Part,
    Prose,
    Section,
    TextCell,
    TextTable,
    interval,
    number,
    signed,
)
from melon.report.drawing import forest
from melon.report.numbers import METRIC, SECOND_METRIC, Compared, Comparisons, Estimate, marks, table_of

VIEWS: Mapping[View, str] = {
    "first": "without repeats of what the user already had",
    "all": "all events",
    "full": "ranked among the whole catalogue",
}
_MARKS: Mapping[str, Mark] = {
    "better": "good",
    "level or better": "fair",
    "within the margin, but behind": "open",
    "worse": "bad",
    "not decided": "open",
}
#: More contests than this stand below each other in the overview.
_MOST_ACROSS = 4
_RULES = (
    f"The reference is {label(REFERENCE)}: plain fine-tuning, named before any number was seen; methods are compared "
    f"by {METRIC}. “Better” and “worse”: the 95 % interval of the difference per event, from a bootstrap over users, "
    "lies wholly above or below 0 after Holm's correction within the table. “Level or better”: a loss larger than the "
    "margin is ruled out. “Within the margin, but behind”: so is a gain. Streams with repeats are judged without them."
)


@dataclass(frozen=True)
class _Entrant:
    """A method in a contest, under a name that says on which recommender where there are several."""

    contest: Contest
    method: str
    name: str

    @property
    def value(self) -> float:
        return self.contest.hit_rate(self.method)


def headline(bench: Bench, comparisons: Comparisons) -> str:
    """One sentence: who won, by how much, on how many streams."""
    leads = [_lead(bench, stream) for stream in dict.fromkeys(contest.stream for contest in bench.main)]
    if len(leads) == 1:
        ((first, second),) = leads
        gap, contest = signed(first.value - second.value), first.contest
        if second.contest is contest or (second.method in contest.baselines and second.method != REFERENCE):
            compared = comparisons.against(contest, first.method, [second.method])[second.method].difference
            gap = f"{signed(compared.difference)} {interval(compared.by_user)}"
        methods = counted(len({entrant.name for entrant in _entrants(bench, contest.stream)}), "method")
        text = f"{first.name} has the highest {METRIC} on {contest.stream}: {number(first.value)}, "
        return text + f"{gap} over {second.name}, the next of {methods}."
    wins = Counter(first.name for first, _ in leads)
    (winner, count), *others = wins.most_common()
    ahead = [first.value - second.value for first, second in leads if first.name == winner]
    by = " to ".join(dict.fromkeys((signed(min(ahead)), signed(max(ahead)))))
    text = f"{winner} has the highest {METRIC} on {count} of {counted(len(leads), 'stream')}, {by} ahead of the next "
    return text + "method" + "".join(f"; {name} on {wins[name]}" for name, _ in others) + "."


def _lead(bench: Bench, stream: str) -> tuple[_Entrant, _Entrant]:
    """The best of a stream, and the best of another name."""
    first, *rest = sorted(_entrants(bench, stream), key=lambda entrant: -entrant.value)
    return first, next(entrant for entrant in rest if entrant.name != first.name)


def _entrants(bench: Bench, stream: str) -> list[_Entrant]:
    several = len({contest.recommender for contest in bench.main}) > 1
    entrants = []
    for contest in bench.main:
        for method in contest.methods if contest.stream == stream else ():
            name = contest.label(method)
            if several and (method == REFERENCE or method not in contest.baselines) and name != AUTO:
                name += f" on {recommender_label(contest.recommender)}"
            entrants.append(_Entrant(contest, method, name))
    return entrants


def short(bench: Bench) -> Section:
    """The overview."""
    note = (
        "The mean over seeds, best of each contest in bold, second underlined. A stream is fast where what was popular "
        "lately beats a recommender that is never updated."
    )
    return Section("short", f"{METRIC} at a glance", note, [overview(bench)])


def overview(bench: Bench) -> TextTable:
    """Methods down and contests across; the other way round where there are many contests."""
    methods = list(dict.fromkeys(method for contest in bench.main for method in contest.methods))
    names = [f"{where(contest)} ({bench.pace(contest.stream)})" for contest in bench.main]
    columns = [_overview_cells(contest, methods) for contest in bench.main]
    if len(columns) > _MOST_ACROSS:
        head = ["", *(label(method).partition(" (")[0] for method in methods)]
        return TextTable(head, [[TextCell(name), *cells] for name, cells in zip(names, columns, strict=True)])
    rows = zip(methods, *columns, strict=True)
    return TextTable(["", *names], [[TextCell(label(method), method=method), *cells] for method, *cells in rows])


def _overview_cells(contest: Contest, methods: Sequence[str]) -> list[TextCell]:
    values = {method: contest.hit_rate(method) for method in contest.methods}
    marked = marks(values)
    cells = []
    for method in methods:
        absent = TextCell("N/A" if method in _absences(contest) else "–", "soft")
        cells.append(TextCell(number(values[method]), marked[method]) if method in values else absent)
    return cells


def results(bench: Bench, comparisons: Comparisons) -> Section:
    """All differences at a glance, then every contest; those under another arrangement are folded."""
    figures = [difference(contest, comparisons) for contest in bench.contests if contest.strategies]
    blocks: list[Block] = [Prose(_RULES), *([Figures(figures)] if figures else [])]
    blocks += [contest_part(contest, comparisons) for contest in bench.main]
    others = [contest_part(contest, comparisons) for contest in bench.contests if contest not in bench.main]
    blocks += [Fold(part.title, [Prose(part.note, soft=True), *part.blocks]) for part in others]
    lead = (
        "Differences to the reference first: the dot is the mean, the line the 95 % interval from resampling users, "
        "the faint line from resampling items, the shaded band the margin. Then hit rate and NDCG at 5, 10 and 20: "
        "mean ± standard error over seeds, best in bold, second underlined."
    )
    return Section("results", "Accuracy", lead, blocks)


def contest_part(contest: Contest, comparisons: Comparisons) -> Part:
    """One table, its comparisons, and its other views."""
    views: list[View] = ["first", "all"] if contest.headline == "first" else ["all"]
    views += ["full"] if any(contest.scores(method, "full") for method in contest.methods) else []
    blocks: list[Block] = [score_table(contest, contest.headline), against_reference(contest, comparisons)]
    blocks += [
        Fold(VIEWS[view][0].upper() + VIEWS[view][1:], [score_table(contest, view)])
        for view in views
        if view != contest.headline
    ]
    return Part(where(contest), _about(contest), blocks)


def score_table(contest: Contest, view: View) -> TextTable:
    """Methods down, metrics across, the best of each column marked."""
    scores = table_of(contest, view)
    marked = {c: marks({m: line[c].mean for m, line in scores.items() if c in line}) for c in COLUMNS}
    rows = [
        [
            TextCell(contest.label(method), method=method),
            *(estimate_cell(line.get(column), marked[column].get(method, "")) for column in COLUMNS),
        ]
        for method, line in scores.items()
    ]
    for gap in _absences(contest):
        rows.append([TextCell(label(gap), "soft", method=gap), *[TextCell("N/A", "soft")] * len(COLUMNS)])
    return TextTable(["", *COLUMNS], rows, VIEWS[view])


def difference(contest: Contest, comparisons: Comparisons) -> Figure:
    """The figure of a contest's comparisons."""
    family, beside = _compared(contest, comparisons)
    near = family | {method: each for method, each in beside.items() if _near(each, family)}
    name, reference = f"difference-{slug(contest)}", contest.label(REFERENCE)
    far = [label(method) for method in beside if method not in near]
    words = f"{where(contest)}: difference to {reference}" + (f"; far below: {', '.join(far)}" if far else "")
    return Figure(name, forest(name, near, {method: contest.label(method) for method in near}, reference), words)


def against_reference(contest: Contest, comparisons: Comparisons) -> TextTable:
    """Each strategy against the reference in numbers, baselines beside the family; they are it without strategies."""
    family, beside = _compared(contest, comparisons)
    rows = [
        _compared_row(contest, method, each, comparisons.second(contest, method), judged=method in family)
        for method, each in (family | beside).items()
    ]
    head = ["", METRIC, "95 % by user", "by item", "± over seeds", "p", "smallest visible", "verdict"]
    head += [SECOND_METRIC, "95 % by user"]
    whose = "strategies; the baselines stand outside it" if contest.strategies else "baselines"
    caption = (
        f"Minus {contest.label(REFERENCE)}, {VIEWS[contest.headline]}; verdicts are about {METRIC}. Family: "
        f"{counted(len(family), 'comparison')} of {whose}. Margin: {number(contest.margin)}. p is not yet corrected."
    )
    return TextTable(head, rows, caption)


def where(contest: Contest) -> str:
    """A contest's heading."""
    return " · ".join(each for each in (contest.stream, recommender_label(contest.recommender), contest.apart) if each)


def estimate_cell(estimate: Estimate | None, mark: Mark = "") -> TextCell:
    """A mean with its error."""
    if estimate is None:
        return TextCell("–", "soft")
    return TextCell(number(estimate.mean), mark, "" if estimate.error is None else number(estimate.error))


def slug(contest: Contest) -> str:
    """A contest's name for files."""
    text = "-".join(each for each in (contest.stream, contest.recommender, contest.apart) if each)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "contest"


def _compared(contest: Contest, comparisons: Comparisons) -> tuple[dict[str, Compared], dict[str, Compared]]:
    """The declared family, and the baselines beside it."""
    if not contest.strategies:
        return comparisons.family(contest, contest.baselines), {}
    beside = {name: comparisons.family(contest, [name])[name] for name in contest.baselines if name != REFERENCE}
    return comparisons.family(contest, contest.strategies), beside


def _near(each: Compared, family: Mapping[str, Compared]) -> bool:
    """A baseline far below would squeeze the strategies into a corner of the figure; it is in the table."""
    reach = max(max(abs(end) for end in one.difference.by_user) for one in family.values())
    return each.difference.difference >= -2 * max(reach, each.margin)


def _compared_row(
    contest: Contest, method: str, compared: Compared, second: Comparison, *, judged: bool
) -> list[TextCell]:
    each = compared.difference
    return [
        TextCell(contest.label(method), method=method),
        TextCell(signed(each.difference)),
        TextCell(interval(each.by_user)),
        TextCell(interval(each.by_item), "soft"),
        TextCell(number(each.seed_error), "soft"),
        TextCell("<.001" if each.p_value < 0.001 else number(each.p_value), "soft"),
        TextCell(number(compared.visible), "soft"),
        TextCell(compared.verdict, _MARKS[compared.verdict]) if judged else TextCell("baseline", "soft"),
        TextCell(signed(second.difference)),
        TextCell(interval(second.by_user)),
    ]


def _absences(contest: Contest) -> Sequence[str]:
    """Strategies that do not exist with this recommender."""
    return list(
        dict.fromkeys(g.strategy for g in contest.gaps if g.kind == "N/A" and g.strategy not in contest.methods)
    )


def _about(contest: Contest) -> str:
    aside, protocol = contest.first.get("set_aside", 0), contest.first["protocol"]
    parts = [
        counted(len(contest.events), "event") + (f", {aside:,} set aside" if aside else ""),
        f"{contest.repeats.mean():.1%} of them repeats" if contest.repeats.any() else "no repeats",
        f"{len(contest.first['batches'])} batches",
        counted(len(contest.seeds), "seed"),
        f"candidates {protocol['candidates']}, 1 + {protocol['negatives']}",
    ]
    return " · ".join(parts)
