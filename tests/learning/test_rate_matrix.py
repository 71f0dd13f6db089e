"""The numbers of a learning-rate matrix, on matrices whose answers are known; and the theory page's claim."""

import numpy as np
import pytest
import torch

from melon.learning.rate_matrix import (
    RateCells,
    describe_rates,
    distance,
    evenly_spaced,
    numerical_rank,
    rank_correlation,
    row_cells,
    shared_cells,
    variance_shares,
)
from melon.models.evidence import DenseGradient, Evidence, FactorGradient, RowGradient
from melon.strategies.base import LearningRates

EPS = float(np.finfo(np.float64).eps)


def cells(matrix: list[list[float]] | np.ndarray, losses: list[float] | None = None, gradients=None) -> RateCells:
    rates = np.array(matrix, dtype=np.float64)
    return RateCells(
        rates,
        np.ones_like(rates) if gradients is None else np.array(gradients, dtype=np.float64),
        np.arange(len(rates), dtype=np.float64) if losses is None else np.array(losses),
        (("all", rates.shape[1]),),
        EPS,
    )


def test_a_constant_matrix_has_rank_one_and_no_variance() -> None:
    facts = describe_rates(cells(np.full((4, 6), 0.3)))
    assert (facts.interactions, facts.parameters, facts.rank) == (4, 6, 1)
    assert facts.sigma_ratio == pytest.approx(0, abs=1e-12)
    assert facts.least == facts.most == pytest.approx(facts.mean) == 0.3
    assert facts.with_loss is facts.with_gradient is facts.with_signed_gradient is None
    assert facts.by_interaction is facts.by_parameter is facts.neither is None
    for far in (facts.from_one_rate_per_interaction, facts.from_one_rate_per_parameter):
        assert far.spectral == pytest.approx(0, abs=1e-12)
        assert far.frobenius == pytest.approx(0, abs=1e-12)


def test_one_rate_per_interaction() -> None:
    facts = describe_rates(cells([[1, 1, 1], [2, 2, 2], [4, 4, 4]], losses=[0.1, 0.5, 0.3]))
    assert facts.rank == 1
    assert (facts.by_interaction, facts.by_parameter, facts.neither) == pytest.approx((1, 0, 0), abs=1e-12)
    assert facts.from_one_rate_per_interaction.spectral == pytest.approx(0, abs=1e-12)
    # Rows minus (7/3)·1: deviations −4/3, −1/3, 5/3, three times each, against 1, 2, 4.
    assert facts.from_one_rate_per_parameter.frobenius == pytest.approx(np.sqrt((16 + 1 + 25) / 9 / 21))
    assert facts.with_loss == pytest.approx(0.5)


def test_one_rate_per_parameter() -> None:
    facts = describe_rates(cells([[1, 2, 4]] * 3))
    assert facts.rank == 1
    assert (facts.by_interaction, facts.by_parameter, facts.neither) == pytest.approx((0, 1, 0), abs=1e-12)
    assert facts.from_one_rate_per_parameter.frobenius == pytest.approx(0, abs=1e-12)
    assert facts.with_loss is None


def test_neither_direction() -> None:
    facts = describe_rates(cells([[1, 0], [0, 1]]))
    assert facts.rank == 2
    assert facts.sigma_ratio == pytest.approx(1)
    assert (facts.by_interaction, facts.by_parameter, facts.neither) == pytest.approx((0, 0, 1))
    # From the mean ½ everywhere: ±½, a matrix of rank 1 with norm 1.
    assert facts.from_one_rate_per_interaction.spectral == pytest.approx(1)
    assert facts.from_one_rate_per_interaction.frobenius == pytest.approx(np.sqrt(0.5))


def test_an_additive_matrix_is_shared_out_between_the_directions() -> None:
    by_row, by_column, neither = variance_shares(np.array([[0.0, 1.0], [2.0, 3.0]]))
    assert (by_row, by_column, neither) == pytest.approx((0.8, 0.2, 0))


def test_shares_add_up() -> None:
    matrix = np.random.default_rng(0).random((7, 5))
    shares = variance_shares(matrix)
    assert shares is not None
    assert sum(shares) == pytest.approx(1)
    residual = matrix - matrix.mean(0) - matrix.mean(1, keepdims=True) + matrix.mean()
    assert shares[2] == pytest.approx(np.square(residual).sum() / np.square(matrix - matrix.mean()).sum())


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, -9], -1.0),
        ([1, 2, 2, 4], [1, 2, 3, 4], 0.9486832980505138),
        ([1, 1, 1], [1, 2, 3], None),
        ([1], [2], None),
    ],
)
def test_rank_correlation(one: list[float], other: list[float], wanted: float | None) -> None:
    found = rank_correlation(np.array(one, dtype=float), np.array(other, dtype=float))
    assert found == (None if wanted is None else pytest.approx(wanted))


def test_what_rounding_makes_is_no_variation() -> None:
    values = 0.3 + 1e-17 * np.arange(4)
    assert rank_correlation(values, np.arange(4.0), EPS) is None
    assert variance_shares(np.outer(np.ones(3), 0.1 + 1e-9 * np.arange(2)), float(np.finfo(np.float32).eps)) is None


