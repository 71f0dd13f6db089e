"""Filters of items: checked when they come in, compiled to one truth value for each item, kept while facts stand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from melon.errors import SettingsError
from melon.service.rules.items import ItemFacts, Scalar
from melon.types import Flags

MOST_FILTER_DEPTH = 8
#: Values in one filter, at most; a condition counts as much as so many of them, since it looks at every item.
MOST_PARTS, _CONDITION = 1_000, 10
_DAY = 86_400.0

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
OPERATORS = ("eq", "ne", *_COMPARE, "in", "contains", "within_days")
_FORMS = "all, any, not, category, available, or field with one of " + ", ".join(OPERATORS)

Filter = Mapping[str, Any]


def check_filter(content: Any, depth: int = MOST_FILTER_DEPTH) -> Filter:
    """A filter as it came, if it can be one; otherwise an error that names the part and what is allowed there."""
    _check(content, 1 + MOST_FILTER_DEPTH - depth, [MOST_PARTS], "filter")
    return content  # type: ignore[no-any-return]


def _check(content: Any, depth: int, left: list[int], place: str) -> None:
    if depth > MOST_FILTER_DEPTH:
        raise SettingsError(f"{place} is nested more than {MOST_FILTER_DEPTH} deep.")
    _spend(left, _CONDITION)
    if not isinstance(content, dict) or not content:
        raise SettingsError(f"{place} is {content!r:.60}; a filter is an object with {_FORMS}.")
    names = set(content)
    if names in ({"all"}, {"any"}):
        name = next(iter(names))
        if not isinstance(content[name], list):
            raise SettingsError(f"{place}.{name} must be a list of filters.")
        for number, part in enumerate(content[name]):
            _check(part, depth + 1, left, f"{place}.{name}[{number}]")
    elif names == {"not"}:
        _check(content["not"], depth + 1, left, f"{place}.not")
    else:
        _check_condition(content, place, left)


def _spend(left: list[int], parts: int) -> None:
    left[0] -= parts
    if left[0] < 0:
        raise SettingsError(
            f"the filter has more than {MOST_PARTS // _CONDITION} conditions ({_CONDITION} values count as one)."
        )


def _check_condition(content: Filter, place: str, left: list[int]) -> None:
    names = set(content)
    if names == {"category"}:
        wanted = content["category"]
        values = wanted if isinstance(wanted, list) else [wanted]
        _spend(left, len(values))
        if not values or not all(isinstance(one, str) for one in values):
            raise SettingsError(f"{place}.category must be a text or a list of texts.")
    elif names == {"available"}:
        if not isinstance(content["available"], bool):
            raise SettingsError(f"{place}.available must be true or false.")
    elif "field" in names and len(names) == 2:
        _check_comparison(content, place, left)
    else:
        raise SettingsError(f"{place} has the parts {', '.join(sorted(map(str, names)))}; a filter has {_FORMS}.")


def _check_comparison(content: Filter, place: str, left: list[int]) -> None:
    operator = next(name for name in content if name != "field")
    value, field = content[operator], content["field"]
    if operator not in OPERATORS:
        raise SettingsError(f"{place}.{operator} is not a comparison. Choose one of: {', '.join(OPERATORS)}.")
    if not isinstance(field, str) or not field:
        raise SettingsError(f"{place}.field must be the name of a fact.")
    if operator in (*_COMPARE, "within_days"):
        if not _is_number(value) or (operator == "within_days" and value < 0):
            raise SettingsError(
                f"{place}.{operator} must be a number{' from 0 on' if operator not in _COMPARE else ''}."
            )
    elif operator == "in":
        _spend(left, len(value) if isinstance(value, list) else 0)
        if not isinstance(value, list) or not value or not all(_is_scalar(one) for one in value):
            raise SettingsError(f"{place}.in must be a list of texts, numbers or truth values.")
    elif not _is_scalar(value):
        raise SettingsError(f"{place}.{operator} must be a text, a number or a truth value.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool) or _is_number(value)


def compile_filter(content: Filter, facts: ItemFacts, now: float) -> Flags:
    """One truth value for each slot of the facts. A comparison with a fact that an item lacks is false, `ne` too."""
    name = next(iter(content)) if len(content) == 1 else "field"
    if name in ("all", "any"):
        start = np.full(facts.slots, name == "all")
        for part in content[name]:
            flags = compile_filter(part, facts, now)
            start = start & flags if name == "all" else start | flags
        return start
    if name == "not":
        return ~compile_filter(content["not"], facts, now)
    if name == "available":
        flags = facts.available()
        return flags if content["available"] else ~flags
    if name == "category":
        wanted = content["category"]
        flags = np.zeros(facts.slots, dtype=np.bool_)
        for category in wanted if isinstance(wanted, list) else [wanted]:
            flags[facts.in_category(category)] = True
        return flags
    operator = next(part for part in content if part != "field")
    return _compare(facts, content["field"], operator, content[operator], now)


def _compare(facts: ItemFacts, field: str, operator: str, value: Any, now: float) -> Flags:
    if operator in _COMPARE:
        return np.asarray(_COMPARE[operator](facts.numbers(field), value))
    if operator == "within_days":
        times = facts.numbers(field)
        recent: Flags = (times <= now) & (times >= now - value * _DAY)
        return recent
    flags = np.zeros(facts.slots, dtype=np.bool_)
    if operator == "contains":
        flags[facts.places(field, value, within_list=True)] = True
        return flags
    wanted: list[Scalar] = value if operator == "in" else [value]
    numbers = [one for one in wanted if _is_number(one)]
    if numbers:
        flags |= np.isin(facts.numbers(field), numbers)
    for one in wanted:
        if not _is_number(one):
            flags[facts.places(field, one, within_list=False)] = True
    return flags if operator != "ne" else facts.has_scalar(field) & ~flags
