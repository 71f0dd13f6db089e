"""The paper's claims, each judged by our numbers: held, not held, or not decided by this data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from melon.report.comparing import REFERENCE, Compared, Comparisons
from melon.report.contests import Bench, Contest
from melon.report.numbers import batch_sizes, curve, milliseconds, on_top, slope

Outcome = Literal["held", "not held", "not decided"]
OURS = "melon"
REWEIGHTING = ("eals", "mwnet")
META_OPTIMISATION = ("metasgd", "s2meta", "sml")
#: "Several updates a second", as a number; the paper's slowest MeLON has 3.8.
SEVERAL = 3.0


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, and the numbers that say so."""

    claim: str
    outcome: Outcome
    number: str
    lines: tuple[str, ...] = ()


def verdicts(bench: Bench, comparisons: Comparisons) -> list[Verdict]:
    """All five claims, on the contests of the main arrangement."""
    contests = [contest for contest in bench.main if OURS in contest.methods]
    return [
        consistent_gains(contests, comparisons),
        quick_adaptation(contests),
        two_directions(contests, comparisons),
        affordable(contests),
        both_paces(contests, comparisons),
    ]


def where(contest: Contest) -> str:
    """A contest in words."""
    return f"{contest.stream}, {contest.recommender.upper()}"


def together(parts: Iterable[Outcome]) -> Outcome:
    """A claim about all cases: one that fails sinks it, one that is open leaves it open."""
    found = list(parts)
    if "not held" in found:
        return "not held"
    return "held" if found and all(part == "held" for part in found) else "not decided"


def gain(found: Iterable[Compared]) -> Outcome:
    """Better than each; a single rival against whom a gain is ruled out is enough to fail."""
    each = list(found)
    if any(one.standing == "worse" or one.no_gain for one in each):
        return "not held"
    return "held" if each and all(one.standing == "better" for one in each) else "not decided"


def consistent_gains(contests: Sequence[Contest], comparisons: Comparisons) -> Verdict:
    """Better than every rival, on every stream and recommender."""
    claim = "MeLON gains consistently, over datasets and recommenders"
    if not contests:
        return _absent(claim)
    parts, lines, over_default, over_recent = [], [], 0, 0
    met: set[str] = set()
    for contest in contests:
        rivals = [name for name in (REFERENCE, *contest.strategies) if name != OURS and not _kin(name)]
        found = comparisons.against(contest, OURS, rivals)
        part = gain(found.values())
        parts.append(part)
        met |= found.keys()
        recent = comparisons.against(contest, OURS, ["recent_popularity"])["recent_popularity"]
        over_default += found[REFERENCE].standing == "better"
        over_recent += recent.standing == "better"
        hardest = min(found, key=lambda name: found[name].difference.difference)
        lines.append(f"{where(contest)}: {_gap(found[hardest])} over its hardest rival, {hardest}: {part}")
    streams, recommenders = ({getattr(c, name) for c in contests} for name in ("stream", "recommender"))
    outcome = together(parts)
    counts = (("stream", streams), ("recommender", recommenders), ("rival", met))
    few = [text for text, seen in counts if len(seen) < 2]
    if few:
        lines.append(f"only one {' and one '.join(few)} here, where the claim is about all of them")
        outcome = "not decided" if outcome == "held" else outcome
    number = (
        f"better than every rival in {parts.count('held')} of {_counted(len(parts), 'contest')}; than tuned Default in "
        f"{over_default}, than recent popularity in {over_recent}"
    )
    return Verdict(claim, outcome, number, tuple(lines))


def quick_adaptation(contests: Sequence[Contest]) -> Verdict:
    """On top most of the time, and the gap to Default does not close."""
    claim = "MeLON adapts quickly: it leads over time, and its gap to Default grows"
    if not contests:
        return _absent(claim)
    parts: list[Outcome] = []
    lines, shares = [], []
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
        part: Outcome = "not decided"
        if trend.high < 0 or (share < chance and trend.low <= 0):
            part = "not held"
        elif leads and trend.low > 0:
            part = "held"
        parts.append(part)
        lines.append(
            f"{where(contest)}: on top in {share:.0%} of {len(curves[OURS])} batches (chance: {chance:.0%}), gap "
            f"{trend.per_100:+.3f} NDCG@10 per 100 batches [{trend.low:+.3f}, {trend.high:+.3f}]: {part}"
        )
    number = f"on top in {np.mean(shares):.0%} of the batches on average over {_counted(len(contests), 'contest')}"
    return Verdict(claim, together(parts), number, tuple(lines))


