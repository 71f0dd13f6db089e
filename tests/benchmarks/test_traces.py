"""`research/benchmarks/trials/traces.py`: gradients that are carried forward are those that come back from the end."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from melon.learning.meta_training.factor import FactorMetaTraining
from melon.models.bpr import BPR

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("negatives", "half_life"), [(1, None), (2, 40.0)])
def test_gradient_is_that_of_adjoints(monkeypatch: pytest.MonkeyPatch, negatives: int, half_life: float | None) -> None:
    monkeypatch.syspath_prepend(str(TESTS.parent / "research" / "benchmarks"))
    monkeypatch.syspath_prepend(str(TESTS / "learning"))
    from meta_training_scenes import SLOW_LOOPS, scene

    from trials import trace_loops
    from trials.traces import TraceMetaTraining

    model = BPR({"dim": 3, "negatives": negatives}, seed=3, dtype=torch.float64)
    recorded, strategy = scene(model, half_life=half_life)
    loss, whole = FactorMetaTraining(model, strategy, recorded, SLOW_LOOPS).run(0)
    kernels = SimpleNamespace(learn=trace_loops.learn, judge=trace_loops.judge)
    meta_training = TraceMetaTraining(model, strategy, recorded, kernels)
    total, summed = 0.0, {name: torch.zeros_like(value) for name, value in whole.items()}
    for t in range(len(recorded.ends)):
        lost, gradient = meta_training.judge(t)
        total += lost / recorded.predicted
        summed = {name: summed[name] + gradient[name] / recorded.predicted for name in summed}
        meta_training.learn(t)
    assert total == pytest.approx(loss, rel=1e-12)
    for name, slope in whole.items():
        free = strategy.trainable()[name]
        torch.testing.assert_close(summed[name] * free, slope * free, rtol=1e-8, atol=1e-12)
