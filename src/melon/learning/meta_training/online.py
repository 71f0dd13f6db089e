"""Rates that go on learning: before a batch is learned, its predictions judge the step that the batch before made."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch

from melon.adam import Adam, Moments
from melon.kernels import policy
from melon.kernels.meta_training.forms import ABSENT, UNPREDICTED
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.generic import GenericMetaTraining
from melon.learning.meta_training.record import Draw, RecordedStream
from melon.models.base import Recommender
from melon.strategies.base import Situation
from melon.strategies.melon.rates import Phi
from melon.strategies.online_continuation import LastStep, OnlineContinuation
from melon.strategies.stream_trained import LinearStrategy
from melon.stream.batch import Batch
from melon.stream.draws import Draws
from melon.stream.history import History
from melon.stream.negatives import Negatives
from melon.tables import Moment
from melon.types import Ints

_ADAM = Adam(0.9, 0.98, 1e-9)
#: A prediction is judged among so many other items.
_CANDIDATES = 99


class OnlineMetaTraining:
    """One step of Adam on φ for each batch, by the exact gradient of the batch's predictions through the step before.

    That step is made again from the rows that it found, with the present rates; what came before it is constant.
    """

    def __init__(self, recommender: Recommender, strategy: LinearStrategy, history: History, seed: int) -> None:
        self._recommender, self._strategy, self._history = recommender, strategy, history
        self._draws = Draws(seed, "candidates of rates that go on learning")
        self._learned = [spec for spec in recommender.specs if recommender.learns(spec)]

    def improve(self, batch: Batch, undo: ExitStack) -> None:
        """Learn from a batch that has been predicted, before it is learned; its newcomers have rows."""
        strategy, state = self._strategy, self._strategy.online_continuation
        undo.callback(self._put_back, strategy.phi, state)
        if state.last is None or self._history.known_items < 2:
            return
        gradient = self.gradient(batch, state.last)
        if gradient is None or not all(torch.isfinite(part).all() for part in gradient.values()):
            return
        phi, masks, steps = strategy.phi, strategy.trainable(), state.steps + 1
        before = state.moments or {name: Moments.zeros_like(value) for name, value in phi.items()}
        moments = {name: _ADAM.moments(before[name], gradient[name] * masks[name]) for name in phi}
        rate = strategy.settings.online_lr
        strategy.take({name: _ADAM.step(value, moments[name], steps, rate) for name, value in phi.items()})
        strategy.online_continuation = OnlineContinuation(moments, steps, state.last)

    def remember(self, situation: Situation, users: Ints, items: Ints) -> None:
        """Keep what is needed to make the step of a batch again; to be called before its rows are written."""
        state, recommender = self._strategy.online_continuation, self._recommender
        distinct = {"user": np.unique(users), "item": np.unique(items)}
        rows = {
            spec.name: recommender.tables[spec.name].everything().copy()
            if spec.role == "shared"
            else recommender.tables[spec.name].gather(distinct[spec.role], Moment(0))
            for spec in self._learned
        }
        last = LastStep(
            torch.from_numpy(users.copy()),
            torch.from_numpy(items.copy()),
            torch.from_numpy(self._strategy.inputs(situation)),
            torch.tensor([recommender.clock.now], device="cpu"),
            torch.from_numpy(self._touched(distinct["item"])),
            {name: torch.from_numpy(part) for name, part in rows.items()},
        )
        self._strategy.online_continuation = OnlineContinuation(state.moments, state.steps, last)

    def gradient(self, batch: Batch, last: LastStep) -> Phi | None:
        """∂(mean loss of the batch's predictions)/∂φ through the last step; None where nothing can be predicted."""
        recorded = self._recorded(batch, last)
        if not recorded.predicted:
            return None
        meta_training = self._meta_training(recorded)
        places = {
            "user": np.searchsorted(recorded.user_rows, np.unique(last.users.numpy())),
            "item": np.searchsorted(recorded.item_rows, np.unique(last.items.numpy())),
        }
        meta_training.begin_from(last.rows, places)
        return meta_training.run(0)[1]

    def _meta_training(self, recorded: RecordedStream) -> FactorMetaTraining | GenericMetaTraining:
        recommender, kernels = self._recommender, None
        if recommender.factorised and self._strategy.settings.most_step is None:
            kernels = policy.load("meta_training", dtype=recommender.dtype)
        if kernels is None:
            return GenericMetaTraining(recommender, self._strategy, recorded)
        return FactorMetaTraining(recommender, self._strategy, recorded, kernels)

    def _recorded(self, batch: Batch, last: LastStep) -> RecordedStream:
        """Two batches: the last one, which is learned and not predicted, and this one."""
        history, slots = self._history, last.items.shape[1]
        before, items_before = last.users.numpy(), last.items.numpy()
        negatives = Negatives(history.known_items, history.seen, self._draws)
        candidates = negatives.lines(batch.users, batch.items, batch.events, max(_CANDIDATES, slots - 1))
        learned = candidates[:, :slots].copy()  # the step of this batch is made too, and changes no prediction
        candidates[history.of_items.met(batch.items) == 0, 0] = ABSENT
        user_rows, users = np.unique(np.concatenate([before, batch.users]), return_inverse=True)
        items = np.concatenate([items_before, learned])
        item_rows = np.unique(np.concatenate([items.reshape(-1), candidates.reshape(-1)]))
        item_rows = item_rows[item_rows >= 0]
        places = np.where(candidates >= 0, np.searchsorted(item_rows, candidates), candidates)
        unpredicted = np.full((len(before), places.shape[1]), UNPREDICTED, dtype=np.int64)
        touched = self._touched(item_rows)
        touched[np.searchsorted(item_rows, np.unique(items_before))] = last.touched.numpy()
        inputs = np.concatenate([last.inputs.numpy(), np.zeros((len(batch), *last.inputs.shape[1:]))])
        return RecordedStream(
            np.array([len(before), len(users)]),
            np.array([int(last.now), self._recommender.clock.now]),
            users.reshape(-1),
            np.concatenate([np.zeros(len(before), dtype=bool), history.of_users.met(batch.users) > 0]),
            np.concatenate([unpredicted, places]).astype(np.int32),
            (Draw(np.searchsorted(item_rows, items), inputs),),
            user_rows,
            item_rows,
            touched,
        )

    def _touched(self, items: Ints) -> Ints:
        """When rows of items were last touched."""
        table = self._recommender.tables[self._strategy.rates.item_tables[0]]
        touched: Ints = table.view().touched[items]
        return touched

    def _put_back(self, phi: Phi, state: OnlineContinuation) -> None:
        self._strategy.take(phi)
        self._strategy.online_continuation = state
