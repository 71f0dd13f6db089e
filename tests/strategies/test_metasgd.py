"""MetaSGD (docs/methods.md 3.4): its six tests, shared rates, lazy moments, and what any learned strategy must bear."""

from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from learned_battery import EVERY_KIND, OddInput, OwnRecommender, State
from learned_scenes import (
    RELATIVE,
    look_ahead_of,
    past_and_batch,
    recommender_of,
    require_exact_reach,
    slow,
    tables_of,
    updater_of,
    worst_error,
)
from torch import Tensor

from melon.errors import CheckpointError, SettingsError
from melon.learning.step import Offered
from melon.learning.updater import Updater
from melon.models.evidence import Evidence, Examples, RowGradient
from melon.strategies.base import Situation
from melon.strategies.default import Default
from melon.strategies.learned import MetaLoss
from melon.strategies.metasgd import MetaSGD
from melon.strategies.registry import STRATEGIES
from melon.tables import TableSpec
from melon.testing import toy_batch, toy_batches
from situations import equal

SHARES = ("scalar", "dim")
EVERY_SHARE = pytest.mark.parametrize("share", SHARES)
PAPER = STRATEGIES["metasgd"].preset("paper")


def made(**settings: Any) -> MetaSGD:
    return MetaSGD({"alpha_init": 0.2, "meta_lr": 0.05, **settings}, seed=5)


def shaken(updater: Updater) -> Updater:
    """Every kept rate moved a little, so that no two are the same."""
    generator = torch.Generator().manual_seed(13)
    for kept in updater.row_state.values():
        if "alpha" in kept:
            held = kept["alpha"].state()
            noise = torch.randn(held["values"].shape, generator=generator, dtype=torch.float64).numpy()
            moved = held["values"] + 0.3 * noise
            kept["alpha"].scatter(np.arange(kept["alpha"].rows), moved.astype(held["values"].dtype))
    return updater


def scene(kind: str, settings: dict[str, Any], **more: Any) -> tuple[MetaSGD, Situation, MetaLoss, Updater]:
    past, batch = past_and_batch()
    strategy = made(**settings)
    updater = updater_of(kind, strategy, past, noise=0.5, phi_noise=0.3, **more)
    updater.learning_rates(batch)  # makes the rows
    return strategy, *look_ahead_of(shaken(updater), batch), updater


def rates_in(strategy: MetaSGD, situation: Situation) -> dict[str, Tensor]:
    """Every tensor of stored rates, under the name of its gradient."""
    if not strategy.by_row:
        return {name: value for name, value in strategy.parameters().items() if name.endswith(".alpha")}
    tables = {gradient.table for gradient in situation.evidence.gradients}
    return {f"{table}.alpha": kept["alpha"] for table, kept in situation.row_state.items() if table in tables}


@EVERY_KIND
class TestConstantRates:
    """Where rates do not move it is Default."""

    @EVERY_SHARE
    def test_summed_it_is_sgd_to_the_bit(self, kind: str, share: str) -> None:
        settings = {"share": share, "alpha_param": "raw", "meta_lr": 0.0, "shared_reduction": "sum"}
        self.same_as_default(kind, settings, "sum", tolerance=0.0)

    @EVERY_SHARE
    def test_over_the_batch_it_is_sgd_on_the_mean(self, kind: str, share: str) -> None:
        batch = {"reduction": "mean", "shared_reduction": "mean"}
        self.same_as_default(kind, {"share": share, "alpha_param": "raw", "meta_lr": 0.0, **batch}, "mean", 1e-12)

    def same_as_default(self, kind: str, settings: dict[str, Any], reduction: str, tolerance: float) -> None:
        ours = Updater(recommender_of(kind), made(**settings), seed=7)
        plain = Default({"lr": 0.2, "reduction": reduction, "shared_reduction": reduction})
        default = Updater(recommender_of(kind), plain, seed=7)
        for batch in toy_batches()[:6]:
            ours.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            if tolerance:
                torch.testing.assert_close(tables_of(ours)[table], values, rtol=tolerance, atol=1e-15, msg=table)
            else:
                assert equal(tables_of(ours)[table], values), table

    @EVERY_SHARE
    def test_rates_of_zero_change_nothing(self, kind: str, share: str) -> None:
        """α = 0 leaves Θ unchanged."""
        updater = updater_of(kind, made(share=share, alpha_init=0.0, alpha_param="raw", meta_lr=0.0), toy_batches()[:3])
        untouched = updater_of(kind, made(share=share, meta_lr=0.0))
        for batch in toy_batches()[:3]:
            untouched.learning_rates(batch)  # makes the rows, and no more
        for table, values in tables_of(updater).items():
            assert equal(values, tables_of(untouched)[table]), table


