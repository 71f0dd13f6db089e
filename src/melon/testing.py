"""Conformance checks: what every recommender and every strategy must do, also those of other packages.

    from functools import partial
    from melon.testing import check_strategy

    check_strategy(partial(MyStrategy, {"lr": 0.1}))

A check that fails raises `ConformanceError`, which names the check and the values. What does not apply is never passed
over in silence: the report that comes back lists each such check with its reason. Without PyTorch, checks of gradients
do not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from melon.data.interactions import Interactions
from melon.errors import ConformanceError, MissingExtraError, SettingsError, unknown_name
from melon.journal import undoable
from melon.learning.updater import Updater
from melon.models.base import Context, Recommender
from melon.models.registry import RECOMMENDERS
from melon.strategies.base import LearningRates, Strategy
from melon.stream.batch import Batch, batch_of
from melon.stream.history import History
from melon.tables import Table
from melon.types import AnyArray, Ints

if TYPE_CHECKING:
    from torch import Tensor

    from melon.models.evidence import Evidence

__all__ = [
    "PAIRING_CHECKS",
    "RECOMMENDER_CHECKS",
    "SMALL_RECOMMENDERS",
    "CheckReport",
    "Family",
    "MakeRecommender",
    "MakeStrategy",
    "check_pairing",
    "check_recommender",
    "check_strategy",
]

# Small streams to check with, and comparisons that say what differs.

StateArrays = dict[str, npt.NDArray[Any]]
BATCH = 16


def toy_log(events: int = 20 * BATCH, *, other_future_from: int | None = None) -> Interactions:
    """A small stream: users and items keep arriving, two groups of users swap their tastes half-way.

    With `other_future_from`, everything from that event on is different, in other users and items too.
    """
    rng, when = np.random.default_rng(11), np.arange(events)
    users = rng.integers(0, 6 + 30 * when // max(events, 1))
    items = 2 * rng.integers(0, 6 + 20 * when // max(events, 1)) + (users + (when >= events // 2)) % 2
    if other_future_from is not None:
        later = when >= other_future_from
        users[later], items[later] = rng.integers(20, 60, later.sum()), rng.integers(30, 70, later.sum())
    return Interactions.from_ids(users + 100, items + 5000, 10 * when)


def toy_batches(log: Interactions | None = None, size: int = BATCH) -> list[Batch]:
    """The toy stream, or another log, as batches."""
    log = toy_log() if log is None else log
    return [batch_of(log, start, min(start + size, len(log))) for start in range(0, len(log), size)]


def toy_batch(first_event: int, users: Ints, items: Ints) -> Batch:
    times = 10 * np.arange(first_event, first_event + len(users))
    return Batch(first_event, users, items, times, users + 100, items + 5000)


def array_of(numbers: Any) -> npt.NDArray[Any]:
    """A copy of an array, or of a tensor of PyTorch."""
    return np.array(numbers.detach().numpy() if hasattr(numbers, "detach") else numbers)


def expect(truth: bool, otherwise: str) -> None:
    if not truth:
        raise ConformanceError(otherwise)


def same(one: StateArrays, other: StateArrays, otherwise: str) -> None:
    expect(one.keys() == other.keys(), f"{otherwise}: {sorted(one.keys() ^ other.keys())} only in one of them")
    for name, array in one.items():
        second = other[name]
        expect(array.shape == second.shape, f"{otherwise}: {name} has shapes {array.shape} and {second.shape}")
        expect(array.tobytes() == second.tobytes(), f"{otherwise}: {name}, {_apart(array, second)}")


def close(given: Any, wanted: Any, what: str, tolerance: float) -> None:
    one, other = array_of(given), array_of(wanted)
    expect(one.shape == other.shape, f"{what}: shape {one.shape}, expected {other.shape}")
    near = np.allclose(one, other, rtol=tolerance, atol=tolerance)
    expect(near, f"{what}: {_apart(one, other)}")


def _apart(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> str:
    if not one.size:
        return "empty"
    at = np.unravel_index(int(np.argmax(np.abs(one.astype(float) - other.astype(float)))), one.shape)
    return f"{one[at]!r} against {other[at]!r} at {tuple(int(place) for place in at)}"


# What a recommender must do by itself: one function for each rule.


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


# What a strategy must do with any recommender: one function for each rule, and the pairing that it is given.

#: The forms of a learning-rate matrix (docs/methods.md 1.3): one rate, one per interaction, one per parameter, any.
Family = Literal["uniform", "interaction", "parameter", "any"]


class MakeStrategy(Protocol):
    """Makes a new strategy; `partial(MyStrategy, {"lr": 0.1})` does."""

    def __call__(self, *, seed: int) -> Strategy: ...


@dataclass(frozen=True)
class Pairing:
    """A recommender under a strategy, made anew as often as a check needs it.

    The toy stream is learned once for each number type. A check that starts somewhere on it gets a deep copy of the
    updater at that batch, so that checks cannot disturb each other.
    """

    make_recommender: MakeRecommender
    make_strategy: MakeStrategy
    family: Family | None = None
    _moments: dict[npt.DTypeLike, list[Updater]] = field(default_factory=dict, repr=False, compare=False)

    def updater(
        self, batches: Iterable[Batch] = (), history: History | None = None, *, dtype: npt.DTypeLike = np.float32
    ) -> Updater:
        """A new updater that has learned the given batches."""
        new = Updater(self.make_recommender(seed=3, dtype=dtype), self.make_strategy(seed=5), history, seed=7)
        for batch in batches:
            new.learn(batch)
        return new

    def after(self, batches: int, *, dtype: npt.DTypeLike = np.float32) -> Updater:
        """An updater that has learned the first batches of the toy stream; a copy of its own for each caller."""
        moments = self._moments.setdefault(dtype, [self.updater(dtype=dtype)])
        for batch in toy_batches()[len(moments) - 1 : batches]:
            following = deepcopy(moments[-1])
            following.learn(batch)
            moments.append(following)
        return deepcopy(moments[batches])


@dataclass(frozen=True)
class Reordered(Batch):
    """A batch whose interactions stand in another order but keep their own event numbers."""

    numbers: Ints

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "events", self.numbers)


def state_of(updater: Updater) -> StateArrays:
    """Everything that a checkpoint would have to hold, by name; copies."""
    state = {f"{name} {part}": array_of(t) for name, table in tables_of(updater) for part, t in table.state().items()}
    state |= {f"memory {name}": array_of(tensor) for name, tensor in updater.strategy.memory().items()}
    state |= {f"history {name}": np.array(array) for name, array in updater.history.state().items()}
    streaming = updater.recommender.streaming_state()
    return state | {f"streaming {name}": np.array(array) for name, array in streaming.items()}


def tables_of(updater: Updater) -> list[tuple[str, Table]]:
    rows = [(f"table {name}", table) for name, table in updater.recommender.tables.items()]
    states = updater.row_state.items()
    return rows + [(f"row state {name}.{key}", table) for name, state in states for key, table in state.items()]


def hand_over(original: Updater, copy: Updater) -> None:
    for (_, source), (_, target) in zip(tables_of(original), tables_of(copy), strict=True):
        target.restore(source.state())
    copy.strategy.recall(original.strategy.memory())
    copy.recommender.restore_streaming_state(original.recommender.streaming_state())
    copy.recommender.clock.now = original.recommender.clock.now


def scores_of(updater: Updater) -> StateArrays:
    users, n_items = np.arange(8), 20
    lines = np.broadcast_to(np.arange(n_items), (len(users), n_items))
    return {"score": updater.score(users, lines, 10**6), "catalogue": updater.score_catalogue(users, n_items, 10**6)}


def require_finite(updater: Updater) -> None:
    for name, array in state_of(updater).items():
        expect(bool(np.isfinite(array).all()), f"{name} is not finite")


#: How many batches of the toy stream a check goes through; its users swap their tastes at the tenth.
_LENGTH = 14
UNEXPLAINED = "the strategy has no learning-rate matrix"


def untouched_rows_stay(pairing: Pairing) -> str | None:
    """A row that no interaction of the batch touches keeps its bytes, and so does its state."""
    updater, batch = pairing.after(7), toy_batches()[7]
    if updater.strategy.dense:
        return "the strategy declares that it is dense: every row moves at every step"
    offered = updater.offered(batch)
    touched = {"user": offered.users, "item": offered.items}
    before = {name: table.state() for name, table in tables_of(updater)}
    updater.learn(batch)
    for name, table in tables_of(updater):
        if table.spec.role == "shared":
            continue
        for part, now in table.state().items():
            moved = np.flatnonzero((before[name][part] != now).reshape(table.rows, -1).any(axis=1))
            strays = np.setdiff1d(moved, touched[table.spec.role])
            expect(not len(strays), f"rows {strays[:5].tolist()} of {name} changed, but the batch does not touch them")
    return None


def scoring_is_pure(pairing: Pairing) -> str | None:
    """Scoring changes no state, and asking twice gives the same bytes."""
    updater = pairing.after(5)
    before = state_of(updater)
    first = scores_of(updater)
    same(before, state_of(updater), "scoring changed state")
    same(first, scores_of(updater), "the same question had two answers")
    return None


def proposing_is_pure(pairing: Pairing) -> str | None:
    """`propose` and `learning_rates` write nothing, and asking twice gives the same bytes."""
    updater, batch = pairing.after(5), toy_batches()[5]
    situation = updater.situation(batch)
    before = state_of(updater)
    answers = []
    for _ in range(2):
        if updater.strategy.explains_rates:
            updater.strategy.learning_rates(situation)
        answers.append({name: array_of(new) for name, new in updater.strategy.propose(situation).values.items()})
    same(before, state_of(updater), "a proposal changed state before it was kept")
    same(answers[0], answers[1], "the same situation had two proposals")
    return None


def same_seed_same_result(pairing: Pairing) -> str | None:
    """Two runs with the same seeds end in the same bytes."""
    first, second = pairing.after(_LENGTH), pairing.updater(toy_batches()[:_LENGTH])
    same(state_of(first), state_of(second), "two runs with the same seeds differ")
    return None


def future_does_not_matter(pairing: Pairing) -> str | None:
    """Nothing up to an event depends on what follows it, in this run or in one before it."""
    cut, updater = _LENGTH - 2, pairing.updater()
    for number, batch in enumerate(toy_batches(toy_log(other_future_from=cut * BATCH))[:_LENGTH]):
        if number <= cut:
            expected = scores_of(pairing.after(number))
            same(scores_of(updater), expected, f"the scores before batch {number} depend on what follows it")
        updater.learn(batch)
    return None


def permutation_is_noise(pairing: Pairing) -> str | None:
    """The order inside a batch changes the rows by floating-point noise only."""
    batch = toy_batches()[9]
    order = np.random.default_rng(0).permutation(len(batch))
    columns = (batch.users, batch.items, batch.times, batch.user_keys, batch.item_keys, batch.events)
    shuffled = Reordered(batch.first_event, *(column[order] for column in columns))
    straight, mixed = (pairing.after(9, dtype=np.float64) for _ in range(2))
    straight.learn(batch)
    mixed.learn(shuffled)
    for name, table in straight.recommender.tables.items():
        other = mixed.recommender.tables[name].state()["values"]
        close(other, table.state()["values"], f"{name} after the same batch in another order", 1e-7)
    return None


def single_interaction_works(pairing: Pairing) -> str | None:
    """Batches of one interaction are learned, from the very first of the stream on."""
    batches = toy_batches(size=1)[:BATCH]
    updater = pairing.updater(batches)
    require_finite(updater)
    expect(updater.history.events == len(batches), f"{updater.history.events} of {len(batches)} events arrived")
    return None


def hot_user_works(pairing: Pairing) -> str | None:
    """One user can fill a batch of 256."""
    return _learn_and_look(pairing, users=np.full(256, 1), items=np.arange(256) % 12)


def hot_item_works(pairing: Pairing) -> str | None:
    """One item can fill a batch of 256, even where it is the only one that the stream has ever seen."""
    require_finite(pairing.updater([toy_batch(0, np.arange(256) % 6, np.zeros(256, dtype=np.int64))]))
    return _learn_and_look(pairing, users=np.arange(256) % 6, items=np.full(256, 2))


def state_round_trips(pairing: Pairing) -> str | None:
    """Tables, row state, memory and history carry everything: a copy goes on exactly as the original does."""
    original, batches = pairing.after(9), toy_batches()[9:_LENGTH]
    copy = pairing.updater(history=History.from_state(original.history.state()))
    hand_over(original, copy)
    same(state_of(original), state_of(copy), "the restored state is not the saved one")
    for batch in batches:
        original.learn(batch)
        copy.learn(batch)
    same(scores_of(original), scores_of(copy), "scores differ after going on from a restored state")
    same(state_of(original), state_of(copy), "state differs after going on from a restored state")
    return None


def learning_rates_shape_and_family(pairing: Pairing) -> str | None:
    """The learning-rate matrix has one line per interaction, one column per touched entry, and the family's form."""
    updater, batch = pairing.after(5, dtype=np.float64), toy_batches()[5]
    if not updater.strategy.explains_rates:
        return UNEXPLAINED
    rates = updater.learning_rates(batch)
    evidence = updater.situation(batch).evidence
    blocks = _rate_blocks(rates, evidence)
    for table, block in blocks.items():
        expect(bool(block.isfinite().all()), f"the rates of {table} are not finite")
    if pairing.family is None or pairing.family == "any":
        return None
    for table, block in blocks.items():
        flat = block.reshape(len(block), -1)
        if pairing.family in ("uniform", "interaction"):
            close(flat, flat[:, :1].expand_as(flat), f"the rates of {table} along one interaction", 1e-12)
        if pairing.family == "uniform":
            close(flat, flat[:1].expand_as(flat), f"the rates of {table} across interactions", 1e-12)
        if pairing.family == "parameter":
            close(block, _rates_by_parameter(table, block, evidence), f"the rates of one parameter of {table}", 1e-9)
    return None


