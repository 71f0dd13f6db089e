"""What a strategy must do with any recommender: one function for each rule, and the pairing that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from melon.learning.updater import Updater
from melon.strategies.base import LearningRates, Strategy
from melon.stream.batch import Batch
from melon.stream.history import History
from melon.tables import Table
from melon.testing.recommenders import MakeRecommender
from melon.testing.toys import BATCH, StateArrays, array_of, close, expect, same, toy_batch, toy_batches, toy_log
from melon.types import Ints

if TYPE_CHECKING:
    from torch import Tensor

    from melon.models.evidence import Evidence

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
