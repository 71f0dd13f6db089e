"""Per-interaction gradients: closed forms, the general path and a plain loop over interactions are one and the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from melon.models.autograd import Differentiable
from melon.models.bpr import BPR
from melon.models.evidence import (
    Evidence,
    Examples,
    Gradient,
    RowGradient,
    evidence_by_autograd,
)
from melon.models.losses import BPRLoss, CrossEntropyLoss, Loss, SquaredLoss
from melon.models.ncf import NCF


class Softmax(Loss):
    """A user's own: cross-entropy of the taken item among those offered."""

    shift_invariant = True

    def __call__(self, scores: Tensor) -> Tensor:
        return -torch.log_softmax(scores, -1)[..., 0]


class Absolute(Loss):
    """A user's own, and not shift-invariant: smooth |1 − s⁺| + |s⁻|."""

    def __call__(self, scores: Tensor) -> Tensor:
        return torch.sqrt(1e-2 + (1 - scores[..., 0]) ** 2) + torch.sqrt(1e-2 + scores[..., 1:] ** 2).sum(-1)


LOSSES = {"bpr": BPRLoss, "squared": SquaredLoss, "bce": CrossEntropyLoss, "softmax": Softmax, "absolute": Absolute}
USERS, ITEMS = 3, 4


def make(kind: str, loss: str, dim: int) -> Differentiable:
    if kind == "bpr":
        return BPR({"dim": dim}, loss=LOSSES[loss](), dtype=np.float64).differentiable()
    return NCF({"dim": dim, "layers": (dim + 2, dim + 1, dim)}, loss=LOSSES[loss](), dtype=np.float64)


def values_of(recommender: Differentiable, seed: int) -> dict[str, Tensor]:
    generator, sizes = torch.Generator().manual_seed(seed), {"user": USERS, "item": ITEMS}
    return {
        spec.name: torch.randn(sizes.get(spec.role, spec.rows), spec.dim, generator=generator, dtype=torch.float64)
        for spec in recommender.specs
    }