@EVERY_KIND
class TestMetaGradient:
    """The meta-gradient equals finite differences."""

    @pytest.mark.parametrize("reduction", ["sum", "row_mean", "mean"])
    @pytest.mark.parametrize("param", [slow("raw"), "softplus"])
    @EVERY_SHARE
    def test_it_is_that_of_central_differences(self, kind: str, share: str, param: str, reduction: str) -> None:
        settings = {"share": share, "alpha_param": param, "reduction": reduction, "shared_reduction": reduction}
        if reduction == "sum":
            settings["alpha_init"] = 0.05
        strategy, situation, meta_loss, _ = scene(kind, settings)
        tensors = rates_in(strategy, situation)
        assert len(tensors) == (len(situation.specs) if share == "dim" else len(situation.specs) - 1)
        found = worst_error(strategy, situation, meta_loss, tensors=tensors)
        assert max(found.values()) < RELATIVE, found
        gradients, _ = strategy.meta_gradient(situation, meta_loss)
        lively = {name for name, gradient in gradients.items() if gradient.abs().max() > 1e-7}
        assert lively == set(tensors) - {"user_bias.alpha"}  # a user's bias has no gradient at all

    @pytest.mark.parametrize("recommender", [{"loss": "squared"}, {"negatives": 3}], ids=["squared loss", "negatives"])
    def test_with_another_loss_or_more_negatives(self, kind: str, recommender: dict[str, Any]) -> None:
        strategy, situation, meta_loss, _ = scene(kind, {"alpha_init": 0.005}, **recommender)
        found = worst_error(strategy, situation, meta_loss, tensors=rates_in(strategy, situation))
        assert max(found.values()) < RELATIVE, found

    @pytest.mark.parametrize("reduction", ["sum", slow("row_mean"), slow("mean")])
    @EVERY_SHARE
    def test_rows_out_of_reach_are_dropped_exactly(self, kind: str, share: str, reduction: str) -> None:
        strategy, situation, meta_loss, _ = scene(kind, {"share": share, "reduction": reduction})
        assert all(len(v) == situation.reached(t) for t, v in strategy.look_ahead(situation).items())
        require_exact_reach(strategy, situation, meta_loss)


def stored(updater: Updater, key: str = "alpha") -> dict[str, Tensor]:
    return {table: torch.from_numpy(kept[key].state()["values"]) for table, kept in updater.row_state.items()}


