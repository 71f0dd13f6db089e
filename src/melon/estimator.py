"""`melon.Melon`: fit on recorded interactions, learn new ones, recommend, and save everything as one state."""

from __future__ import annotations

import inspect
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from melon.data.frames import interactions_from
from melon.data.ids import Id
from melon.errors import CheckpointError, DataError, NotFittedError, unknown_name
from melon.fitting.auto import AUTO, settle_auto
from melon.fitting.config import BUDGET, check_values, name_or_class, number, one_of, settings_table, whole_number
from melon.fitting.fit import fit
from melon.fitting.plan import DTYPES, EvaluationProtocol, Plan, name_of
from melon.fitting.search import words
from melon.kernels.threads import cores, using_threads
from melon.learning.checkpoint import PathLike, RecommenderFactory, StrategyFactory
from melon.learning.model import LiveModel, Recommendation, Recommended, as_table
from melon.learning.updater import Updater
from melon.progress import Progress, model_progress
from melon.stream.split import BATCH_SIZE
from melon.types import Plain

if TYPE_CHECKING:
    import polars as pl

#: Arguments that name parts, and those that are saved with a model.
_NAMES = ("recommender", "strategy")
_SAVED = ("seed", "epochs", "batch_size", "budget", "minutes", "half_life", "settings", "pretrain_settings")


#: Up to this number, events are learned without building a log of them first.
_FEW = 1_024
_ID_TYPES = (int, str, uuid.UUID)
_MAY_BE_NONE = ("epochs", "max_pairs", "minutes", "half_life")