def test_correlations_with_gradients_go_by_cell() -> None:
    facts = describe_rates(cells([[0.1, 0.4], [0.2, 0.3]], gradients=[[-1, -4], [-2, -3]]))
    assert facts.with_gradient == pytest.approx(1)
    assert facts.with_signed_gradient == pytest.approx(-1)


def test_numerical_rank_goes_by_the_numbers_the_matrix_was_made_of() -> None:
    singular = np.array([1.0, 1e-6, 1e-12])
    assert numerical_rank(singular, (10, 3), EPS) == 3
    assert numerical_rank(singular, (10, 3), float(np.finfo(np.float32).eps)) == 1
    assert numerical_rank(np.zeros(2), (2, 2), EPS) == 0


def test_a_fixed_choice_of_places() -> None:
    assert evenly_spaced(3, 5) == [0, 1, 2]
    assert evenly_spaced(100, 4) == [0, 33, 66, 99]


def test_cells_line_up_with_their_gradients() -> None:
    n, generator = 3, torch.Generator().manual_seed(0)
    users = RowGradient("p", torch.zeros(n, 1, dtype=torch.long), torch.randn(n, 1, 2, generator=generator))
    items = RowGradient("q", torch.zeros(n, 2, dtype=torch.long), torch.randn(n, 2, 3, generator=generator))
    dense = DenseGradient("mix", torch.randn(n, 2, 2, generator=generator))
    evidence = Evidence(torch.tensor([1.0, 2.0, 3.0]), (users, items, dense))
    slots = (("p", 0),) * 2 + (("q", 0),) * 3 + (("q", 1),) * 3
    rows = torch.cat([users.gradient.flatten(1), items.gradient.flatten(1)], 1)
    rates = LearningRates(rows / 2, slots, {"mix": dense.gradient.flatten(1)}, rows)
    found = row_cells(rates, evidence)
    assert found.groups == (("p", 2), ("q, taken", 3), ("q, negative", 3))
    assert np.array_equal(found.rates, found.gradients)
    assert found.losses.tolist() == [1, 2, 3]
    shared = shared_cells(rates, evidence, most=3)
    assert shared is not None
    assert shared.groups == (("mix", 3),)
    assert np.allclose(shared.rates, shared.gradients)
    assert shared_cells(LearningRates(rows, slots, {}), Evidence(evidence.losses, (users, items))) is None


def test_rates_of_pairs_stand_beside_the_gradients_of_pairs() -> None:
    left, right = torch.randn(3, 2, 2), torch.randn(3, 2, 4)
    gradient = FactorGradient("layer", left, right)
    pairs = torch.einsum("nbr,nbd->nbrd", left, right).flatten(1)
    rates = LearningRates(torch.zeros(3, 0), (), {"layer": pairs})
    shared = shared_cells(rates, Evidence(torch.ones(3), (gradient,)))
    assert shared is not None
    assert np.allclose(shared.rates, shared.gradients)


MATRICES = tuple(np.random.default_rng(seed).random((8, 5)) for seed in range(20))


class TestTheory:
    """docs/theory.md: one-directional matrices are only some of those of rank 1, so they stay at least σ₂ away."""

    @pytest.mark.parametrize("axis", [0, 1])
    def test_no_one_directional_matrix_is_nearer_than_sigma_2(self, axis: int) -> None:
        rng = np.random.default_rng(1)
        for matrix in MATRICES:
            sigma_2 = np.linalg.svd(matrix, compute_uv=False)[1]
            means = matrix.mean(axis, keepdims=True)
            nearest = np.linalg.norm(matrix - means, 2)
            assert nearest >= sigma_2 * (1 - 1e-12)
            for _ in range(20):
                other = means + 0.2 * rng.standard_normal(means.shape)
                assert np.linalg.norm(matrix - other, 2) >= nearest * (1 - 1e-12)
                assert np.linalg.norm(matrix - other) >= np.linalg.norm(matrix - means)

    def test_the_gap_is_strict_for_ordinary_matrices(self) -> None:
        strict = 0
        for matrix in MATRICES:
            sigma_2 = np.linalg.svd(matrix, compute_uv=False)[1]
            strict += all(
                np.linalg.norm(matrix - matrix.mean(axis, keepdims=True), 2) > 1.001 * sigma_2 for axis in (0, 1)
            )
        assert strict >= 15

    def test_rank_one_can_be_far_from_both_directions(self) -> None:
        matrix = np.outer([1.0, 2.0], [1.0, 3.0])
        assert np.linalg.svd(matrix, compute_uv=False)[1] == pytest.approx(0, abs=1e-12)
        for axis in (0, 1):
            assert distance(matrix, matrix.mean(axis, keepdims=True)).spectral > 0.2

    def test_it_is_sigma_2_where_the_first_singular_vector_is_constant(self) -> None:
        orthogonal = np.array([[1, 1], [1, -1]]) / np.sqrt(2)
        matrix = orthogonal @ np.diag([3.0, 0.5]) @ orthogonal.T
        assert np.linalg.norm(matrix - matrix.mean(1, keepdims=True), 2) == pytest.approx(0.5)

    def test_the_mask_hides_the_rank(self) -> None:
        """docs/methods.md 1.3: a constant rule on disjoint rows has as many ranks as interactions."""
        scattered = np.kron(np.eye(4), np.full((1, 3), 0.1))
        assert np.linalg.matrix_rank(scattered) == 4
