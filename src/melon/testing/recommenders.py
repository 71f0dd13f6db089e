"""What a recommender must do by itself: one function for each rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from melon.journal import undoable
from melon.models.base import Context, Recommender
from melon.stream.history import History
from melon.testing.toys import close, expect, same, toy_batches
from melon.types import AnyArray


class MakeRecommender(Protocol):
    """Makes a new recommender; `partial(MyRecommender, {"dim": 8})` does."""

    def __call__(self, *, seed: int, dtype: npt.DTypeLike) -> Recommender: ...


_USERS, _ITEMS = np.array([0, 4, 2, 99]), np.array([[0, 3, 2], [1, 99, 1], [6, 5, 0], [98, 0, 1]])


def pairs_are_scored_alone(make: MakeRecommender) -> str | None:
    """The score of a pair is the same alone and beside others, also of unknown users and items."""
    recommender = _small_model(make)
    whole = recommender.score(_USERS, _ITEMS)
    for line, column in np.ndindex(*_ITEMS.shape):
        alone = recommender.score(_USERS[line : line + 1], _ITEMS[line : line + 1, column : column + 1])
        close(whole[line, column], alone[0, 0], f"the score of ({_USERS[line]}, {_ITEMS[line, column]})", 1e-9)
    return None


def scores_are_those_of_the_loss(make: MakeRecommender) -> str | None:
    """What rows score is what PyTorch differentiates on them; unknown users and items are rows of zeros."""
    recommender = _small_model(make)
    if not recommender.specs:
        return "it has no tables, so there are no gradients"
    model, rows = recommender.differentiable(), {"user": _USERS, "item": _ITEMS.reshape(-1)}
    import torch

    values = _tensors(
        {
            name: table.everything() if table.spec.role == "shared" else table.gather(rows[table.spec.role])
            for name, table in recommender.tables.items()
        }
    )
    lines, places = torch.arange(4)[:, None].expand(4, 3), torch.arange(12).view(4, 3)
    features = recommender.features(_USERS, _ITEMS)
    given = () if features is None else (torch.from_numpy(features),)
    twin = model.scores(values, lines, places, *given)
    close(recommender.row_scores(_USERS, _ITEMS), twin, "scores of rows against `scores` on them", 1e-9)
    return None


def catalogue_matches_score(make: MakeRecommender) -> str | None:
    """`score_catalogue` is `score` on all items, whether they have rows yet or not."""
    recommender, users = _small_model(make), np.array([3, 0, 77])
    for n_items in (1, 5, 7, 12):
        wanted = recommender.score(users, np.tile(np.arange(n_items), (3, 1)))
        close(recommender.score_catalogue(users, n_items), wanted, f"the catalogue of {n_items} items", 1e-9)
    return None


def closed_form_matches_autograd(make: MakeRecommender) -> str | None:
    """Losses and per-interaction gradients are those of `torch.func`, for any number of negatives."""
    recommender = _small_model(make)
    if not recommender.specs:
        return "it has no tables, so there are no gradients"
    model = recommender.differentiable()
    import torch

    from melon.models.evidence import Examples, evidence_by_autograd

    values = _tensors({name: table.state()["values"] for name, table in recommender.tables.items()})
    for negatives, per_branch in ((1, False), (3, False), (2, True)):
        items = torch.tensor(np.random.default_rng(negatives).integers(0, 7, (9, 1 + negatives)))
        examples = Examples(torch.tensor([0, 1, 1, 4, 2, 1, 0, 3, 3]), items)
        mine = model.evidence(values, examples, per_branch=per_branch)
        twin = evidence_by_autograd(model, values, examples, per_branch=per_branch)
        close(mine.losses, twin.losses, "losses", 1e-9)
        close(model.losses(values, examples), twin.losses, "`losses` against the evidence", 1e-9)
        theirs = {gradient.table: gradient for gradient in twin.gradients}
        named = sorted(gradient.table for gradient in mine.gradients)
        expect(named == sorted(theirs), f"gradients are on {named}, expected on {sorted(theirs)}")
        for gradient in mine.gradients:
            close(gradient.expand(), theirs[gradient.table].expand(), f"the gradient of {gradient.table}", 1e-8)
    return None


def rows_start_by_their_ids(make: MakeRecommender) -> str | None:
    """A new row depends on the seed and its id alone, not on what came before it."""
    one, other = (make(seed=1, dtype=np.float64) for _ in range(2))
    one.grow(2, np.array([70, 80]), 2, np.array([5, 6]))
    other.grow(1, np.array([80]), 1, np.array([6]))
    other.grow(2, np.array([70]), 2, np.array([5]))
    for name, table in one.tables.items():
        order = [1, 0] if table.spec.role != "shared" else list(range(table.rows))
        late = other.tables[name].state()["values"][order]
        close(late, table.state()["values"], f"the first values of {name} in another order of arrival", 0.0)
    return None


def large_scores_stay_finite(make: MakeRecommender) -> str | None:
    """Rows ten times their size give finite losses and gradients in float32."""
    recommender = _small_model(make, np.float32)
    if not recommender.specs:
        return "it has no tables, so there are no gradients"
    model = recommender.differentiable()
    import torch

    from melon.models.evidence import Examples

    values = _tensors({name: 10 * table.state()["values"] for name, table in recommender.tables.items()})
    evidence = model.evidence(values, Examples(torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 2]])))
    for what, tensor in [("loss", evidence.losses), *((g.table, g.expand()) for g in evidence.gradients)]:
        expect(bool(tensor.isfinite().all()), f"{what}: {tensor.reshape(-1)[:5].tolist()}")
    return None


def streaming_state_round_trips(make: MakeRecommender) -> str | None:
    """What `observe` gathers is in `streaming_state`, and a copy scores as the original does."""
    original, copy = _small_model(make), _small_model(make)
    past = History()
    for batch in toy_batches()[:3]:
        original.observe(batch.users, batch.items, batch.times, past)
        past.append(batch.users, batch.items)
    copy.restore_streaming_state(original.streaming_state())
    same(
        dict(original.streaming_state()),
        dict(copy.streaming_state()),
        "the restored streaming state is not the saved one",
    )
    users, items = np.array([0, 1]), np.array([[0, 1], [2, 3]])
    now = Context(time=10**6, history=past)
    close(copy.score(users, items, now), original.score(users, items, now), "scores of the copy", 1e-12)
    return None


def observing_is_taken_back(make: MakeRecommender) -> str | None:
    """A batch that was observed can be taken back, newcomers included, and observed again."""
    recommender, past, batches = _small_model(make), History(), toy_batches()
    for batch in batches[:2]:
        recommender.observe(batch.users, batch.items, batch.times, past)
        past.append(batch.users, batch.items)
    users, items = np.append(batches[2].users, 90), np.append(batches[2].items, 80)
    times, before = np.append(batches[2].times, batches[2].times[-1]), recommender.streaming_state()
    with undoable(always=True):
        recommender.follow(users, items, times, past)
        after = recommender.streaming_state()
    same(dict(before), dict(recommender.streaming_state()), "a batch that was taken back has left a trace")
    recommender.follow(users, items, times, past)
    same(dict(after), dict(recommender.streaming_state()), "observing a batch again gives another state")
    return None


RECOMMENDER_CHECKS: tuple[Callable[[MakeRecommender], str | None], ...] = (
    pairs_are_scored_alone,
    scores_are_those_of_the_loss,
    catalogue_matches_score,
    closed_form_matches_autograd,
    rows_start_by_their_ids,
    large_scores_stay_finite,
    streaming_state_round_trips,
    observing_is_taken_back,
)


def _tensors(arrays: Mapping[str, AnyArray]) -> dict[str, Any]:
    from melon.models.autograd import tensor_of

    return {name: tensor_of(array) for name, array in arrays.items()}


def _small_model(make: MakeRecommender, dtype: npt.DTypeLike = np.float64) -> Recommender:
    recommender = make(seed=2, dtype=dtype)
    recommender.grow(5, np.arange(5), 7, np.arange(7))
    return recommender
