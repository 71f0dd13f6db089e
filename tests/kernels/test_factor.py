"""A factorised score's compiled kernels beside PyTorch: scores, evidence, ties, absent rows, and what is not finite."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_choice import choose_kernel
from melon.models.bpr import BPR
from melon.models.evidence import Evidence, Examples, losses_by_evidence
from melon.models.factorisation import compiled_dots
from melon.models.ncf import NCF
from melon.tables import Clock, Table, TableSpec


def bpr(dtype: torch.dtype = torch.float32, users: int = 12, items: int = 15, **settings: Any) -> BPR:
    """Lively rows, the same in both number types."""
    made = BPR({"dim": 9, **settings}, dtype=dtype, seed=1)
    made.grow(users, np.arange(users), items, np.arange(items))
    generator = torch.Generator().manual_seed(2)
    for table in made.tables.values():
        rows = torch.arange(table.rows)
        table.scatter(rows, torch.randn(table.rows, table.spec.dim, generator=generator).to(dtype))
    return made


@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_pytorch(seed: int, lines: int, width: int) -> None:
    """Absent users and items among them, and rows that decay."""
    rng = np.random.default_rng(seed)
    users, items = torch.from_numpy(rng.integers(0, 16, lines)), torch.from_numpy(rng.integers(0, 20, (lines, width)))
    for half_life in (None, 7.0):
        found = []
        for choice in ("torch", "numba"):
            with pytest.MonkeyPatch.context() as patch:
                choose_kernel(patch, choice)
                model = bpr()
                model.clock.now = 20
                model.tables["item_factors"].half_life = half_life
                found.append(model.score(users, items))
        torch.testing.assert_close(found[0], found[1], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("half_life", [None, 7.0])
def test_dots_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch, half_life: float | None) -> None:
    """Distinct rows, one of them absent, are read where they stand; lines name them in any order, some twice."""
    generator = torch.Generator().manual_seed(0)
    clock = Clock()
    table = Table(TableSpec("rows", "item", "embedding", 9, 1.0), clock=clock)
    table.grow(11, np.arange(11))
    clock.now = 20
    table.scatter(torch.tensor([4, 2]), torch.randn(2, 9, generator=generator))
    clock.now, table.half_life = 30, half_life
    rows, named = torch.tensor([4, 9, 2, 0, 30]), torch.randint(0, 5, (7, 6), generator=generator)
    factors = torch.randn(7, 9, generator=generator)
    choose_kernel(monkeypatch, "numba")
    found = compiled_dots(factors, table, rows, named.numpy())
    assert found is not None
    torch.testing.assert_close(found, (table.gather(rows)[named] * factors[:, None]).sum(-1))
    assert not found[named == 4].any()
    assert compiled_dots(factors.double(), table, rows, named.numpy()) is None


def test_equal_rows_tie_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_kernel(monkeypatch, "numba")
    model = bpr(items=40)
    for name in ("item_factors", "item_bias"):
        table = model.tables[name]
        table.scatter(torch.arange(40), table.gather(torch.zeros(40, dtype=torch.int64)))
    scores = model.score(torch.arange(12), torch.arange(40).expand(12, -1))
    assert (scores == scores[:, :1]).all()


@pytest.mark.parametrize("loss", ["bpr", "squared", "bce"])
@pytest.mark.parametrize("negatives", [1, 3])
def test_evidence_is_that_of_pytorch(loss: str, negatives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(negatives)
    examples = Examples(
        torch.from_numpy(rng.integers(0, 12, 30)), torch.from_numpy(rng.integers(0, 15, (30, 1 + negatives)))
    )

    def found(choice: str, dtype: torch.dtype) -> Evidence:
        choose_kernel(monkeypatch, choice)
        model = bpr(dtype, loss=loss, negatives=negatives)
        return model.evidence({name: 3 * table.everything() for name, table in model.tables.items()}, examples)

    exact, quick = found("torch", torch.float64), found("numba", torch.float32)
    torch.testing.assert_close(quick.losses.double(), exact.losses, rtol=1e-5, atol=1e-6)
    assert [g.table for g in quick.gradients] == [g.table for g in exact.gradients]
    for one, other in zip(quick.row_gradients, exact.row_gradients, strict=True):
        assert torch.equal(one.positions, other.positions)
        torch.testing.assert_close(one.gradient.double(), other.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("margin", "loss"), [(0.0, 0.6931472), (90.0, 90.0), (-90.0, 0.0), (1e5, 1e5)])
def test_losses_are_finite_for_any_finite_score(margin: float, loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/methods.md 2.1: softplus, not the log of a sigmoid."""
    choose_kernel(monkeypatch, "numba")
    model = bpr()
    values = {name: torch.zeros_like(table.everything()) for name, table in model.tables.items()}
    values["item_bias"][1] = margin
    found = model.evidence(values, Examples(torch.tensor([0]), torch.tensor([[0, 1]])))
    assert float(found.losses) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(broken: float, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_kernel(monkeypatch, "numba")
    model = bpr()
    values = {name: table.everything().clone() for name, table in model.tables.items()}
    values["user_factors"][3, 2] = broken
    found = model.evidence(values, Examples(torch.tensor([1, 3]), torch.tensor([[0, 1], [0, 1]])))
    assert torch.isfinite(found.losses).tolist()[0]
    assert not torch.isfinite(found.row_gradients[1].gradient[1]).all()


@pytest.mark.parametrize("make", [BPR, NCF])
def test_losses_by_evidence_have_the_gradient_of_the_losses(make: type) -> None:
    model = make({"dim": 4}, dtype=torch.float64, seed=3)
    model.grow(6, np.arange(6), 8, np.arange(8))
    rng = np.random.default_rng(0)
    examples = Examples(torch.from_numpy(rng.integers(0, 6, 11)), torch.from_numpy(rng.integers(0, 8, (11, 2))))
    weights, found = torch.from_numpy(rng.normal(size=11)), []
    for losses_of in (model.losses, lambda *given: losses_by_evidence(model, *given), model.losses_once):
        values = {name: t.everything().detach().clone().requires_grad_() for name, t in model.tables.items()}
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