def learning_rates_explain_the_update(pairing: Pairing) -> str | None:
    """Where no optimiser state is kept for rows, the step is Δ = −colsum(W ⊙ G) (docs/methods.md 1.2)."""
    updater, batch = pairing.after(5, dtype=np.float64), toy_batches()[5]
    if not updater.strategy.explains_rates:
        return UNEXPLAINED
    tables = sorted(
        table.name
        for table in updater.recommender.specs
        if table.name in updater.row_state
        and not all(state.learned for state in updater.strategy.row_state(table).values())
    )
    if tables:
        return (
            f"the strategy keeps state for the rows of {', '.join(tables)}, so a step is more than this batch's rates"
        )
    rates = updater.learning_rates(batch)
    from melon.models.evidence import RowGradient

    situation = updater.situation(batch)
    proposal = updater.strategy.propose(situation)
    blocks = _rate_blocks(rates, situation.evidence)
    for gradient in situation.evidence.gradients:
        old = situation.values[gradient.table]
        weighted = blocks[gradient.table] * gradient.expand()
        if isinstance(gradient, RowGradient):
            expected = -replace(gradient, gradient=weighted).summed(len(old))
        else:
            expected = -weighted.sum(0)
        close(proposal.values.get(gradient.table, old) - old, expected, f"the step of {gradient.table}", 1e-9)
    return None


