"""Pre-trained recommenders: how one is trained, copied, and deployed behind a log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import numpy.typing as npt

from melon.data.interactions import Interactions
from melon.fitting.plan import Plan
from melon.learning.pretrain import (
    Pretraining,
    PretrainSettings,
    live_through,
    most_epochs,
    stamp_last_touches,
)
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.blend.recommender import Blend
from melon.strategies.base import Strategy
from melon.stream.history import History
from melon.types import AnyArray, Plain

ReportText = Callable[[str], None]
#: What a strategy has learned of learning (`Updater.meta-training`).
MetaParameters = dict[str, AnyArray]
#: What was computed of one log, by name: its history, and the streaming state of a recommender after it.
LogStates = dict[tuple[str, str], Any]
#: The tables of a recommender, by name and part.
TableArrays = Mapping[str, Mapping[str, npt.NDArray[Any]]]


def silent(_: str) -> None:
    """Report nothing."""


class PretrainedState:
    """The tables of a trained recommender, from which fresh copies are made.

    States of one stream may share the streaming state in `observed`, so that a log is observed once; without it every
    copy observes the log itself and nothing more is kept in memory.
    """

    def __init__(self, plan: Plan, tables: TableArrays, observed: LogStates | None = None) -> None:
        self._plan, self.tables, self._observed = plan, tables, observed
        self._once: list[Recommender] | None = None
        self._lived: History | None = None

    @classmethod
    def once(cls, plan: Plan, recommender: Recommender, lived: History | None = None) -> PretrainedState:
        """The recommender itself, for one deployment: its rows are never copied.

        `lived` is the history of the log, where the recommender has observed it already.
        """
        state = cls(plan, {})
        state._once, state._lived = [recommender], lived
        return state

    @classmethod
    def of(cls, plan: Plan, recommender: Recommender, observed: LogStates | None = None) -> PretrainedState:
        """The state of a recommender as it is now."""
        return cls(plan, {name: table.state() for name, table in recommender.tables.items()}, observed)

    @property
    def seed(self) -> int:
        """The root of everything random in the recommender."""
        return self._plan.seed

    @property
    def headed(self) -> bool:
        """Whether the recommender has a head, which is trained on the selection window."""
        return isinstance(self.fresh(), Blend)

    def fresh(self) -> Recommender:
        """The same recommender before it learned anything."""
        return self._plan.build()

    def trained_on(self, log: Interactions, settings: Plain) -> PretrainedState:
        """The same recommender, trained on another log instead."""
        return refit(self._plan, log, settings)

    def copy(self) -> Recommender:
        """A recommender with the trained rows."""
        if self._once is not None:
            return self._once.pop()
        recommender = self.fresh()
        for name, state in self.tables.items():
            recommender.tables[name].restore(state)
        return recommender

    def after(self, log: Interactions) -> tuple[Recommender, History]:
        """A recommender with the trained rows that has observed a log, and the history of it.

        Shared streaming state is kept for one log, by its fingerprint.
        """
        recommender = self.copy()
        if self._lived is not None:
            return recommender, self._lived
        key = f"{self._plan.recommender_name} {sorted(self._plan.recommender_settings.items())}", log.sha256
        if self._observed is None:
            history = History()
            live_through(recommender, history, log)
            return recommender, history
        if key not in self._observed:
            live_through(recommender, History(), log)
            self._known(log)[key] = recommender.streaming_state()
            return recommender, self._history(log)
        recommender.restore_streaming_state(self._observed[key])
        return recommender, self._history(log)

    def rows_after(self, log: Interactions) -> tuple[Recommender, History]:
        """The same for rows that are judged by themselves: a head of its own stays silent, and so nothing is observed
        for it.
        """
        recommender = self.copy()
        if not isinstance(recommender, Blend):
            return self.after(log)
        recommender.observes = False
        return recommender, self._history(log)

    def _history(self, log: Interactions) -> History:
        states, key = self._known(log), ("history", log.sha256)
        if key not in states:
            states[key] = History()
            states[key].expect(log)
            states[key].append(log.users, log.items)
        history: History = states[key] if self._observed is None else deepcopy(states[key])
        return history

    def _known(self, log: Interactions) -> LogStates:
        """What is known of this log; one log is enough, and may be large."""
        states: LogStates = {} if self._observed is None else self._observed
        for key in [key for key in states if key[1] != log.sha256]:
            del states[key]
        return states


def deploy(
    strategy: Strategy,
    start: PretrainedState,
    log: Interactions,
    meta_training: MetaParameters | None = None,
    *,
    rows_alone: bool = False,
) -> Updater:
    """An updater on the pre-trained recommender, behind the log."""
    recommender, history = (start.rows_after if rows_alone else start.after)(log)
    if strategy.whole_history:
        history.keep_everything(log.users, log.items)
    updater = Updater(recommender, strategy, history, seed=start.seed)
    updater.take_over(meta_training or {})
    stamp_last_touches(updater.recommender, log)
    return updater


def refit(
    plan: Plan,
    log: Interactions,
    settings: Plain,
    report: ReportText = silent,
    observed: LogStates | None = None,
    *,
    once: bool = False,
    helpers: int = 0,
    goes_on: Callable[[int, int], bool] = lambda _done, _all: False,
) -> PretrainedState:
    """The plan's recommender, pre-trained on a whole log with the chosen settings; for one deployment with `once`.

    `helpers` are threads that draw ahead; with them the log is observed meanwhile, too. Where people stop it and
    `goes_on` says so, the epochs that are done have to do.
    """
    recommender = plan.build()
    chosen = PretrainSettings.parse(settings, "pre-training")
    training = Pretraining(recommender, log, chosen, seed=plan.seed, helpers=helpers)
    epochs = chosen.epochs if chosen.epochs is not None else most_epochs(len(log))
    beside = _observed_beside(recommender, log) if once and helpers and recommender.observes_apart else nullcontext()
    with beside as history:
        try:
            for loss in training.run(epochs):
                report(f"epoch {training.epochs_done} of {epochs}, loss {loss:.4f}")
        except KeyboardInterrupt:
            if not training.epochs_done or not goes_on(training.epochs_done, epochs):
                raise
        if once:
            return PretrainedState.once(plan, recommender, history and history())
    return PretrainedState.of(plan, recommender, observed)


@contextmanager
def _observed_beside(recommender: Recommender, log: Interactions) -> Iterator[Callable[[], History]]:
    """Observe a log in a thread; gives a function that waits for its history. Leaving earlier gives it up."""
    history, given_up = History(), threading.Event()
    pool = ThreadPoolExecutor(1, thread_name_prefix="melon-observing")
    observing = pool.submit(live_through, recommender, history, log, given_up.is_set)

    def wait() -> History:
        observing.result()
        return history

    try:
        yield wait
    finally:
        given_up.set()
        pool.shutdown(wait=False)


def untrained(plan: Plan, log: Interactions) -> PretrainedState:
    """The plan's recommender with the initial rows of a log, for a strategy that trains its tables itself."""
    recommender = plan.build()
    recommender.grow(log.n_users, log.user_keys, log.n_items, log.item_keys)
    return PretrainedState.of(plan, recommender)
