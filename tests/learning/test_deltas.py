"""Deltas: a copy that applies them answers bit for bit like the model that learned; forgetting; damaged bytes."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melon.errors import CheckpointError, DataError
from melon.fitting.auto import SETTINGS
from melon.learning.deltas import NOTHING, Delta, Interacted, Recorder, apply, chained, state_digest
from melon.learning.model import LiveModel, edit_past, forget, observe_only
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.strategies.registry import STRATEGIES

PAIRINGS: dict[str, tuple[type, dict[str, Any], str, dict[str, Any]]] = {
    "bpr default": (BPR, {"dim": 6}, "default", {"half_life": 200.0}),
    "bpr melon": (BPR, {"dim": 6}, "melon", {"half_life": 200.0}),
    "blend default": (
        Blend,
        {"dim": 6, "slots": 8, "head_units": 4, "head_rest": 60, **SETTINGS},
        "default",
        {"half_life": 300.0},
    ),
}
USERS = [f"u{n}" for n in range(60)]


def make(name: str) -> LiveModel:
    recommender, settings, strategy, more = PAIRINGS[name]
    return LiveModel(Updater(recommender(settings), STRATEGIES[strategy].make(more)))


def stream(count: int, seed: int = 3) -> tuple[list[str], list[str], Any]:
    rng = np.random.default_rng(seed)
    reach = np.linspace(8, 60, count)
    users = [f"u{int(n)}" for n in rng.random(count) * reach]
    items = [f"i{int(n)}" for n in rng.random(count) ** 2 * reach * 2]
    return users, items, np.cumsum(rng.integers(0, 9, count)).astype(np.int64)


class Learned:
    """A model that learns batches of random size and hands out deltas as bytes."""

    def __init__(self, name: str, count: int = 900) -> None:
        self.model = make(name)
        self.users, self.items, self.times = stream(count)
        users, items, times = self.users[:100], self.items[:100], self.times[:100]
        self.model.learn_events(users, items, times, batch_size=32)
        self.done, self.number, self.rng = 100, 0, np.random.default_rng(1)
        self.start = copy.deepcopy(self.model)
        self.recorder = Recorder(self.model)

    def delta(self, past: Interacted, forgotten: Any = None) -> bytes:
        self.number += 1
        return self.recorder.take(self.number, past, forgotten).to_bytes()

    def batch(self, *, learned: bool = True) -> bytes:
        some = slice(self.done, self.done + int(self.rng.integers(1, 60)))
        users, items, times = self.users[some], self.items[some], self.times[some]
        self.done += len(users)
        if learned:
            self.model.learn_events(users, items, times)
        else:
            observe_only(self.model, users, items, times)
        return self.delta(Interacted(self.model.users.rows(users), self.model.items.rows(items), times))

    def forget(self, user: str) -> bytes:
        row = forget(self.model, user, f"nobody {user}")
        return self.delta(Interacted(), (row, f"nobody {user}"))


def answers(model: LiveModel) -> list[Any]:
    lists = [(one.source, one.items) for one in model.recommend(USERS, 7)]
    return [*lists, model.score(["u1"], [f"i{n}" for n in range(40)]).tolist(), model.most_popular(9)[0].tolist()]


@pytest.mark.parametrize("name", PAIRINGS)
def test_a_copy_answers_bit_for_bit_like_the_model_that_learned(name: str) -> None:
    learner = Learned(name)
    replica = learner.start
    digests = [NOTHING, NOTHING]
    while learner.done < len(learner.users):
        # Every fourth batch is passed by, as one that was left out; once, a person is forgotten.
        content = learner.batch(learned=learner.number % 4 != 3) if learner.number != 8 else learner.forget("u3")
        digests = [chained(digests[0], content), chained(digests[1], bytes(content))]
        apply(replica, Delta.from_bytes(content))
    assert state_digest(replica, answering=True) == state_digest(learner.model, answering=True)
    assert answers(replica) == answers(learner.model)
    assert digests[0] == digests[1] != NOTHING
    assert state_digest(make(name)) != state_digest(learner.model)


@pytest.mark.parametrize("name", PAIRINGS)
def test_a_forgotten_person_leaves_no_trace_and_the_model_can_be_saved(name: str, tmp_path: Path) -> None:
    learner = Learned(name)
    while learner.done < 500:
        learner.batch()
    model = learner.model
    row = int(model.users.rows(["u1"])[0])
    pairs = row << 32 | np.arange(len(model.items))
    assert model.updater.history.seen.contains(pairs).any()
    learner.forget("u1")
    history = model.updater.history
    assert model.users.rows(["u1"])[0] == -1
    assert model.recommend(["u1"], 3)[0].items == model.recommend(["never seen"], 3)[0].items
    assert not history.seen.contains(pairs).any()
    assert history.of_users.met(np.array([row]))[0] == 0
    assert forget(model, "u1", "nobody else") is None
    # The model goes on, the row is nobody else's, and a checkpoint has the same state.
    model.save(tmp_path / "model", {})
    loaded, _ = LiveModel.load(tmp_path / "model")
    assert state_digest(loaded) == state_digest(model)
    for one in (model, loaded):
        one.learn_events(["u1", "u2", "u1"], ["i1", "i2", "i3"], [10**6] * 3)
    assert state_digest(loaded) == state_digest(model)
    assert int(model.users.rows(["u1"])[0]) == len(model.users) - 1 != row
    with pytest.raises(DataError, match="cannot be row"):
        model.users.rename(0, "u1")


def test_damaged_or_foreign_deltas_change_nothing() -> None:
    learner = Learned("blend default", 300)
    first, second = learner.batch(), learner.batch()
    replica, before = learner.start, state_digest(learner.start)
    for bad in (b"", b"melon", first[:-3], first[:40] + bytes(8) + first[48:]):
        with pytest.raises(CheckpointError):
            apply(replica, Delta.from_bytes(bad))
    with pytest.raises(CheckpointError, match="do not agree"):
        apply(replica, Delta.from_bytes(second))
    with pytest.raises(CheckpointError, match="a head in a delta"):
        apply(Learned("bpr default", 300).start, Delta.from_bytes(first))
    assert state_digest(replica) == before
    apply(replica, Delta.from_bytes(first))
    with pytest.raises(CheckpointError, match="do not agree"):
        apply(replica, Delta.from_bytes(first))


@pytest.mark.parametrize("name", PAIRINGS)
def test_edits_of_the_past_reach_copies_and_checkpoints(name: str, tmp_path: Path) -> None:
    """A pair is taken back, a visitor's past moves to a user, and a new user takes over a visitor's row."""
    learned = Learned(name)
    model, copied, history = learned.model, learned.start, learned.model.updater.history
    users, items = learned.users[5], learned.items[5]
    row, column = int(model.users.rows([users])[0]), int(model.items.rows([items])[0])
    visitor, other = (int(model.users.rows([one])[0]) for one in ("u1", "u2"))
    had = history.seen.keys()
    had = set((had[had >> 32 == visitor] & 0xFFFFFFFF).tolist())
    assert had
    for edit in (("retract", row, column), ("move", visitor, other), ("rename", visitor, "brand new")):
        edit_past(model, edit)
        learned.number += 1
        content = learned.recorder.take(learned.number, Interacted(), None, edit).to_bytes()
        apply(copied, Delta.from_bytes(content))
        apply(copied, Delta.from_bytes(learned.batch()))
        assert state_digest(model, answering=True) == state_digest(copied, answering=True)
        assert answers(model) == answers(copied)
        model.save(tmp_path / edit[0], {})
        loaded, _ = LiveModel.load(tmp_path / edit[0])
        assert state_digest(loaded) == state_digest(model)
    assert model.users.rows(["brand new"])[0] == visitor
    moved = history.seen.keys()
    assert had <= set((moved[moved >> 32 == other] & 0xFFFFFFFF).tolist())


def test_an_edit_that_no_delta_has_is_refused() -> None:
    learned = Learned("bpr default")
    for edit in (("vanish", 0, 0), ("retract", -1, 0), ("move", 0, "x")):
        content = learned.recorder.take(1, Interacted(), None, edit).to_bytes()  # type: ignore[arg-type]
        with pytest.raises(CheckpointError):
            Delta.from_bytes(content)