class Melon:
    """A recommender that learns while it is used.

    Args:
        recommender: a name such as "blend", "bpr" or "ncf", or a `Recommender` class of your own; "auto" is the blend.
        strategy: a name such as "default" or "melon", or a `Strategy` class; "auto" is "default" with time decay.
        seed: the seed of all random numbers; the same seed on the same machine gives the same model.
        epochs: passes of pre-training, at most; by default chosen by the length of the log.
        batch_size: how many interactions are learned in one step.
        half_life: time decay of idle items: "off", "auto" (the half-life is searched, or learned by the strategy), or a
            half-life in interactions. By default "auto" with the strategy "auto", else "off".
        settings: fixed settings of the strategy; `fit` chooses the others on the end of the log.
        recommender_settings: the recommender's settings.
        pretrain_settings: fixed settings of pre-training; `fit` chooses the others.
        budget: trials of `fit` for each choice; 0 takes the defaults.
        minutes: time for these trials, then the best so far is taken; 30 with the strategy "auto".
        threads: threads that compute. Batches are small, so one is usually fastest.
        max_pairs: (user, item) pairs that are remembered as seen, the newest ones; by default all.
        dtype: "float32" or "float64".
        progress: whether `fit` shows its progress on standard error.
        report: a function that gets each line of progress.

    After `fit`, `choices_` has the chosen settings; `notes_` says if nothing was chosen, or if time ended the choice.
    """

    def __init__(
        self,
        recommender: str | RecommenderFactory = AUTO,
        strategy: str | StrategyFactory = AUTO,
        *,
        seed: int = 0,
        epochs: int | None = None,
        batch_size: int = BATCH_SIZE,
        half_life: str | float | None = None,
        settings: Mapping[str, Any] | None = None,
        recommender_settings: Mapping[str, Any] | None = None,
        pretrain_settings: Mapping[str, Any] | None = None,
        budget: int = BUDGET,
        minutes: float | None = None,
        threads: int = 1,
        max_pairs: int | None = None,
        dtype: str = "float32",
        progress: bool = True,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.recommender, self.strategy = recommender, strategy
        self.seed, self.epochs, self.batch_size = seed, epochs, batch_size
        self.budget, self.minutes, self.half_life = budget, minutes, half_life
        self.settings, self.pretrain_settings = settings, pretrain_settings
        self.recommender_settings, self.max_pairs = recommender_settings, max_pairs
        self.threads, self.dtype, self.progress, self.report = threads, dtype, progress, report
        self.choices_: dict[str, Plain] = {}
        self._window_score: float | None = None
        self.notes_: tuple[str, ...] = ()
        self._columns: dict[str, str | None] = {}
        self._model: LiveModel | None = None
        plan_of(self).check()  # wrong names, values and pairings are refused before anything is spent

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as in scikit-learn."""
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def set_params(self, **parameters: Any) -> Self:
        """Change arguments of the constructor, for the next `fit`."""
        for name in parameters:
            if name not in _ARGUMENTS:
                raise unknown_name("parameter of Melon", name, _ARGUMENTS)
        self.__dict__.update(type(self)(**{**self.get_params(), **parameters}).get_params())
        return self

    def __repr__(self) -> str:
        learned = f"{self.n_interactions} interactions" if self._model else "nothing yet"
        return f"<Melon {self._names()}: {self.n_users} users, {self.n_items} items, learned {learned}>"

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        counts = {"users": self.n_users, "items": self.n_items, "interactions learned": self.n_interactions}
        rows = [(name, f"{count:,}") for name, count in counts.items()]
        rows += [(f"chosen for {name}", words(settings)) for name, settings in self.choices_.items()]
        rows += [("note", note) for note in self.notes_]
        body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
        return f"<table><caption>Melon {escape(self._names())}</caption>{body}</table>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: the arguments, and the files that `save` writes."""
        files: dict[str, bytes] | None = None
        if self._model is not None:
            with tempfile.TemporaryDirectory(prefix="melon-") as folder:
                self.save(folder)
                files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return _restored, (type(self), self.get_params(), files)

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

    @property
    def live(self) -> LiveModel:
        """The model behind this one, which knows ids and rows; for services and inspection."""
        return self._fitted("look inside")

    def fit(
        self, interactions: Any, *, user: str | None = None, item: str | None = None, time: str | None = None
    ) -> Self:
        """Train a new model on recorded interactions: choose settings on their end, then train on all of them.

        Takes a polars, pandas or Arrow table, or tuples; `user`, `item` and `time` name columns with unusual names.
        Settings are tried on all cores. Ctrl-C while they are tried takes the best so far and continues; in the
        last pre-training it keeps the finished epochs. After a second Ctrl-C, or an error, the model is as before.
        """
        log = interactions_from(interactions, user=user, item=item, time=time)
        choices, plan = self.choices_, plan_of(self)

        def remember(chosen: dict[str, Plain]) -> None:
            self.choices_ = chosen

        with self._shown() as progress:
            try:
                fitted = fit(log, plan, progress, remember, workers=cores())
            except BaseException as problem:
                if self._model is not None:
                    self.choices_ = choices
                if isinstance(problem, KeyboardInterrupt):
                    progress.notice("stopped: nothing of this fit was kept")
                raise
        self._model, self.choices_, self.notes_ = fitted.model, fitted.choices, fitted.notes
        self._window_score = fitted.score
        fitted.model.updater.history.bound(self.max_pairs)
        self._columns = {"user": user, "item": item, "time": time}
        return self

    def partial_fit(
        self, interactions: Any, *, user: str | None = None, item: str | None = None, time: str | None = None
    ) -> Self:
        """Learn new interactions at once, in time order and in batches; users and items may be new.

        A new model starts cold. Columns are those of `fit` unless you name others. After Ctrl-C, or an error in a
        batch, the model is as it was after the last whole batch.
        """
        events, model = plain_events(interactions), self._model or cold_start(self)[0]
        batch_size = whole_number("batch_size", self.batch_size, 1)
        if model.updater.history.max_pairs != self.max_pairs:
            model.updater.history.bound(self.max_pairs)
        with using_threads(whole_number("threads", self.threads, 1)):
            try:
                if events is not None:
                    model.learn_events(*events, batch_size=batch_size)
                else:
                    names = {"user": user, "item": item, "time": time}
                    columns = {role: name or self._columns.get(role) for role, name in names.items()}
                    for _ in model.learn(interactions_from(interactions, **columns), batch_size):
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

        `filter_seen` leaves out items that the user has had; a list is shorter than k only if fewer items are left.
        An unknown user is scored as a newcomer. If the model scores all items alike, popular ones are listed, and
        the list says so. `as_frame` returns a polars frame with the columns user, rank, item, score and source.
        """
        model = self._fitted("recommend")
        whole_number("k", k, 1)
        with using_threads(self.threads):
            lists = model.recommend(id_list(users), k, filter_seen=filter_seen)
        return as_table(lists) if as_frame else lists

    def similar_items(self, items: Any, k: int = 10) -> list[list[Recommendation]]:
        """The k items most similar to each given one, by the cosine of their vectors, without the item itself."""
        model = self._fitted("compare items")
        whole_number("k", k, 1)
        with using_threads(self.threads):
            return model.similar_items(id_list(items), k)

    def score(self, users: Any, items: Any) -> npt.NDArray[np.floating[Any]]:
        """The model's score of each (user, item): two equally long sequences, or one id beside many.

        Unknown users and items have rows of zeros, as in an evaluation. This is not a measure of quality as
        scikit-learn's `score`; for that see `melon.evaluate`.
        """
        model = self._fitted("score")
        user_ids, item_ids = id_list(users), id_list(items)
        if 1 not in (len(user_ids), len(item_ids)) and len(user_ids) != len(item_ids):
            raise DataError(
                f"score takes as many users as items, or one of either; got {len(user_ids)} and {len(item_ids)}."
            )
        with using_threads(self.threads):
            return model.score(user_ids, item_ids)

    def save(self, folder: PathLike) -> None:
        """Save the model into a folder and replace the one that was saved there; a failed save changes nothing."""
        self._fitted("save").save(folder, self._about())

    def _about(self) -> Plain:
        """What is saved with a model so that it is a `Melon` again."""
        plan_of(self)
        about = {name: getattr(self, name) for name in _SAVED}
        about |= {name: dict(about[name] or {}) for name in ("settings", "pretrain_settings")}
        about |= {name: AUTO for name in _NAMES if getattr(self, name) == AUTO}
        results = {"columns": self._columns, "choices": self.choices_, "notes": list(self.notes_)}
        results["window_score"] = self._window_score
        return {"estimator": about | results}

    def _shown(self) -> Progress:
        return model_progress(self.report) if self.progress else Progress(self.report)

    def _names(self) -> str:
        settled = settle_auto({"recommender": self.recommender, "strategy": self.strategy})
        both = f"{name_of(settled['recommender'])} with {name_of(settled['strategy'])}"
        return f"{both} (auto)" if settled.get("auto") else both

    def _fitted(self, wish: str) -> LiveModel:
        if self._model is None:
            raise NotFittedError(f"the model has learned nothing, so it cannot {wish}; call fit or partial_fit first.")
        return self._model

    def _take(self, model: LiveModel, about: Plain) -> Self:
        """Become the saved model."""
        self._model, self._columns, self.choices_ = model, about["columns"], about["choices"]
        self.notes_ = tuple(about.get("notes", ()))
        self._window_score = about.get("window_score")
        return self


#: The arguments of the constructor, in its order.
_ARGUMENTS = tuple(inspect.signature(Melon).parameters)


def plan_of(given: Melon) -> Plan:
    """The plan that the arguments describe. Wrong values are refused; the others are stored back as plain ones."""
    name_or_class("recommender", given.recommender)
    name_or_class("strategy", given.strategy)
    checks: dict[str, Callable[[str, Any], Any]] = {
        **dict.fromkeys(("seed", "batch_size", "budget", "threads", "epochs"), whole_number),
        "max_pairs": partial(whole_number, least=2),
        **dict.fromkeys(("minutes", "half_life"), number),
        **dict.fromkeys(("settings", "recommender_settings", "pretrain_settings"), settings_table),
    }
    for name, checked in checks.items():
        value = getattr(given, name)
        if not (value is None and name in _MAY_BE_NONE) and not (name == "half_life" and isinstance(value, str)):
            setattr(given, name, checked(name, value))
    one_of("dtype", given.dtype, DTYPES)
    request: Plain = {"recommender": given.recommender, "strategy": given.strategy}
    request["recommender_settings"] = dict(given.recommender_settings or {})
    request |= {name: getattr(given, name) for name in ("half_life", "minutes") if getattr(given, name) is not None}
    settled = settle_auto(request)
    half_life, minutes = settled.get("half_life", "off"), settled.get("minutes")
    check_values({**given.get_params(), "minutes": minutes, "half_life": half_life})
    return Plan(
        settled["recommender"],
        settled["strategy"],
        settings=dict(given.settings or {}),
        recommender_settings=settled["recommender_settings"],
        pretrain_settings=dict(given.pretrain_settings or {}),
        half_life=half_life,
        budget=given.budget,
        epochs=given.epochs,
        minutes=minutes,
        protocol=EvaluationProtocol(given.seed, given.batch_size, by_lists=settled.get("auto", False)),
        dtype=given.dtype,
        threads=given.threads,
    )


def id_list(ids: Any) -> list[Id]:
    """One id, or any sequence of ids, as a list."""
    if isinstance(ids, str | int | uuid.UUID | np.generic):
        ids = [ids]
    if not isinstance(ids, Iterable) or isinstance(ids, bytes | Mapping):
        raise DataError(f"{ids!r} is neither an id nor a sequence of ids.")
    listed = ids.reshape(-1).tolist() if isinstance(ids, np.ndarray) else ids
    return [one.item() if isinstance(one, np.generic) else one for one in listed]


def plain_events(source: Any) -> tuple[list[Id], list[Id], list[int]] | None:
    """A few (user, item, time) tuples of plain values as columns; None for anything that needs a closer look."""
    if not isinstance(source, list | tuple) or not 0 < len(source) <= _FEW:
        return None
    for event in source:
        if type(event) is not tuple or len(event) != 3 or type(event[2]) is not int or not 0 <= event[2] < 2**63:
            return None
        if type(event[0]) not in _ID_TYPES or type(event[1]) not in _ID_TYPES or "" in event[:2]:
            return None
    users, items, times = map(list, zip(*source, strict=True))
    return users, items, times


def cold_start(given: Melon) -> tuple[LiveModel, Plain]:
    """The model that `partial_fit` starts from where nothing was learned yet, and what `save` would write with it."""
    plan = plan_of(given)
    updater = Updater(plan.build(), plan.make_strategy(plan.fixed()), seed=plan.seed)
    return LiveModel(updater), given._about()


def load(
    folder: PathLike,
    *,
    recommender: RecommenderFactory | None = None,
    strategy: StrategyFactory | None = None,
    threads: int = 1,
) -> Melon:
    """Load a model that `Melon.save` wrote; it continues exactly where it was.

    Give your own recommender or strategy class again if it is not registered.
    """
    model, extra = LiveModel.load(folder, recommender=recommender, strategy=strategy)
    about = extra.get("estimator")
    if not isinstance(about, dict) or not all(isinstance(about.get(name), dict) for name in ("columns", "choices")):
        raise CheckpointError(
            f"{os.fspath(folder)} does not say how its model was made; it was not saved by Melon.save."
        )
    used = model.updater.recommender
    return Melon(
        recommender or about.get("recommender", used.name),
        strategy or about.get("strategy", model.updater.strategy.name),
        recommender_settings=used.settings.plain(),
        dtype=used.dtype.name,
        threads=threads,
        max_pairs=model.updater.history.max_pairs,
        **{name: about[name] for name in _SAVED if name in about},
    )._take(model, about)


def _restored(kind: type[Melon], parameters: dict[str, Any], files: dict[str, bytes] | None) -> Melon:
    """A model out of a pickle."""
    estimator = kind(**parameters)
    if files is None:
        return estimator
    with tempfile.TemporaryDirectory(prefix="melon-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        classes = {name: None if isinstance(parameters[name], str) else parameters[name] for name in _NAMES}
        model, extra = LiveModel.load(folder, **classes)
    return estimator._take(model, extra["estimator"])