def finite_after_many_batches(pairing: Pairing) -> str | None:
    """200 batches of a drifting stream leave every number finite."""
    require_finite(pairing.updater(toy_batches(toy_log(200 * BATCH))))
    return None


def grows(pairing: Pairing) -> str | None:
    """Unseen users and items are scored before they are learned, and have rows afterwards; old rows stay in place."""
    past, updater = 5, pairing.after(5)
    users, items = (updater.recommender.rows_of(role) for role in ("user", "item"))
    batch = toy_batch(past * BATCH, np.array([users, users + 1, users]), np.array([items, 0, items + 1]))
    strange = updater.score(np.array([users + 40]), np.array([[0, items + 40]]), time=10**6)
    expect(bool(np.isfinite(strange).all()), f"an unseen user and item score {strange.tolist()}")
    updater.learn(batch)
    for table in updater.recommender.tables.values():
        wanted = {"user": users + 2, "item": items + 2}.get(table.spec.role, table.rows)
        expect(table.rows == wanted, f"{table.spec.name} has {table.rows} rows after growing to {wanted}")
    require_finite(updater)
    return None


PAIRING_CHECKS: tuple[Callable[[Pairing], str | None], ...] = (
    untouched_rows_stay,
    scoring_is_pure,
    proposing_is_pure,
    same_seed_same_result,
    future_does_not_matter,
    permutation_is_noise,
    single_interaction_works,
    hot_user_works,
    hot_item_works,
    state_round_trips,
    learning_rates_shape_and_family,
    learning_rates_explain_the_update,
    finite_after_many_batches,
    grows,
)


