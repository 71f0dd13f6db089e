"""MeLON and its ablations (docs/methods.md 4.8, 7): equivalences, families, leaks, odd input, state."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from learned_battery import OddInput, OwnRecommender, State
from learned_scenes import finite, require_others_untouched, slow
from melon_scenes import (
    FAMILY,
    KINDS,
    constant_rates,
    look_ahead_of,
    past_and_batch,
    recommender_of,
    strategy_of,
    tables_of,
    updater_of,
)
from torch import Tensor

from melon.data.synthetic import synthetic_stream
from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.models.evidence import FactorGradient
from melon.strategies.base import LearningRates
from melon.strategies.default import Default
from melon.strategies.melon import published as pairs
from melon.strategies.melon.published import PublishedStrategy
from melon.strategies.registry import MELON_PRESETS
from melon.stream.batch import Batch, batch_of
from melon.stream.history import History
from melon.testing import state_of, toy_batch, toy_batches, toy_log
from situations import assert_close, equal, situation_of

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_NAME = pytest.mark.parametrize("name", FAMILY)


def columns(rates: LearningRates, table: str, slot: int = 0) -> Tensor:
    """The raw rates of one row of each interaction."""
    raw = rates.rows if rates.raw is None else rates.raw
    return raw[:, [at for at, place in enumerate(rates.slots) if place == (table, slot)]]


def numerical_rank(matrix: Tensor) -> int:
    return int(torch.linalg.matrix_rank(matrix.to(torch.float64), rtol=1e-10))


@EVERY_KIND
class TestDegenerate:
    """With f ≡ 1 and w ≡ η it is plain SGD."""

    @pytest.mark.parametrize("forgetting", [True, slow(False)])
    @EVERY_NAME
    def test_constant_rates_are_default(self, kind: str, name: str, forgetting: bool) -> None:
        rate = 0.01
        strategy = strategy_of(name, forgetting=forgetting, meta_lr=0.0)
        ours = Updater(recommender_of(kind), strategy, seed=7)
        constant_rates(strategy, rate)
        plain = Default({"lr": rate, "reduction": "sum", "shared_reduction": "sum"})
        default = Updater(recommender_of(kind), plain, seed=7)
        for batch in toy_batches()[:6]:
            ours.learn(batch)
            default.learn(batch)
        for table, values in tables_of(default).items():
            assert_close(tables_of(ours)[table], values, rtol=1e-11, atol=1e-13, msg=table)

    def test_forgetting_shrinks_touched_rows_once_however_often_they_are_touched(self, kind: str) -> None:
        """4.10: f is averaged over a row's touches, never multiplied."""
        forget = 0.9
        strategy = strategy_of(meta_lr=0.0)
        updater = updater_of(kind, strategy, noise=0.5)
        constant_rates(strategy, 1e-300, float(np.log(forget / (1 - forget))))
        users, items = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 2])
        updater.learn(toy_batch(0, np.arange(3), np.arange(3)))  # makes the rows
        before = tables_of(updater)
        updater.learn(toy_batch(3, users, items))
        for table, values in tables_of(updater).items():
            touched = updater.recommender.tables[table].state()["touched"] == 3
            rate = 1.0 if table == "user_bias" else forget
            assert_close(values[touched], rate * before[table][touched], rtol=1e-12, atol=1e-200, msg=table)


