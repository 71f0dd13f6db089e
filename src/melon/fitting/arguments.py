"""The arguments of `melon.Melon` as a plan, and those of its methods as lists."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from melon.data.ids import Id
from melon.errors import DataError, unknown_name
from melon.fitting import values
from melon.fitting.auto import settle_auto
from melon.fitting.plan import DTYPES, EvaluationProtocol, Plan
from melon.learning.checkpoint import RecommenderFactory, StrategyFactory
from melon.types import Plain

#: Up to this number, events are learned without building a log of them first.
_FEW = 1_024
_ID_TYPES = (int, str, uuid.UUID)


class Arguments:
    """The arguments of `Melon` as attributes, in the constructor's order; read and changed as scikit-learn does it."""

    recommender: str | RecommenderFactory
    strategy: str | StrategyFactory
    seed: int
    epochs: int | None
    batch_size: int
    half_life: str | float | None
    settings: Mapping[str, Any] | None
    recommender_settings: Mapping[str, Any] | None
    pretrain_settings: Mapping[str, Any] | None
    budget: int
    minutes: float | None
    threads: int
    max_pairs: int | None
    dtype: str
    progress: bool
    report: Callable[[str], None] | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn's tools want them."""
        return {name: getattr(self, name) for name in Arguments.__annotations__}

    def set_params(self, **parameters: Any) -> Self:
        """Change arguments of the constructor; they count from the next `fit` on."""
        for name in parameters:
            if name not in Arguments.__annotations__:
                raise unknown_name("parameter of Melon", name, Arguments.__annotations__)
        constructor: Callable[..., Self] = type(self)
        self.__dict__.update(constructor(**{**self.get_params(), **parameters}).get_params())
        return self


def plan_of(given: Arguments) -> Plan:
    """The plan that the arguments describe. Wrong values are refused; the others are stored back as plain ones."""
    values.name_or_class("recommender", given.recommender)
    values.name_or_class("strategy", given.strategy)
    least_of = {"seed": 0, "batch_size": 1, "budget": 0, "threads": 1, "epochs": 0, "max_pairs": 2}
    for name, least in least_of.items():
        if name not in ("epochs", "max_pairs") or getattr(given, name) is not None:
            _store(given, name, partial(values.whole_number, least=least))
    if given.minutes is not None:
        _store(given, "minutes", values.number)
    if given.half_life is not None and not isinstance(given.half_life, str):
        _store(given, "half_life", values.number)
    for name in ("settings", "recommender_settings", "pretrain_settings"):
        _store(given, name, values.settings_table)
    values.one_of("dtype", given.dtype, DTYPES)
    request: Plain = {"recommender": given.recommender, "strategy": given.strategy}
    request["recommender_settings"] = dict(given.recommender_settings or {})
    request |= {name: getattr(given, name) for name in ("half_life", "minutes") if getattr(given, name) is not None}
    settled = settle_auto(request)
    half_life, minutes = settled.get("half_life", "off"), settled.get("minutes")
    values.check_values(
        budget=given.budget,
        epochs=given.epochs,
        minutes=minutes,
        threads=given.threads,
        half_life=half_life,
        batch_size=given.batch_size,
        seed=given.seed,
    )
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


def _store(given: Arguments, name: str, checked: Callable[[str, Any], Any]) -> None:
    setattr(given, name, checked(name, getattr(given, name)))