@EVERY_KIND
class TestLazyRates:
    """Rows outside both batches keep α to the bit."""

    USERS, ITEMS = np.array([0, 1, 2, 3]), np.array([[0, 1], [2, 3], [4, 5], [0, 6]])
    LAST = Offered(np.array([1, 2, 7, 8]), np.array([[3, 9], [4, 10], [0, 11], [12, 13]]))
    MET: ClassVar = {"user": [1, 2], "item": [0, 3, 4]}

    def stepped(self, kind: str, **settings: Any) -> tuple[Updater, dict[str, dict[str, Tensor]]]:
        updater = updater_of(kind, made(**settings), toy_batches(), noise=0.5)
        before = {key: stored(updater, key) for key in ("alpha", "alpha_moment_1", "alpha_moment_2", "alpha_steps")}
        batch = toy_batch(400, self.USERS, self.ITEMS[:, 0])
        updater.step(Offered(self.USERS, self.ITEMS), self.LAST, batch)
        return updater, before

    def test_rates_outside_both_batches_keep_their_bytes(self, kind: str) -> None:
        updater, before = self.stepped(kind)
        for key, tables in before.items():
            for table, values in stored(updater, key).items():
                role = updater.recommender.tables[table].spec.role
                moved = (values != tables[table]).any(1).nonzero()[:, 0].tolist()
                if role != "shared":
                    assert set(moved) <= set(self.MET[role]), (key, table)
                    # Behind a ReLU that is off there is no signal, and a row stays as it is too.
                    assert moved == self.MET[role] or "mlp" in table, (key, table)

    def test_the_step_is_that_of_adam_with_a_count_for_each_row(self, kind: str) -> None:
        updater, before = self.stepped(kind, meta_lr=0.02, meta_clip=0.1, meta_weight_decay=0.01)
        for table, alpha in stored(updater).items():
            role = updater.recommender.tables[table].spec.role
            counts = stored(updater, "alpha_steps")[table]
            rows = (counts != before["alpha_steps"][table])[:, 0].nonzero()[:, 0].tolist()
            assert rows == self.MET.get(role) or role == "shared" or "mlp" in table
            for row in rows:
                count = int(before["alpha_steps"][table][row]) + 1
                assert float(counts[row]) == count
                first, second = (stored(updater, f"alpha_moment_{order}")[table][row] for order in (1, 2))
                step = 0.02 * (first / (1 - 0.9**count)) / ((second / (1 - 0.999**count)).sqrt() + 1e-8)
                expected = before["alpha"][table][row] - step
                torch.testing.assert_close(alpha[row], expected, rtol=1e-12, atol=1e-15)
                slope = (first - 0.9 * before["alpha_moment_1"][table][row]) / 0.1
                again = 0.999 * before["alpha_moment_2"][table][row] + 0.001 * slope**2
                torch.testing.assert_close(second, again, rtol=1e-8, atol=1e-18)

    def test_newcomers_start_at_the_usual_rate(self, kind: str) -> None:
        updater = updater_of(kind, made(alpha_param="raw"), toy_batches()[:3])
        users = updater.recommender.rows_of("user")
        updater.learn(toy_batch(60, np.array([users + 5]), np.array([0])))
        table = "user_factors" if kind == "bpr" else "user_gmf"
        alpha = stored(updater)[table]
        assert len(alpha) == users + 6
        assert (alpha[users:] == torch.tensor(0.2, dtype=alpha.dtype)).all()
        assert not (alpha[:users] == 0.2).all()

    def test_what_was_learned_row_by_row_goes_along(self, kind: str) -> None:
        stream_trained = updater_of(kind, made(), toy_batches()[:8])
        updater = updater_of(kind, made())
        updater.take_over(stream_trained.meta_training())
        for key in ("alpha", "alpha_moment_1", "alpha_moment_2", "alpha_steps"):
            for table, values in stored(stream_trained, key).items():
                assert equal(stored(updater, key)[table], values)
        for batch in toy_batches()[:4]:
            updater.learn(batch)

    def test_meta_training_with_another_share_is_refused(self, kind: str) -> None:
        stream_trained = updater_of(kind, made(), toy_batches()[:3])
        updater = updater_of(kind, made(share="dim"))
        with pytest.raises(CheckpointError, match="not the meta-model"):
            updater.take_over(stream_trained.meta_training())
        with pytest.raises(CheckpointError, match="not a meta-training of 'metasgd' with these settings"):
            stream_trained.take_over(updater.meta_training())


@EVERY_KIND
class TestShares:
    @pytest.mark.parametrize(("share", "reduction"), [*product(SHARES, ["sum", "row_mean"]), ("scalar", "mean")])
    def test_the_matrix_is_constant_along_a_parameter_and_explains_the_step(
        self, kind: str, share: str, reduction: str
    ) -> None:
        """Rates in physical space: two interactions that share a user show the same rates on its row."""
        _, _, _, updater = scene(kind, {"share": share, "reduction": reduction})
        _, batch = past_and_batch()
        situation, rates = updater.situation(batch), updater.learning_rates(batch)
        proposed = updater.strategy.propose(situation).values
        assert rates.raw is not None
        start = repeated = 0
        for gradient in situation.evidence.row_gradients:
            n, slots, dim = gradient.gradient.shape
            here, start = slice(start, start + slots * dim), start + slots * dim
            assert rates.slots[here] == tuple((gradient.table, slot) for slot in range(slots) for _ in range(dim))
            rows, old = gradient.positions.reshape(-1), situation.values[gradient.table]
            for matrix in (rates.rows, rates.raw):
                lines = matrix[:, here].reshape(n * slots, dim)
                for row in torch.unique(rows):
                    mine = lines[rows == row]
                    repeated += len(mine) > 1
                    assert equal(mine, mine[:1].expand_as(mine)), gradient.table
            realised = rates.rows[:, here].reshape(n, slots, dim)
            step = replace(gradient, gradient=realised * gradient.gradient).summed(len(old))
            torch.testing.assert_close(old - proposed[gradient.table], step, rtol=1e-9, atol=1e-13)
            distinct = {"scalar": len(torch.unique(rows)) * dim, "dim": dim}
            assert len(torch.unique(rates.raw[:, here])) == distinct[share]
        assert repeated > 3
        for wide in situation.evidence.shared_gradients:
            block = rates.shared[wide.table]
            assert equal(block, block[:1].expand_as(block))
            step = (block * wide.expand().flatten(1)).sum(0)
            old = situation.values[wide.table]
            torch.testing.assert_close((old - proposed[wide.table]).flatten(), step, rtol=1e-9, atol=1e-13)

    def test_rates_may_turn_negative_only_as_they_are(self, kind: str) -> None:
        for param, negative in (("raw", True), ("softplus", False)):
            strategy = made(alpha_init=0.01, alpha_param=param, meta_lr=0.3)
            updater = updater_of(kind, strategy, toy_batches())
            lowest = min(float(strategy._rates(values).min()) for values in stored(updater).values())
            assert (lowest < 0) == negative


