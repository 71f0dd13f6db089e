"""Whole steps of MeLON: compiled kernels and PyTorch agree, and the kernels get the threads."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kernel_scenes import require_whole_steps_agree

from kernel_choice import choose_kernel
from melon.learning.updater import Updater
from melon.models.ncf import NCF
from melon.strategies.melon.strategy import NetworkMeLON
from melon.testing.toys import toy_batches

MELON: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {"shared_forgetting": True, "norm": "none", "rate_bias": -4.5},
    "pairwise": {"pairwise": True},
    "without theta": {"theta_feature": False},
    "half_life": {"half_life": 50.0},
}


def sweep(options: dict[str, dict[str, Any]], *quick: tuple[str, str, bool]) -> list[Any]:
    """Every recommender with every setting, as drawn and trained; all but a few of them are slow."""
    cases = [(kind, option, trained) for kind in ("bpr", "ncf") for option in options for trained in (False, True)]
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]


@pytest.mark.parametrize(
    ("kind", "option", "trained"),
    sweep(MELON, ("bpr", "default", True), ("ncf", "default", False)),
)
def test_steps_of_melon_agree(kind: str, option: str, trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**MELON[option], "meta_lr": 0.02}
    require_whole_steps_agree(kind, lambda: NetworkMeLON(settings), monkeypatch, trained=trained, atol=2e-6)


@pytest.fixture
def allowed() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("kernel", "given"), [("numba", 1), ("torch", 2)])
def test_a_step_leaves_pytorch_one_thread_where_a_kernel_serves(
    kernel: str, given: int, allowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_kernel(monkeypatch, kernel)
    allowed(2)
    recommender = NCF({"dim": 4, "layers": (4, 3)}, seed=1)
    updater, met = Updater(recommender, NetworkMeLON(), seed=1), []
    evidence = recommender.evidence

    def seen(*given: Any, **more: Any) -> Any:
        met.append(torch.get_num_threads())
        return evidence(*given, **more)

    monkeypatch.setattr(recommender, "evidence", seen)
    for batch in toy_batches()[:2]:
        updater.learn(batch)
    assert set(met) == {given}
    assert torch.get_num_threads() == 2
