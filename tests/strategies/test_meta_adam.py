"""Adam on meta-parameters: the same steps as PyTorch's, and all its state in `memory`."""

import pytest
import torch

from melon.strategies.adam import MetaAdam
from situations import assert_close, equal

DTYPE = torch.float64


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("clip", [None, 0.25])
def test_it_equals_torchs(weight_decay: float, clip: float | None) -> None:
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=DTYPE)

    ours = {"a": draw(3, 4).requires_grad_(), "b.bias": draw(5).requires_grad_()}
    theirs = {name: value.detach().clone().requires_grad_() for name, value in ours.items()}
    groups = [{"params": [theirs["a"]], "weight_decay": weight_decay}, {"params": [theirs["b.bias"]]}]
    twin = torch.optim.Adam(groups, lr=0.01)
    adam = MetaAdam(0.01, weight_decay, clip)
    for _ in range(8):
        gradients = {name: draw(*value.shape) for name, value in ours.items()}
        adam.step(ours, gradients)
        for name, value in theirs.items():
            value.grad = gradients[name].clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs.values(), clip)
        twin.step()
    for name, value in ours.items():
        assert_close(value, theirs[name], rtol=1e-11, atol=1e-14)


def test_its_memory_is_all_of_it() -> None:
    one, other = (MetaAdam(0.002) for _ in range(2))
    values = {"a": torch.ones(3, dtype=DTYPE, requires_grad=True)}
    twin = {"a": torch.ones(3, dtype=DTYPE, requires_grad=True)}
    gradient = {"a": torch.tensor([1.0, -2.0, 0.5], dtype=DTYPE)}
    one.step(values, gradient)
    twin["a"].data.copy_(values["a"].data)
    other.recall(one.memory())
    one.step(values, gradient)
    other.step(twin, gradient)
    assert equal(values["a"], twin["a"])


def test_a_step_can_be_undone() -> None:
    adam, values = MetaAdam(0.1), {"a": torch.ones(3, dtype=DTYPE, requires_grad=True)}
    gradient = {"a": torch.tensor([1.0, -2.0, 0.5], dtype=DTYPE)}
    adam.step(values, gradient)
    before, memory = values["a"].detach().clone(), adam.memory()
    adam.step(values, gradient)
    adam.undo(values)
    assert equal(values["a"], before)
    assert all(equal(tensor, memory[name]) for name, tensor in adam.memory().items())
