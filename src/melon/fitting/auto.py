"""`auto`: the whole configuration for people who do not want to choose one.

Its parts were settled on the selection windows of fast and slow streams alike: the `blend`, which weighs personal
scores, what is popular now, items like the user's last ones and what the user already had, updated by plain steps.
What has to differ from stream to stream is learned (the weighing) or chosen on the selection window (pre-training, the
length of a step, time decay).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from melon.types import Plain

AUTO = "auto"
#: How long `auto` chooses by default. On fewer than a few million interactions it is done well before.
MINUTES = 30.0
RECOMMENDER, STRATEGY = "blend", "default"
#: Settings of the blend in `auto`, unless a request decides them: further inputs of its head (docs/recommenders.md).
SETTINGS: Plain = {
    "inputs": ("profiles", "preferences", "own"),
    "transitions": True,
    "head_own_share": 0.2,
    "head_popular_share": 0.2,
}
_WHY = (
    "it learns how much weight the personal score, popular items and items similar to the user's last ones get, "
    "so it works on fast and slow streams"
)


def settle_auto(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request in which names that are left open, or given as `auto`, are filled in.

    With the strategy `auto`, time decay is searched and the time for choosing is limited, unless the request says so.
    """
    settled = dict(request)
    names = settled.get("recommender", AUTO), settled.get("strategy", AUTO)
    if names == (AUTO, AUTO):
        settled["auto"] = True
    if names[0] == AUTO:
        settled["recommender"] = RECOMMENDER
        settled["recommender_settings"] = {**SETTINGS, **(settled.get("recommender_settings") or {})}
    if names[1] == AUTO:
        settled["strategy"] = STRATEGY
        settled.setdefault("half_life", "auto")
        settled.setdefault("minutes", MINUTES)
    return settled


def why_auto(request: Mapping[str, Any], chosen: Mapping[str, Any], tried: int = 0) -> str | None:
    """One line on what `auto` took, out of how many trials, and why; None where everything was named."""
    if AUTO not in (request.get("recommender", AUTO), request.get("strategy", AUTO)):
        return None
    settled = settle_auto(request)
    settings = ", ".join(f"{name}={value}" for name, value in chosen.items() if value is not None)
    because = f": {_WHY}" if settled["recommender"] == RECOMMENDER else ""
    among = f"the best of {tried} tried" if tried > 1 else "chosen"
    how = f", {settings}, {among} on the selection window" if settings else ""
    return f"auto took {settled['recommender']} with {settled['strategy']}{how}{because}."
