"""Items that enough users have taken, against a twin that counts."""

import numpy as np
import pytest

from melon.stream.history import RING, History
from melon.stream.proven import ProvenItems, proven


@pytest.mark.parametrize("users", [0, 1, 2, 3])
def test_proven_items_against_counting(users: int) -> None:
    rng, history, kept = np.random.default_rng(users), History(), ProvenItems(users)
    takers: dict[int, set[int]] = {}
    for reach in range(2, 60):
        who, what = rng.integers(0, 4 + reach, 9), (rng.random(9) ** 2 * 3 * reach).astype(np.int64)
        history.append(who, what)
        for user, item in zip(who.tolist(), what.tolist(), strict=True):
            takers.setdefault(item, set()).add(user)
        n_items = history.known_items
        wanted = [len(takers.get(item, ())) >= users for item in range(n_items)]
        assert proven(history, np.arange(n_items), users).tolist() == wanted
        flags = kept.flags(history, n_items)
        assert (wanted if users else None) == (
            flags.tolist() if flags is not None else [True] * n_items if users else None
        )
        if flags is not None:
            alone = {item for item, found in takers.items() if 0 in found and not wanted[item]}
            assert set(kept.own(history, 0).tolist()) == alone


def test_an_item_of_one_busy_user_is_not_forgotten() -> None:
    history = History()
    history.append(np.zeros(RING, dtype=np.int64), np.zeros(RING, dtype=np.int64))
    assert not proven(history, np.array([0]), 2)[0]
    history.append(np.array([0]), np.array([0]))
    assert proven(history, np.array([0]), 2)[0]  # others may have taken it before what is remembered
