"""A factorised score's compiled kernels beside PyTorch: scores, evidence, ties, absent rows, and what is not finite."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_choice import choose_kernel
from melon.models.bpr import BPR
from melon.models.evidence import Examples, losses_by_evidence
from melon.models.ncf import NCF


def bpr(dtype: Any = np.float32, users: int = 12, items: int = 15, **settings: Any) -> BPR:
    """Lively rows, the same in both number types."""
    made = BPR({"dim": 9, **settings}, dtype=dtype, seed=1)
    made.grow(users, np.arange(users), items, np.arange(items))
    generator = np.random.default_rng(2)
    for table in made.tables.values():
        drawn = generator.normal(size=(table.rows, table.spec.dim)).astype(np.float32)
        table.scatter(np.arange(table.rows), drawn)
    return made


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_numpy(seed: int, lines: int, width: int) -> None:
    """In double precision; absent users and items among them, and rows that decay."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(0, 16, lines), rng.integers(0, 20, (lines, width))
    for half_life in (None, 7.0):
        found = []
        for dtype in (np.float64, np.float32):
            model = bpr(dtype)
            model.clock.now = 20
            for table in model.tables.values():
                table.half_life = half_life
            found.append(model.score(users, items))
        np.testing.assert_allclose(found[1], found[0], rtol=2e-6, atol=4e-6)


def test_equal_rows_tie_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_kernel(monkeypatch, "numba")
    model = bpr(items=40)
    for name in ("item_factors", "item_bias"):
        table = model.tables[name]
        table.scatter(np.arange(40), table.gather(np.zeros(40, dtype=np.int64)))
    scores = model.score(np.arange(12), np.tile(np.arange(40), (12, 1)))
    assert (scores == scores[:, :1]).all()


@pytest.mark.parametrize("make", [BPR, NCF])
def test_losses_by_evidence_have_the_gradient_of_the_losses(make: type) -> None:
    made = make({"dim": 4}, dtype=np.float64, seed=3)
    made.grow(6, np.arange(6), 8, np.arange(8))
    rng = np.random.default_rng(0)
    examples = Examples(torch.from_numpy(rng.integers(0, 6, 11)), torch.from_numpy(rng.integers(0, 8, (11, 2))))
    weights, found, model = torch.from_numpy(rng.normal(size=11)), [], made.differentiable()
    for losses_of in (model.losses, lambda *given: losses_by_evidence(model, *given), model.losses_once):
        values = {name: torch.from_numpy(t.everything().copy()).requires_grad_() for name, t in made.tables.items()}
        losses = losses_of(values, examples)
        slopes = torch.autograd.grad((losses * weights).sum(), list(values.values()), allow_unused=True)
        found.append((losses.detach(), dict(zip(values, slopes, strict=True))))
    for losses, slopes in found[1:]:
        torch.testing.assert_close(losses, found[0][0])
        for name, slope in slopes.items():
            wanted = found[0][1][name]
            if slope is None:  # a user's bias cancels in a pairwise loss
                assert wanted is None or float(wanted.abs().max()) < 1e-12
            else:
                torch.testing.assert_close(slope, wanted, msg=name)
