"""Adam on the meta-parameters of a learned strategy, with its state in plain tensors for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from melon.adam import Adam, Moments

_ADAM = Adam()


@dataclass(frozen=True)
class _FlatMoments:
    """Moments of all parameters end to end, and the shapes of these parameters."""

    shapes: dict[str, torch.Size]
    moments: Moments

    def by_name(self) -> dict[str, Moments]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        both = zip(torch.split(self.moments.first, sizes), torch.split(self.moments.second, sizes), strict=True)
        return {
            name: Moments(first.view(shape), second.view(shape))
            for (name, shape), (first, second) in zip(self.shapes.items(), both, strict=True)
        }


@dataclass(frozen=True)
class _BeforeStep:
    """What `undo` restores."""

    steps: int
    state: _FlatMoments | None
    values: Tensor


class MetaAdam:
    """Adam over named tensors; `clip` is the largest norm of all gradients together, and decay spares biases.

    A meta-model is many small tensors: they are laid end to end, so that a step is a few long operations.
    """

    def __init__(self, lr: float, weight_decay: float = 0.0, clip: float | None = None) -> None:
        self._lr, self._weight_decay, self._clip = lr, weight_decay, clip
        #: The factor on the learning rate now.
        self.warmth = 1.0
        self._steps = 0
        self._state: _FlatMoments | None = None
        self._before: _BeforeStep | None = None

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Move every parameter."""
        if not parameters:
            return
        values, slopes = _end_to_end(parameters.values()), _end_to_end(self._slopes(parameters, gradients))
        self._before = _BeforeStep(self._steps, self._state, values)
        state = self._state_of(parameters)
        self._steps += 1
        moments = _ADAM.moments(state.moments, slopes)
        _put_back(_ADAM.step(values, moments, self._steps, self._lr * self.warmth), parameters)
        self._state = _FlatMoments(state.shapes, moments)

    @torch.no_grad()
    def undo(self, parameters: Mapping[str, Tensor]) -> None:
        """Be as before the last step."""
        if self._before is None:
            return
        self._steps, self._state = self._before.steps, self._before.state
        _put_back(self._before.values, parameters)
        self._before = None

    def memory(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        moments = {} if self._state is None else self._state.by_name()
        named = {
            f"adam/{order}/{name}": moment.clone()
            for name, both in moments.items()
            for order, moment in ((1, both.first), (2, both.second))
        }
        return {"adam/steps": torch.tensor(self._steps, device="cpu"), **named}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Become what `memory` described."""
        self._steps = int(memory["adam/steps"])
        names = [name.removeprefix("adam/1/") for name in memory if name.startswith("adam/1/")]
        first, second = ([memory[f"adam/{order}/{name}"] for name in names] for order in (1, 2))
        shapes = {name: moment.shape for name, moment in zip(names, first, strict=True)}
        self._state = _FlatMoments(shapes, Moments(_end_to_end(first), _end_to_end(second))) if names else None

    def problems_of(self, memory: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """Why `memory` is not the state of this optimiser on parameters of these shapes; empty where it is."""
        expected = {f"adam/{order}/{name}": shape for name, shape in shapes.items() for order in (1, 2)}
        problems = [] if "adam/steps" in memory else ["has no state of its optimiser"]
        for name, tensor in memory.items():
            shape = tuple(tensor.shape)
            if name.startswith("adam/") and name != "adam/steps" and expected.get(name) != shape:
                problems.append(f"has {name} as {shape} instead of {expected.get(name, 'nothing')}")
        return problems

    def _state_of(self, parameters: Mapping[str, Tensor]) -> _FlatMoments:
        """Moments in the order of the parameters; those of new ones are zeros."""
        if self._state is not None and list(self._state.shapes) == list(parameters):
            return self._state
        former = {} if self._state is None else self._state.by_name()
        moments = [former.get(name) or Moments.zeros_like(value) for name, value in parameters.items()]
        shapes = {name: value.shape for name, value in parameters.items()}
        first, second = _end_to_end(m.first for m in moments), _end_to_end(m.second for m in moments)
        return _FlatMoments(shapes, Moments(first, second))

    def _slopes(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Gradients, clipped and with weight decay."""
        scale, decay = clip_scale(gradients, self._clip), self._weight_decay
        slopes = []
        for name, value in parameters.items():
            slope = gradients[name] if scale is None else gradients[name] * scale
            slopes.append(slope + decay * value if decay and not is_bias(name) else slope)
        return slopes


def clip_scale(gradients: Mapping[str, Tensor], most: float | None) -> Tensor | None:
    """The factor that brings the common norm of gradients down to `most`; None where nothing is clipped."""
    if most is None:
        return None
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    return torch.clamp(most / (norm + 1e-6), max=1.0)


def is_bias(name: str) -> bool:
    """Whether weight decay leaves a tensor alone."""
    return name.endswith("bias")


def _end_to_end(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _put_back(flat: Tensor, parameters: Mapping[str, Tensor]) -> None:
    parts = torch.split(flat, [value.numel() for value in parameters.values()])
    shaped = [part.view(value.shape) for part, value in zip(parts, parameters.values(), strict=True)]
    torch._foreach_copy_(list(parameters.values()), shaped)
