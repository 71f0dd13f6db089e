"""The rules that a request may carry, and the masks, boosts and exclusions that they come to for a model's items."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from melon.service.rules.arrange import CAPPED
from melon.service.rules.filters import MOST_FILTER_DEPTH, check_filter, compile_filter
from melon.service.rules.items import ItemFacts, RowFacts
from melon.settings import Settings
from melon.types import Flags, Floats

_KEPT = 256
WireId = Annotated[StrictStr, Field(min_length=1, max_length=256)] | StrictInt
V = TypeVar("V")


class Boost(Settings):
    """Add to the score of the items of a category, or of all that pass a filter."""

    category: StrictStr | None = None
    filter: dict[str, Any] | None = None
    by: Annotated[float, Field(ge=-1e6, le=1e6, strict=True)]

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.category is None) == (self.filter is None):
            raise ValueError("a boost has either a category or a filter")
        if self.filter is not None:
            check_filter(self.filter)
        return self

    @property
    def wanted(self) -> Mapping[str, Any]:
        return {"category": self.category} if self.filter is None else self.filter


class Pin(Settings):
    """Put an item at a position of the list, from 1 on, whatever its score."""

    item: WireId
    at: Annotated[int, Field(ge=1, le=1_000, strict=True)]


class Rules(Settings):
    """What a list has to respect beside the model's scores."""

    filter: dict[str, Any] | None = Field(
        None, examples=[{"all": [{"category": ["news", "sport"]}, {"field": "price", "lt": 20}]}]
    )
    exclude: Annotated[tuple[WireId, ...], Field(max_length=10_000)] = ()
    exclude_own: StrictBool = False
    boost: Annotated[tuple[Boost, ...], Field(max_length=50)] = ()
    pin: Annotated[tuple[Pin, ...], Field(max_length=100)] = ()
    at_most: dict[str, Annotated[int, Field(ge=1, strict=True)]] = Field(
        default_factory=dict, examples=[{"category": 3}]
    )
    diversity: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0
    rotate_s: Annotated[float, Field(ge=0, le=86_400, strict=True)] = 0.0

    @field_validator("filter")
    @classmethod
    def _filter_is_valid(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return value if value is None else dict(check_filter(value))

    @model_validator(mode="after")
    def _conditions_are_few(self) -> Self:
        wanted = [one for one in (self.filter, *(boost.wanted for boost in self.boost)) if one is not None]
        check_filter({"all": [dict(one) for one in wanted]}, MOST_FILTER_DEPTH + 1)
        return self

    @field_validator("at_most")
    @classmethod
    def _caps_are_known(cls, value: dict[str, int]) -> dict[str, int]:
        for name in value:
            if name not in CAPPED:
                raise ValueError(f"at_most counts by {' or '.join(CAPPED)}, not by {name!r:.40}")
        return value

    @property
    def rearranges(self) -> bool:
        """Whether the order of scores is not yet the order of the list."""
        return bool(self.at_most or self.diversity or self.rotate_s)


NO_RULES = Rules()


@dataclass(frozen=True)
class Mask:
    """Which rows may be listed (None: all), how many may not and why, and until when this holds."""

    allowed: Flags | None
    filtered: Mapping[str, int]
    until: float


class Masks:
    """Masks and boosts over the model's rows, kept while the facts, the number of items and the time allow it."""

    def __init__(self, facts: ItemFacts) -> None:
        self.facts = facts
        self._masks: OrderedDict[tuple[Any, ...], Mask] = OrderedDict()
        self._boosts: OrderedDict[tuple[Any, ...], tuple[Floats, float]] = OrderedDict()

    def mask(
        self, content: Mapping[str, Any] | None, rows: RowFacts, n_items: int, now: float,
        proven: tuple[Hashable, Flags | None] = (0, None),
    ) -> Mask:  # fmt: skip
        """Items that are available, not expired, pass the filter, and have facts or are `proven` (by version)."""
        version, taken = proven
        if not len(self.facts) and content is None and taken is None:
            return Mask(None, {}, np.inf)
        text = None if content is None else json.dumps(content, sort_keys=True)
        key = (text, self.facts.version, id(rows), n_items, version if taken is not None else None)
        mask = self._masks.get(key)
        if mask is None or now >= mask.until:
            mask = _remember(self._masks, key, self._compiled(content, text, rows.slots(n_items), now, taken))
        return mask

    def boost(self, boosts: tuple[Boost, ...], rows: RowFacts, n_items: int, now: float) -> Floats | None:
        """What is added to the score of each row."""
        if not boosts:
            return None
        text = json.dumps([(dict(one.wanted), one.by) for one in boosts], sort_keys=True)
        key = (text, self.facts.version, id(rows), n_items)
        added = self._boosts.get(key)
        if added is None or now >= added[1]:
            slots, total = rows.slots(n_items), np.zeros(self.facts.slots)
            for one in boosts:
                total[compile_filter(one.wanted, self.facts, now)] += one.by
            added = _remember(self._boosts, key, (total[slots], _until(text, now)))
        return added[0]

    def _compiled(
        self, content: Mapping[str, Any] | None, text: str | None, slots: Any, now: float, taken: Flags | None
    ) -> Mask:
        available, expires = self.facts.available()[slots], self.facts.numbers("expires")[slots]
        expired = available & (expires <= now)
        later = expires[expires > now]
        until = min(float(later.min(initial=np.inf)), _until(text or "", now))
        allowed = available & ~expired
        filtered = {"unavailable": int((~available).sum()), "expired": int(expired.sum())}
        if taken is not None:
            untried = ~taken & (slots >= len(self.facts))
            filtered["untried"] = int((allowed & untried).sum())
            allowed &= ~untried
        if content is not None:
            passed = compile_filter(content, self.facts, now)[slots]
            filtered["rules"] = int((allowed & ~passed).sum())
            allowed &= passed
        filtered = {why: count for why, count in filtered.items() if count}
        return Mask(allowed if filtered else None, filtered, until)


def _until(text: str, now: float) -> float:
    """How long a compiled filter holds: one that asks for the time is compiled anew each second."""
    return np.floor(now) + 1.0 if "within_days" in text else np.inf


def _remember(cache: OrderedDict[tuple[Any, ...], V], key: tuple[Any, ...], value: V) -> V:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > _KEPT:
        cache.popitem(last=False)
    return value
