"""Adam as a pure function, and over the meta-parameters of a learned strategy with its state in plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from melon.journal import keep, note
from melon.models.autograd import tensor_of
from melon.strategies.base import Memory
from melon.types import AnyArray


@dataclass(frozen=True)
class Moments:
    """Running means of gradients (`first`) and of their squares (`second`)."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros_like(cls, values: Tensor) -> Moments:
        """Before the first step."""
        return cls(torch.zeros_like(values), torch.zeros_like(values))


@dataclass(frozen=True)
class Adam:
    """Adam's constants; it holds no state."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    eps: float = 1e-8

    def moments(self, before: Moments, gradient: Tensor) -> Moments:
        """The running means after one more gradient."""
        first = torch.lerp(before.first, gradient, 1 - self.beta_1)
        second = torch.mul(before.second, self.beta_2).addcmul_(gradient, gradient, value=1 - self.beta_2)
        return Moments(first, second)

    def step(self, values: Tensor, moments: Moments, steps: int | Tensor, lr: float) -> Tensor:
        """New values; `steps` counts the gradients in the moments, for all rows or (rows × 1) for each."""
        scale = torch.div(moments.second, 1 - self.beta_2**steps).sqrt_().add_(self.eps)
        if isinstance(steps, Tensor):
            return values - lr * (moments.first / (1 - self.beta_1**steps) / scale)
        return torch.addcdiv(values, moments.first, scale, value=-lr / (1 - self.beta_1**steps))


_ADAM = Adam()


class MetaAdam:
    """Adam over named tensors; `clip` is the largest norm of all gradients together, and decay spares biases."""

    def __init__(self, lr: float, weight_decay: float = 0.0, clip: float | None = None) -> None:
        self._lr, self._weight_decay, self._clip = lr, weight_decay, clip
        self._steps = 0
        self._moments: dict[str, Moments] = {}

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Move every parameter."""
        values = {name: value.clone() for name, value in parameters.items()}
        keep(self, "_steps", "_moments")
        note(partial(_copy, parameters, values))
        scale, decay, moments = clip_scale(gradients, self._clip), self._weight_decay, dict[str, Moments]()
        self._steps += 1
        for name, value in values.items():
            slope = gradients[name] if scale is None else gradients[name] * scale
            slope = slope + decay * value if decay and not is_bias(name) else slope
            moments[name] = _ADAM.moments(self._moments.get(name) or Moments.zeros_like(value), slope)
            parameters[name].copy_(_ADAM.step(value, moments[name], self._steps, self._lr))
        self._moments = moments

    def memory(self) -> Memory:
        """Everything that a checkpoint needs."""
        named = {
            f"adam/{order}/{name}": moment.numpy().copy()
            for name, both in self._moments.items()
            for order, moment in ((1, both.first), (2, both.second))
        }
        return {"adam/steps": np.array(self._steps), **named}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        """Become what `memory` described."""
        self._steps = int(memory["adam/steps"])
        names = [name.removeprefix("adam/1/") for name in memory if name.startswith("adam/1/")]
        self._moments = {
            name: Moments(*(tensor_of(memory[f"adam/{order}/{name}"].copy()) for order in (1, 2))) for name in names
        }

    def problems_of(self, memory: Mapping[str, AnyArray], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Why `memory` is not the state of this optimiser on parameters of these shapes; empty where it is."""
        expected = {f"adam/{order}/{name}": shape for name, shape in shapes.items() for order in (1, 2)}
        problems = [] if "adam/steps" in memory else ["has no state of its optimiser"]
        for name, tensor in memory.items():
            shape = tuple(tensor.shape)
            if name.startswith("adam/") and name != "adam/steps" and expected.get(name) != shape:
                problems.append(f"has {name} as {shape} instead of {expected.get(name, 'nothing')}")
        return problems


@torch.no_grad()
def _copy(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in parameters.items():
        value.copy_(values[name])


def clip_scale(gradients: Mapping[str, Tensor], most: float | None) -> Tensor | None:
    """The factor that brings the common norm of gradients down to `most`; None where nothing is clipped."""
    if most is None:
        return None
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    return torch.clamp(most / (norm + 1e-6), max=1.0)


def is_bias(name: str) -> bool:
    """Whether weight decay leaves a tensor alone."""
    return name.endswith("bias")
