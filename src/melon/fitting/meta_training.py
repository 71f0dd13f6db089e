"""Meta-training on the selection window (docs/methods.md 8.2, 8.5): of strategies and heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import NamedTuple

from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.fitting.plan import EvaluationProtocol
from melon.fitting.pretrained import MetaParameters, PretrainedState
from melon.learning.pretrain import stamp_last_touches
from melon.learning.updater import Updater
from melon.models.blend.head import HeadExamples
from melon.models.blend.recommender import Blend
from melon.strategies.base import Strategy
from melon.stream.batch import Batch, batch_of
from melon.stream.split import batches
from melon.types import Arrays, Plain


class WindowRecording(NamedTuple):
    """What streaming up to `stop` showed that depends on no row: training examples, and the streaming state then."""

    start: PretrainedState
    stop: int
    head_batches: list[HeadExamples | None]
    state: Arrays
    #: The head that these examples give.
    head: MetaParameters


class WindowMetaTraining:
    """Streams through the window of a log, which begins at `start`, behind the `past` before it.

    The head of a recommender is trained on `earlier` windows, too, where they are asked for (docs/decisions.md 22).
    """

    def __init__(
        self,
        log: Interactions,
        start: int,
        past: Interactions,
        protocol: EvaluationProtocol,
        earlier: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._log, self._start, self._past, self._protocol, self._earlier = log, start, past, protocol, earlier
        self._shared: WindowRecording | None = None

    def of(
        self, strategy: Strategy, start: PretrainedState, stop: int, pretraining: Plain | None = None
    ) -> MetaParameters:
        """What a strategy and a head learn on the window up to `stop`, and the head on earlier ones: for these, rows
        are trained with settings of `pretraining`, if they are given.
        """
        meta_training = self.of_strategy(strategy, start, stop)
        return meta_training | self.of_head(strategy, start, stop, meta_training, pretraining)

    def of_strategy(self, strategy: Strategy, start: PretrainedState, stop: int) -> MetaParameters:
        """Meta-train a learned strategy on the window up to `stop`: several passes in time order, each from a
        recommender and a history from before the window (docs/methods.md 8.2). Others have no meta-parameters.
        """
        meta_training: MetaParameters = {}
        if strategy.stream_trained:
            from melon.learning.meta_training.loop import meta_train_through, meta_training_candidates

            updater = self._before_window(strategy, start, meta_training)
            past, size = self._log.head(stop), self._protocol.batch_size
            coming = [batch_of(past, *bounds) for bounds in batches(self._start, stop, size)]
            meta_train_through(
                updater, coming, meta_training_candidates(past, self._protocol.seed, self._protocol.negatives)
            )
            meta_training = updater.meta_training()
        for number in range(getattr(strategy.settings, "passes", 0) if strategy.looks_ahead else 0):
            updater = self._before_window(strategy, start, meta_training)
            for first, last in batches(self._start, stop, self._protocol.batch_size):
                updater.learn(batch_of(self._log, first, last).in_epoch(number), teach_head=False)
            meta_training = updater.meta_training()
        return meta_training

    def of_head(
        self,
        strategy: Strategy,
        start: PretrainedState,
        stop: int,
        meta_training: MetaParameters,
        pretraining: Plain | None = None,
    ) -> MetaParameters:
        """Train a recommender's head out of sample (docs/methods.md 8.5): rows that know nothing of the window stream
        through it under the strategy, and the head learns from what was recorded on the way, in several passes.
        """
        if not start.headed:
            return {}
        earlier = [] if pretraining is None else self._earlier_head_batches(strategy, start, meta_training, pretraining)
        updater, head_batches = self.recorded(deepcopy(strategy), start, stop, meta_training)
        return updater.train_head(earlier + head_batches)

    def _earlier_head_batches(
        self, strategy: Strategy, start: PretrainedState, meta_training: MetaParameters, pretraining: Plain
    ) -> list[HeadExamples]:
        """Training examples of the windows before this one, each with rows that were trained on what precedes it.

        A window that gives no examples is left out: these are examples beside those of the selection window.
        """
        head_batches: list[HeadExamples] = []
        for first, stop in self._earlier:
            past = self._log.head(first)
            if past.n_items < 2:
                continue
            window = WindowMetaTraining(self._log, first, past, self._protocol)
            with suppress(LearningError):  # settings suit the whole log, and this is a shorter one
                rows = start.trained_on(past, pretraining)
                head_batches += window.recorded(deepcopy(strategy), rows, stop, meta_training)[1]
        return head_batches

    def recorded(
        self, strategy: Strategy, start: PretrainedState, stop: int, meta_training: MetaParameters
    ) -> tuple[Updater, list[HeadExamples]]:
        """Rows that have streamed through the window up to `stop`, and the examples that the head had on the way."""
        shared = self._shared
        if shared is not None and (shared.start is not start or shared.stop != stop):
            shared = None
        updater = self._before_window(strategy, start, meta_training, observes=shared is None)
        head_batches = list[HeadExamples | None]()
        for number, batch in enumerate(self._batches(stop)):
            if shared is None:
                head_batches.append(updater.head_examples(batch))
            elif (known := shared.head_batches[number]) is not None:
                head_batches.append(updater.with_present_rows(known, int(batch.times[0])))
            updater.learn(batch, teach_head=False)
        if shared is not None and isinstance(updater.recommender, Blend):
            updater.recommender.observes = True
            updater.recommender.restore_streaming_state(shared.state)
        return updater, [head_examples for head_examples in head_batches if head_examples is not None]

    def trained_head(self, updater: Updater, head_batches: list[HeadExamples]) -> MetaParameters:
        """The head of a trial, which has `recorded` these examples."""
        return updater.train_head(head_batches, None if self._shared is None else self._shared.head)

    @contextmanager
    def sharing(self, strategy: Strategy, start: PretrainedState, stop: int) -> Iterator[None]:
        """Observe the window up to `stop` once, for every recording from this start while it lasts.

        What the head sees of counts, neighbours and pasts is the same whatever a strategy does to rows. So a head that
        was trained beside the rows of one strategy needs few passes beside others (`trained_head`).
        """
        updater, head_batches = self._before_window(strategy, start, {}), list[HeadExamples | None]()
        for batch in self._batches(stop):
            head_batches.append(updater.head_examples(batch))
            updater.learn(batch, teach_head=False)
        head = updater.train_head([head_examples for head_examples in head_batches if head_examples is not None])
        self._shared = WindowRecording(start, stop, head_batches, updater.recommender.streaming_state(), head)
        try:
            yield
        finally:
            self._shared = None

    def _batches(self, stop: int) -> Iterator[Batch]:
        for first, last in batches(self._start, stop, self._protocol.batch_size):
            yield batch_of(self._log, first, last)

    def _before_window(
        self, strategy: Strategy, start: PretrainedState, meta_training: MetaParameters, *, observes: bool = True
    ) -> Updater:
        recommender, history = (start.after if observes else start.rows_after)(self._past)
        if strategy.whole_history:
            history.keep_everything(self._past.users, self._past.items)
        updater = Updater(recommender, strategy, history, seed=self._protocol.seed)
        updater.take_over(meta_training)
        stamp_last_touches(updater.recommender, self._past)
        return updater