def two_directions(contests: Sequence[Contest], comparisons: Comparisons) -> Verdict:
    """Better than both one-directional versions of itself."""
    claim = "Two directions are needed: MeLON beats MeLON_I and MeLON_P"
    parts, lines, better = [], [], 0
    for contest in contests:
        halves = [name for name in ("melon_i", "melon_p") if name in contest.methods]
        if len(halves) < 2:
            continue
        found = comparisons.against(contest, OURS, halves)
        part = gain(found.values())
        parts.append(part)
        better += part == "held"
        told = ", ".join(f"{_gap(each)} over {name}" for name, each in found.items())
        lines.append(f"{where(contest)}: {told}: {part}")
    if not parts:
        return _absent(claim, "no contest has melon, melon_i and melon_p")
    return Verdict(
        claim, together(parts), f"better than both in {better} of {_counted(len(parts), 'contest')}", tuple(lines)
    )


def affordable(contests: Sequence[Contest]) -> Verdict:
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
    outcome: Outcome = "held" if min(rates) >= SEVERAL else "not held"
    return Verdict(
        claim, outcome, f"{min(rates):,.1f} updates a second where it is slowest (several: {SEVERAL:g})", tuple(lines)
    )


def both_paces(contests: Sequence[Contest], comparisons: Comparisons) -> Verdict:
    """Re-weighting ahead on slow streams, meta-optimisation on fast ones, MeLON not behind either on any."""
    claim = "Re-weighting suits slow streams, meta-optimisation fast ones, MeLON both"
    parts: list[Outcome] = []
    lines, paces, right, judged = [], set(), 0, 0
    for contest in contests:
        one = [name for name in REWEIGHTING if name in contest.methods]
        other = [name for name in META_OPTIMISATION if name in contest.methods]
        if not one or not other:
            continue
        pace = "fast" if contest.fast else "slow"
        paces.add(pace)
        suited, unsuited = (other, one) if contest.fast else (one, other)
        families = comparisons.groups(contest, suited, unsuited)
        ahead = gain([families])
        rest = comparisons.against(contest, OURS, suited)
        level: Outcome = "not decided"
        if any(each.standing == "worse" for each in rest.values()):
            level = "not held"
        elif all(each.standing in ("better", "not worse") for each in rest.values()):
            level = "held"
        parts += [ahead, level]
        right, judged = right + (ahead == "held"), judged + 1
        names = ("meta-optimisation", "re-weighting") if contest.fast else ("re-weighting", "meta-optimisation")
        lines.append(
            f"{where(contest)} ({pace}): {names[0]} {_gap(families)} over {names[1]}: {ahead}; "
            f"MeLON not behind it: {level}"
        )
    if not parts:
        return _absent(claim, "no contest has a strategy of both families (eALS, MWNet; MetaSGD, S2Meta, SML)")
    outcome = together(parts)
    if outcome == "held" and len(paces) < 2:
        outcome = "not decided"
        lines.append(f"only {paces.pop()} streams: the claim is about both")
    number = f"the family that should lead does in {right} of {_counted(judged, 'contest')}"
    return Verdict(claim, outcome, number, tuple(lines))


def _kin(name: str) -> bool:
    """Versions of MeLON itself are no rivals."""
    return name.startswith(OURS)


def _gap(found: Compared) -> str:
    low, high = found.difference.by_user
    return f"{found.difference.difference:+.3f} HR@5 [{low:+.3f}, {high:+.3f}]"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _absent(claim: str, why: str = "no contest has melon") -> Verdict:
    return Verdict(claim, "not decided", why)
