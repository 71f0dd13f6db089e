"""Whole steps of MeLON: compiled kernels and PyTorch agree, and the kernels get the threads."""

from typing import Any

import pytest
from kernel_scenes import require_whole_steps_agree

from melon.strategies.melon.published import PublishedMeLON

MELON: dict[str, dict[str, Any]] = {
    "paper": {},
    "no forgetting": {"forgetting": False},
    "half_life": {"half_life": 50.0},
}


def sweep(options: dict[str, dict[str, Any]], *quick: tuple[str, str, bool]) -> list[Any]:
    """Every recommender with every setting, as drawn and trained; all but a few of them are slow."""
    cases = [(kind, option, trained) for kind in ("bpr", "ncf") for option in options for trained in (False, True)]
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("kind", "option", "trained"),
    sweep(MELON, ("bpr", "paper", True), ("ncf", "paper", False)),
)
def test_steps_of_melon_agree(kind: str, option: str, trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**MELON[option], "meta_lr": 0.02}
    require_whole_steps_agree(kind, lambda: PublishedMeLON(settings), monkeypatch, trained=trained, atol=2e-6)
