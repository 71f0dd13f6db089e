"""Meta-training through a stream: its gradient is exact, its steps are those of the updater, and it never runs away."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from meta_training_scenes import SLOW_KERNELS, ahead, behind, exact_functions, in_one_graph, scene, stream

from melon.errors import LearningError
from melon.kernels import policy
from melon.learning.meta_training import autograd as stream_meta_training
from melon.learning.meta_training.autograd import GenericMetaTraining
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.loop import meta_train, meta_train_through, meta_training_candidates
from melon.learning.meta_training.record import record
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.melon.rates import Phi
from melon.strategies.melon.stream import MeLON, MeLONI, MeLONP
from melon.strategies.stream_trained import StreamTrainedStrategy

MetaTraining = FactorMetaTraining | GenericMetaTraining
FACTS_AND_LOSS = "age,new,idle,touches,rates,partner,loss"


def bpr(dtype: Any = np.float64, **settings: Any) -> BPR:
    return BPR({"dim": 3, **settings}, seed=3, dtype=dtype)


def ncf() -> NCF:
    return NCF({"dim": 2, "layers": (4, 3)}, seed=3, dtype=np.float64)


class Opaque(NCF):
    """An NCF that meta-training knows by its scores alone."""

    scores = NCF.scores


def differences(
    meta_training: MetaTraining, strategy: StreamTrainedStrategy, entries: int, skipped: tuple[str, ...] = ()
) -> None:
    """Every kind of parameter against central differences, some entries of each."""
    loss, gradient = meta_training.run(0)
    assert np.isfinite(loss)
    for name, slopes in gradient.items():
        if name in skipped:
            continue
        free = np.flatnonzero(strategy.free(name))
        flat, largest = slopes.reshape(-1), float(np.abs(slopes).max(initial=0.0))
        assert not len(free) or largest > 1e-6, name
        for place in free[np.linspace(0, len(free) - 1, min(entries, len(free))).astype(int)]:
            values = []
            for step in (1e-6, -1e-6):
                kept = strategy.rates.phi
                moved = kept[name].copy()
                moved.reshape(-1)[place] += step
                strategy.rates.phi = {**kept, name: moved}
                values.append(meta_training.run(0)[0])
                strategy.rates.phi = kept
            found = (values[0] - values[1]) / 2e-6
            assert found == pytest.approx(float(flat[place]), rel=1e-4, abs=1e-5 * largest), (name, place)


class TestGradient:
    @pytest.mark.parametrize(("kind", "negatives"), [(MeLON, 1), (MeLON, 3), (MeLONI, 1), (MeLONP, 2)])
    def test_of_the_kernels_is_exact(self, kind: type[StreamTrainedStrategy], negatives: int) -> None:
        """Through every feature of the role, the splines, time decay and the shrinking of rows."""
        model = bpr(negatives=negatives)
        recorded, strategy = scene(model, kind)
        with exact_functions():
            meta_training = FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS, np.float64)
            differences(meta_training, strategy, entries=6)

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
        model, other = ncf(), Opaque({"dim": 2, "layers": (4, 3)}, seed=3, dtype=np.float64)
        found = []
        for each in (model, other):
            recorded, strategy = scene(each, most_step=0.9, inputs=FACTS_AND_LOSS)
            each.tables["layer_2"].everything()[1] = -5.0
            found.append(GenericMetaTraining(each, strategy, recorded).run(0))
        assert (model.open_evidence, other.open_evidence) == (True, False)
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
        for name, slope in found[0][1].items():
            assert np.isfinite(slope).all()
            np.testing.assert_allclose(slope, found[1][1][name], rtol=1e-8, atol=1e-12)

    @pytest.mark.parametrize("kind", [MeLON, MeLONI, MeLONP])
    @pytest.mark.parametrize("settings", [{}, {"inputs": FACTS_AND_LOSS}, {"half_life": None, "inputs": "age,idle"}])
    def test_of_the_kernels_is_that_of_any_recommender(
        self, kind: type[StreamTrainedStrategy], settings: dict[str, Any]
    ) -> None:
        """The same loss among the same candidates, and the same gradient."""
        model = bpr(negatives=2)
        recorded, strategy = scene(model, kind, **settings)
        for number in (0, 1):
            with exact_functions():
                loss, slopes = FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS, np.float64).run(number)
            same, generic = GenericMetaTraining(model, strategy, recorded).run(number)
            assert loss == pytest.approx(same, rel=1e-8), "kernels have some constants in single precision"
            for name, slope in slopes.items():
                free = strategy.rates.free[name]
                np.testing.assert_allclose(slope[free], generic[name][free], rtol=1e-4, atol=1e-7)

    @pytest.mark.parametrize("make", [bpr, ncf])
    def test_is_that_of_autograd_through_the_whole_stream(self, make: Any) -> None:
        model = make()
        recorded, strategy = scene(model)
        meta_training = GenericMetaTraining(model, strategy, recorded)
        phi = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in strategy.rates.phi.items()}
        whole = in_one_graph(meta_training, phi)
        loss, slopes = meta_training.run(0)
        assert loss == pytest.approx(float(whole.detach()), rel=1e-12)
        found = torch.autograd.grad(whole, list(phi.values()), allow_unused=True)
        for name, slope in zip(phi, found, strict=True):
            np.testing.assert_allclose(slopes[name], 0 if slope is None else slope, rtol=1e-8, atol=1e-12)

    def test_of_compiled_kernels_is_the_same_in_single_precision(self) -> None:
        kernels = policy.load("meta_training")
        exact_model, model = bpr(negatives=2), bpr(np.float32, negatives=2)
        recorded, strategy = scene(exact_model)
        same, other = scene(model)
        with exact_functions():
            loss, slopes = FactorMetaTraining(exact_model, strategy, recorded, SLOW_KERNELS, np.float64).run(0)
        found, compiled = FactorMetaTraining(model, other, same, kernels).run(0)
        assert found == pytest.approx(loss, rel=1e-5)
        for name, slope in slopes.items():
            np.testing.assert_allclose(compiled[name], slope, rtol=1e-3, atol=2e-4 * np.abs(slope).max(initial=0.0))


class TestCandidates:
    def test_a_factorised_score_has_all_of_them_whatever_computes_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_meta_training, "_MOST_CANDIDATES", 3)
        model = bpr()
        recorded, strategy = scene(model, inputs=FACTS_AND_LOSS)
        with exact_functions():
            loss = FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS, np.float64).run(0)[0]
        assert GenericMetaTraining(model, strategy, recorded).run(0)[0] == pytest.approx(loss, rel=1e-12)

    def test_those_of_a_pass_come_from_the_root_seed(self) -> None:
        recorded, _ = scene(bpr())
        assert recorded.seed == 5  # that of the updater
        other = replace(recorded, seed=6)
        assert not np.array_equal(recorded.among(0, 3), other.among(0, 3))
        assert np.array_equal(recorded.among(4, 3), recorded.among(4, 3))
        assert recorded.among(0, 3)[0] == 0  # the item taken


class TestWay:
    @pytest.mark.parametrize("settings", [{}, {"half_life": None}])
    def test_steps_are_those_of_the_updater(self, settings: dict[str, Any]) -> None:
        """What the kernels know of rows, facts and time decay is what a stream that learns the same batches has."""
        model, log = bpr(negatives=2), stream()
        recorded, strategy = scene(model, **settings)
        rows = []

        def forward(replay: Any, now: Any, *rest: Any) -> float:
            total: float = SLOW_KERNELS.forward(replay, now, *rest)
            rows.append([part.copy() for part in now])
            return total

        kernels = SimpleNamespace(**{**vars(SLOW_KERNELS), "forward": forward})
        FactorMetaTraining(model, strategy, recorded, kernels).run(1)
        live = bpr(negatives=2)
        updater = behind(live, MeLON({"lr": 0.2, "half_life": 40.0, **settings}), log)
        updater.take_over(strategy.memory())
        fresh = updater.row_state["item_factors"]["recent"]
        fresh.scatter(np.arange(fresh.rows), np.zeros((fresh.rows, fresh.spec.dim)))
        for batch in ahead(log):
            updater.learn(batch.in_epoch(1))
        places = (recorded.user_rows, recorded.item_rows, recorded.item_rows)
        for name, some, found in zip(("user_factors", "item_factors", "item_bias"), places, rows[0], strict=False):
            stored = live.tables[name].arrays()[0][some]
            np.testing.assert_allclose(found.reshape(len(some), -1), stored, rtol=1e-4, atol=1e-5)

    def test_the_way_back_restores_every_row(self) -> None:
        model = bpr()
        recorded, strategy = scene(model)
        meta_training = FactorMetaTraining(model, strategy, recorded, SLOW_KERNELS)
        first, again = meta_training.run(0), meta_training.run(0)
        assert first[0] == again[0]
        assert all(np.array_equal(first[1][name], again[1][name]) for name in first[1])

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
            assert np.array_equal(one.facts, other.facts[:n])
            assert np.array_equal(short.item_rows[one.items], long.item_rows[other.items[:n]])


class TestPasses:
    def stream_trained(self, **settings: Any) -> tuple[list[float], int, StreamTrainedStrategy]:
        log, strategy = stream(), MeLON({"lr": 0.2, "passes": 12, **settings})
        updater = behind(bpr(np.float32), strategy, log)
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
        assert all(np.isfinite(value).all() for value in strategy.rates.phi.values())

    @pytest.mark.parametrize("broken", [float("nan"), 10.0])
    def test_a_rejected_pass_leaves_the_last_good_rates_and_halves_the_step(self, broken: float) -> None:
        strategy = MeLON({"lr": 0.2, "passes": 4})
        behind(bpr(), strategy, stream())
        seen, answers = [], iter([1.0, broken, 1.0, 1.0])

        def run(number: int) -> tuple[float, Phi]:
            seen.append({name: value.copy() for name, value in strategy.rates.phi.items()})
            return next(answers), {name: np.ones_like(value) for name, value in strategy.rates.phi.items()}

        stream_trained = meta_train(strategy, run)
        assert (stream_trained.losses, stream_trained.rejected) == ([1.0, 1.0, 1.0], 1)
        assert all(np.array_equal(seen[0][name], seen[2][name]) for name in seen[0])
        moves = [
            float(seen[place][name][0] - seen[place + 1][name][0]) for place in (0, 2) for name in ("temperature",)
        ]
        assert moves == pytest.approx([0.1, 0.05])  # both are first steps of Adam

    def test_a_start_that_is_not_finite_is_an_error(self) -> None:
        strategy = MeLON({"lr": 7.0})
        behind(bpr(), strategy, stream())
        with pytest.raises(LearningError, match="not finite at its start, the plain step with lr = 7"):
            meta_train(strategy, lambda number: (float("nan"), {}))
