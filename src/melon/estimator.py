"""`melon.Melon`: fit on what is recorded, learn on from what comes in, recommend, and save all of it as one state."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt
import torch

from melon.data.frames import interactions_from
from melon.data.idbook import Id
from melon.data.interactions import Interactions
from melon.errors import CheckpointError, DataError, NotFittedError, SettingsError
from melon.fitting.auto import AUTO, settle_auto
from melon.fitting.pretrained import RecommenderPlan
from melon.fitting.selection import Protocol, Selection
from melon.learning.checkpoint import PathLike, RecommenderFactory, StrategyFactory
from melon.learning.lists import Recommendation, Recommended, as_table
from melon.learning.model import LiveModel
from melon.learning.pretrain import Pretraining, PretrainSettings, most_epochs, stamp_last_touches
from melon.learning.updater import Updater
from melon.recommenders.registry import RECOMMENDERS
from melon.registry import Registry
from melon.settings import require_threads
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import NEGATIVES
from melon.stream.split import BATCH_SIZE, DEFAULT_SPLIT, Parts

if TYPE_CHECKING:
    import polars as pl

DTYPES = {"float32": torch.float32, "float64": torch.float64}
BUDGET = 8
#: What a saved model is made with again; the rest is told by its recommender and strategy.
_REMEMBERED = ("seed", "epochs", "batch_size", "budget", "minutes", "settings", "pretrain_settings")

Report = Callable[[str], None]


class Melon:
    """A recommender that keeps up with its users.

    Args:
        recommender: a name such as "blend", "bpr" or "ncf", or a `Recommender` class of your own; "auto" is the blend.
        strategy: a name such as "default" or "melon", or a `Strategy` class of your own; "auto" is plain steps.
        seed: the root of everything random; the same seed on the same machine gives the same model.
        epochs: at most this many passes of pre-training; by default as many as the log is worth.
        batch_size: how many interactions are learned in one step.
        settings: settings of the strategy that are decided; `fit` chooses the others on the end of the log.
        recommender_settings: the recommender's settings.
        pretrain_settings: settings of pre-training that are decided; `fit` chooses the others.
        budget: how many settings `fit` tries for each choice; 0 takes the defaults.
        minutes: how long `fit` tries settings before it takes the best so far; 30 where the strategy is "auto".
        threads: how many threads the arithmetic uses. Batches are small, so learning is quickest with one.
        dtype: "float32" or "float64".
        device: where the tables live, as torch names it: "cpu", "cuda", "cuda:1". Compiled loops are for "cpu".
        report: called with a line of text now and then while `fit` runs.

    After `fit`, `choices` says which settings it came to.
    """

    def __init__(
        self,
        recommender: str | RecommenderFactory = AUTO,
        strategy: str | StrategyFactory = AUTO,
        *,
        seed: int = 0,
        epochs: int | None = None,
        batch_size: int = BATCH_SIZE,
        settings: Mapping[str, Any] | None = None,
        recommender_settings: Mapping[str, Any] | None = None,
        pretrain_settings: Mapping[str, Any] | None = None,
        budget: int = BUDGET,
        minutes: float | None = None,
        threads: int = 1,
        dtype: str = "float32",
        device: str = "cpu",
        report: Report | None = None,
    ) -> None:
        _at_least("batch_size", batch_size, 1)
        _at_least("budget", budget, 0)
        if epochs is not None:
            _at_least("epochs", epochs, 0)
        _at_least("threads", threads, 1)
        require_threads(threads)
        if dtype not in DTYPES:
            raise SettingsError(f"dtype = {dtype!r} will not do; choose one of: {', '.join(DTYPES)}.")
        if minutes is not None and not 0 < minutes < float("inf"):
            raise SettingsError(f"minutes = {minutes!r} will not do; it must be more than 0, and finite.")
        named = settle_auto({"recommender": recommender, "strategy": strategy})
        self.recommender: str | RecommenderFactory = named["recommender"]
        self.strategy: str | StrategyFactory = named["strategy"]
        self.seed, self.epochs, self.batch_size, self.budget = seed, epochs, batch_size, budget
        self.minutes: float | None = named.get("minutes") if minutes is None else minutes
        self.settings, self.pretrain_settings = dict(settings or {}), dict(pretrain_settings or {})
        self.recommender_settings = dict(recommender_settings or {})
        self.threads, self.dtype, self.device = threads, dtype, device
        self.report: Report = report or (lambda _: None)
        self.choices: dict[str, dict[str, Any]] = {}
        self._columns: dict[str, str | None] = {}
        self._model: LiveModel | None = None
        # Wrong names, settings and pairings are told now rather than after an hour.
        self._cold(self.settings)
        PretrainSettings.parse(self.pretrain_settings, "pre-training")

    def __repr__(self) -> str:
        names = [
            one if isinstance(one, str) else getattr(one, "name", "?") for one in (self.recommender, self.strategy)
        ]
        learned = f"{self.n_interactions} interactions" if self._model else "nothing yet"
        return f"<Melon {names[0]} with {names[1]}: {self.n_users} users, {self.n_items} items, learned {learned}>"

    @property
    def _strategy_name(self) -> str:
        return self.strategy if isinstance(self.strategy, str) else str(getattr(self.strategy, "name", "strategy"))

    @property
    def n_users(self) -> int:
        """How many users are known."""
        return len(self._model.users) if self._model else 0

    @property
    def n_items(self) -> int:
        """How many items are known."""
        return len(self._model.items) if self._model else 0

    @property
    def n_interactions(self) -> int:
        """How many interactions have been learned."""
        return self._model.updater.history.events if self._model else 0

    @property
    def updater(self) -> Updater:
        """The recommender, strategy and history that learn together; for evaluation and inspection."""
        return self._fitted("look inside").updater

    def fit(
        self, interactions: Any, *, user: str | None = None, item: str | None = None, time: str | None = None
    ) -> Self:
        """Start afresh from recorded interactions: choose settings on their end, then train on all of them.

        Takes a polars, pandas or Arrow table, or tuples; `user`, `item` and `time` name columns with unusual names.
        """
        log = interactions_from(interactions, user=user, item=item, time=time)
        if log.n_items < 2:
            raise DataError(
                f"fit needs interactions with at least two items to compare, and these {len(log)} have one "
                f"({log.item_ids[0]!r}); give more, or start cold with partial_fit."
            )
        with self._threads():
            pretraining, settings, practised = self._choose(log)
            # Told at once, so that whoever stops the training knows what it had come to.
            self.choices = {"pre-training": pretraining.plain(), self._strategy_name: dict(settings)}
            model = self._cold(settings)
            recommender = model.updater.recommender
            if not model.updater.strategy.pretrain(recommender, log):
                training = Pretraining(recommender, log, pretraining, seed=self.seed)
                epochs = most_epochs(len(log)) if pretraining.epochs is None else pretraining.epochs
                for loss in training.run(epochs):
                    self.report(f"epoch {training.epochs_done} of {epochs}, loss {loss:.4f}")
            stamp_last_touches(recommender, log, model.updater.fading_clock)
            model.adopt(log)
            model.updater.take_over(practised)
        self._model = model
        self._columns = {"user": user, "item": item, "time": time}
        used = model.updater.strategy
        self.choices = {"pre-training": pretraining.plain(), used.name: used.settings.plain()}
        return self

    def partial_fit(
        self, interactions: Any, *, user: str | None = None, item: str | None = None, time: str | None = None
    ) -> Self:
        """Learn new interactions at once, in time order and in batches; users and items may be new.

        A model that has learned nothing yet starts cold. Columns are those named for `fit` unless named again. Stopping
        it (Ctrl-C, or an error in a batch) leaves the model as it was after the last whole batch.
        """
        asked = {"user": user, "item": item, "time": time}
        columns = {role: name or self._columns.get(role) for role, name in asked.items()}
        log = interactions_from(interactions, **columns)
        model = self._model or self._cold(self.settings)
        with self._threads():
            try:
                for _ in model.learn(log, self.batch_size):
                    pass
            finally:
                if model.updater.history.events:
                    self._model = model
        return self

    @overload
    def recommend(
        self, users: Any, k: int = 10, filter_seen: bool = True, *, as_frame: Literal[False] = False
    ) -> list[Recommended]: ...
    @overload
    def recommend(
        self, users: Any, k: int = 10, filter_seen: bool = True, *, as_frame: Literal[True]
    ) -> pl.DataFrame: ...
    def recommend(
        self, users: Any, k: int = 10, filter_seen: bool = True, *, as_frame: bool = False
    ) -> list[Recommended] | pl.DataFrame:
        """The k best items for each user, in the order of `users` (one id, or any sequence of ids).

        `filter_seen` leaves out what the user has had already; a list is shorter than k only where fewer items are
        left. A user who is not known gets what is popular of late, and the list says so. With `as_frame`, a polars
        frame with the columns user, rank, item, score and source.
        """
        model = self._fitted("recommend")
        _at_least("k", k, 1)
        with self._threads():
            lists = model.recommend(_listed(users), k, filter_seen=filter_seen)
        return as_table(lists) if as_frame else lists

    def similar_items(self, items: Any, k: int = 10) -> list[list[Recommendation]]:
        """The k items most like each given one, by the cosine of their vectors; the item itself is left out."""
        model = self._fitted("compare items")
        _at_least("k", k, 1)
        with self._threads():
            return model.similar_items(_listed(items), k)

    def score(self, users: Any, items: Any) -> npt.NDArray[np.floating[Any]]:
        """The model's score of each (user, item): two equally long sequences, or one id beside many.

        What is not known counts as a row of zeros, as in an evaluation.
        """
        model = self._fitted("score")
        asked_users, asked_items = _listed(users), _listed(items)
        if 1 not in (len(asked_users), len(asked_items)) and len(asked_users) != len(asked_items):
            raise DataError(
                f"score takes as many users as items, or one of either; got {len(asked_users)} and {len(asked_items)}."
            )
        with self._threads():
            return model.score(asked_users, asked_items)

    def save(self, folder: PathLike) -> None:
        """Write everything into a folder, replacing what was saved there before; a failed save changes nothing."""
        model = self._fitted("save")
        about = {name: getattr(self, name) for name in _REMEMBERED}
        model.save(folder, {"estimator": about | {"columns": self._columns, "choices": self.choices}})

    def _cold(self, settings: Mapping[str, Any]) -> LiveModel:
        """A model that has learned nothing."""
        make_recommender = self._factory(RECOMMENDERS, self.recommender)
        make_strategy = self._factory(STRATEGIES, self.strategy)
        recommender = make_recommender(
            self.recommender_settings, seed=self.seed, dtype=DTYPES[self.dtype], device=self.device
        )
        return LiveModel(Updater(recommender, make_strategy(settings, seed=self.seed), seed=self.seed))

    @staticmethod
    def _factory(registry: Registry, choice: Any) -> Any:
        return registry[choice].load() if isinstance(choice, str) else choice

    def _choose(self, log: Interactions) -> tuple[PretrainSettings, dict[str, Any], dict[str, torch.Tensor]]:
        """Settings of pre-training and of the strategy, compared on the end of the log (METHODS.md 5.7).

        With them comes what a learned strategy takes along from practising there.
        """
        decided = self.pretrain_settings | ({} if self.epochs is None else {"epochs": self.epochs})
        if self.budget and self.epochs != 0 and isinstance(self.recommender, str) and isinstance(self.strategy, str):
            negatives = min(NEGATIVES, _spare_items(log))
            protocol = Protocol(self.seed, self.batch_size, negatives=negatives)
            selection = Selection(log, _all_but_validation(log), protocol, self.report, self.minutes)
            if negatives >= 1 and selection.possible:
                given = self.recommender_settings, self.pretrain_settings, self.epochs, self.device
                plan = RecommenderPlan(self.recommender, *given)
                pretraining, start = selection.pretraining(plan, self.budget)
                train = partial(selection.trained_again, plan, pretraining.settings)
                again = train if selection.judges_again(plan) else None
                choice = selection.strategy(self.strategy, start, self.budget, self.settings, self.seed, again)
                chosen = choice.settings
                strategy = STRATEGIES[self.strategy].load()(chosen, seed=self.seed)
                practice = {
                    name: tensor.to(DTYPES[self.dtype]) if tensor.is_floating_point() else tensor
                    for name, tensor in selection.train_meta_model(
                        strategy, start, stop=selection.parts.train_stop
                    ).items()
                }
                return PretrainSettings.parse(pretraining.settings, "pre-training"), chosen, practice
            self.report("these interactions are too few to choose settings on: defaults are used")
        return PretrainSettings.parse(decided, "pre-training"), self.settings, {}

    def _fitted(self, wish: str) -> LiveModel:
        if self._model is None:
            raise NotFittedError(
                f"this model has learned nothing yet and cannot {wish}; call fit or partial_fit first."
            )
        return self._model

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def load(
    folder: PathLike,
    *,
    recommender: RecommenderFactory | None = None,
    strategy: StrategyFactory | None = None,
    threads: int = 1,
    device: str = "cpu",
) -> Melon:
    """The model that `Melon.save` wrote, ready to go on exactly where it was.

    A recommender or strategy class of your own that is not registered has to be given again. Any device will do,
    whichever it was saved from.
    """
    model, extra = LiveModel.load(folder, recommender=recommender, strategy=strategy, device=device)
    used = model.updater.recommender
    require_threads(threads)
    try:
        about = extra["estimator"]
        made = Melon(
            recommender or used.name,
            strategy or model.updater.strategy.name,
            recommender_settings=used.settings.plain(),
            dtype=str(used.dtype).removeprefix("torch."),
            threads=threads,
            device=device,
            **{key: about[key] for key in _REMEMBERED if key in about},
        )
        made._model, made._columns, made.choices = model, dict(about["columns"]), dict(about["choices"])
    except (KeyError, TypeError, ValueError, SettingsError) as error:
        raise CheckpointError(
            f"{os.fspath(folder)} says nothing that can be read about how its model was made ({error!r})."
        ) from error
    return made


def _all_but_validation(log: Interactions) -> Parts:
    """The log as a training part and the short validation part behind it; nothing is kept for a test."""
    n, (training, validation, _) = len(log), DEFAULT_SPLIT
    return Parts(n - max(1, round(n * validation / (training + validation))), n, n)


def _spare_items(log: Interactions) -> int:
    """How many items nine users in ten have not had: no more than that can stand beside each positive."""
    return log.n_items - 1 - int(np.quantile(np.bincount(log.users[~log.repeats]), 0.9))


def _listed(ids: Any) -> list[Id]:
    if isinstance(ids, str | int | uuid.UUID | np.generic):
        ids = [ids]
    if not isinstance(ids, Iterable) or isinstance(ids, bytes | Mapping):
        raise DataError(f"{ids!r} is neither an id nor a sequence of ids.")
    values = ids.reshape(-1).tolist() if isinstance(ids, np.ndarray) else ids
    return [one.item() if isinstance(one, np.generic) else one for one in values]


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise SettingsError(f"{name} = {value!r} will not do; it must be a whole number of at least {least}.")
