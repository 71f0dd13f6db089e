"""The paper's claims judged by the records of `melon reproduce` for two forms: as published, and through the stream.

python research/paper/claims.py runs/paper      # the report of the folder, with four more sections
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from melon.errors import DataError
from melon.evaluation.labels import label, recommender_label
from melon.evaluation.table import Mark, ResultTable, TableCell, number
from melon.lab.comparisons import (
    REFERENCE,
    Bench,
    Compared,
    MethodComparison,
    PairedTests,
    Run,
    curve,
    milliseconds,
    read_bench,
    table_of,
)
from melon.lab.page import Bullets, Document, Fold, Section
from melon.lab.report import estimate_cell, milliseconds_text, report_folders, where
from melon.progress import counted, say
from melon.strategies.registry import STRATEGIES
from melon.types import Flags, Floats, Ints
from published import ABLATION, ELAPSED_MS, PAPER_NAMES, RESULTS, paper_dataset, paper_table

ClaimOutcome = Literal["held", "not held", "not decided"]
OURS = "melon"
REWEIGHTING = ("eals", "mwnet")
META_OPTIMISATION = ("metasgd", "s2meta", "sml")
#: "Several updates a second", as a number; the paper's slowest MeLON has 3.8.
SEVERAL = 3.0


@dataclass(frozen=True)
class ClaimResult:
    """A claim's outcome, the number that decides it, and a line for each comparison."""

    claim: str
    outcome: ClaimOutcome
    number: str
    lines: tuple[str, ...] = ()


def claim_results(bench: Bench, tests: PairedTests) -> list[ClaimResult]:
    """All five claims, on the comparisons of the main arrangement."""
    comparisons = [comparison for comparison in bench.main if OURS in comparison.methods]
    return [
        consistent_gains(comparisons, tests),
        quick_adaptation(comparisons),
        two_directions(comparisons, tests),
        affordable(comparisons),
        both_paces(bench, comparisons, tests),
    ]


def together(parts: Iterable[ClaimOutcome]) -> ClaimOutcome:
    """A claim about all cases fails with one that fails, and stays open with one that is open."""
    outcomes = list(parts)
    if "not held" in outcomes:
        return "not held"
    return "held" if outcomes and all(part == "held" for part in outcomes) else "not decided"


def gain(compared: Iterable[Compared]) -> ClaimOutcome:
    """Better than each; a single baseline against which a gain is ruled out is enough to fail."""
    baselines = list(compared)
    if any(baseline.conclusion == "worse" or baseline.no_gain for baseline in baselines):
        return "not held"
    return "held" if baselines and all(baseline.conclusion == "better" for baseline in baselines) else "not decided"


def consistent_gains(comparisons: Sequence[MethodComparison], tests: PairedTests) -> ClaimResult:
    """Better than every baseline, on every stream and recommender."""
    claim = "MeLON gains consistently, over datasets and recommenders"
    if not comparisons:
        return _absent(claim)
    parts, lines, over_default, over_recent = [], [], 0, 0
    met: set[str] = set()
    for comparison in comparisons:
        baselines = [name for name in (REFERENCE, *comparison.strategies) if name != OURS and not _kin(name)]
        compared = tests.against(comparison, OURS, baselines)
        part = gain(compared.values())
        parts.append(part)
        met |= compared.keys()
        recent = tests.against(comparison, OURS, ["recent_popularity"])["recent_popularity"]
        over_default += compared[REFERENCE].conclusion == "better"
        over_recent += recent.conclusion == "better"
        hardest = min(compared, key=lambda name, of=compared: of[name].difference.difference)  # type: ignore[misc]
        lines.append(
            f"{where(comparison)}: {_gap(compared[hardest])} over its hardest baseline, "
            f"{comparison.label(hardest)}: {part}"
        )
    streams, recommenders = ({getattr(c, name) for c in comparisons} for name in ("stream", "recommender"))
    outcome = together(parts)
    counts = (("stream", streams), ("recommender", recommenders), ("baseline", met))
    few = [text for text, seen in counts if len(seen) < 2]
    number = (
        f"better than every baseline in {parts.count('held')} of {counted(len(parts), 'comparison')}; than "
        f"{label(REFERENCE)} in {over_default}, than recent popularity in {over_recent}"
    )
    if few and outcome == "held":
        outcome = "not decided"
        number = f"only one {' and one '.join(few)} here, too few for a claim about all of them; {number}"
    return ClaimResult(claim, outcome, number, tuple(lines))


