"""Scenes for compiled kernels: a recommender of ordinary size with a past, and whole steps with and without them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from learned_scenes import look_ahead_of

from kernel_choice import choose_kernel
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.learned import LearnedStrategy
from melon.stream.batch import Batch
from melon.stream.history import History
from situations import assert_close


def updater_with_a_past(kind: str, strategy: LearnedStrategy) -> tuple[Updater, Batch]:
    """The updater, and the batch that comes next."""
    rng = np.random.default_rng(0)
    recommender = BPR({"dim": 32}) if kind == "bpr" else NCF({"dim": 16, "layers": (24, 16)})
    recommender.grow(60, np.arange(60), 80, np.arange(80))
    history, nothing = History(), np.empty(0, dtype=np.int64)
    history.keep_everything(nothing, nothing)
    history.append(rng.integers(0, 60, 400), rng.integers(0, 80, 400))
    return Updater(recommender, strategy, history), next_batch(history, rng)


def next_batch(history: History, rng: np.random.Generator) -> Batch:
    users, items = rng.integers(0, 60, 48), rng.integers(0, 80, 48)
    return Batch(history.events, users, items, np.full(48, history.events), users, items)


def require_whole_steps_agree(
    kind: str, made: Callable[[], LearnedStrategy], monkeypatch: pytest.MonkeyPatch, *, trained: bool, atol: float
) -> None:
    """Issue 5: meta-gradients to 1e-5 of the largest, parameters to 2e-5 (and `atol`), row state likewise."""
    found = []
    for asked in ("torch", "numba"):
        choose_kernel(monkeypatch, "torch")
        updater, batch = updater_with_a_past(kind, made())
        rng = np.random.default_rng(5)
        for _ in range(6 if trained else 0):
            updater.learn(batch)
            batch = next_batch(updater.history, rng)
        choose_kernel(monkeypatch, asked)
        situation, meta_loss = look_ahead_of(updater, batch)
        gradients, loss = updater.strategy.meta_gradient(situation, meta_loss)  # type: ignore[attr-defined]
        proposal = updater.strategy.propose(replace(situation, reach=None))
        kept = {f"{table} {key}": each for table, held in proposal.row_state.items() for key, each in held.items()}
        found.append((gradients, loss, {**proposal.values, **kept}))
    (exact, loss, values), (gradients, loss_too, values_too) = found
    assert float(loss_too) == pytest.approx(float(loss), rel=1e-5)
    for name, gradient in gradients.items():
        apart = (gradient - exact[name]).abs().max() / max(float(exact[name].abs().max()), 1e-7)
        assert float(apart) < 2e-5, (name, float(apart))  # two ways of rounding in float32
    for name, table in values_too.items():
        assert_close(table, values[name], rtol=2e-5, atol=atol, msg=name)
