"""`research/benchmarks/head_practice.py`: the gradient through the blend's head is exact."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from melon.kernels.meta_training import backward, forward
from melon.models.blend.head import TABLES
from melon.models.blend.recommender import Blend

TESTS = Path(__file__).parents[1]


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with its loops in the place of meta-training's, run by Python in any precision."""
    monkeypatch.syspath_prepend(str(TESTS.parent / "research" / "benchmarks"))
    monkeypatch.syspath_prepend(str(TESTS / "learning"))
    import head_training

    from trials import head_loops

    monkeypatch.setattr(forward, "score", head_loops.score)
    monkeypatch.setattr(backward, "score", head_loops.score)
    monkeypatch.setattr(backward, "_prediction_back", head_loops._prediction_back)
    yield head_training
    for name in ("head_training", "trials.head_loops"):
        sys.modules.pop(name)


def test_gradient_is_exact(trial: ModuleType) -> None:
    from meta_training_scenes import SLOW_LOOPS, scene

    model = Blend({"dim": 3, "negatives": 2, "head_units": 5}, seed=3, dtype=torch.float64)
    recorded, strategy = scene(model)
    generator = torch.Generator().manual_seed(7)
    for name in TABLES:
        values = model.tables[name].everything()
        values += 0.5 * torch.randn(values.shape, generator=generator, dtype=torch.float64)
    drawn, shape = np.random.default_rng(2), (*recorded.candidates.shape, len(model.inputs))
    inputs, active = drawn.normal(size=shape), drawn.normal(size=len(recorded.candidates))
    inputs[..., trial.OF_ROWS] = 0
    meta_training = trial.HeadTraining(model, strategy, recorded, SLOW_LOOPS, inputs, active)
    _, gradient = meta_training.run(0)
    for name, slopes in gradient.items():
        flat, largest = slopes.reshape(-1), float(slopes.abs().max())
        assert largest > 1e-6, name
        for place in np.linspace(0, len(flat) - 1, min(4, len(flat))).astype(int):
            values, kept = [], strategy.rates.phi[name]
            for step in (1e-6, -1e-6):
                strategy.rates.phi[name] = kept.clone()
                strategy.rates.phi[name].view(-1)[place] += step
                values.append(meta_training.run(0)[0])
            strategy.rates.phi[name] = kept
            assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(flat[place]), rel=1e-4, abs=1e-5 * largest)