def quick_adaptation(comparisons: Sequence[MethodComparison]) -> ClaimResult:
    """On top most of the time, and the gap to Default does not close."""
    claim = "MeLON adapts quickly: it leads over time, and its gap to plain fine-tuning grows"
    if not comparisons:
        return _absent(claim)
    parts: list[ClaimOutcome] = []
    lines, shares, growing, closing = [], [], 0, 0
    for comparison in comparisons:
        curves = {name: curve(comparison, name) for name in (REFERENCE, *comparison.strategies)}
        share = on_top(curves).get(OURS, 0.0)
        trend = slope(curves[OURS] - curves[REFERENCE], batch_sizes(comparison))
        shares.append(share)
        if trend is None:
            parts.append("not decided")
            lines.append(
                f"{where(comparison)}: on top of the strategies in {share:.0%} of the batches; too few for a trend"
            )
            continue
        leads, chance = share > 0.5, 1 / len(curves)
        growing, closing = growing + (trend.low > 0), closing + (trend.high < 0)
        part: ClaimOutcome = "not decided"
        if trend.high < 0 or (share < chance and trend.low <= 0):
            part = "not held"
        elif leads and trend.low > 0:
            part = "held"
        parts.append(part)
        lines.append(
            f"{where(comparison)}: on top of the strategies in {share:.0%} of {len(curves[OURS])} batches "
            f"(chance: {chance:.0%}), gap "
            f"{trend.per_100:+.3f} NDCG@10 per 100 batches [{trend.low:+.3f}, {trend.high:+.3f}]: {part}"
        )
    number = (
        f"the gap grows in {growing} and closes in {closing} of {counted(len(comparisons), 'comparison')}; on top of "
        f"the strategies in {np.mean(shares):.0%} of the batches on average"
    )
    return ClaimResult(claim, together(parts), number, tuple(lines))


def two_directions(comparisons: Sequence[MethodComparison], tests: PairedTests) -> ClaimResult:
    """Better than both one-directional versions of itself."""
    claim = "Two directions are needed: MeLON beats MeLON_I and MeLON_P"
    parts, lines, better = [], [], 0
    for comparison in comparisons:
        halves = [name for name in ("melon_i", "melon_p") if name in comparison.methods]
        if len(halves) < 2:
            continue
        compared = tests.against(comparison, OURS, halves)
        part = gain(compared.values())
        parts.append(part)
        better += part == "held"
        gaps = ", ".join(f"{_gap(half)} over {comparison.label(name)}" for name, half in compared.items())
        lines.append(f"{where(comparison)}: {gaps}: {part}")
    if not parts:
        return _absent(claim, "no comparison has melon, melon_i and melon_p")
    return ClaimResult(
        claim, together(parts), f"better than both in {better} of {counted(len(parts), 'comparison')}", tuple(lines)
    )


def affordable(comparisons: Sequence[MethodComparison]) -> ClaimResult:
    """Several updates a second."""
    claim = "MeLON is affordable: several updates a second"
    lines, rates = [], []
    for comparison in comparisons:
        taken = milliseconds(comparison, OURS)
        if taken is None:
            continue
        rates.append(1000 / taken)
        lines.append(f"{where(comparison)}: {taken:,.0f} ms per batch, {rates[-1]:,.1f} updates a second")
    if not rates:
        return _absent(claim, "no update of MeLON was timed")
    outcome: ClaimOutcome = "held" if min(rates) >= SEVERAL else "not held"
    return ClaimResult(
        claim, outcome, f"{min(rates):,.1f} updates a second where it is slowest (several: {SEVERAL:g})", tuple(lines)
    )