def _learn_and_look(pairing: Pairing, users: Ints, items: Ints) -> str | None:
    past, updater = 4, pairing.after(4)
    loss = updater.learn(toy_batch(past * BATCH, users, items))
    expect(bool(np.isfinite(loss)), f"the loss is {loss}")
    require_finite(updater)
    return None


def _rate_blocks(rates: LearningRates, evidence: Evidence) -> dict[str, Tensor]:
    """The matrix cut by table, each block in the shape of that table's expanded gradient; the shapes are checked."""
    from melon.models.evidence import RowGradient

    blocks, n = {}, len(evidence.losses)
    expect(rates.rows.shape == (n, len(rates.slots)), f"rates of {tuple(rates.rows.shape)}, slots {len(rates.slots)}")
    for gradient in evidence.gradients:
        shape, table = gradient.expand().shape, gradient.table
        if isinstance(gradient, RowGradient):
            columns = [at for at, (name, _) in enumerate(rates.slots) if name == table]
            slots = [rates.slots[at][1] for at in columns]
            wanted = [slot for slot in range(shape[1]) for _ in range(shape[2])]
            expect(slots == wanted, f"{table} has slots {slots}, expected {wanted}")
            blocks[table] = rates.rows[:, columns].reshape(shape)
        else:
            given = tuple(rates.shared[table].shape) if table in rates.shared else None
            expect(given == (n, shape[1:].numel()), f"{table} has rates of shape {given}, expected n × entries")
            blocks[table] = rates.shared[table].reshape(shape)
    return blocks


