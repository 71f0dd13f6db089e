"""The blend's head (docs/methods.md 8.5): a linear part and one hidden layer over scaled inputs, trained by softmax.

Everything is in closed form: the same slopes serve the head's own steps, its practice, and update strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from melon.adam import Adam, Moments
from melon.errors import CheckpointError
from melon.recommenders.blend.inputs import personal_score
from melon.recommenders.evidence import FactorGradient, Values
from melon.recommenders.heads import Head, HeadPractice, HeadStep, Lesson
from melon.stream.saved import MOST
from melon.tables import TableSpec

LINEAR, HIDDEN, SHIFT, OUTPUT = TABLES = ("head_linear", "head_hidden", "head_shift", "head_output")
#: Scales are those of the first so many practised interactions, then fixed.
SCALED_BY = 4_000
_LEAST_SCALE = 1e-3
_ADAM = Adam(squares="lerp")
_STEPS = "steps"


@dataclass(frozen=True)
class HeadSettings:
    """How a head is trained."""

    own: bool
    units: int
    negatives: int
    lr: float
    decay: float
    practice_lr: float
    passes: int
    #: Inputs that are left out, by number, and whether what the rows say by themselves counts.
    left_out: tuple[int, ...] = ()
    trusts_rows: bool = True


def head_tables(inputs: int, units: int) -> tuple[TableSpec, ...]:
    """The head as tables. Both parts say nothing at first: a blend starts as its personal score."""
    return (
        TableSpec(LINEAR, "shared", "weight", inputs, rows=1),
        TableSpec(HIDDEN, "shared", "weight", inputs, (1 / (3 * inputs)) ** 0.5, rows=units),
        TableSpec(SHIFT, "shared", "bias", 1, rows=units),
        TableSpec(OUTPUT, "shared", "weight", units, rows=1),
    )


class BlendHead(Head):
    """h(x) = w · z + v · relu(W z + b) with z the inputs, centred and scaled."""

    def __init__(self, inputs: int, settings: HeadSettings, dtype: torch.dtype, device: torch.device) -> None:
        self.settings = settings
        self.own, self.negatives = settings.own, settings.negatives
        self.trust = float(settings.trusts_rows)
        self.centre = torch.zeros(inputs, dtype=dtype, device=device)
        # An input that is left out has scale 0: it says nothing and is taught nothing.
        self._kept = torch.ones(inputs, dtype=dtype, device=device)
        self._kept[list(settings.left_out)] = 0
        self.scale = self._kept.clone()
        self._memory: dict[str, Tensor] = {}

    def personal(self, inputs: Tensor) -> Tensor:
        """What the rows say by themselves, to which the head adds its part."""
        return self.trust * personal_score(inputs)

    def scaled(self, inputs: Tensor) -> Tensor:
        """Inputs as the head sees them."""
        return (inputs - self.centre) * self.scale

    def folded(self, values: Values) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same function of unscaled inputs: linear weights, hidden weights, hidden shift and output weights.

        What it leaves out is a number that is the same for all items.
        """
        hidden = values[HIDDEN] * self.scale
        shift = values[SHIFT][:, 0] - hidden @ self.centre
        return values[LINEAR][0] * self.scale, hidden, shift, values[OUTPUT][0]

    def __call__(self, values: Values, inputs: Tensor) -> Tensor:
        """What the head adds to the personal score; differentiable in its tables."""
        return head_scores(values, self.scaled(inputs))

    def loss(self, values: Values, inputs: Tensor, personal: Tensor) -> Tensor:
        """−log softmax of the item taken, first of each line."""
        scores = self(values, inputs) + personal
        return -torch.log_softmax(scores, -1)[..., 0]

    def gradients(self, values: Values, inputs: Tensor, personal: Tensor) -> tuple[Tensor, list[FactorGradient]]:
        """Losses of interactions, and their gradients on the head's tables as factors."""
        scaled = self.scaled(inputs)
        hidden = torch.relu(scaled @ values[HIDDEN].T + values[SHIFT][:, 0])
        scores = scaled @ values[LINEAR][0] + hidden @ values[OUTPUT][0] + personal
        slopes = torch.softmax(scores, -1)
        slopes[..., 0] -= 1
        left = slopes.unsqueeze(-1)
        reaching = left * values[OUTPUT][0] * (hidden > 0)
        return -torch.log_softmax(scores, -1)[..., 0], [
            FactorGradient(LINEAR, left, scaled),
            FactorGradient(HIDDEN, reaching, scaled),
            FactorGradient(SHIFT, reaching, torch.ones_like(left)),
            FactorGradient(OUTPUT, left, hidden),
        ]

    def step(self, values: Values, lesson: Lesson) -> HeadStep:
        settings = self.settings
        return self._stepped(values, self._slopes(values, lesson), self._memory, settings.lr)

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        self._memory = dict(memory)

    def memory(self) -> dict[str, Tensor]:
        """Everything that is no table: scales and what the optimiser remembers."""
        return {"centre": self.centre, "scale": self.scale, **self._memory}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Become what `memory` described."""
        (inputs,), units = self.centre.shape, self.settings.units
        shapes = {LINEAR: (1, inputs), HIDDEN: (units, inputs), SHIFT: (units, 1), OUTPUT: (1, units)}
        moments = {f"{order}/{name}": shape for name, shape in shapes.items() for order in (1, 2)}
        expected = {"centre": (inputs,), "scale": (inputs,)} | (moments if _STEPS in memory else {})
        for name, shape in expected.items():
            held = memory.get(name)
            if held is None or held.shape != shape or held.dtype != self.centre.dtype or not held.isfinite().all():
                raise CheckpointError(f"the saved {name!r} of the blend's head is not {shape} finite numbers.")
        steps = memory.get(_STEPS, torch.zeros((), dtype=torch.int64))
        if (
            memory.keys() - {*expected, _STEPS}
            or steps.shape != ()
            or steps.dtype != torch.int64
            or not 0 <= steps <= MOST
        ):
            raise CheckpointError("the saved optimiser of the blend's head is not one of these settings.")
        self.centre, self.scale = memory["centre"].to(self.centre), memory["scale"].to(self.scale)
        optimiser = {name: tensor for name, tensor in memory.items() if name not in ("centre", "scale")}
        self._memory = {name: t if name == _STEPS else t.to(self.centre) for name, t in optimiser.items()}

    def practise(self, values: Values, lessons: Sequence[Lesson]) -> HeadPractice:
        if not lessons:
            return {}
        settings = self.settings
        twin = BlendHead(len(self.centre), settings, self.centre.dtype, self.centre.device)
        twin.centre, scale = scales_of(lessons)
        twin.scale = scale * self._kept
        current = {name: values[name] for name in TABLES}
        memory: dict[str, Tensor] = {}
        for number in range(settings.passes):
            # Falling to a tenth, so that the last passes settle.
            lr = settings.practice_lr * (1 - 0.9 * number / settings.passes)
            for lesson in lessons:
                made = twin._stepped(current, twin._slopes(current, lesson), memory, lr)
                current, memory = made.values, made.memory
        return {"centre": twin.centre, "scale": twin.scale, **current}

    def take_over(self, practice: Mapping[str, Tensor]) -> dict[str, Tensor]:
        missing = sorted({"centre", "scale", *TABLES} - practice.keys())
        if missing or practice["centre"].shape != self.centre.shape:
            raise CheckpointError(
                f"this is no practice of a blend's head with these settings: {', '.join(missing) or 'its inputs'} "
                "do not fit. Practise again with the settings that are deployed."
            )
        self.centre, self.scale = practice["centre"].to(self.centre), practice["scale"].to(self.scale)
        self._memory = {}
        return {name: practice[name].to(self.centre) for name in TABLES}

    def _slopes(self, values: Values, lesson: Lesson) -> dict[str, Tensor]:
        """The mean gradient of a lesson; a negative that does not count is out of the softmax."""
        apart = torch.zeros_like(lesson.inputs[..., 0]).masked_fill_(~lesson.allowed, -torch.inf)
        _, gradients = self.gradients(values, lesson.inputs, self.personal(lesson.inputs) + apart)
        return {each.table: each.summed(len(values[each.table])) / len(lesson) for each in gradients}

    def _stepped(
        self, values: Values, slopes: Mapping[str, Tensor], memory: Mapping[str, Tensor], lr: float
    ) -> HeadStep:
        """AdamW: weights shrink apart from the gradient's step."""
        steps = int(memory[_STEPS]) + 1 if memory else 1
        made: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {_STEPS: torch.tensor(steps, device="cpu")}
        for name, slope in slopes.items():
            first, second = (memory.get(f"{order}/{name}", torch.zeros_like(slope)) for order in (1, 2))
            moments = _ADAM.moments(Moments(first, second), slope)
            kept[f"1/{name}"], kept[f"2/{name}"] = moments.first, moments.second
            made[name] = _ADAM.step(values[name] * (1 - lr * self.settings.decay), moments, steps, lr)
        return HeadStep(made, kept)


def head_scores(values: Values, scaled: Tensor) -> Tensor:
    """w · z + v · relu(W z + b)."""
    hidden = torch.relu(scaled @ values[HIDDEN].T + values[SHIFT][:, 0])
    return scaled @ values[LINEAR][0] + hidden @ values[OUTPUT][0]


def silent(values: Values) -> bool:
    """Whether the head says nothing so far."""
    return not bool(values[LINEAR].any()) and not bool(values[OUTPUT].any())


def scales_of(lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Means of the inputs and 1 / their spread within an event, over the first interactions (docs/methods.md 8.5)."""
    first, known = [], 0
    for lesson in lessons:
        first.append(lesson.inputs[: SCALED_BY - known])
        known += len(first[-1])
        if known >= SCALED_BY:
            break
    inputs = torch.cat(first).double()
    spread = (inputs - inputs.mean(1, keepdim=True)).square().mean((0, 1)).sqrt()
    like = lessons[0].inputs
    return inputs.mean((0, 1)).to(like), (1 / spread.clamp(min=_LEAST_SCALE)).to(like)
