"""The first sections: verdicts, the overview, and every contest's table with its comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from melon.evaluation.compare import Comparison
from melon.paper.claims import verdicts
from melon.report.comparing import METRIC, REFERENCE, SECOND_METRIC, Compared, Comparisons
from melon.report.contests import Bench, Contest, View
from melon.report.document import (
    Block,
    Card,
    Cards,
    Cell,
    Figure,
    Figures,
    Fold,
    Mark,
    Part,
    Prose,
    Section,
    Table,
    interval,
    number,
    signed,
)
from melon.report.drawing import forest
from melon.report.naming import label, recommender_label
from melon.report.numbers import Estimate, podium, table_of
from melon.terminal.tables import COLUMNS

VIEWS: Mapping[View, str] = {
    "first": "without repeats of what the user already had",
    "all": "all events",
    "full": "ranked among the whole catalogue",
}
_STANDING: Mapping[str, Mark] = {"better": "good", "not worse": "fair", "worse": "bad", "not decided": "open"}


def short(bench: Bench, comparisons: Comparisons) -> Section:
    """The rules first, then the verdicts and the overview."""
    rules = (
        f"Named before any number: the reference is {label(REFERENCE)}, plain fine-tuning with settings chosen on data "
        f"before the test part, and methods are compared by {METRIC}. “Better” means that the 95 % interval of the "
        "difference per event, from a bootstrap over users, lies above 0 after Holm's correction within the table. "
        "“Not worse” means that a loss larger than the margin is ruled out. Streams with repeats are judged without "
        "them."
    )
    cards = [Card(v.outcome, v.claim, v.number, v.lines) for v in verdicts(bench, comparisons)]
    blocks: list[Block] = [
        Prose(rules),
        Part("The paper's claims on this data", "", [Cards(cards)]),
        Part(
            f"{METRIC} at a glance",
            "Best of each line in bold, second underlined; the mean over seeds. Fast: what was popular lately beats a "
            "model that is never updated.",
            [overview(bench)],
        ),
    ]
    return Section("short", "In short", "", blocks)


def overview(bench: Bench) -> Table:
    """Contests down, methods across."""
    methods = list(dict.fromkeys(method for contest in bench.main for method in contest.methods))
    rows = []
    for contest in bench.main:
        found = table_of(contest, contest.headline)
        values = {method: line[METRIC].mean for method, line in found.items() if METRIC in line}
        first, second = podium(values)
        cells = [Cell(where(contest)), Cell("fast" if contest.fast else "slow", "soft")]
        for method in methods:
            mark: Mark = "best" if method in first else "second" if method in second else ""
            cells.append(
                Cell(number(values[method]), mark) if method in values else Cell(_why(contest, method), "soft")
            )
        rows.append(cells)
    return Table(["", "pace", *(label(method).partition(" (")[0] for method in methods)], rows)


def results(bench: Bench, comparisons: Comparisons) -> Section:
    """All differences at a glance, then every contest; those under another arrangement are folded."""
    figures = [difference(contest, comparisons) for contest in bench.contests if contest.strategies]
    blocks: list[Block] = [Figures(figures), *(contest_part(contest, comparisons) for contest in bench.main)]
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


def score_table(contest: Contest, view: View) -> Table:
    """Methods down, metrics across, the best of each column marked."""
    found = table_of(contest, view)
    places = {
        column: podium({method: line[column].mean for method, line in found.items() if column in line})
        for column in COLUMNS
    }
    rows = []
    for method, line in found.items():
        cells = [Cell(_named(contest, method), method=method)]
        for column in COLUMNS:
            first, second = places[column]
            mark: Mark = "best" if method in first else "second" if method in second else ""
            cells.append(estimate_cell(line.get(column), mark))
        rows.append(cells)
    for gap in _absences(contest):
        rows.append([Cell(label(gap, contest.recommender), "soft", method=gap), *[Cell("N/A", "soft")] * len(COLUMNS)])
    return Table(["", *COLUMNS], rows, VIEWS[view])


def difference(contest: Contest, comparisons: Comparisons) -> Figure:
    """The figure of a contest's comparisons."""
    family, beside = _compared(contest, comparisons)
    near = family | {method: each for method, each in beside.items() if _near(each, family)}
    name = f"difference-{slug(contest)}"
    far = [label(method) for method in beside if method not in near]
    words = f"{where(contest)}: difference to {label(REFERENCE)}" + (f"; far below: {', '.join(far)}" if far else "")
    return Figure(name, forest(name, near, REFERENCE), words)