def both_paces(bench: Bench, comparisons: Sequence[MethodComparison], tests: PairedTests) -> ClaimResult:
    """Re-weighting ahead on slow streams, meta-optimisation on fast ones, MeLON not behind either on any."""
    claim = "Re-weighting suits slow streams, meta-optimisation fast ones, MeLON both"
    parts: list[ClaimOutcome] = []
    lines, paces, right, judged = [], set(), 0, 0
    for comparison in comparisons:
        one = [name for name in REWEIGHTING if name in comparison.methods]
        other = [name for name in META_OPTIMISATION if name in comparison.methods]
        if not one or not other:
            continue
        fast, pace = bench.fast(comparison.stream), bench.pace(comparison.stream)
        paces.add(pace)
        suited, unsuited = (other, one) if fast else (one, other)
        families = tests.groups(comparison, suited, unsuited)
        ahead = gain([families])
        rest = tests.against(comparison, OURS, suited)
        not_behind: ClaimOutcome = "not decided"
        if any(baseline.conclusion == "worse" for baseline in rest.values()):
            not_behind = "not held"
        elif all(baseline.conclusion in ("better", "no significant loss") for baseline in rest.values()):
            not_behind = "held"
        parts += [ahead, not_behind]
        right, judged = right + (ahead == "held"), judged + 1
        names = ("meta-optimisation", "re-weighting") if fast else ("re-weighting", "meta-optimisation")
        lines.append(
            f"{where(comparison)} ({pace}): {names[0]} {_gap(families)} over {names[1]}: {ahead}; "
            f"MeLON not behind it: {not_behind}"
        )
    if not parts:
        return _absent(claim, "no comparison has a strategy of both families (eALS, MWNet; MetaSGD, S2Meta, SML)")
    outcome = together(parts)
    number = f"the family that should lead does in {right} of {counted(judged, 'comparison')}"
    if outcome == "held" and len(paces) < 2:
        outcome = "not decided"
        number = f"only {paces.pop()} streams here, and the claim is about both kinds; {number}"
    return ClaimResult(claim, outcome, number, tuple(lines))


def _kin(name: str) -> bool:
    """Versions of MeLON itself are no baselines."""
    return name.startswith(OURS)


def _gap(compared: Compared) -> str:
    low, high = compared.difference.by_user
    return f"{compared.difference.difference:+.3f} HR@5 [{low:+.3f}, {high:+.3f}]"


def _absent(claim: str, why: str = "no comparison has melon") -> ClaimResult:
    return ClaimResult(claim, "not decided", why)


def batch_sizes(comparison: MethodComparison) -> Ints:
    """How many events of each batch the headline is about."""
    sizes: Ints = np.bincount(comparison.batches[comparison.judged], minlength=len(comparison.first["batches"]))
    return sizes


def on_top(curves: Mapping[str, Floats]) -> dict[str, float]:
    """The share of batches on which each is best; a batch that is tied counts for each of them in equal parts."""
    values = np.array(list(curves.values()))
    if not values.size:
        return {}
    complete: Flags = ~np.isnan(values).any(0)
    values = values[:, complete]
    if not values.shape[1]:
        return {}
    best = np.isclose(values, values.max(0), rtol=0, atol=1e-12)
    shares = (best / best.sum(0)).mean(1)
    return dict(zip(curves, map(float, shares), strict=True))


#: Fewer batches than this show no trend.
_FEWEST_BATCHES = 20


@dataclass(frozen=True)
class Slope:
    """How a gap changes over 100 batches, with its 95 % interval from the residuals (Student's t)."""

    per_100: float
    low: float
    high: float


def slope(gap: Floats, weights: Ints) -> Slope | None:
    """A straight line through the gap, batches weighted by their size; too few batches have none."""
    known = ~np.isnan(gap) & (weights > 0)
    n = int(known.sum())
    if n < _FEWEST_BATCHES:
        return None
    x, y = np.flatnonzero(known).astype(np.float64), gap[known]
    w = weights[known] / weights[known].mean()
    x_mean, y_mean = float(np.average(x, weights=w)), float(np.average(y, weights=w))
    spread = float((w * (x - x_mean) ** 2).sum())
    rise = float((w * (x - x_mean) * (y - y_mean)).sum()) / spread
    residuals = y - y_mean - rise * (x - x_mean)
    error = float(np.sqrt((w * residuals**2).sum() / (n - 2) / spread))
    half = t_quantile(n - 2) * error
    return Slope(100 * rise, 100 * (rise - half), 100 * (rise + half))