def _rates_by_parameter(table: str, block: Tensor, evidence: Evidence) -> Tensor:
    """The same block where each parameter has the rate that it has at its first touch."""
    positions = next((g.positions for g in evidence.row_gradients if g.table == table), None)
    if positions is None:
        return block[:1].expand_as(block)
    flat, where = block.reshape(-1, block.shape[-1]), positions.reshape(-1)
    first = [int((where == row).nonzero()[0, 0]) for row in where.tolist()]
    return flat[first].reshape(block.shape)


# The public functions.


def _made(name: str, settings: Mapping[str, Any], *, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> Recommender:
    made: Recommender = RECOMMENDERS[name].load()(settings, seed=seed, dtype=dtype)
    return made


_SMALL_BLEND = {"dim": 6, "head_units": 4, "head_negatives": 3, "head_rest": 20, "slots": 16, "negatives": 2}
SMALL_RECOMMENDERS: Mapping[str, MakeRecommender] = {
    "bpr": partial(_made, "bpr", {"dim": 6}),
    "ncf": partial(_made, "ncf", {"dim": 4, "layers": (6, 5)}),
    "blend": partial(_made, "blend", _SMALL_BLEND),
}


@dataclass(frozen=True)
class CheckReport:
    """What came of a list of checks: the names of those that passed, and why the others do not apply."""

    subject: str
    passed: tuple[str, ...]
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    @property
    def applicable(self) -> bool:
        """Whether anything could be checked at all."""
        return bool(self.passed)

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.passed)} checks passed"]
        return "\n".join(lines + [f"  not applied: {name} ({why})" for name, why in self.not_applicable.items()])


