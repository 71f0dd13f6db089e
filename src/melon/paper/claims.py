"""The claims of the MeLON paper (AAAI 2022), each judged by our numbers: held, not held, or not decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from melon.display import counted, label
from melon.report.contests import REFERENCE, Bench, Contest
from melon.report.numbers import Compared, Comparisons, batch_sizes, curve, milliseconds, on_top, slope
from melon.report.results import where

ClaimOutcome = Literal["held", "not held", "not decided"]
OURS = "melon"
REWEIGHTING = ("eals", "mwnet")
META_OPTIMISATION = ("metasgd", "s2meta", "sml")
#: "Several updates a second", as a number; the paper's slowest MeLON has 3.8.
SEVERAL = 3.0


@dataclass(frozen=True)
class ClaimResult:
    """A claim's outcome, the number that decides it, and a line for each contest."""

    claim: str
    outcome: ClaimOutcome
    number: str
    lines: tuple[str, ...] = ()


def claim_results(bench: Bench, comparisons: Comparisons) -> list[ClaimResult]:
    """All five claims, on the contests of the main arrangement."""
    contests = [contest for contest in bench.main if OURS in contest.methods]
    return [
        consistent_gains(contests, comparisons),
        quick_adaptation(contests),
        two_directions(contests, comparisons),
        affordable(contests),
        both_paces(bench, contests, comparisons),
    ]


def together(parts: Iterable[ClaimOutcome]) -> ClaimOutcome:
    """A claim about all cases fails with one that fails, and stays open with one that is open."""
    outcomes = list(parts)
    if "not held" in outcomes:
        return "not held"
    return "held" if outcomes and all(part == "held" for part in outcomes) else "not decided"


def gain(compared: Iterable[Compared]) -> ClaimOutcome:
    """Better than each; a single rival against whom a gain is ruled out is enough to fail."""
    rivals = list(compared)
    if any(rival.verdict == "worse" or rival.no_gain for rival in rivals):
        return "not held"
    return "held" if rivals and all(rival.verdict == "better" for rival in rivals) else "not decided"


def consistent_gains(contests: Sequence[Contest], comparisons: Comparisons) -> ClaimResult:
    """Better than every rival, on every stream and recommender."""
    claim = "MeLON gains consistently, over datasets and recommenders"
    if not contests:
        return _absent(claim)
    parts, lines, over_default, over_recent = [], [], 0, 0
    met: set[str] = set()
    for contest in contests:
        rivals = [name for name in (REFERENCE, *contest.strategies) if name != OURS and not _kin(name)]
        compared = comparisons.against(contest, OURS, rivals)
        part = gain(compared.values())
        parts.append(part)
        met |= compared.keys()
        recent = comparisons.against(contest, OURS, ["recent_popularity"])["recent_popularity"]
        over_default += compared[REFERENCE].verdict == "better"
        over_recent += recent.verdict == "better"
        hardest = min(compared, key=lambda name, of=compared: of[name].difference.difference)  # type: ignore[misc]
        lines.append(
            f"{where(contest)}: {_gap(compared[hardest])} over its hardest rival, {contest.label(hardest)}: {part}"
        )
    streams, recommenders = ({getattr(c, name) for c in contests} for name in ("stream", "recommender"))
    outcome = together(parts)
    counts = (("stream", streams), ("recommender", recommenders), ("rival", met))
    few = [text for text, seen in counts if len(seen) < 2]
    number = (
        f"better than every rival in {parts.count('held')} of {counted(len(parts), 'contest')}; than "
        f"{label(REFERENCE)} in {over_default}, than recent popularity in {over_recent}"
    )
    if few and outcome == "held":
        outcome = "not decided"
        number = f"only one {' and one '.join(few)} here, too few for a claim about all of them; {number}"
    return ClaimResult(claim, outcome, number, tuple(lines))


def quick_adaptation(contests: Sequence[Contest]) -> ClaimResult:
    """On top most of the time, and the gap to Default does not close."""
    claim = "MeLON adapts quickly: it leads over time, and its gap to plain fine-tuning grows"
    if not contests:
        return _absent(claim)
    parts: list[ClaimOutcome] = []
    lines, shares, growing, closing = [], [], 0, 0
    for contest in contests:
        curves = {name: curve(contest, name) for name in (REFERENCE, *contest.strategies)}
        share = on_top(curves).get(OURS, 0.0)
        trend = slope(curves[OURS] - curves[REFERENCE], batch_sizes(contest))
        shares.append(share)
        if trend is None:
            parts.append("not decided")
            lines.append(f"{where(contest)}: on top in {share:.0%} of the batches; too few of them for a trend")
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
            f"{where(contest)}: on top in {share:.0%} of {len(curves[OURS])} batches (chance: {chance:.0%}), gap "
            f"{trend.per_100:+.3f} NDCG@10 per 100 batches [{trend.low:+.3f}, {trend.high:+.3f}]: {part}"
        )
    number = (
        f"the gap grows in {growing} and closes in {closing} of {counted(len(contests), 'contest')}; on top in "
        f"{np.mean(shares):.0%} of the batches on average"
    )
    return ClaimResult(claim, together(parts), number, tuple(lines))


