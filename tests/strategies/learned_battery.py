"""What any learned strategy must bear (docs/methods.md 7): a test module subclasses these and says what is made.

class TestOddInput(OddInput):
    def made(self, **settings): return MWNet(settings, seed=5)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from learned_scenes import (
    KINDS,
    RELATIVE,
    Mixed,
    finite,
    look_ahead_of,
    past_and_batch,
    require_saved_goes_on,
    slow,
    updater_of,
    worst_error,
)
from torch import Tensor

from melon.errors import CheckpointError, LearningError
from melon.learning.step import Offered
from melon.learning.updater import Updater
from melon.strategies.base import Proposal, Situation
from melon.strategies.default import Default
from melon.strategies.learned import LearnedStrategy
from melon.strategies.melon.published import PublishedMeLONI
from melon.testing import state_of, toy_batch, toy_batches
from situations import assert_close, equal

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


class Battery:
    def made(self, **settings: Any) -> LearnedStrategy:
        """A strategy as it comes, but for the settings given."""
        raise NotImplementedError

    def ready(self, kind: str, **settings: Any) -> Updater:
        return updater_of(kind, self.made(**settings), past_and_batch()[0], dtype=np.float32)


@EVERY_KIND
class OddInput(Battery):
    def test_batches_of_one_from_the_first_event_on(self, kind: str) -> None:
        updater = updater_of(kind, self.made(), dtype=np.float32)
        for batch in toy_batches(size=1)[:25]:
            assert np.isfinite(updater.learn(batch))
        assert finite(updater)

    def test_one_user_fills_the_batch(self, kind: str) -> None:
        updater = self.ready(kind)
        assert np.isfinite(updater.learn(toy_batch(96, np.full(256, 1), np.arange(256) % 12)))
        assert finite(updater)

    def test_one_item_fills_batch_after_batch(self, kind: str) -> None:
        """A hot item takes 256 steps at once; it must not run away."""
        updater = self.ready(kind)
        for number in range(12):
            loss = updater.learn(toy_batch(96 + 256 * number, np.arange(256) % 20, np.full(256, 2)))
            assert np.isfinite(loss)
        assert finite(updater)
        assert float(updater.recommender.tables["item_bias"].everything().max()) < 1e3

    def test_users_and_items_without_history(self, kind: str) -> None:
        for cold in ("drop", "current"):
            updater = self.ready(kind, cold=cold)
            strangers = toy_batch(96, np.array([900, 901]), np.array([900, 901]))
            assert torch.isfinite(updater.learning_rates(strangers).rows).all()
            assert np.isfinite(updater.learn(strangers))
            assert finite(updater)

    def test_an_item_that_is_its_own_negative(self, kind: str) -> None:
        updater = self.ready(kind)
        users, items = np.array([0, 1]), np.array([[2, 2], [3, 3]])
        loss = updater.step(Offered(users, items), Offered(users, items), toy_batch(96, users, items[:, 0]))
        assert loss == pytest.approx(np.log(2))
        assert finite(updater)

    def test_rows_fade(self, kind: str) -> None:
        updater = self.ready(kind, half_life=40.0)
        for batch in toy_batches()[6:12]:
            updater.learn(batch)
        assert finite(updater)


class OwnRecommender(Battery):
    """A user's own recommender, with shared weights of its own and no closed form."""

    def updater(self, **settings: Any) -> Updater:
        return Updater(Mixed(dtype=np.float64), self.made(**settings), seed=7)

    def test_it_learns(self) -> None:
        updater = self.updater()
        start = updater.recommender.tables["mix"].state()["values"]
        for batch in toy_batches():
            updater.learn(batch)
        assert finite(updater)
        assert not equal(updater.recommender.tables["mix"].state()["values"], start)
        rates = updater.learning_rates(toy_batches()[-1])
        assert {table: tuple(block.shape) for table, block in rates.shared.items()} == {
            "mix": (16, 12),
            "shift": (16, 4),
        }

    def test_its_meta_gradient_is_exact(self) -> None:
        past, batch = past_and_batch()
        updater = self.updater()
        for one in past:
            updater.learn(one)
        strategy = updater.strategy
        assert isinstance(strategy, LearnedStrategy)
        found = worst_error(strategy, *look_ahead_of(updater, batch))
        assert max(found.values(), default=0.0) < RELATIVE, found