@EVERY_KIND
class TestFamilies:
    """Families (1.3, 4.8), always on the raw rates, before the mask."""

    def rates(self, kind: str, name: str, **settings: Any) -> tuple[Updater, Batch, LearningRates]:
        past, batch = past_and_batch()
        updater = updater_of(kind, strategy_of(name, **settings), past, noise=0.5, phi_noise=0.4)
        return updater, batch, updater.learning_rates(batch)

    def test_melon_i_is_constant_along_an_interaction(self, kind: str) -> None:
        _, _, rates = self.rates(kind, "melon_i")
        assert rates.raw is not None
        for matrix in (rates.raw, *rates.shared.values()):
            assert equal(matrix, matrix[:, :1].expand_as(matrix))
            assert numerical_rank(matrix) == 1
        assert len(torch.unique(rates.raw[:, 0])) > 1

    def test_melon_p_is_constant_along_a_parameter(self, kind: str) -> None:
        updater, batch, rates = self.rates(kind, "melon_p")
        situation = situation_of(updater, batch)[1]
        repeated = 0
        for gradient in situation.evidence.row_gradients:
            slots = gradient.positions.shape[1]
            lines = torch.cat([columns(rates, gradient.table, slot) for slot in range(slots)])
            rows = gradient.positions.T.reshape(-1)
            for row in torch.unique(rows):
                mine = lines[rows == row]
                repeated += len(mine) > 1
                assert equal(mine, mine[:1].expand_as(mine)), gradient.table
        assert repeated > 3
        for matrix in rates.shared.values():
            assert equal(matrix, matrix[:1].expand_as(matrix))
            assert numerical_rank(matrix) == 1
        assert kind == "bpr" or len(torch.unique(rates.shared["layer_1"][0])) > 1

    def test_melon_is_two_dimensional(self, kind: str) -> None:
        _, _, rates = self.rates(kind, "melon")
        assert rates.raw is not None
        assert numerical_rank(rates.raw) == min(rates.raw.shape)
        for table in ("layer_1", "layer_2") if kind == "ncf" else ():
            assert numerical_rank(rates.shared[table]) > 1

    def test_one_interaction_has_many_rates_and_so_has_one_parameter(self, kind: str) -> None:
        updater, batch, rates = self.rates(kind, "melon")
        table = "user_factors" if kind == "bpr" else "user_gmf"
        mine = columns(rates, table)
        assert len(torch.unique(mine[0])) == mine.shape[1]  # one interaction, several parameters
        twice = int(np.flatnonzero(np.bincount(batch.users) > 1)[0])
        first, second = np.flatnonzero(batch.users == twice)[:2]
        assert not torch.isclose(mine[first], mine[second]).any()  # one parameter, two interactions
        assert len(situation_of(updater, batch)[1].examples) == len(batch)

    @pytest.mark.parametrize(("form", "power"), [("paper", 0.0), ("code", 1.0)])
    def test_realised_rates_are_the_raw_ones_over_the_touches(self, kind: str, form: str, power: float) -> None:
        updater, batch, rates = self.rates(kind, "melon", form=form)
        assert rates.raw is not None
        start = 0
        for gradient in situation_of(updater, batch)[1].evidence.row_gradients:
            n, slots, dim = gradient.gradient.shape
            touches = torch.bincount(gradient.positions.reshape(-1))[gradient.positions]
            here = slice(start, start + slots * dim)
            realised, raw = (block[:, here].reshape(n, slots, dim) for block in (rates.rows, rates.raw))
            assert_close(realised, raw * touches.double().pow(-power)[:, :, None], rtol=1e-12, atol=0)
            start += slots * dim

    @pytest.mark.parametrize("form", ["paper", slow("code")])
    @EVERY_NAME
    def test_rates_explain_the_step(self, kind: str, name: str, form: str) -> None:
        """1.2: without forgetting, Δ = −colsum(W ⊙ G)."""
        updater, batch, rates = self.rates(kind, name, forgetting=False, form=form)
        self.assert_explained(updater, batch, rates)

    @staticmethod
    def assert_explained(updater: Updater, batch: Batch, rates: LearningRates) -> None:
        situation = situation_of(updater, batch)[1]
        proposed = updater.strategy.propose(situation).values
        start = 0
        for gradient in situation.evidence.row_gradients:
            n, slots, dim = gradient.gradient.shape
            block = rates.rows[:, start : start + slots * dim].reshape(n, slots, dim)
            start += slots * dim
            old = situation.values[gradient.table]
            step = torch.zeros_like(old)
            step.index_add_(0, gradient.positions.reshape(-1), (block * gradient.gradient).reshape(-1, dim))
            assert_close(old - proposed[gradient.table], step, rtol=1e-9, atol=1e-13)
        for wide in situation.evidence.shared_gradients:
            old = situation.values[wide.table]
            gradients, weights = wide.expand().flatten(1), rates.shared[wide.table]
            if weights.shape != gradients.shape:  # the published code has a rate for each pair of an interaction
                assert isinstance(wide, FactorGradient)
                gradients = torch.einsum("nbr,nbd->nbrd", wide.left, wide.right).flatten(1)
            step = (weights * gradients).sum(0).view(-1, old.numel()).sum(0)
            assert_close((old - proposed[wide.table]).flatten(), step, rtol=1e-9, atol=1e-13)


