"""Values that a Python program passes in, checked and turned into plain JSON values.

A value that is plain already comes back as the very same object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from melon.errors import SettingsError

#: Trials for each choice.
BUDGET = 8
#: More threads than any machine has use for; far more than this ends the process.
MOST_THREADS = 1_024
#: `off`, `auto` (searched, or learned by the strategy), or a half-life.
HalfLifeChoice = str | float


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """An integer, numpy's included."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise SettingsError(f"{name} = {value!r} must be a whole number{bound}.")
    return int(value)


def number(name: str, value: Any) -> float:
    """A number, numpy's included; an integer becomes a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise SettingsError(f"{name} = {value!r} must be a number.")
    return float(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in choices:
        raise SettingsError(f"{name} = {value!r} must be one of: {', '.join(choices)}.")
    return value


def name_or_class(name: str, value: Any) -> str | Callable[..., Any]:
    """The name of something in a registry, or something that is called like its class."""
    if isinstance(value, str):
        return value
    if callable(value):
        factory: Callable[..., Any] = value
        return factory
    raise SettingsError(f"{name} = {value!r} must be a name such as 'auto', or a class.")


def settings_table(name: str, value: Any) -> Mapping[str, Any] | None:
    """Settings by name; numpy's numbers become Python's."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise SettingsError(f"{name} = {value!r} must be a dict from names of settings to values.")
    table = {key: _plain(f"{name}[{key!r}]", setting) for key, setting in value.items()}
    return value if all(table[key] is value[key] for key in value) else table


def check_values(
    *,
    budget: int,
    epochs: int | None,
    minutes: float | None,
    threads: int,
    half_life: HalfLifeChoice,
    batch_size: int,
    seed: int,
) -> None:
    """Raise `SettingsError` for a value outside its range; the same for Python and for the command line."""
    least = {"batch_size": (batch_size, 1), "budget": (budget, 0), "epochs": (epochs, 0), "seed": (seed, 0)}
    for name, (value, bound) in least.items():
        if value is not None and value < bound:
            raise SettingsError(f"{name} = {value} must be at least {bound}.")
    if not 1 <= threads <= MOST_THREADS:
        raise SettingsError(f"threads = {threads} must be between 1 and {MOST_THREADS:,}.")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise SettingsError(
            f"minutes = {minutes:g} must be a finite number of more than 0; a large one such as 1e6 sets no limit."
        )
    if isinstance(half_life, str) and half_life not in ("off", "auto"):
        raise SettingsError(f"half_life = {half_life!r} must be off, auto, or a half-life such as 5000.")
    if not isinstance(half_life, str) and not 0 < half_life < float("inf"):
        raise SettingsError(f"half_life = {half_life:g} must be off, auto, or a half-life of more than 0 such as 5000.")


def _plain(name: str, value: Any) -> Any:
    plain = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name} = {value!r} is no plain value ({error}).") from None
    return plain