def two_directions(contests: Sequence[Contest], comparisons: Comparisons) -> ClaimResult:
    """Better than both one-directional versions of itself."""
    claim = "Two directions are needed: MeLON beats MeLON_I and MeLON_P"
    parts, lines, better = [], [], 0
    for contest in contests:
        halves = [name for name in ("melon_i", "melon_p") if name in contest.methods]
        if len(halves) < 2:
            continue
        compared = comparisons.against(contest, OURS, halves)
        part = gain(compared.values())
        parts.append(part)
        better += part == "held"
        gaps = ", ".join(f"{_gap(half)} over {contest.label(name)}" for name, half in compared.items())
        lines.append(f"{where(contest)}: {gaps}: {part}")
    if not parts:
        return _absent(claim, "no contest has melon, melon_i and melon_p")
    return ClaimResult(
        claim, together(parts), f"better than both in {better} of {counted(len(parts), 'contest')}", tuple(lines)
    )


def affordable(contests: Sequence[Contest]) -> ClaimResult:
    """Several updates a second."""
    claim = "MeLON is affordable: several updates a second"
    lines, rates = [], []
    for contest in contests:
        taken = milliseconds(contest, OURS)
        if taken is None:
            continue
        rates.append(1000 / taken)
        lines.append(f"{where(contest)}: {taken:,.0f} ms per batch, {rates[-1]:,.1f} updates a second")
    if not rates:
        return _absent(claim, "no update of MeLON was timed")
    outcome: ClaimOutcome = "held" if min(rates) >= SEVERAL else "not held"
    return ClaimResult(
        claim, outcome, f"{min(rates):,.1f} updates a second where it is slowest (several: {SEVERAL:g})", tuple(lines)
    )


def both_paces(bench: Bench, contests: Sequence[Contest], comparisons: Comparisons) -> ClaimResult:
    """Re-weighting ahead on slow streams, meta-optimisation on fast ones, MeLON not behind either on any."""
    claim = "Re-weighting suits slow streams, meta-optimisation fast ones, MeLON both"
    parts: list[ClaimOutcome] = []
    lines, paces, right, judged = [], set(), 0, 0
    for contest in contests:
        one = [name for name in REWEIGHTING if name in contest.methods]
        other = [name for name in META_OPTIMISATION if name in contest.methods]
        if not one or not other:
            continue
        fast, pace = bench.fast(contest.stream), bench.pace(contest.stream)
        paces.add(pace)
        suited, unsuited = (other, one) if fast else (one, other)
        families = comparisons.groups(contest, suited, unsuited)
        ahead = gain([families])
        rest = comparisons.against(contest, OURS, suited)
        level: ClaimOutcome = "not decided"
        if any(rival.verdict == "worse" for rival in rest.values()):
            level = "not held"
        elif all(rival.verdict in ("better", "level or better") for rival in rest.values()):
            level = "held"
        parts += [ahead, level]
        right, judged = right + (ahead == "held"), judged + 1
        names = ("meta-optimisation", "re-weighting") if fast else ("re-weighting", "meta-optimisation")
        lines.append(
            f"{where(contest)} ({pace}): {names[0]} {_gap(families)} over {names[1]}: {ahead}; "
            f"MeLON not behind it: {level}"
        )
    if not parts:
        return _absent(claim, "no contest has a strategy of both families (eALS, MWNet; MetaSGD, S2Meta, SML)")
    outcome = together(parts)
    number = f"the family that should lead does in {right} of {counted(judged, 'contest')}"
    if outcome == "held" and len(paces) < 2:
        outcome = "not decided"
        number = f"only {paces.pop()} streams here, and the claim is about both kinds; {number}"
    return ClaimResult(claim, outcome, number, tuple(lines))


def _kin(name: str) -> bool:
    """Versions of MeLON itself are no rivals."""
    return name.startswith(OURS)


def _gap(compared: Compared) -> str:
    low, high = compared.difference.by_user
    return f"{compared.difference.difference:+.3f} HR@5 [{low:+.3f}, {high:+.3f}]"


def _absent(claim: str, why: str = "no contest has melon") -> ClaimResult:
    return ClaimResult(claim, "not decided", why)
