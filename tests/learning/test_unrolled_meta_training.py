"""S2Meta and SML as they meta-train through a stream: gradient, start, and frozen after."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from meta_training_scenes import ahead, behind, stream

from melon.errors import SettingsError
from melon.learning.meta_training.autograd import UnrolledMetaTraining
from melon.learning.meta_training.loop import meta_train_through, meta_training_candidates
from melon.learning.meta_training.record import record
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies import s2meta
from melon.strategies.default import Default
from melon.strategies.registry import STRATEGIES
from melon.strategies.sml import Transfer
from melon.strategies.unrolled import UnrolledStrategy

SMALL: dict[str, dict[str, Any]] = {"s2meta": {"width": 3}, "sml": {"width": 4}}


def bpr(dtype: Any = np.float64) -> BPR:
    return BPR({"dim": 3}, seed=3, dtype=dtype)


def ncf() -> NCF:
    return NCF({"dim": 2, "layers": (4, 3)}, seed=3, dtype=np.float64)


def made(name: str, **settings: Any) -> UnrolledStrategy:
    strategy = STRATEGIES[name].make({"form": "stream", "lr": 0.2, **SMALL[name], **settings}, seed=1)
    assert isinstance(strategy, UnrolledStrategy)
    return strategy


def shaken(strategy: UnrolledStrategy) -> UnrolledStrategy:
    """φ away from its start, so that no part of the gradient is 0."""
    generator = np.random.default_rng(3)
    strategy.take({name: value + 0.5 * generator.normal(size=value.shape) for name, value in strategy.phi.items()})
    return strategy


class Held:
    """What networks see, as it was when it was first seen: the same calls give the same inputs again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: list[Any] = []
        self._again: Iterator[Any] | None = None
        features, transfer = s2meta.scale_and_sign, Transfer.__call__
        monkeypatch.setattr(s2meta, "scale_and_sign", lambda *values: self._held(lambda: features(*values)))
        monkeypatch.setattr(
            Transfer, "__call__", lambda own, *rows: transfer(own, *self._held(lambda: tuple(r.clone() for r in rows)))
        )

    def _held(self, make: Any) -> Any:
        if self._again is None:
            self._seen.append(make())
            return self._seen[-1]
        return next(self._again)

    def replay(self) -> None:
        self._again = iter(self._seen)


@pytest.mark.parametrize("name", ["s2meta", "sml"])
@pytest.mark.parametrize(
    ("make", "settings"), [(bpr, {"half_life": 40.0}), (ncf, {"most_step": 0.9}), (bpr, {"reduction": "row_mean"})]
)
def test_the_gradient_is_exact_with_inputs_held(
    name: str, make: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, log = make(), stream(86)
    updater = behind(model, made(name, **settings), log)
    assert isinstance(updater.strategy, UnrolledStrategy)
    strategy = shaken(updater.strategy)
    recorded = record(updater, ahead(log), meta_training_candidates(log, seed=5, count=7), draws=1)
    meta_training, held = UnrolledMetaTraining(model, strategy, recorded), Held(monkeypatch)
    loss, gradient = meta_training.run(0)
    assert np.isfinite(loss)
    start, generator = strategy.phi, np.random.default_rng(7)
    for part, slopes in gradient.items():
        largest = float(np.abs(slopes).max())
        if part.startswith("user_bias."):  # which a pairwise loss never teaches
            assert largest == 0
            continue
        assert largest > 1e-9, part
        # Along one direction in which every entry of the part moves.
        direction, values = generator.normal(size=slopes.shape), []
        for step in (1e-5, -1e-5):
            strategy.take({key: value + step * direction if key == part else value for key, value in start.items()})
            held.replay()
            values.append(meta_training.run(0)[0])
        found, expected = (values[0] - values[1]) / 2e-5, float((slopes * direction).sum())
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5 * largest + 1e-9), part


def stepped(updater: Updater) -> dict[str, Any]:
    updater.learn(ahead(stream())[0])
    return {name: table.everything().copy() for name, table in updater.recommender.tables.items()}


@pytest.mark.parametrize("make", [bpr, ncf])
@pytest.mark.parametrize(("name", "settings"), [("s2meta", {"forgetting": False}), ("sml", {})])
def test_it_starts_at_the_plain_step(name: str, settings: dict[str, Any], make: Any) -> None:
    plain = Default({"optimizer": "sgd", "lr": 0.2, "reduction": "sum", "shared_reduction": "mean"})
    expected, found = (stepped(behind(make(), each, stream())) for each in (plain, made(name, **settings)))
    for table, values in expected.items():
        np.testing.assert_allclose(found[table], values, rtol=1e-9, atol=1e-12)


def stream_trained(name: str, model: Recommender, **settings: Any) -> tuple[list[float], Updater]:
    log = stream()
    updater = behind(model, made(name, passes=12, **settings), log)
    return meta_train_through(updater, ahead(log), meta_training_candidates(log, seed=5, count=7)).losses, updater


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["s2meta", "sml"])
def test_meta_training_helps_and_the_stream_changes_nothing(name: str, dtype: Any) -> None:
    losses, updater = stream_trained(name, bpr(dtype))
    assert losses[-1] < losses[0]
    before = updater.strategy.memory()
    for batch in ahead(stream()):
        updater.learn(batch)
    after = updater.strategy.memory()
    assert all(np.array_equal(value, after[key]) for key, value in before.items() if key.startswith("phi/"))


@pytest.mark.parametrize("name", ["s2meta", "sml"])
def test_half_lives_are_learned_where_items_decay(name: str) -> None:
    _, updater = stream_trained(name, bpr(np.float32), half_life=40.0, half_life_speed=1.0)
    specs = {spec.name: spec for spec in updater.recommender.specs}
    half_lives = updater.strategy.half_lives(specs)
    assert isinstance(updater.strategy, UnrolledStrategy)
    for table, open_value in updater.strategy.open_half_lives(specs, updater.strategy.parameters()).items():
        assert float(open_value.detach()) == pytest.approx(half_lives[table])
        assert half_lives[table] != 40.0


def test_a_recommender_whose_gradients_are_closed_is_refused() -> None:
    class Own(NCF):
        """A recommender that meta-training knows nothing of."""

        evidence = NCF.evidence

    with pytest.raises(SettingsError, match="form = stream needs gradients that can be differentiated"):
        stream_trained("sml", Own({"dim": 2, "layers": (4, 3)}, seed=3, dtype=np.float64))


@pytest.mark.parametrize(("name", "settings"), [("sml", {"residual": False})])
def test_what_cannot_be_stream_trained_is_refused(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} = "):
        made(name, **settings)
