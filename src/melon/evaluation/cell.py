"""Run one cell: choose on the selection window, refit, stream through validation into test, report beside baselines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from melon.data.interactions import Interactions
from melon.errors import StreamError
from melon.evaluation.baselines import BASELINES, SOURCES, UNCHOSEN, make_baseline
from melon.evaluation.lists import Lister
from melon.evaluation.predictors import Frozen, Popularity, Predictor, Retrained
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.record import CellRecord
from melon.evaluation.work import PLAIN, TALLY, CellMemo, Work
from melon.fitting.baselines import choose_baselines
from melon.fitting.config import CellConfig
from melon.fitting.fit import Fitting, without_trials
from melon.fitting.pretrained import MetaParameters, PretrainedState, deploy, refit, untrained
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning.pretrain import stamp_last_touches
from melon.learning.updater import Updater
from melon.progress import Progress
from melon.stream.batch import batch_of
from melon.stream.candidates import Candidates, require_enough_items
from melon.stream.draws import Draws
from melon.stream.split import SealedStream, batches, split
from melon.types import Plain

#: Where lists of every event of the test part would take more scores than this, some events are listed.
LISTED_SCORES = 1e9


@dataclass(frozen=True)
class CellResult:
    """The record (docs/design.md), and the rank of every evaluated event under every method."""

    record: Plain
    ranks: dict[str, np.ndarray[Any, Any]]


class Cell:
    """One recommender, one strategy, one stream, one seed; baselines run beside it on the same candidates.

    `workers` processes try settings side by side, which changes no result.
    """

    def __init__(
        self,
        log: Interactions,
        config: CellConfig,
        progress: Progress | None = None,
        work: Work | None = None,
        *,
        workers: int = 1,
    ) -> None:
        self.config, self.progress, self._work = config, progress or Progress(), work or Work()
        self.parts = split(log, config.split)
        self._sealed = SealedStream(log, self.parts)
        self._require_two_sides(self._sealed.training)
        # Names and values are checked before hours are spent.
        require_enough_items(self._sealed.before_test.n_items, config.negatives)
        self._plan = config.plan
        self._plan.check()
        self.fitting = Fitting(
            self._sealed.before_test,
            self.parts,
            self._sealed.training,
            self._plan,
            self.progress,
            CellMemo(self._work, self._plan),
            workers=workers,
        )

    @property
    def selection(self) -> Selection:
        """The selection window of the stream."""
        return self.fitting.selection

    def run(self, path: str = "") -> CellResult:
        """Choose, refit, stream, report."""
        use_threads(self.config.threads)
        self._note_a_small_catalogue()
        choices = self.choose()
        began = time.perf_counter()
        state = self.fitting.pretrained(choices)
        pretrain_s = time.perf_counter() - began
        meta_trained = {"default", self.config.strategy} if self.config.pretrain == "shared" else {"default"}
        meta_training = {name: self.fitting.meta_train(name, choices) for name in sorted(meta_trained)}
        log = self._sealed.open(choices)
        candidates = Candidates(log, mode=self.config.candidates, seed=self.config.seed, count=self.config.negatives)
        tallies = {
            name: self._work.once(
                f"stream/{self._label(name)}",
                TALLY,
                lambda name=name, make=make: self._stream(name, make(), log, candidates),  # type: ignore[misc]
            )
            for name, make in self._predictors(choices, state, meta_training, log).items()
        }
        recorded = CellRecord(self.config, path, log, self.parts, choices, tallies, pretrain_s, self.fitting.notes)
        return CellResult(recorded.record(), recorded.ranks())

    def choose(self) -> Plain:
        """Everything that is chosen, from data before the test part alone."""
        choices, selection = self.fitting.choose(beside=("default",)), self.selection
        if self.fitting.unchosen is not None:
            settings: Plain = {"recent_popularity": {"half_life": 3_000}}
            settings |= {name: {"kind": kinds[0], **UNCHOSEN} for name, kinds in SOURCES.items()}
            settings["mix"] = {"half_life": 3_000}
            return choices | {name: without_trials(chosen) for name, chosen in settings.items()}

        def baselines() -> Plain:
            self.progress.stage("choosing half-lives and weights of simple baselines")
            return {name: choice.plain() for name, choice in choose_baselines(selection).items()}

        return choices | self._work.once("choice/baselines", PLAIN, baselines)

    def _note_a_small_catalogue(self) -> None:
        """Say early that nothing can be ranked, where users have taken almost everything."""
        log, negatives = self._sealed.before_test, self.config.negatives
        if log.n_items < 20 * negatives and negatives > (
            most := log.n_items - 1 - int(np.diff(log.taken.starts).min())
        ):
            self.progress.note(
                f"almost nothing can be ranked: for an interaction no user has more than {most} of {log.n_items:,} "
                f"items left, and {negatives} are asked for; lower --negatives"
            )

    def _label(self, name: str) -> str:
        """Under which name a predictor is shown and its work is shared."""
        own = "-own" if self.config.pretrain == "own" else ""
        return f"{self.config.strategy}{own}" if name == "strategy" else name

    def _predictors(
        self, choices: Plain, state: PretrainedState, meta_training: dict[str, MetaParameters], log: Interactions
    ) -> dict[str, Callable[[], Predictor]]:
        """The baselines and the strategy, each made when its turn comes."""
        config, training, past_items = self.config, self._sealed.training, self._sealed.training.items
        half_life = choices["recent_popularity"]["settings"]["half_life"]
        settings = choices[config.strategy]["settings"]
        predictors: dict[str, Callable[[], Predictor]] = {
            "frozen": lambda: Frozen(self._updater("default", {}, state)),
            "popularity": lambda: Popularity(float("inf"), past_items),
            "recent_popularity": lambda: Popularity(half_life, past_items),
            **{
                name: lambda name=name: make_baseline(name, choices[name]["settings"], training)  # type: ignore[misc]
                for name in BASELINES
            },
            "default": lambda: self._updater(
                "default", choices["default"]["settings"], state, meta_training["default"]
            ),
            "strategy": lambda: self._updater(config.strategy, settings, state, meta_training.get(config.strategy)),
        }
        every = config.retrain_every
        if every is not None:
            retrained = partial(self._from_scratch, choices, meta_training["default"], log)
            predictors["retrained"] = lambda: Retrained(retrained, self.parts.train_stop, every)
        if config.pretrain == "own":
            predictors["strategy"] = lambda: self._trained_by_itself(settings, log)
        return predictors

    def _from_scratch(self, choices: Plain, meta_training: MetaParameters, log: Interactions, stop: int) -> Updater:
        """A model trained on the first events of the log as the deployed one was on the training part."""
        past = log.head(stop)
        state = refit(self._plan, past, choices["pretrain"]["settings"], self.progress.tick)
        return deploy(self._plan.make_strategy({}, "default"), state, past, meta_training)

    def _updater(
        self, name: str, settings: Plain, state: PretrainedState, meta_training: MetaParameters | None = None
    ) -> Updater:
        return self.fitting.deployed(self._plan.make_strategy(settings, name), state, meta_training)

    def _trained_by_itself(self, settings: Plain, log: Interactions) -> Updater:
        """`own`: the strategy pre-trains its recommender from scratch on shuffled chunks (docs/methods.md 3.0.6)."""
        config, stop = self.config, self.parts.train_stop
        updater = self._updater(config.strategy, settings, untrained(self._plan, self._sealed.training))
        if updater.strategy.looks_ahead:
            updater.history.keep_everything(self._sealed.training.users, self._sealed.training.items)
        epochs = config.epochs or 20
        self.progress.stage(f"{config.strategy} pre-trains its own {config.recommender} for {epochs} epochs")
        chunks = list(batches(0, stop, config.batch_size))
        for epoch in range(epochs):
            losses = []
            for chunk in Draws(config.seed, "chunks").generator(epoch).permutation(len(chunks)):
                losses.append(updater.rehearse(batch_of(log, *chunks[chunk]).in_epoch(epoch)))
            self.progress.tick(f"epoch {epoch + 1} of {epochs}, loss {np.mean(losses):.4f}")
        stamp_last_touches(updater.recommender, self._sealed.training)
        return updater

    def _stream(self, name: str, predictor: Predictor, log: Interactions, candidates: Candidates) -> Tally:
        self.progress.stage(f"streaming {self._label(name)}")
        tally, hits, seen = Tally(), 0.0, 0
        total = self.parts.stop - self.parts.train_stop
        share = LISTED_SCORES / max((self.parts.stop - self.parts.validation_stop) * log.n_items, 1)
        lister = Lister(log, self.parts.validation_stop, share) if self.config.lists else None
        for first, last in (
            (self.parts.train_stop, self.parts.validation_stop),
            (self.parts.validation_stop, self.parts.stop),
        ):
            points = prequential(
                predictor,
                log,
                candidates,
                first,
                last,
                batch_size=self.config.batch_size,
                lister=lister if first == self.parts.validation_stop else None,
            )
            for point in points:
                if first == self.parts.validation_stop:
                    tally.add(point)
                    hits += float((point.ranks.rank <= 5).sum())
                    seen += len(point.ranks)
                self.progress.batch(point.stop - self.parts.train_stop, total, hits / seen if seen else None)
        return tally

    @staticmethod
    def _require_two_sides(training: Interactions) -> None:
        for side, count in (("user", training.n_users), ("item", training.n_items)):
            if count < 2:
                raise StreamError(f"the training part has {count} {side}; an evaluation needs at least two.")
