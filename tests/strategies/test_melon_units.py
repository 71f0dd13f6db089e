"""The interaction side: what two situations of a step look up together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernel_choice import choose_kernel
from melon.learning.general_step import Gatherer
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.melon.interaction_model import Side, TargetCache
from melon.strategies.melon.strategy import NetworkMeLON, NetworkMeLONI
from melon.stream.batch import Batch
from melon.stream.history import History
from situations import assert_close, tensors_of


class TestTargetCache:
    @given(st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=20), min_size=1, max_size=4))
    @settings(max_examples=60)
    def test_every_target_is_looked_up_once_and_found_again(self, batches: list[list[int]]) -> None:
        asked: list[int] = []

        def look_up(rows: np.ndarray) -> Side:
            asked.extend(rows.tolist())
            features = torch.from_numpy(rows.astype(np.float64))[:, None]
            return Side(features, features[:, None], torch.ones(len(rows), 1, dtype=torch.bool))

        known = TargetCache()
        for batch in batches:
            positions = np.array(batch)
            found = known.targets(positions, max(batch) + 1, look_up)
            assert found.nodes[found.places[found.at], 0].tolist() == batch
            assert len(set(found.places.tolist())) == len(found.places) == len(set(batch))
        assert sorted(asked) == sorted({position for batch in batches for position in batch})


def stepped(strategy: type, kind: str, monkeypatch: pytest.MonkeyPatch, *, together: bool) -> dict[str, Tensor]:
    """Tables after some steps, with cold users and items among the batches; `together` is how it is done."""
    if not together:
        plain = Gatherer.situation
        monkeypatch.setattr(
            Gatherer, "situation", lambda self, *given, **more: plain(self, *given, **{**more, "beside": None})
        )
    rng = np.random.default_rng(1)
    recommender = BPR({"dim": 8}) if kind == "bpr" else NCF({"dim": 4, "layers": (6, 5)})
    updater = Updater(recommender, strategy({"meta_lr": 0.02}), History())
    for step in range(6):
        users, items = rng.integers(0, 20 + 5 * step, 24), rng.integers(0, 30 + 5 * step, 24)
        time = np.full(24, updater.history.events)
        updater.learn(Batch(updater.history.events, users, items, time, users, items))
    return tensors_of(recommender)


@pytest.mark.parametrize("choice", ["torch", "numba"])
@pytest.mark.parametrize("kind", ["bpr", "ncf"])
@pytest.mark.parametrize("strategy", [NetworkMeLON, NetworkMeLONI])
def test_looking_up_together_changes_nothing(
    strategy: type, kind: str, choice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the look-ahead and the proposal of one step share is what each would have read for itself."""
    choose_kernel(monkeypatch, choice)
    shared = stepped(strategy, kind, monkeypatch, together=True)
    apart = stepped(strategy, kind, monkeypatch, together=False)
    for name, values in shared.items():
        assert_close(values, apart[name], rtol=1e-6, atol=1e-8, msg=name)