def check_pairing(
    make_recommender: MakeRecommender,
    make_strategy: MakeStrategy,
    *,
    family: Family | None = None,
    exempt: Mapping[str, str] | None = None,
) -> CheckReport:
    """Run every check of a strategy on one recommender.

    `family` says which form the learning-rate matrix must have. `exempt` names checks that the strategy does not claim
    to pass, each with a reason for the report. Where the strategy refuses the recommender in `bind`, or has no table to
    update, nothing applies.
    """
    pairing, strategy = Pairing(make_recommender, make_strategy, family), make_strategy(seed=0)
    try:
        recommender = make_recommender(seed=0, dtype=np.float32)
    except MissingExtraError as missing:
        return CheckReport(strategy.name, (), {check.__name__: str(missing) for check in PAIRING_CHECKS})
    subject = f"{recommender.name} with {strategy.name}"
    if not recommender.specs:
        nothing = f"strategy {strategy.name!r} has no table to update: the recommender learns without gradients"
        return CheckReport(subject, (), {check.__name__: nothing for check in PAIRING_CHECKS})
    try:
        Updater(recommender, strategy)
    except SettingsError as refusal:
        return CheckReport(subject, (), {check.__name__: str(refusal) for check in PAIRING_CHECKS})
    return _run(subject, PAIRING_CHECKS, pairing, exempt)


def check_strategy(
    make_strategy: MakeStrategy,
    recommenders: Mapping[str, MakeRecommender] | None = None,
    *,
    family: Family | None = None,
    exempt: Mapping[str, str] | None = None,
) -> dict[str, CheckReport]:
    """`check_pairing` on each recommender; by default small ones of each kind that melon has."""
    makers = recommenders if recommenders is not None else SMALL_RECOMMENDERS
    reports = {name: check_pairing(make, make_strategy, family=family, exempt=exempt) for name, make in makers.items()}
    if not any(report.applicable for report in reports.values()):
        reasons = "; ".join(f"{name}: {next(iter(r.not_applicable.values()))}" for name, r in reports.items())
        raise ConformanceError(f"the strategy works with none of the recommenders ({reasons or 'there are none'}).")
    return reports


def check_recommender(make_recommender: MakeRecommender, *, exempt: Mapping[str, str] | None = None) -> CheckReport:
    """Run every check of a recommender by itself; how it learns is for `check_pairing`."""
    name = make_recommender(seed=0, dtype=np.float32).name
    return _run(name, RECOMMENDER_CHECKS, make_recommender, exempt)


_Subject = TypeVar("_Subject")


def _run(
    subject: str,
    checks: tuple[Callable[[_Subject], str | None], ...],
    given: _Subject,
    exempt: Mapping[str, str] | None,
) -> CheckReport:
    names = [check.__name__ for check in checks]
    excused = exempt or {}
    for name in excused:
        if name not in names:
            raise unknown_name("check", name, names)
    passed, not_applicable = [], {}
    for check in checks:
        try:
            reason = excused[check.__name__] if check.__name__ in excused else check(given)
        except MissingExtraError as missing:
            reason = str(missing)
        except Exception as error:
            reason = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
            raise ConformanceError(f"{subject} fails the check {check.__name__!r}: {reason}") from error
        if reason is None:
            passed.append(check.__name__)
        else:
            not_applicable[check.__name__] = reason
    return CheckReport(subject, tuple(passed), not_applicable)
