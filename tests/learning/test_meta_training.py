"""Meta-training through a stream: its gradient is exact, its steps are those of the updater, and it never runs away."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from meta_training_scenes import SLOW_KERNELS, ahead, behind, in_one_graph, scene, stream

from melon.errors import LearningError
from melon.kernels import policy
from melon.learning.meta_training import stream as stream_meta_training
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.generic import GenericMetaTraining
from melon.learning.meta_training.loop import meta_train, meta_train_through, meta_training_candidates
from melon.learning.meta_training.record import record
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.melon.linear import MeLON, MeLONI, MeLONP
from melon.strategies.stream_trained import LinearStrategy

MetaTraining = FactorMetaTraining | GenericMetaTraining


def bpr(dtype: torch.dtype = torch.float64, **settings: Any) -> BPR:
    return BPR({"dim": 3, **settings}, seed=3, dtype=dtype)


def ncf() -> NCF:
    return NCF({"dim": 2, "layers": (4, 3)}, seed=3, dtype=torch.float64)


class Opaque(NCF):
    """An NCF that meta-training knows by its scores alone."""


def differences(
    meta_training: MetaTraining, strategy: LinearStrategy, entries: int, skipped: tuple[str, ...] = ()
) -> None:
    """Every kind of parameter against central differences, some entries of each."""
    loss, gradient = meta_training.run(0)
    assert np.isfinite(loss)
    for name, slopes in gradient.items():
        if name in skipped:
            continue
        flat, largest = slopes.reshape(-1), float(slopes.abs().max())
        assert largest > 1e-6, name
        for place in np.linspace(0, len(flat) - 1, min(entries, len(flat))).astype(int):
            values = []
            for step in (1e-6, -1e-6):
                kept = strategy.rates.phi[name]
                strategy.rates.phi[name] = kept.clone()
                strategy.rates.phi[name].view(-1)[place] += step
                values.append(meta_training.run(0)[0])
                strategy.rates.phi[name] = kept
            found = (values[0] - values[1]) / 2e-6
            assert found == pytest.approx(float(flat[place]), rel=1e-4, abs=1e-5 * largest), (name, place)


class TestGradient:
    @pytest.mark.parametrize("negatives", [1, 3])
    def test_of_the_kernels_is_exact(self, negatives: int) -> None:
        model = bpr(negatives=negatives)
        recorded, strategy = scene(model)
        differences(FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS), strategy, entries=4)

    def test_of_any_recommender_is_exact(self) -> None:
        model = ncf()
        recorded, strategy = scene(model, most_step=0.9)
        differences(GenericMetaTraining(model, strategy, recorded), strategy, entries=2)

    def test_among_some_of_the_candidates_is_exact(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = ncf()
        recorded, strategy = scene(model, half_life=None)
        whole = GenericMetaTraining(model, strategy, recorded).run(0)[0]
        monkeypatch.setattr(stream_meta_training, "_MOST_CANDIDATES", 3)
        meta_training = GenericMetaTraining(model, strategy, recorded)
        losses = {meta_training.run(number)[0] for number in range(0, 8, 2)}
        assert len(losses) == 4
        assert np.mean(list(losses)) == pytest.approx(whole, rel=0.1)
        differences(meta_training, strategy, entries=2, skipped=("half_lives",))

    def test_of_closed_forms_is_that_of_second_derivatives(self) -> None:
        """Weights of a unit that is never active do not move, and have a gradient all the same."""
        model, other = ncf(), Opaque({"dim": 2, "layers": (4, 3)}, seed=3, dtype=torch.float64)
        found = []
        for each in (model, other):
            recorded, strategy = scene(each, most_step=0.9)
            each.tables["layer_2"].everything()[1] = -5.0
            found.append(GenericMetaTraining(each, strategy, recorded).run(0))
        assert (model.open_evidence, other.open_evidence) == (True, False)
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
        for name, slope in found[0][1].items():
            assert torch.isfinite(slope).all()
            torch.testing.assert_close(slope, found[1][1][name], rtol=1e-8, atol=1e-12)

    @pytest.mark.parametrize("kind", [MeLON, MeLONI, MeLONP])
    @pytest.mark.parametrize("settings", [{}, {"half_life": None, "inputs": "age,idle"}])
    def test_of_the_kernels_is_that_of_any_recommender(
        self, kind: type[LinearStrategy], settings: dict[str, Any]
    ) -> None:
        model = bpr(negatives=2)
        recorded, strategy = scene(model, kind, **settings)
        for number in (0, 1):
            loss, slopes = FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS).run(number)
            same, generic = GenericMetaTraining(model, strategy, recorded).run(number)
            assert loss == pytest.approx(same, rel=1e-12)
            for name, slope in slopes.items():
                free = slice(None) if strategy.trainable()[name].any() else slice(0, 0)
                torch.testing.assert_close(slope[free], generic[name][free], rtol=1e-8, atol=1e-12)

    @pytest.mark.parametrize("make", [bpr, ncf])
    def test_is_that_of_autograd_through_the_whole_stream(self, make: Any) -> None:
        model = make()
        recorded, strategy = scene(model)
        meta_training = GenericMetaTraining(model, strategy, recorded)
        phi = {name: value.clone().requires_grad_() for name, value in strategy.rates.phi.items()}
        whole = in_one_graph(meta_training, phi)
        loss, slopes = meta_training.run(0)
        assert loss == pytest.approx(float(whole.detach()), rel=1e-12)
        for name, slope in zip(phi, torch.autograd.grad(whole, list(phi.values())), strict=True):
            torch.testing.assert_close(slopes[name], slope, rtol=1e-8, atol=1e-12)

    def test_of_compiled_kernels_is_the_same_in_single_precision(self) -> None:
        kernels = policy.load("meta_training")
        if kernels is None:
            pytest.skip("numba does not work here")
        exact_model, model = bpr(negatives=2), bpr(torch.float32, negatives=2)
        recorded, strategy = scene(exact_model)
        same, other = scene(model)
        loss, slopes = FactorMetaTraining(exact_model, strategy, recorded, SLOW_KERNELS).run(0)
        found, compiled = FactorMetaTraining(model, other, same, kernels).run(0)
        assert found == pytest.approx(loss, rel=1e-5)
        for name, slope in slopes.items():
            torch.testing.assert_close(compiled[name], slope, rtol=1e-3, atol=1e-4 * float(slope.abs().max()))


class TestWay:
    @pytest.mark.parametrize("settings", [{}, {"half_life": None}, {"decay_clock": "seconds", "half_life": 9e5}])
    def test_steps_are_those_of_the_updater(self, settings: dict[str, Any]) -> None:
        """What the kernels know of rows, inputs and time decay is what a stream that learns the same batches has."""
        model, log = bpr(negatives=2), stream()
        recorded, strategy = scene(model, **settings)
        rows = []

        def forward(replay: Any, now: Any, *rest: Any) -> float:
            total: float = SLOW_KERNELS.forward(replay, now, *rest)
            rows.append([part.copy() for part in now])
            return total

        FactorMetaTraining(
            model, strategy, recorded, SimpleNamespace(**{**vars(SLOW_KERNELS), "forward": forward})
        ).run(1)
        live = bpr(negatives=2)
        updater = behind(live, MeLON({"lr": 0.2, "half_life": 40.0, **settings}), log)
        updater.take_over(strategy.memory())
        fresh = updater.row_state["item_factors"]["recent"]
        fresh.scatter(torch.arange(fresh.rows), torch.zeros(fresh.rows, fresh.spec.dim, dtype=torch.float64))
        for batch in ahead(log):
            updater.learn(batch.in_epoch(1))
        places = (recorded.user_rows, recorded.item_rows, recorded.item_rows)
        for name, some, found in zip(("user_factors", "item_factors", "item_bias"), places, rows[0], strict=False):
            stored = live.tables[name].view().storage[torch.from_numpy(some)]
            np.testing.assert_allclose(found.reshape(len(some), -1), stored.numpy(), rtol=1e-5, atol=1e-6)

    def test_the_way_back_restores_every_row(self) -> None:
        model = bpr()
        recorded, strategy = scene(model)
        meta_training = FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS)
        first, again = meta_training.run(0), meta_training.run(0)
        assert first[0] == again[0]
        assert all(torch.equal(first[1][name], again[1][name]) for name in first[1])

    def test_only_rows_of_the_stream_are_held(self) -> None:
        log, strategy = stream(400), MeLON({"passes": 1})
        model = bpr()
        updater = behind(model, strategy, log)
        model.grow(5_000, np.arange(5_000 - model.rows_of("user")), 90, np.arange(90 - model.rows_of("item")))
        recorded = record(updater, ahead(log)[:3], meta_training_candidates(log, seed=0, count=7), draws=2)
        assert len(recorded.user_rows) == len(np.unique(np.concatenate([batch.users for batch in ahead(log)[:3]])))
        assert len(recorded.item_rows) <= 18

    def test_a_small_catalogue_can_be_stream_trained_on(self) -> None:
        """Nobody has left as many items as were asked for, so there are fewer."""
        log, strategy = stream(), MeLON({"passes": 1})
        updater = behind(bpr(), strategy, log)
        recorded = record(updater, ahead(log), meta_training_candidates(log, seed=0, count=99), draws=2)
        assert recorded.predicted > len(log) // 8
        assert 2 < recorded.candidates.shape[1] < log.n_items

    def test_what_comes_later_changes_nothing(self) -> None:
        """Tapes of a longer stream begin with those of a shorter one."""
        records = []
        for many in (2, 4):
            log, strategy = stream(), MeLON({"half_life": 40.0})
            updater = behind(bpr(), strategy, log)
            records.append(record(updater, ahead(log)[:many], meta_training_candidates(log, seed=5, count=7), draws=2))
        short, long = records
        n = len(short.users)
        assert np.array_equal(short.user_rows[short.users], long.user_rows[long.users[:n]])
        for one, other in zip(short.draws, long.draws, strict=True):
            assert np.array_equal(one.inputs, other.inputs[:n])
            assert np.array_equal(short.item_rows[one.items], long.item_rows[other.items[:n]])


class TestPasses:
    def stream_trained(self, **settings: Any) -> tuple[list[float], int, LinearStrategy]:
        log, strategy = stream(), MeLON({"lr": 0.2, "passes": 12, **settings})
        updater = behind(bpr(torch.float32), strategy, log)
        stream_trained = meta_train_through(updater, ahead(log), meta_training_candidates(log, seed=5, count=7))
        return stream_trained.losses, stream_trained.rejected, strategy

    def test_meta_training_helps(self) -> None:
        losses, rejected, strategy = self.stream_trained()
        assert rejected == 0
        assert losses[-1] < losses[0]
        assert set(strategy.rates.half_lives().values()) == {1.0}  # nothing decays, and no half-life is learned

    def test_meta_training_that_runs_away_is_taken_back(self) -> None:
        losses, rejected, strategy = self.stream_trained(meta_training_lr=2.0, half_life=40.0, passes=20)
        assert rejected > 0
        assert all(loss < 1.5 * losses[0] for loss in losses)
        assert losses[-1] < losses[0]
        assert all(torch.isfinite(value).all() for value in strategy.rates.phi.values())

    @pytest.mark.parametrize("broken", [float("nan"), 10.0])
    def test_a_rejected_pass_leaves_the_last_good_rates_and_halves_the_step(self, broken: float) -> None:
        strategy = MeLON({"lr": 0.2, "passes": 4})
        behind(bpr(), strategy, stream())
        seen, answers = [], iter([1.0, broken, 1.0, 1.0])

        def run(number: int) -> tuple[float, dict[str, torch.Tensor]]:
            seen.append({name: value.clone() for name, value in strategy.rates.phi.items()})
            return next(answers), {name: torch.ones_like(value) for name, value in strategy.rates.phi.items()}

        stream_trained = meta_train(strategy, run)
        assert (stream_trained.losses, stream_trained.rejected) == ([1.0, 1.0, 1.0], 1)
        assert all(torch.equal(seen[0][name], seen[2][name]) for name in seen[0])
        moves = [
            float(seen[place][name][0] - seen[place + 1][name][0]) for place in (0, 2) for name in ("temperature",)
        ]
        assert moves == pytest.approx([0.1, 0.05])  # both are first steps of Adam

    def test_a_start_that_is_not_finite_is_an_error(self) -> None:
        strategy = MeLON({"lr": 7.0})
        behind(bpr(), strategy, stream())
        with pytest.raises(LearningError, match="not finite at its start, the plain step with lr = 7"):
            meta_train(strategy, lambda number: (float("nan"), {}))
