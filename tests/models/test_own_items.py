"""What users had: inputs against plain loops, bounds, undo, and states that come back."""

from typing import Any

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.errors import CheckpointError
from melon.journal import undoable
from melon.models.streaming import own_items as module
from melon.models.streaming.own_items import OWN_HALF_LIVES, OWN_INPUTS, OwnItems
from melon.stream.draws import Draws
from melon.stream.history import PartnerRings
from melon.types import Ints, Singles


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("flip", n_users=20, n_items=30, n_events=600, seed=3)


def followed(log: Interactions, stop: int, size: int = 64) -> tuple[OwnItems, PartnerRings]:
    own, of_items = OwnItems(), PartnerRings()
    for start in range(0, stop, size):
        some = slice(start, min(start + size, stop))
        own.observe(log.users[some], log.items[some])
        of_items.append(log.items[some], log.users[some])
    return own, of_items


def inputs(own: OwnItems, of_items: PartnerRings, users: Ints, items: Ints) -> Singles:
    lines = np.tile(items, (len(users), 1))
    out = np.full((len(users), len(items), len(OWN_INPUTS) + 1), 7, dtype=np.float32)
    own.write(users, lines, of_items, 1, out)
    assert (out[..., 0] == 7).all()
    return out[..., 1:]


def test_inputs_are_those_of_plain_loops(log: Interactions) -> None:
    stop, items = 500, np.arange(33)
    own, of_items = followed(log, stop)
    users = np.arange(20)
    found = inputs(own, of_items, np.append(users, 99), items)
    pairs = list(zip(log.users[:stop].tolist(), log.items[:stop].tolist(), strict=True))
    repeated = [(u, i) in pairs[:at] for at, (u, i) in enumerate(pairs)]
    for user in users.tolist():
        own_items = [i for u, i in pairs if u == user]
        own_repeats = sum(again for (u, _), again in zip(pairs, repeated, strict=True) if u == user)
        for item in items.tolist():
            ages = [len(own_items) - at for at, i in enumerate(own_items) if i == item]
            if not ages:
                assert not found[user, item].any()
                continue
            wanted = [1.0, *(np.log1p(sum(0.5 ** (age / half) for age in ages)) for half in OWN_HALF_LIVES)]
            repeats = sum(again for (_, i), again in zip(pairs, repeated, strict=True) if i == item)
            taken = sum(i == item for _, i in pairs)
            wanted += [np.log1p(min(ages)), (own_repeats + 1) / (len(own_items) + 4), (repeats + 1) / (taken + 4)]
            assert found[user, item] == pytest.approx(wanted, rel=1e-5)
    assert not found[-1].any()
    listed, of_user = own.of_user(3, of_items, 33)
    assert sorted(listed.tolist()) == sorted({i for u, i in pairs if u == 3})
    assert of_user == pytest.approx(found[3, listed])


def test_a_user_keeps_the_items_that_count_most(log: Interactions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ITEMS", 4)
    own, of_items = OwnItems(), PartnerRings()
    items = np.array([0, 1, 1, 2, 2, 3, 4, 5])
    own.observe(np.zeros(8, dtype=np.int64), items)
    of_items.append(items, np.zeros(8, dtype=np.int64))
    assert set(own.of_user(0, of_items, 9)[0].tolist()) == {1, 2, 4, 5}


def test_draws_are_the_users_own_and_belong_to_their_events(log: Interactions) -> None:
    own, _ = followed(log, 500)
    users, draws = np.append(log.users[500:], 10**6), Draws(1, "a test")
    events = np.arange(len(users))
    found = own.drawn(users, draws, events, 40)
    for user, line in zip(users[:-1].tolist(), found.tolist(), strict=False):
        assert set(line) <= set(log.items[:500][log.users[:500] == user].tolist())
        assert len(set(line)) > 1
    assert (found[-1] == -1).all()
    assert found[7:9].tolist() == own.drawn(users[7:9], draws, events[7:9], 40).tolist()
    assert (OwnItems().drawn(users, draws, events, 2) == -1).all()


def bytes_of(own: OwnItems) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in own.state().items()}


def test_a_batch_is_taken_back_whole_and_a_state_comes_back(log: Interactions) -> None:
    own, _ = followed(log, 300)
    before = bytes_of(own)
    with undoable(always=True):
        own.observe(log.users[300:420], log.items[300:420])
        assert bytes_of(own) != before
    assert bytes_of(own) == before
    back = OwnItems()
    back.restore(own.state())
    for each in (own, back):
        each.observe(log.users[300:], log.items[300:])
    assert bytes_of(own) == bytes_of(back) == bytes_of(followed(log, 600)[0])


def test_a_forgotten_user_has_nothing(log: Interactions) -> None:
    own, of_items = followed(log, 300)
    own.forget_user(2)
    assert not inputs(own, of_items, np.array([2]), np.arange(30)).any()
    assert inputs(own, of_items, np.array([1]), np.arange(30)).any()
    own.forget_user(10_000)


@pytest.mark.parametrize(("name", "value"), [("heads", 10**6), ("after", 99), ("items", -1), ("sizes", 10**5)])
def test_a_damaged_state_is_refused(log: Interactions, name: str, value: int) -> None:
    own, _ = followed(log, 300)
    state: dict[str, Any] = own.state()
    state[name][0] = value
    with pytest.raises(CheckpointError):
        OwnItems().restore(state)