def against_reference(contest: Contest, comparisons: Comparisons) -> Block:
    """Each strategy against the tuned Default in numbers, the baselines beside the family; they are it where there is
    no strategy.
    """
    family, beside = _compared(contest, comparisons)
    rows = [
        _compared_row(contest, method, each, comparisons.second(contest, method), judged=method in family)
        for method, each in (family | beside).items()
    ]
    head = ["", METRIC, "95 % by user", "by item", "± over seeds", "p", "smallest visible", "verdict"]
    head += [SECOND_METRIC, "95 % by user"]
    count = f"{len(family)} comparisons" if len(family) > 1 else "one comparison"
    whose = "strategies; the baselines stand outside it" if contest.strategies else "baselines"
    caption = (
        f"Minus {label(REFERENCE)}, {VIEWS[contest.headline]}; verdicts are about {METRIC}. Family: {count} of "
        f"{whose}. Margin for “not worse”: {number(contest.margin)}. p is not yet corrected."
    )
    return Table(head, rows, caption)


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


def _compared_row(contest: Contest, method: str, found: Compared, second: Comparison, *, judged: bool) -> list[Cell]:
    each = found.difference
    verdict = Cell(found.standing, _STANDING[found.standing]) if judged else Cell("baseline", "soft")
    return [
        Cell(_named(contest, method), method=method),
        Cell(signed(each.difference)),
        Cell(interval(each.by_user)),
        Cell(interval(each.by_item), "soft"),
        Cell(number(each.seed_error), "soft"),
        Cell("<.001" if each.p_value < 0.001 else number(each.p_value), "soft"),
        Cell(number(found.visible), "soft"),
        verdict,
        Cell(signed(second.difference)),
        Cell(interval(second.by_user)),
    ]


def where(contest: Contest) -> str:
    """A contest's heading."""
    return " · ".join(each for each in (contest.stream, recommender_label(contest.recommender), contest.apart) if each)


def estimate_cell(found: Estimate | None, mark: Mark = "") -> Cell:
    """A mean with its error."""
    if found is None:
        return Cell("–", "soft")
    return Cell(number(found.mean), mark, "" if found.error is None else number(found.error))


def slug(contest: Contest) -> str:
    """A contest's name for files."""
    text = "-".join(each for each in (contest.stream, contest.recommender, contest.apart) if each)
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "contest"


def _named(contest: Contest, method: str) -> str:
    """A method, and on how many seeds it stands where these are not all."""
    seeds = len(contest.runs_of(method))
    few = f" [{seeds} of {len(contest.seeds)} seeds]" if seeds < len(contest.seeds) else ""
    return label(method, contest.recommender) + few


def _absences(contest: Contest) -> Sequence[str]:
    """Strategies that do not exist with this recommender."""
    return list(
        dict.fromkeys(g.strategy for g in contest.gaps if g.kind == "N/A" and g.strategy not in contest.methods)
    )


def _why(contest: Contest, method: str) -> str:
    return "N/A" if method in _absences(contest) else "–"


def _about(contest: Contest) -> str:
    aside, protocol = contest.first.get("set_aside", 0), contest.first["protocol"]
    seeds = len(contest.seeds)
    told = [
        f"{len(contest.events):,} events" + (f", {aside:,} set aside" if aside else ""),
        f"{contest.repeats.mean():.1%} of them repeats" if contest.repeats.any() else "no repeats",
        f"{len(contest.first['batches'])} batches",
        f"{seeds} seed" + ("s" if seeds > 1 else ""),
        f"candidates {protocol['candidates']}, 1 + {protocol['negatives']}",
    ]
    return " · ".join(told)