def quadratic(strategy: MetaSGD, curvature: Tensor, steps: int) -> Tensor:
    """Let it learn on ½ c (θ − t)², from a new place each time; the rates that it comes to."""
    rows, dim = curvature.shape
    spec = TableSpec("place", "user", "embedding", dim)
    strategy.bind({"place": spec}, np.dtype(np.float64))
    kept = {
        key: torch.full((rows, one.width or dim), one.start, dtype=torch.float64)
        for key, one in strategy.row_state(spec).items()
    }
    generator, examples = torch.Generator().manual_seed(3), Examples(torch.arange(rows), torch.zeros(rows, 1).long())
    for _ in range(steps):
        theta = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
        gradient = RowGradient("place", torch.arange(rows)[:, None], (curvature * theta)[:, None])
        losses = (curvature * theta**2).sum(1) / 2
        situation = Situation(
            {"place": spec}, examples, {"place": theta}, {"place": kept}, Evidence(losses, (gradient,))
        )
        gradients, _ = strategy.meta_gradient(situation, lambda values: (curvature * values["place"] ** 2).sum() / 2)
        kept = dict(strategy.adapt(gradients, situation).row_state["place"])
    return strategy._rates(strategy._stored(situation, "place") if not strategy.by_row else kept["alpha"]).detach()


@pytest.mark.parametrize("param", ["raw", "softplus"])
def test_on_a_quadratic_a_rate_becomes_one_over_the_curvature(param: str) -> None:
    """Where the next loss is the same bowl, the best step leads to its bottom."""
    curvature = torch.tensor([[0.5, 1.0, 2.0], [4.0, 1.0, 0.7]], dtype=torch.float64)
    found = quadratic(made(alpha_init=0.3, alpha_param=param, meta_lr=0.02), curvature, 1_500)
    torch.testing.assert_close(found, 1 / curvature, rtol=0.05, atol=0.0)


@EVERY_KIND
def test_the_paper_preset_runs_and_hardly_moves(kind: str) -> None:
    """3.4, the scale warning: α = 0.05 on the mean gradient is a small fraction of a plain step."""
    paper = updater_of(kind, MetaSGD(PAPER), toy_batches()[:6], dtype=np.float32)
    default = Updater(recommender_of(kind, np.float32), Default({"lr": 0.3}), seed=7)
    for batch in toy_batches()[:6]:
        default.learn(batch)
    assert 0 < paper.moved < 0.1 * default.moved


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha_init": -0.1},
        {"alpha_init": 0.0, "alpha_param": "softplus"},
        {"alpha_param": "exp"},
        {"share": "column"},
        {"reduction": "max"},
        {"shared_reduction": "max"},
        {"lr": 0.1},
    ],
)
def test_settings_that_will_not_do_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="strategy 'metasgd'"):
        MetaSGD(settings)


@pytest.mark.parametrize("start", [1e-6, 0.05, 1.0, 29.0, 31.0, 1e4])
def test_a_softplus_starts_where_it_is_told(start: float) -> None:
    strategy = MetaSGD({"alpha_init": start})
    rate = strategy._rates(torch.tensor(strategy._start, dtype=torch.float64))
    assert float(rate) == pytest.approx(start, rel=1e-9)


class TestOddInput(OddInput):
    def made(self, **settings: Any) -> MetaSGD:
        return MetaSGD({"alpha_init": 0.1, **settings}, seed=5)


class TestAUsersOwnRecommender(OwnRecommender):
    def made(self, **settings: Any) -> MetaSGD:
        return made(share="dim", **settings)


class TestState(State):
    def made(self, **settings: Any) -> MetaSGD:
        return made(**settings)
