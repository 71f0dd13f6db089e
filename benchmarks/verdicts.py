"""Comparisons in a benchmark: their intervals, and what docs/methods.md 5.8 allows to claim."""

from __future__ import annotations

from collections.abc import Mapping

from melon.evaluation.compare import Comparison, verdicts

#: The loss that "level or better" rules out, by stream.
MARGINS = {"news_globo": 0.005}
USUAL_MARGIN = 0.015


def show_verdicts(title: str, families: Mapping[str, Mapping[str, Comparison]]) -> None:
    """A row for each comparison, its label under the title; Holm's correction is within each stream's family."""
    print(f"\n| {title} | difference | 95 % by user | by item | se over seeds | verdict |")
    print("|---" * (title.count("|") + 6) + "|")
    for stream, family in families.items():
        verdict = verdicts(family, MARGINS.get(stream, USUAL_MARGIN))
        for label, each in family.items():
            error = "–" if each.seed_error is None else f"{each.seed_error:.4f}"
            by_user, by_item = (f"{low:+.4f} … {high:+.4f}" for low, high in (each.by_user, each.by_item))
            print(f"| {label} | {each.difference:+.4f} | {by_user} | {by_item} | {error} | {verdict[label]} |")
