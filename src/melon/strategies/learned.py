"""Learned strategies: a meta-model, the look-ahead that teaches it, and its optimiser (METHODS.md 3.0.3, 3.0.4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from melon.errors import CheckpointError
from melon.strategies.base import Situation, Strategy, StrategySettings
from melon.tables import TableSpec

MetaLoss = Callable[[Mapping[str, Tensor]], Tensor]


class LearnedSettings(StrategySettings):
    """How a meta-model is trained: Adam on the look-ahead loss of each batch."""

    meta_lr: float = Field(2e-3, ge=0)
    meta_weight_decay: float = Field(0.0, ge=0)
    meta_clip: float | None = Field(None, gt=0)
    passes: int = Field(10, ge=0)
    fading_speed: float = Field(0.1, ge=0)
    cold: Literal["drop", "current"] = "drop"
    keep_prelim: bool = False


class LearnedStrategy(Strategy):
    """A strategy with meta-parameters φ. What is learned is `parameters()` and nothing else.

    The updater shows it the last interactions of the batch's users and items (`look_ahead`), the loss of the batch
    after that provisional step teaches φ, and `propose` makes the real step with the new φ.
    """

    settings: LearnedSettings
    #: The evidence of a user's row is wanted apart for the positive and each negative (METHODS.md 4.9, row 1).
    per_branch: bool = False

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """Meta-parameters by name; leaves that require a gradient."""

    def half_lives(self, specs: Mapping[str, TableSpec]) -> dict[str, float]:
        """Learned, from the one in the settings: log₂ of each item table's half-life moves by `fading_speed` · φ."""
        start = super().half_lives(specs)
        phi = {name: float(self.parameters()[fading_name(name)].detach()) for name in start}
        return {name: half_life * 2.0 ** (self.settings.fading_speed * phi[name]) for name, half_life in start.items()}

    def aged(self, situation: Situation, table: str, values: Tensor) -> Tensor:
        """The same numbers, with the half-life's part in them open to the meta-gradient.

        Rows were read already faded at the present half-life; the factor here is 1 and only its slope counts. Losses,
        gradients and features stay at the faded values, which keeps the meta-gradient first-order (METHODS.md 8.3).
        """
        phi, around = self.parameters().get(fading_name(table)), situation.around
        if phi is None or around is None or table not in around.idle or not torch.is_grad_enabled():
            return values
        half_life = around.tables[table].half_life
        assert half_life is not None
        halvings = around.idle[table][: len(values)].to(values.dtype)[:, None] / half_life
        change = torch.exp2(self.settings.fading_speed * (phi.detach() - phi))
        return values * torch.exp2(halvings * (1 - change))

    @abstractmethod
    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        """Provisional values of the compact rows, differentiable in φ; gradients, losses and rows are constants."""

    def meta_gradient(self, situation: Situation, meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
        """∇_φ of the loss after the look-ahead, and that loss; exact with one step (METHODS.md 3.0.4)."""
        parameters = self.parameters()
        with torch.enable_grad():
            loss = meta_loss(self.look_ahead(situation))
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return {
            name: torch.zeros_like(value) if gradient is None else gradient
            for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
        }, loss.detach()

    def adapt(self, gradients: Mapping[str, Tensor], situation: Situation) -> Situation:
        """One Adam step on φ. Returns the batch as it is met now: what is learned row by row may have moved in it."""
        self._optimizer.step(self.parameters(), gradients)
        return situation

    def fading_names(self, specs: Mapping[str, TableSpec]) -> list[str]:
        """The meta-parameters that move half-lives: one for each table of items, where rows fade; they start at 0."""
        if self.settings.fading is None:
            return []
        return [fading_name(name) for name, spec in specs.items() if spec.role == "item"]

    def fading_gradients(self, situation: Situation, gammas: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """∇_φ of the half-lives with γ known, for a look-ahead that adds its step to the old rows."""
        found: dict[str, Tensor] = {}
        for table, gamma in gammas.items():
            name = fading_name(table)
            if name not in self.parameters():
                continue
            phi = self.parameters()[name]
            with torch.enable_grad():
                old = self.aged(situation, table, situation.values[table][: len(gamma)])
            found[name] = torch.autograd.grad(old, phi, gamma)[0] if old.requires_grad else torch.zeros_like(phi)
        return found

    def undo(self) -> None:
        """Take the last `adapt` back: its batch could not be learned."""
        self._optimizer.undo(self.parameters())

    def prepare_optimizer(self) -> None:
        """Fresh moments; called once φ exists."""
        self._optimizer = MetaAdam(self.settings)

    def memory(self) -> dict[str, Tensor]:
        held = {f"phi/{name}": value.detach().clone() for name, value in self.parameters().items()}
        return {**held, **self._optimizer.memory()}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        self._require_own(memory)
        with torch.no_grad():
            for name, value in self.parameters().items():
                value.copy_(memory[f"phi/{name}"])
        self._optimizer.recall(memory)

    def _require_own(self, memory: Mapping[str, Tensor]) -> None:
        """Refuse what another strategy, preset or recommender remembered, before anything is changed."""
        own = {name: tuple(value.shape) for name, value in self.parameters().items()}
        told = {name.removeprefix("phi/"): tuple(t.shape) for name, t in memory.items() if name.startswith("phi/")}
        moments = {f"adam/{order}/{name}": shape for name, shape in own.items() for order in (1, 2)}
        odd = [f"has no {name}" for name in own if name not in told]
        odd += [f"has {name}, which is unknown here" for name in told if name not in own]
        odd += [f"has {n} as {told[n]} instead of {own[n]}" for n in own if n in told and told[n] != own[n]]
        odd += [] if "adam/steps" in memory else ["has no state of its optimiser"]
        for name, tensor in memory.items():
            if name.startswith("adam/") and name != "adam/steps" and moments.get(name) != tuple(tensor.shape):
                odd.append(f"has {name} as {tuple(tensor.shape)} instead of {moments.get(name, 'nothing')}")
        if odd:
            more = f", and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise CheckpointError(
                f"this is not the meta-model of strategy {self.name!r} with these settings: it "
                f"{'; '.join(odd[:3])}{more}. It was saved with another strategy, preset or recommender; load it with "
                "the settings it was saved with."
            )


@dataclass(frozen=True)
class _Moments:
    """Both moments of all parameters end to end, and which parameters these are."""

    shapes: dict[str, torch.Size]
    first: Tensor
    second: Tensor

    def apart(self) -> dict[str, tuple[Tensor, Tensor]]:
        sizes = [shape.numel() for shape in self.shapes.values()]
        both = zip(torch.split(self.first, sizes), torch.split(self.second, sizes), strict=True)
        return {
            name: (one.view(shape), two.view(shape))
            for (name, shape), (one, two) in zip(self.shapes.items(), both, strict=True)
        }


@dataclass(frozen=True)
class _Before:
    steps: int
    moments: _Moments | None
    values: Tensor


class MetaAdam:
    """Adam over named tensors, with its state in plain tensors so that a checkpoint can hold it.

    A meta-model is many small tensors: they are laid end to end, so that a step is a few long operations.
    """

    _BETAS, _EPS = (0.9, 0.999), 1e-8

    def __init__(self, settings: LearnedSettings) -> None:
        self._settings = settings
        #: What is left of the rate in the settings.
        self.warmth = 1.0
        self._steps = 0
        self._moments: _Moments | None = None
        self._before: _Before | None = None

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
        """Move every parameter."""
        if not parameters:
            return
        settings, (beta_1, beta_2) = self._settings, self._BETAS
        values, slopes = _end_to_end(parameters.values()), _end_to_end(self._slopes(parameters, gradients))
        self._before = _Before(self._steps, self._moments, values)
        kept = self._moments_of(parameters)
        self._steps += 1
        first = torch.lerp(kept.first, slopes, 1 - beta_1)
        second = torch.mul(kept.second, beta_2).addcmul_(slopes, slopes, value=1 - beta_2)
        scale = torch.div(second, 1 - beta_2**self._steps).sqrt_().add_(self._EPS)
        rate = settings.meta_lr * self.warmth
        moved = torch.addcdiv(values, first, scale, value=-rate / (1 - beta_1**self._steps))
        _put_back(moved, parameters)
        self._moments = _Moments(kept.shapes, first, second)

    @torch.no_grad()
    def undo(self, parameters: Mapping[str, Tensor]) -> None:
        """Be as before the last step."""
        if self._before is None:
            return
        self._steps, self._moments = self._before.steps, self._before.moments
        _put_back(self._before.values, parameters)
        self._before = None

    def _moments_of(self, parameters: Mapping[str, Tensor]) -> _Moments:
        """The moments in the order of the parameters; those of new ones are zeros."""
        if self._moments is not None and list(self._moments.shapes) == list(parameters):
            return self._moments
        held = {} if self._moments is None else self._moments.apart()
        both = [held.get(name) or (torch.zeros_like(v), torch.zeros_like(v)) for name, v in parameters.items()]
        shapes = {name: value.shape for name, value in parameters.items()}
        return _Moments(shapes, _end_to_end(one for one, _ in both), _end_to_end(two for _, two in both))

    def _slopes(self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Gradients, clipped and with the decay of weights in them."""
        scale, decay = clip_scale(gradients, self._settings.meta_clip), self._settings.meta_weight_decay
        slopes = []
        for name, value in parameters.items():
            slope = gradients[name] if scale is None else gradients[name] * scale
            slopes.append(slope + decay * value if decay and not is_bias(name) else slope)
        return slopes

    def memory(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        held = {} if self._moments is None else self._moments.apart()
        moments = {
            f"adam/{order}/{name}": moment.clone()
            for name, both in held.items()
            for order, moment in enumerate(both, start=1)
        }
        return {"adam/steps": torch.tensor(self._steps, device="cpu"), **moments}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Become what `memory` described."""
        self._steps = int(memory["adam/steps"])
        names = [name.removeprefix("adam/1/") for name in memory if name.startswith("adam/1/")]
        first, second = ([memory[f"adam/{order}/{name}"] for name in names] for order in (1, 2))
        shapes = {name: moment.shape for name, moment in zip(names, first, strict=True)}
        self._moments = _Moments(shapes, _end_to_end(first), _end_to_end(second)) if names else None


def _end_to_end(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _put_back(flat: Tensor, parameters: Mapping[str, Tensor]) -> None:
    parts = torch.split(flat, [value.numel() for value in parameters.values()])
    shaped = [part.view(value.shape) for part, value in zip(parts, parameters.values(), strict=True)]
    torch._foreach_copy_(list(parameters.values()), shaped)


def clip_scale(gradients: Mapping[str, Tensor], most: float | None) -> Tensor | None:
    """By what gradients are multiplied so that their common norm is at most `most`; none where nothing is clipped."""
    if most is None:
        return None
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    return torch.clamp(most / (norm + 1e-6), max=1.0)


def gammas_at(provisional: Mapping[str, Tensor], meta_loss: MetaLoss) -> tuple[dict[str, Tensor], Tensor]:
    """γ = ∂loss/∂Θ̃ at provisional values, and that loss: what a closed-form meta-gradient needs (METHODS.md 3.0.4)."""
    with torch.enable_grad():
        free = {name: value.detach().requires_grad_() for name, value in provisional.items()}
        loss = meta_loss(free)
        found = torch.autograd.grad(loss, list(free.values()), allow_unused=True)
    gammas = {
        name: torch.zeros_like(value) if gamma is None else gamma
        for (name, value), gamma in zip(provisional.items(), found, strict=True)
    }
    return gammas, loss.detach()


def fading_name(table: str) -> str:
    """The meta-parameter that moves a table's half-life."""
    return f"fading.{table}"


def is_bias(name: str) -> bool:
    """Whether weight decay leaves a tensor alone."""
    return name.endswith("bias")
