"""Recommended lists: the best items of each line of scores, and the form in which callers get them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from melon.data.ids import Id
from melon.errors import LearningError
from melon.stream.history import History
from melon.stream.pairs import pair_keys
from melon.types import Ints

if TYPE_CHECKING:
    import polars as pl

Source = Literal["model", "popular"]
#: Item rows and their scores, best first.
Best = tuple[Ints, Tensor]

_SPARE = 32
_GROUP = 64


class Recommendation(NamedTuple):
    """An item and its score; scores of one list compare with each other and with nothing else."""

    item: Id
    score: float


@dataclass(frozen=True)
class Recommended(Sequence[Recommendation]):
    """One user's list, best first. `source` is "popular" for a user the model does not know, else "model"."""

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


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each line in falling order, and their columns; of equal scores the lower column is first.

    Lines shorter than k give all they have.
    """
    width = scores.shape[1]
    k = min(k, width)
    values, columns = _highest(scores, min(k + 1, width))
    if not bool(torch.isfinite(values).all()):
        raise LearningError("a score is not finite, so there is no best item; learn again with a smaller step (lr).")
    if k < width:
        # The library picks any of equal scores. Which of them belong here matters only where the next one is equal too.
        tied = torch.nonzero(values[:, k - 1] == values[:, k])[:, 0]
        values, columns = values[:, :k].contiguous(), columns[:, :k].contiguous()
        for line in tied.tolist():
            last = values[line, -1]
            above, equal = (torch.nonzero(chosen)[:, 0] for chosen in (scores[line] > last, scores[line] == last))
            columns[line] = torch.cat([above, equal])[:k]
            values[line] = scores[line, columns[line]]
    columns, by_column = columns.sort(dim=1)
    values, by_value = values.gather(1, by_column).sort(dim=1, descending=True, stable=True)
    return values, columns.gather(1, by_value)


def _highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores of each line and their columns; any of equal ones."""
    n, width = scores.shape
    groups = width // _GROUP
    if groups < 4 * count:
        return scores.topk(count, dim=1)
    # The highest scores lie in the groups with the highest maxima: one quick pass leaves little to select from.
    grouped = scores[:, : groups * _GROUP].view(n, groups, _GROUP)
    chosen = grouped.amax(2).topk(count, dim=1).indices
    offered = (chosen[:, :, None] * _GROUP + torch.arange(_GROUP, device=scores.device)).view(n, -1)
    rest = torch.arange(groups * _GROUP, width, device=scores.device).expand(n, -1)
    offered = torch.cat([offered, rest], dim=1)
    values, places = scores.gather(1, offered).topk(count, dim=1)
    return values, offered.gather(1, places)


def best_unseen(scores: Tensor, users: Ints, k: int, history: History) -> list[Best]:
    """For each user, the columns and scores of the k best items the user has not had; fewer where fewer are left."""
    width = scores.shape[1]
    met = history.of_users.met(users)
    chosen: list[Best] = [(np.empty(0, dtype=np.int64), scores[0, :0])] * len(users)
    pending, spare = np.arange(len(users)), min(int(met.max(initial=0)), max(k, _SPARE))
    while len(pending):
        some = scores if len(pending) == len(users) else scores[torch.from_numpy(pending)]
        values, columns = best(some, k + spare)
        places = columns.numpy()
        fresh = ~history.seen.contains(pair_keys(users[pending, None], places))
        # As many spare items as the user has interactions are always enough.
        done = (fresh.sum(axis=1) >= k) | (met[pending] <= spare) | (places.shape[1] == width)
        for line in np.flatnonzero(done).tolist():
            keep = np.flatnonzero(fresh[line])[:k]
            chosen[pending[line]] = (places[line, keep], values[line, torch.from_numpy(keep)])
        pending, spare = pending[~done], 2 * spare
    return chosen