class State(Battery):
    #: What a memory may lack.
    optional: ClassVar[tuple[str, ...]] = ()

    @pytest.mark.parametrize("half_life", [slow(None), 60.0])
    @EVERY_KIND
    def test_a_checkpoint_goes_on_bit_for_bit(self, kind: str, half_life: float | None, tmp_path: Path) -> None:
        batches = toy_batches()
        strategy = self.made(keep_prelim=True, half_life=half_life)
        original = updater_of(kind, strategy, batches[:8], dtype=np.float32)
        require_saved_goes_on(original, tmp_path, *batches[8:12])

    def test_the_memory_of_another_strategy_is_refused(self) -> None:
        other = PublishedMeLONI({}, seed=5)
        updater_of("bpr", other, toy_batches()[:2])
        strategy = self.made()
        updater_of("bpr", strategy, toy_batches()[:2])
        assert repr(strategy.name) in self.refused(strategy, other.memory())
        assert repr(strategy.name) in self.refused(strategy, Default({}).memory())
        with pytest.raises(CheckpointError, match="meta-model of strategy 'melon_i'"):
            other.recall(strategy.memory())

    def test_half_a_memory_is_refused(self) -> None:
        strategy = self.made(half_life=60.0)
        updater_of("bpr", strategy, toy_batches()[:2])
        memory = strategy.memory()
        for missing in memory:
            if not missing.startswith(("adam/1", "adam/2", *self.optional)):
                self.refused(strategy, {name: tensor for name, tensor in memory.items() if name != missing})
        self.refused(strategy, {**memory, "adam/1/half_life.item_bias": torch.zeros(3)})

    @staticmethod
    def refused(strategy: LearnedStrategy, memory: Mapping[str, Tensor]) -> str:
        """The refusal, which leaves the strategy as it was."""
        before = strategy.memory()
        with pytest.raises(CheckpointError) as refusal:
            strategy.recall(memory)
        after = strategy.memory()
        assert before.keys() == after.keys()
        assert all(equal(before[key], after[key]) for key in before)
        return str(refusal.value)

    @EVERY_KIND
    def test_a_broken_look_ahead_is_told_and_leaves_everything(self, kind: str) -> None:
        past, batch = past_and_batch()
        updater = updater_of(kind, self.made(), past)
        updater.learning_rates(batch)  # makes the rows
        before = state_of(updater)
        updater.strategy.meta_gradient = lambda *_: ({"all": torch.tensor(float("nan"))}, torch.tensor(1.0))  # type: ignore[attr-defined]
        with pytest.raises(LearningError, match="look-ahead"):
            updater.learn(batch)
        assert _same(before, state_of(updater))

    @EVERY_KIND
    def test_a_broken_proposal_takes_the_meta_step_back(self, kind: str) -> None:
        past, batch = past_and_batch()
        updater = updater_of(kind, self.made(half_life=60.0), past)
        updater.learning_rates(batch)
        before, plain = state_of(updater), updater.strategy.propose

        def broken(situation: Situation) -> Proposal:
            proposal = plain(situation)
            return Proposal({name: new * float("nan") for name, new in proposal.values.items()})

        updater.strategy.propose = broken  # type: ignore[method-assign]
        with pytest.raises(LearningError, match="new value"):
            updater.learn(batch)
        assert _same(before, state_of(updater))

    @EVERY_KIND
    def test_looking_ahead_leaves_no_trace(self, kind: str) -> None:
        past, batch = past_and_batch()
        updater = updater_of(kind, self.made(), past, noise=0.5)
        updater.learning_rates(batch)
        before = state_of(updater)
        situation, meta_loss = look_ahead_of(updater, batch)
        updater.strategy.meta_gradient(situation, meta_loss)  # type: ignore[attr-defined]
        assert _same(before, state_of(updater))

    def test_a_look_ahead_without_a_common_row_teaches_nothing(self) -> None:
        updater = updater_of("bpr", self.made(), past_and_batch()[0])
        updater.learn(toy_batch(96, np.arange(4), np.arange(4)))
        before = updater.strategy.memory()
        ahead = Offered(np.array([0, 1]), np.array([[0, 1], [1, 0]]))
        behind = Offered(np.array([2, 3]), np.array([[2, 3], [3, 2]]))
        updater.step(ahead, behind, toy_batch(100, np.array([0, 1]), np.array([0, 1])))
        for name, moment in updater.strategy.memory().items():  # no slope: the first moments only shrink
            if name.startswith("adam/1/"):
                assert_close(moment, 0.9 * before[name], rtol=1e-12, atol=0)

    @EVERY_KIND
    def test_it_is_bound_once(self, kind: str) -> None:
        """A meta-model that was trained on one recommender goes on, as it is, on another of its kind."""
        strategy = self.made()
        updater_of(kind, strategy, past_and_batch()[0])
        before = strategy.memory()
        updater_of(kind, strategy)
        assert before.keys() == strategy.memory().keys()
        assert all(equal(before[name], tensor) for name, tensor in strategy.memory().items())


def _same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
