"""Recommended lists in the form in which callers get them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from melon.data.ids import Id

if TYPE_CHECKING:
    import polars as pl

Source = Literal["model", "popular"]


class Recommendation(NamedTuple):
    """An item and its score; scores of one list compare with each other and with nothing else."""

    item: Id
    score: float


@dataclass(frozen=True)
class Recommended(Sequence[Recommendation]):
    """One user's list, best first. `source` is "model", or "popular" where the model scores a newcomer all alike."""

    user: Id
    source: Source
    items: tuple[Recommendation, ...]

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> Recommendation: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Recommendation, ...]: ...
    def __getitem__(self, place: int | slice) -> Recommendation | tuple[Recommendation, ...]:
        return self.items[place]


def as_table(lists: Sequence[Recommended]) -> pl.DataFrame:
    """One line for each recommendation: user, rank (from 1), item, score and source; UUIDs as texts."""
    import polars as pl

    def plain(ids: Iterable[Id]) -> list[Any]:
        return [str(one) if isinstance(one, uuid.UUID) else one for one in ids]

    lines = [(listed, rank, one) for listed in lists for rank, one in enumerate(listed, start=1)]
    return pl.DataFrame(
        {
            "user": plain(listed.user for listed, _, _ in lines),
            "rank": [rank for _, rank, _ in lines],
            "item": plain(one.item for _, _, one in lines),
            "score": [one.score for _, _, one in lines],
            "source": [listed.source for listed, _, _ in lines],
        }
    )