@EVERY_KIND
class TestOnlyWhatIsTouched:
    """Untouched rows keep their bytes; with `keep_prelim` rows of the last interactions change, too."""

    @EVERY_NAME
    def test_other_rows_keep_their_bytes(self, kind: str, name: str) -> None:
        past, batch = past_and_batch()
        updater = updater_of(kind, strategy_of(name), past, noise=0.5)
        require_others_untouched(updater, batch)

    @EVERY_NAME
    def test_the_provisional_rows_stay_if_asked(self, kind: str, name: str) -> None:
        past, _ = past_and_batch()
        plain, keeping = (
            updater_of(kind, strategy_of(name, keep_prelim=keep), past[:1], noise=0.5) for keep in (False, True)
        )
        for updater in (plain, keeping):
            for batch in past[1:-1]:
                updater.learning_rates(batch)  # makes the rows
                updater.history.append(batch.users, batch.items)
        situation, _ = look_ahead_of(keeping, past[-1])
        assert situation.around is not None
        provisional = keeping.strategy.look_ahead(replace(situation, reach=None))
        for updater in (plain, keeping):
            updater.learn(past[-1])
        kept = 0
        for table, values in tables_of(keeping).items():
            role = keeping.recommender.tables[table].spec.role
            if role == "shared" or table == "user_bias":
                continue
            stored = situation.around.users if role == "user" else situation.around.items
            beyond = stored[situation.reached(table) :]
            kept += len(beyond)
            assert equal(values[beyond], provisional[table].detach()[situation.reached(table) :])
            assert not torch.isclose(values[beyond], tables_of(plain)[table][beyond]).all(1).any()
            others = np.setdiff1d(np.arange(len(values)), beyond)
            assert equal(values[others], tables_of(plain)[table][others])
        assert kept > 3

    def test_looking_ahead_leaves_no_trace(self, kind: str) -> None:
        past, batch = past_and_batch()
        updater = updater_of(kind, strategy_of(), past, noise=0.5)
        updater.learning_rates(batch)
        before = state_of(updater)
        situation, meta_loss = look_ahead_of(updater, batch)
        updater.strategy.meta_gradient(situation, meta_loss)
        after = state_of(updater)
        assert all(np.array_equal(before[name], after[name]) for name in before)


class TestTime:
    """Neither the future nor the batch's own edges are seen."""

    @EVERY_NAME
    @EVERY_KIND
    def test_another_future_changes_nothing_before_it(self, kind: str, name: str) -> None:
        cut, told = 6, []
        for log in (toy_log(), toy_log(other_future_from=cut * 16)):
            updater = updater_of(kind, strategy_of(name))
            rates = []
            for batch in toy_batches(log)[:cut]:
                rates.append(updater.learning_rates(batch).rows)
                updater.learn(batch)
            told.append((rates, state_of(updater)))
        assert all(equal(one, other) for one, other in zip(told[0][0], told[1][0], strict=True))
        assert all(np.array_equal(told[0][1][key], told[1][1][key]) for key in told[0][1])

    def test_edges_of_the_batch_are_not_in_its_graph(self) -> None:
        """What else the user takes in this batch does not change the rates of an interaction."""
        past, _ = past_and_batch()
        updater = updater_of("bpr", strategy_of(), past, noise=0.5, phi_noise=0.4)
        first = past[-1].first_event + len(past[-1])
        rows = [updater.learning_rates(toy_batch(first, np.array([1, 1]), np.array([2, i]))).raw for i in (3, 4)]
        assert rows[0] is not None
        assert equal(rows[0][0], rows[1][0])
        assert not equal(rows[0][1], rows[1][1])

    def test_an_edge_of_the_past_is(self) -> None:
        past, _ = past_and_batch()
        batch = toy_batch(past[-1].first_event + 20, np.array([1]), np.array([2]))
        rates = []
        for extra in (0, 1):
            updater = updater_of("bpr", strategy_of(), past, noise=0.5, phi_noise=0.4)
            updater.history.append(np.ones(extra, dtype=np.int64), np.full(extra, 5))
            rates.append(updater.learning_rates(batch).raw)
        assert not equal(rates[0], rates[1])


class Family:
    """MeLON as a battery wants it; its ablations are the same class with fewer inputs, and follow in the slow tests."""

    @pytest.fixture(autouse=True, params=["melon", slow("melon_i"), slow("melon_p")])
    def member(self, request: pytest.FixtureRequest) -> None:
        self.member_name = request.param

    def made(self, **settings: Any) -> PublishedStrategy:
        return strategy_of(self.member_name, **settings)