def loop(
    recommender: Differentiable, values: dict[str, Tensor], examples: Examples
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses, and for each table n × rows × dim: one backward pass after another."""
    losses, gradients = [], {name: [] for name in values}
    for x in range(len(examples)):
        free = {name: tensor.clone().requires_grad_() for name, tensor in values.items()}
        users = examples.users[x].expand(examples.items.shape[1])
        loss = recommender.loss(recommender.scores(free, users, examples.items[x]).unsqueeze(0))[0]
        found = torch.autograd.grad(loss, list(free.values()), allow_unused=True)
        losses.append(loss.detach())
        for name, gradient in zip(free, found, strict=True):
            gradients[name].append(torch.zeros_like(values[name]) if gradient is None else gradient)
    return torch.stack(losses), {name: torch.stack(lines) for name, lines in gradients.items()}


def by_row(gradient: Gradient, rows: int) -> Tensor:
    """n × rows × dim, whatever the form."""
    if not isinstance(gradient, RowGradient):
        return gradient.expand()
    n, _, dim = gradient.gradient.shape
    out = gradient.gradient.new_zeros((n, rows, dim))
    for x in range(n):
        for slot, row in enumerate(gradient.positions[x].tolist()):
            out[x, row] += gradient.gradient[x, slot]
    return out


#: torch's softplus is linear from 20 on, so its slope differs from the exact one by up to e⁻²⁰.
NEAR = {"rtol": 1e-7, "atol": 1e-7}


@st.composite
def examples(draw: st.DrawFn) -> Examples:
    n, negatives = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    users = draw(st.lists(st.integers(0, USERS - 1), min_size=n, max_size=n))
    line = st.lists(st.integers(0, ITEMS - 1), min_size=1 + negatives, max_size=1 + negatives)
    items = draw(st.lists(line, min_size=n, max_size=n))
    return Examples(torch.tensor(users), torch.tensor(items))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["bpr", "ncf"])
@given(batch=examples(), dim=st.integers(1, 5), seed=st.integers(0, 100))
@settings(max_examples=12)
def test_closed_form_general_path_and_loop_agree(kind: str, loss: str, batch: Examples, dim: int, seed: int) -> None:
    recommender = make(kind, loss, dim)
    values = values_of(recommender, seed)
    losses, gradients = loop(recommender, values, batch)
    assert torch.allclose(recommender.losses(values, batch), losses, rtol=1e-10)
    with torch.no_grad():
        both: list[Evidence] = [recommender.evidence(values, batch), evidence_by_autograd(recommender, values, batch)]
    for evidence in both:
        assert torch.allclose(evidence.losses, losses, rtol=1e-10)
        learned = {spec.name for spec in recommender.specs if recommender.learns(spec)}
        assert {gradient.table for gradient in evidence.gradients} == learned
        assert len(evidence.gradients) == len(learned)
        for gradient in evidence.gradients:
            rows = len(values[gradient.table])
            assert torch.allclose(by_row(gradient, rows), gradients[gradient.table], **NEAR)
            check_views(gradient, gradients[gradient.table])
        for name in values.keys() - learned:
            # Where a table is not taught, there is nothing to teach it: docs/methods.md 2.1, ∂L/∂bU = 0.
            assert gradients[name].abs().max() < 1e-12


def check_views(gradient: Gradient, lines: Tensor) -> None:
    """`summed`, `dot` and `touches` say what the spelled-out gradient says."""
    n, rows, dim = lines.shape
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(n, generator=generator, dtype=torch.float64)
    direction = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    assert torch.allclose(gradient.summed(rows), lines.sum(0), **NEAR)
    weighted = (weights[:, None, None] * lines).sum(0)
    assert torch.allclose(gradient.summed(rows, weights), weighted, **NEAR)
    assert torch.allclose(gradient.dot(direction), (lines * direction).sum((1, 2)), **NEAR)
    if isinstance(gradient, RowGradient):
        assert gradient.touches(rows).tolist() == [int((gradient.positions == row).sum()) for row in range(rows)]
    else:
        assert gradient.touches(rows).tolist() == [n] * rows


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["bpr", "ncf"])
@given(batch=examples(), seed=st.integers(0, 100))
@settings(max_examples=8)
def test_branches_can_be_kept_apart(kind: str, loss: str, batch: Examples, seed: int) -> None:
    """What reaches a user through each item is the gradient on a copy of the user that meets that item alone."""
    recommender = make(kind, loss, 3)
    values, sides = values_of(recommender, seed), {spec.name: spec.role for spec in recommender.specs}
    width = batch.items.shape[1]
    apart = _by_copies(recommender, values, batch)
    with torch.no_grad():
        closed = recommender.evidence(values, batch, per_branch=True)
        general = evidence_by_autograd(recommender, values, batch, per_branch=True)
    for evidence in (closed, general):
        assert {gradient.table for gradient in evidence.gradients} == set(values)
        for gradient in evidence.gradients:
            if sides[gradient.table] == "user":
                assert isinstance(gradient, RowGradient)
                assert gradient.positions.tolist() == [[user] * width for user in batch.users.tolist()]
                assert torch.allclose(gradient.gradient, apart[gradient.table], **NEAR)
    summed = {gradient.table: gradient for gradient in closed.gradients}
    for gradient in recommender.evidence(values, batch).gradients:
        rows = len(values[gradient.table])
        assert torch.allclose(summed[gradient.table].summed(rows), gradient.summed(rows), **NEAR)


def _by_copies(recommender: Differentiable, values: dict[str, Tensor], batch: Examples) -> dict[str, Tensor]:
    """n × branches × dim for each user table: a copy of the user's row for every branch, and one backward pass."""
    sides, width = {spec.name: spec.role for spec in recommender.specs}, batch.items.shape[1]
    found: dict[str, list[Tensor]] = {name: [] for name, side in sides.items() if side == "user"}
    for user, items in zip(batch.users, batch.items, strict=True):
        copies = {name: values[name][user].expand(width, -1).clone().requires_grad_() for name in found}
        loss = recommender.loss(recommender.scores({**values, **copies}, torch.arange(width), items).unsqueeze(0))
        for name, gradient in zip(copies, torch.autograd.grad(loss[0], list(copies.values())), strict=True):
            found[name].append(gradient)
    return {name: torch.stack(lines) for name, lines in found.items()}


@pytest.mark.parametrize("negatives", [1, 3])
def test_the_gradient_of_a_shared_weight_has_at_most_one_rank_for_each_branch(negatives: int) -> None:
    """docs/methods.md 2.2: outer products, one for the item taken and one for each negative."""
    recommender = make("ncf", "bpr", 8)
    generator = torch.Generator().manual_seed(0)
    batch = Examples(torch.tensor([0, 1, 2]), torch.randint(0, ITEMS, (3, 1 + negatives), generator=generator))
    evidence = recommender.evidence(values_of(recommender, 3), batch)
    for gradient in evidence.shared_gradients:
        for matrix in gradient.expand():
            assert int(torch.linalg.matrix_rank(matrix, tol=1e-9)) <= 1 + negatives


@pytest.mark.parametrize("kind", ["bpr", "ncf"])
def test_an_item_against_itself_teaches_nothing(kind: str) -> None:
    """docs/methods.md 2.1: with i = j the margin is 0 and the gradients cancel, although the row is touched."""
    recommender = make(kind, "bpr", 4)
    values = values_of(recommender, 5)
    evidence = recommender.evidence(values, Examples(torch.tensor([1]), torch.tensor([[2, 2]])))
    assert evidence.losses.item() == pytest.approx(0.6931471805599453)
    for gradient in evidence.gradients:
        assert gradient.summed(len(values[gradient.table])).abs().max() < 1e-15
