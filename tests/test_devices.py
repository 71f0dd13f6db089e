"""No tensor is made on a device by default, in checkpoints and in the estimator either: everything follows the model.

There is only a CPU to test on, so the test turns it round: the model lives on the CPU while torch's default device is
`meta`, which holds no numbers. A tensor that does not follow the model lands there and breaks the step.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from melon.errors import SettingsError
from melon.estimator import Melon, load
from melon.learning import checkpoint
from melon.learning.updater import Updater
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
from melon.testing.toys import toy_batches

SETTINGS = {
    "ncf": {"dim": 3, "layers": (5, 4)},
    "bpr": {"dim": 4},
    "blend": {"dim": 4, "head_units": 3, "slots": 8},
}
#: Settings with code of their own; the others are covered by the check `follows_the_model`.
VARIANTS: list[tuple[str, str, dict[str, object]]] = [
    ("bpr", "default", {"optimizer": "adam_dense"}),
    ("blend", "eals", {}),
    ("ncf", "s2meta", {"variant": "B", "half_life": 100.0}),
    ("bpr", "sml", {"width": 8, "optimizer": "adam_lazy", "half_life": 100.0}),
    (
        "bpr",
        "melon",
        {"form": "network", "inputs": ["touches", "idle", "item_rate", "role"], "half_life": 100.0},
    ),
]


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """What does not say where it lives, lives nowhere."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("recommender", "strategy", "settings"), VARIANTS)
def test_everything_follows_the_model(
    recommender: str, strategy: str, settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = RECOMMENDERS[recommender].load()(SETTINGS[recommender], device="cpu")
    updater = Updater(model, STRATEGIES[strategy].load()(settings))
    *past, last = toy_batches()[:6]
    for batch in past:
        updater.score(batch.users, np.stack([batch.items, batch.items[::-1]], axis=1), int(batch.times[0]))
        assert np.isfinite(updater.learn(batch))
    if updater.strategy.explains_rates:
        assert updater.learning_rates(last).rows.device.type == "cpu"
    assert np.isfinite(updater.score_catalogue(np.arange(3), 5, int(last.times[0]))).all()
    folder = tmp_path_factory.mktemp("saved") / "model"
    checkpoint.save(folder, updater)
    again = checkpoint.load(folder).updater
    assert again.learn(last) == updater.learn(last)
    for name, table in again.recommender.tables.items():
        assert torch.equal(table.everything(), updater.recommender.tables[name].everything())


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("recommender", SETTINGS)
def test_a_model_lives_where_it_is_told(recommender: str, tmp_path: Path) -> None:
    told = {"recommender_settings": SETTINGS[recommender], "epochs": 1, "budget": 1, "device": "cpu"}
    drawn = np.random.default_rng(0).integers(0, 30, (600, 2)).tolist()
    model = Melon(recommender, "mwnet", **told).fit([(u, i, t) for t, (u, i) in enumerate(drawn)])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", device="cpu")
    assert again.recommend([1, 999], k=3) == model.recommend([1, 999], k=3)
    assert again.similar_items([2], k=3) == model.similar_items([2], k=3)
    with pytest.raises(SettingsError, match="device = 'abacus' is not available here"):
        load(tmp_path / "model", device="abacus")