class TestOddInput(Family, OddInput):
    @pytest.mark.parametrize("preset", ["paper", "code"])
    def test_presets_take_batches_of_one(self, kind: str, preset: str) -> None:
        updater = updater_of(kind, FAMILY[self.member_name](MELON_PRESETS[preset]), dtype=np.float32)
        for batch in toy_batches(size=1)[:8]:
            assert np.isfinite(updater.learn(batch))
        assert finite(updater)

    def test_no_neighbours_at_all(self, kind: str) -> None:
        updater = self.ready(kind, neighbours=0)
        updater.learn(past_and_batch()[1])
        assert finite(updater)


class TestOwnRecommender(Family, OwnRecommender):
    def test_its_meta_gradient_is_the_same_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        past, batch = past_and_batch()
        updater = self.updater()
        for one in past:
            updater.learn(one)
        strategy = updater.strategy
        assert isinstance(strategy, PublishedStrategy)
        situation, meta_loss = look_ahead_of(updater, batch)
        whole, _ = strategy.meta_gradient(situation, meta_loss)
        monkeypatch.setattr(pairs, "PAIRS_AT_ONCE", 24)
        pieces, _ = strategy.meta_gradient(situation, meta_loss)
        for key, gradient in whole.items():
            assert_close(pieces[key], gradient, rtol=1e-9, atol=1e-14)

    def test_the_codes_form_needs_a_gradient_for_each_pair(self) -> None:
        with pytest.raises(SettingsError, match="use form = paper"):
            self.updater(form="code").learn(toy_batches()[0])


class TestState(Family, State):
    pass


class TestRefusals:
    """The memory of another meta-model is refused with what differs."""

    def bound(self, kind: str, name: str, batches: int = 0, **settings: Any) -> PublishedStrategy:
        strategy = strategy_of(name, **settings)
        updater_of(kind, strategy, toy_batches()[:batches])
        return strategy

    def test_of_another_strategy(self) -> None:
        message = State.refused(self.bound("bpr", "melon"), self.bound("bpr", "melon_i", 3).memory())
        assert "'melon'" in message
        assert "has no role.1" in message
        message = State.refused(self.bound("bpr", "melon_i"), self.bound("bpr", "melon").memory())
        assert "role.1, which is unknown here" in message

    def test_of_another_preset(self) -> None:
        memory = self.bound("bpr", "melon", 3, **MELON_PRESETS["code"]).memory()
        assert "user.extend" in State.refused(self.bound("bpr", "melon"), memory)

    def test_on_another_recommender(self) -> None:
        message = State.refused(self.bound("ncf", "melon"), self.bound("bpr", "melon", 2).memory())
        assert "user.attention as (1, 8) instead of (1, 12)" in message

    def test_half_of_one(self) -> None:
        memory = self.bound("bpr", "melon", 3).memory()
        strategy = self.bound("bpr", "melon")
        for missing, wanted in (("adam/steps", "optimiser"), ("phi/head.bias", "has no head.bias")):
            assert wanted in State.refused(strategy, {key: t for key, t in memory.items() if key != missing})
        odd = {**memory, "adam/1/head.bias": torch.zeros(3)}
        assert "adam/1/head.bias" in State.refused(strategy, odd)


def drifting(kind: str, strategy: PublishedStrategy, batches: int, size: int) -> Updater:
    """Learn a drifting stream, again and again from its start when it ends."""
    log = synthetic_stream("drift", n_events=100 * size, seed=0)
    updater = Updater(recommender_of(kind, np.float32), strategy, History(), seed=7)
    for number in range(batches):
        start = (number * size) % len(log)
        updater.learn(replace(batch_of(log, start, start + size), first_event=number * size))
    return updater


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY)
@EVERY_KIND
def test_a_thousand_batches_stay_finite(kind: str, name: str) -> None:
    assert finite(drifting(kind, FAMILY[name]({}), batches=1_000, size=64))


@pytest.mark.parametrize("name", FAMILY)
@EVERY_KIND
def test_some_batches_stay_finite(kind: str, name: str) -> None:
    assert finite(drifting(kind, strategy_of(name), batches=15, size=32))