def t_quantile(degrees: int) -> float:
    """Student's t at 97.5 %, by the expansion of Cornish and Fisher: within 0.1 % from 18 degrees of freedom on."""
    first, second = (_Z**3 + _Z) / 4, (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    return _Z + first / degrees + second / degrees**2


#: The quantile of the normal distribution that leaves 2.5 % above it.
_Z = 1.959963984540054


PAPER = "the MeLON paper (AAAI 2022)"
#: The forms that `melon reproduce` runs, and their headings.
TITLES = {"published": "as published", "stream": "through the stream"}
_LEAD = (
    "As published: the preset paper of every strategy, which trains its own recommender jointly with its meta-model "
    "and goes on learning both online. Through the stream: all start at the tuned plain step on the same pre-trained "
    "recommender, are meta-trained through the end of the training part, and are then frozen. Default and eALS have "
    "nothing to meta-train, and are tuned there."
)
_MARKS: Mapping[ClaimOutcome, Mark] = {"held": "good", "not held": "bad", "not decided": "open"}
_BESIDE = ("frozen", "recent_popularity")


class FormRun(Run):
    """A record under the name of its strategy, whatever its preset: all records of a form have the same one."""

    @property
    def method(self) -> str:
        return str(self.record["strategy"])


def forms_of(folder: Path) -> dict[str, Bench]:
    """The benches of `melon reproduce` by form."""
    forms: dict[str, Bench] = {}
    for form in TITLES:
        sources = sorted(path for path in folder.glob(f"{form}-*") if (path / "bench.json").exists())
        if sources:
            bench = read_bench(sources)
            comparisons = tuple(
                replace(each, runs=tuple(FormRun(run.path, run.record) for run in each.runs))
                for each in bench.comparisons
            )
            forms[form] = replace(bench, comparisons=comparisons)
    if not forms:
        raise DataError(f"{folder} has no records of melon reproduce: {' or '.join(f'{name}-*' for name in TITLES)}.")
    return forms


def paper_report(document: Document, forms: Mapping[str, Bench], tests: PairedTests) -> Document:
    """A report with the sections about the paper in their places."""
    for section in (claims(forms, tests), like_with_like(forms, tests), elapsed(forms)):
        document = document.inserted(section, before="results")
    return document.inserted(Section("datasets", "Datasets", _STAND_INS, [datasets(forms)]), before="choices")


def claims(forms: Mapping[str, Bench], tests: PairedTests) -> Section:
    """The paper's claims, each judged for each form."""
    judged = {form: claim_results(bench, tests) for form, bench in forms.items()}
    rows = []
    for results in zip(*judged.values(), strict=True):
        verdicts = (TableCell(f"{result.outcome}: {result.number}", _MARKS[result.outcome]) for result in results)
        rows.append([TableCell(results[0].claim), *verdicts])
    table = ResultTable(["claim", *(TITLES[form] for form in forms)], rows, left=1 + len(forms))
    details = [
        Fold(f"The comparisons, {TITLES[form]}", [Bullets([f"{r.claim}: {line}" for r in results for line in r.lines])])
        for form, results in judged.items()
    ]
    lead = f"What {PAPER} claims, judged on these streams by the rules of this report, for both forms. {_LEAD}"
    return Section("claims", "The paper's claims", lead, [table, *details])


def like_with_like(forms: Mapping[str, Bench], tests: PairedTests) -> Section:
    """Every strategy in every form beside each other and beside the paper's number."""
    rows = []
    for stream, recommender in dict.fromkeys((c.stream, c.recommender) for b in forms.values() for c in b.main):
        here = {form: _find(bench, stream, recommender) for form, bench in forms.items()}
        methods = dict.fromkeys(m for c in here.values() if c for m in c.methods if m in _BESIDE or _is_strategy(m))
        about = _passes(here.get("published"))
        for method in methods:
            cells, theirs = list[TableCell](), _theirs(stream, recommender, method)
            for comparison in here.values():
                cells += _cells(comparison, method, tests)
            name = TableCell(PAPER_NAMES.get(method, label(method)), method=method)
            rows.append([TableCell(f"{stream} · {recommender_label(recommender)}{about}"), name, *cells, theirs])
    columns = [f"{title}, {what}" for form, title in TITLES.items() if form in forms for what in _COLUMNS]
    lead = (
        f"All as published, and all meta-trained through the stream. The last column is HR@5 in {PAPER}: from other data "
        "of the same kind, for Amazon the mean of three categories. It shows whether the same order comes out."
    )
    table = ResultTable(["", "method", *columns, "paper"], rows, _CAPTION, left=2, grouped=True)
    return Section("forms", "Like with like", lead, [table])


_COLUMNS = ("HR@5", "NDCG@10", "MeLON −")
_CAPTION = "“MeLON −” is MeLON's HR@5 minus this method's in the same form, with its 95 % interval by user."


def _cells(comparison: MethodComparison | None, method: str, tests: PairedTests) -> list[TableCell]:
    if comparison is None or method not in comparison.methods:
        return [TableCell("–")] * len(_COLUMNS)
    scores, gap = table_of(comparison, comparison.headline)[method], TableCell("–")
    if method != OURS and OURS in comparison.methods:
        compared = tests.against(comparison, OURS, [method])[method]
        gap = TableCell(_gap(compared).replace(" HR@5", ""))
    return [estimate_cell(scores.get("HR@5")), estimate_cell(scores.get("NDCG@10")), gap]


def _passes(comparison: MethodComparison | None) -> str:
    """How many passes the published form made."""
    epochs = {run.request.get("epochs") for run in comparison.runs} if comparison else set()
    return f" ({' or '.join(map(str, sorted(epochs)))} passes of the published form)" if epochs - {None} else ""


def _theirs(stream: str, recommender: str, method: str) -> TableCell:
    dataset = paper_table(stream) or ""
    found = RESULTS.get((dataset, recommender), {}).get(method, {}).get("HR@5")
    if found is None and recommender == "bpr":
        found = ABLATION.get(dataset, {}).get(method)
    return TableCell("–", "theirs") if found is None else TableCell(number(found[0]), "theirs", number(found[1]))


def _is_strategy(method: str) -> bool:
    return method in STRATEGIES.names()


def _find(bench: Bench, stream: str, recommender: str) -> MethodComparison | None:
    return next((c for c in bench.main if (c.stream, c.recommender) == (stream, recommender)), None)


def elapsed(forms: Mapping[str, Bench]) -> Section | None:
    """Milliseconds per online batch of both forms, and theirs."""
    rows = []
    for stream, recommender in dict.fromkeys((c.stream, c.recommender) for b in forms.values() for c in b.main):
        theirs = ELAPSED_MS.get((paper_table(stream) or "", recommender), {})
        for method in PAPER_NAMES:
            here = [_find(bench, stream, recommender) for bench in forms.values()]
            taken = [milliseconds(c, method) if c and method in c.methods else None for c in here]
            if any(value is not None for value in taken):
                known = theirs.get(method)
                rows.append(
                    [
                        TableCell(f"{stream} · {recommender_label(recommender)}"),
                        TableCell(PAPER_NAMES[method], method=method),
                        *(TableCell(milliseconds_text(value)) for value in taken),
                        TableCell("N/A" if known is None else f"{known:,}", "theirs"),
                    ]
                )
    lead = "Milliseconds per online batch, learning only. The paper's are from a Titan RTX."
    head = ["", "method", *(TITLES[form] for form in forms), "paper"]
    return Section("elapsed", "Elapsed time", lead, [ResultTable(head, rows, left=2, grouped=True)]) if rows else None


_STAND_INS = (
    "Ours stand in for theirs: other data of the same kind, and smaller. Cold users are those of the test part that the "
    "training part does not have."
)


def datasets(forms: Mapping[str, Bench]) -> ResultTable:
    """Ours and, below each, theirs."""
    rows, seen = [], set()
    for comparison in (comparison for bench in forms.values() for comparison in bench.comparisons):
        about = comparison.first["dataset"]
        if about["sha256"] in seen:
            continue
        seen.add(about["sha256"])
        rows.append(
            [
                TableCell(comparison.stream),
                *(TableCell(f"{about[name]:,}") for name in ("users", "items", "interactions")),
                TableCell(f"{comparison.first['cold']['users']:.1%}"),
                TableCell(f"{comparison.repeats.mean():.1%}"),
                TableCell(" : ".join(f"{100 * share:g}" for share in about["split"])),
                TableCell(f"{len(comparison.first['batches']):,}"),
            ]
        )
        theirs = paper_dataset(comparison.stream)
        if theirs is not None:
            counts = (f"{count:,}" for count in (theirs.users, theirs.items, theirs.interactions))
            split = " : ".join(f"{share:g}" for share in theirs.split)
            texts = [*counts, f"{theirs.cold_users} %", "–", split, f"≈ {theirs.test_batches}"]
            rows.append([TableCell(f"paper: {theirs.name}", "theirs"), *(TableCell(text, "theirs") for text in texts)])
    return ResultTable(
        ["", "users", "items", "interactions", "cold users", "repeats", "split, %", "test batches"], rows
    )


def main(folder: Path) -> str:
    """Write the report of a folder of `melon reproduce`, about the form through the stream where it was run."""
    forms = forms_of(folder)
    bench = forms.get("stream") or forms["published"]
    written = report_folders(
        bench.sources, folder / "report", lambda document, _, tests: paper_report(document, forms, tests)
    )
    return written.summary


if __name__ == "__main__":
    say(main(Path(sys.argv[1])))
