"""Interactions learned in turn: waves give what going one by one gives."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learned_scenes import slow
from torch import Tensor

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.recommenders.base import Recommender
from melon.recommenders.bpr import BPR
from melon.recommenders.evidence import Examples
from melon.recommenders.ncf import NCF
from melon.strategies.base import Situation
from melon.strategies.default import Default
from melon.strategies.eals import EALS
from melon.strategies.mwnet import MWNet
from melon.strategies.reductions import propose_in_turn, waves
from melon.stream.batch import Batch

USERS, ITEMS, NEGATIVES = 5, 7, 2
PAIRS = st.lists(
    st.tuples(
        st.integers(0, USERS - 1), st.lists(st.integers(0, ITEMS - 1), min_size=1 + NEGATIVES, max_size=1 + NEGATIVES)
    ),
    min_size=1,
    max_size=20,
)


def model(kind: str) -> Recommender:
    settings: dict[str, Any] = {"dim": 3, "negatives": NEGATIVES}
    recommender = (
        BPR(settings, dtype=torch.float64) if kind == "bpr" else NCF(settings | {"layers": (4, 3)}, dtype=torch.float64)
    )
    recommender.grow(USERS, np.arange(USERS), ITEMS, np.arange(ITEMS))
    return recommender


def met(recommender: Recommender, strategy: Default, drawn: list[tuple[int, list[int]]]) -> Situation:
    examples = Examples(torch.tensor([user for user, _ in drawn]), torch.tensor([items for _, items in drawn]))
    values = {name: table.everything() for name, table in recommender.tables.items()}
    state = {
        spec.name: {key: torch.zeros_like(values[spec.name]) for key in strategy.row_state(spec)}
        for spec in recommender.specs
    }
    specs = {spec.name: spec for spec in recommender.specs}
    return Situation(specs, examples, values, state, recommender.evidence(values, examples))


def one_by_one(recommender: Recommender, settings: dict[str, Any], start: Situation) -> dict[str, Tensor]:
    """The slow twin: a step of one interaction after another; shared weights stay."""
    rows = {name for name, spec in start.specs.items() if spec.role != "shared"}
    values, state = dict(start.values), {name: dict(kept) for name, kept in start.row_state.items()}
    for at in range(len(start.examples)):
        one = Examples(start.examples.users[at : at + 1], start.examples.items[at : at + 1])
        touched = {"user": one.users, "item": one.items.flatten()}
        proposal = Default(settings).propose(
            Situation(start.specs, one, values, state, recommender.evidence(values, one))
        )
        for name in rows & proposal.values.keys():
            here = touched[start.specs[name].role]
            values[name] = values[name].clone()
            values[name][here] = proposal.values[name][here]
            for key, new in proposal.row_state.get(name, {}).items():
                state[name][key] = state[name][key].clone()
                state[name][key][here] = new[here]
    return {name: values[name] for name in rows}


@given(drawn=PAIRS)
@pytest.mark.parametrize("kind", ["bpr", slow("ncf")])
@pytest.mark.parametrize(
    "settings", [slow({"lr": 0.7}), {"lr": 0.3, "weight_decay": 0.1}, {"lr": 0.05, "optimizer": "adam_lazy"}]
)
def test_waves_equal_one_by_one(kind: str, settings: dict[str, Any], drawn: list[tuple[int, list[int]]]) -> None:
    recommender, strategy = model(kind), Default({**settings, "reduction": "sequential"})
    start = met(recommender, strategy, drawn)
    proposed = propose_in_turn(recommender, strategy, start).values
    at_once = Default({**settings, "reduction": "sum"}).propose(start).values
    assert proposed.keys() == at_once.keys()
    in_turn = one_by_one(recommender, {**settings, "reduction": "sum"}, start)
    for name, new in proposed.items():
        if start.specs[name].role == "shared":
            assert torch.equal(new, at_once[name])
        else:
            assert torch.allclose(new, in_turn[name], rtol=1e-12, atol=1e-14)


@given(drawn=PAIRS)
def test_a_wave_shares_no_row_and_keeps_the_order(drawn: list[tuple[int, list[int]]]) -> None:
    order = torch.arange(len(drawn))
    examples = Examples(torch.tensor([u for u, _ in drawn]), torch.tensor([i for _, i in drawn]), fresh=order)
    passed: dict[tuple[str, int], int] = {}
    seen: list[int] = []
    for wave in waves(examples):
        assert wave.fresh is not None
        here: set[tuple[str, int]] = set()
        for at, user, items in zip(wave.fresh.tolist(), wave.users.tolist(), wave.items.tolist(), strict=True):
            rows = {("user", user), *(("item", item) for item in items)}
            assert not rows & here
            assert all(passed.get(row, -1) < at for row in rows)
            passed |= dict.fromkeys(rows, at)
            here |= rows
            seen.append(at)
    assert sorted(seen) == order.tolist()


def test_without_a_shared_row_it_is_the_sum() -> None:
    recommender, strategy = model("bpr"), Default({"lr": 0.5, "reduction": "sequential"})
    start = met(recommender, strategy, [(0, [0, 1, 2]), (1, [3, 4, 5])])
    together = Default({"lr": 0.5}).propose(start).values
    for name, new in propose_in_turn(recommender, strategy, start).values.items():
        assert torch.equal(new, together[name])


def test_an_updater_takes_turns_and_says_how_far_rows_moved() -> None:
    users, items = np.array([0, 0, 1, 0]), np.array([0, 0, 1, 0])
    batch = Batch(0, users, items, np.arange(4), users, items)
    moved = {}
    for reduction in ("sum", "sequential"):
        updater = Updater(model("bpr"), Default({"lr": 1.0, "reduction": reduction}), seed=3)
        updater.learn(batch)
        moved[reduction] = updater.moved
    assert 0 < moved["sequential"] != moved["sum"]


def test_replayed_interactions_take_turns_too() -> None:
    updater = Updater(model("bpr"), EALS({"reduction": "sequential", "replay": 4, "w_new": 2.0}), seed=1)
    users, items = np.array([0, 1, 0]), np.array([2, 2, 3])
    for first in (0, 3):
        assert np.isfinite(updater.learn(Batch(first, users, items, np.arange(3), users, items)))


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [(Default, {"reduction": "sequential", "optimizer": "adam_dense"}), (MWNet, {"reduction": "sequential"})],
)
def test_what_cannot_take_turns_says_so(strategy: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="reduction"):
        strategy(settings)
