"""The blend's head (docs/methods.md 8.5): a linear part and one hidden layer over scaled inputs, trained by softmax.

Everything is in closed form: the same slopes serve the head's own steps, its practice, and update strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from melon.adam import Adam, Moments
from melon.errors import CheckpointError
from melon.kernels import policy
from melon.kernels.lessons import LINES_AT_ONCE
from melon.kernels.types import array_of
from melon.recommenders.blend.inputs import ACTIVE_ITEM, INPUTS, ITEM_FEATURES, PAIR_FEATURES, personal_score
from melon.recommenders.evidence import FactorGradient, Values
from melon.recommenders.heads import Head, HeadPractice, HeadStep, Lesson
from melon.stream.saved import MOST
from melon.tables import TableSpec
from melon.types import Flags, Floats, Singles

LINEAR, HIDDEN, SHIFT, OUTPUT = TABLES = ("head_linear", "head_hidden", "head_shift", "head_output")
#: Scales come from the first interactions of practice, this many, then fixed.
SCALED_BY = 4_000
_LEAST_SCALE, _SAME = 1e-3, 1e-6
_ADAM = Adam(squares="lerp")
_STEPS = "steps"
#: What a head that rests has seen: interactions, pairs, and sums over pairs of inputs, squared spread, and squares.
_RESTING = _SEEN, _PAIRS, _SUM, _SPREAD, _SQUARES = ("seen", "pairs", "sum", "spread", "squares")

# Where the catalogue's scorer finds its inputs.
_BIAS, _DOT, _ACTIVE_DOT = (INPUTS.index(name) for name in ("bias", "dot", "active_dot"))
_ITEM = [_BIAS, *(INPUTS.index(name) for name in ITEM_FEATURES)]
_ACTIVE_ITEM = [INPUTS.index(f"active_{name}") for name in ACTIVE_ITEM]
_ACTIVE_COLUMNS = [1 + ITEM_FEATURES.index(name) for name in ACTIVE_ITEM]
_PAIR = [INPUTS.index(name) for name in PAIR_FEATURES]
_ACTIVE_PAIR = INPUTS.index("active_neighbours")


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
    #: A head that has not practised rests for this many interactions, and its inputs are then scaled by them.
    rest: int = 256
    #: Whether events on items that the user has had are lessons, too.
    repeats: bool = True


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
        self.own, self.negatives, self.repeats = settings.own, settings.negatives, settings.repeats
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
        if self.resting:
            return HeadStep({}, self._rested(lesson))
        return self._stepped(values, lesson, self._memory, self.settings.lr)

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        self.centre, self.scale = memory.get("centre", self.centre), memory.get("scale", self.scale)
        self._memory = {name: tensor for name, tensor in memory.items() if name not in ("centre", "scale")}

    @property
    def resting(self) -> bool:
        """Whether the inputs have no scales yet: without practice, they are those of the first interactions."""
        return self.settings.rest > 0 and _STEPS not in self._memory and not bool(self.centre.any())

    def memory(self) -> dict[str, Tensor]:
        return {"centre": self.centre, "scale": self.scale, **self._memory}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        (inputs,), units, own = self.centre.shape, self.settings.units, self.centre.dtype
        shapes = {LINEAR: (1, inputs), HIDDEN: (units, inputs), SHIFT: (units, 1), OUTPUT: (1, units)}
        form: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"centre": ((inputs,), own), "scale": ((inputs,), own)}
        if _STEPS in memory:
            form |= {f"{order}/{name}": (shape, own) for name, shape in shapes.items() for order in (1, 2)}
            form[_STEPS] = ((), torch.int64)
        elif _SEEN in memory:
            form |= dict.fromkeys((_SEEN, _PAIRS), ((), torch.int64))
            form |= dict.fromkeys((_SUM, _SPREAD, _SQUARES), ((inputs,), torch.float64))
        if memory.keys() != form.keys():
            raise CheckpointError(f"the blend's head has saved {sorted(memory)} instead of {sorted(form)}.")
        for name, (shape, dtype) in form.items():
            held = memory[name]
            if held.shape != shape or held.dtype != dtype or not held.isfinite().all():
                raise CheckpointError(
                    f"the saved {name!r} of the blend's head is not {shape} finite numbers of {dtype}."
                )
            if dtype == torch.int64 and not 0 < int(held) <= MOST:
                raise CheckpointError(f"the saved {name!r} of the blend's head is {int(held)}, which is no count.")
        if _SEEN in memory and memory["centre"].any():
            raise CheckpointError("the saved head of the blend has scales and yet is waiting for them.")
        self.centre, self.scale = memory["centre"].to(self.centre), memory["scale"].to(self.scale)
        rest = {name: tensor for name, tensor in memory.items() if name not in ("centre", "scale")}
        counts = (_STEPS, _SEEN, _PAIRS)  # stay where they are: the others live with the tables
        self._memory = {name: t if name in counts else t.to(self.centre.device) for name, t in rest.items()}

    def practise(self, values: Values, lessons: Sequence[Lesson]) -> HeadPractice:
        if not lessons:
            return {}
        settings = self.settings
        twin = BlendHead(len(self.centre), settings, self.centre.dtype, self.centre.device)
        twin.centre, scale = scales_of(lessons)
        twin.scale = scale * self._kept
        # Falling to a tenth, so that the last passes settle.
        rates = [settings.practice_lr * (1 - 0.9 * number / settings.passes) for number in range(settings.passes)]
        loops = policy.load("lessons", like=lessons[0].inputs)
        if loops is not None:
            return {"centre": twin.centre, "scale": twin.scale, **twin._through(loops, values, lessons, rates)}
        step = HeadStep({name: values[name] for name in TABLES}, {})
        for lr in rates:
            for lesson in lessons:
                step = twin._stepped(step.values, lesson, step.memory, lr)
        return {"centre": twin.centre, "scale": twin.scale, **step.values}

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

    def _rested(self, lesson: Lesson) -> dict[str, Tensor]:
        """What is known of the inputs' scales after one more lesson: the scales themselves, once it is enough."""
        inputs = lesson.inputs.double()
        added = (
            torch.tensor(len(lesson), device="cpu"),
            torch.tensor(inputs.shape[0] * inputs.shape[1], device="cpu"),
            inputs.sum((0, 1)),
            (inputs - inputs.mean(1, keepdim=True)).square().sum((0, 1)),
            inputs.square().sum((0, 1)),
        )
        sums = {
            name: self._memory[name] + new if self._memory else new for name, new in zip(_RESTING, added, strict=True)
        }
        if int(sums[_SEEN]) < self.settings.rest:
            return sums
        centre, within, squares = (sums[name] / sums[_PAIRS].item() for name in (_SUM, _SPREAD, _SQUARES))
        scale = _scale(within, squares - centre.square()).to(self.scale)
        return {"centre": centre.to(self.centre), "scale": scale * self._kept}

    def _slopes(self, values: Values, lesson: Lesson) -> dict[str, Tensor]:
        """The mean gradient of a lesson; a negative that does not count is out of the softmax."""
        apart = torch.zeros_like(lesson.inputs[..., 0]).masked_fill_(~lesson.allowed, -torch.inf)
        _, gradients = self.gradients(values, lesson.inputs, self.personal(lesson.inputs) + apart)
        return {slope.table: slope.summed(len(values[slope.table])) / len(lesson) for slope in gradients}

    def _stepped(self, values: Values, lesson: Lesson, memory: Mapping[str, Tensor], lr: float) -> HeadStep:
        """AdamW: weights shrink apart from the gradient's step."""
        steps = int(memory[_STEPS]) + 1 if memory else 1
        loops = policy.load("lessons", like=lesson.inputs)
        if loops is not None:
            return self._compiled_step(loops, values, lesson, memory, steps, lr)
        moved: dict[str, Tensor] = {}
        memory_after: dict[str, Tensor] = {_STEPS: torch.tensor(steps, device="cpu")}
        for name, slope in self._slopes(values, lesson).items():
            first, second = (memory.get(f"{order}/{name}", torch.zeros_like(slope)) for order in (1, 2))
            moments = _ADAM.moments(Moments(first, second), slope)
            memory_after[f"1/{name}"], memory_after[f"2/{name}"] = moments.first, moments.second
            moved[name] = _ADAM.step(values[name] * (1 - lr * self.settings.decay), moments, steps, lr)
        return HeadStep(moved, memory_after)

    def _compiled_step(
        self, loops: policy.Loops, values: Values, lesson: Lesson, memory: Mapping[str, Tensor], steps: int, lr: float
    ) -> HeadStep:
        """The same in one compiled pass."""
        held = [array_of(values[name]) for name in TABLES]
        moments = [f"{order}/{name}" for order in (1, 2) for name in TABLES]
        before = [array_of(memory[name]) for name in moments] if memory else [np.zeros_like(each) for each in held * 2]
        after = [np.empty_like(each) for each in held * 3]
        loops.head_step(*self._columns(loops, lesson), self._rates(steps, lr, lesson), *held, *before, *after)
        new = dict(zip((*TABLES, *moments), map(torch.from_numpy, after), strict=True))
        moved = {name: new.pop(name) for name in TABLES}
        return HeadStep(moved, {_STEPS: torch.tensor(steps, device="cpu"), **new})

    def _through(
        self, loops: policy.Loops, values: Values, lessons: Sequence[Lesson], rates: Sequence[float]
    ) -> dict[str, Tensor]:
        """Steps on all lessons at each rate, from weights and running means to others and back."""
        held = [array_of(values[name]).copy() for name in TABLES]
        now, then = [*held, *(np.zeros_like(each) for each in held * 2)], [np.empty_like(each) for each in held * 3]
        given, steps = [(lesson, self._columns(loops, lesson)) for lesson in lessons], 0
        for lr in rates:
            for lesson, columns in given:
                steps += 1
                loops.head_step(*columns, self._rates(steps, lr, lesson), *now, *then)
                now, then = then, now
        return dict(zip(TABLES, map(torch.from_numpy, now), strict=False))

    def _columns(self, loops: policy.Loops, lesson: Lesson) -> tuple[Singles, Singles, Flags]:
        """A lesson as the compiled step takes it."""
        lines, width, features = lesson.inputs.shape
        many, blocks = min(lines, LINES_AT_ONCE) * width, -(-lines // LINES_AT_ONCE)
        columns, personal = np.empty((blocks, features, many), np.float32), np.empty((blocks, many), np.float32)
        given = (array_of(each) for each in (lesson.inputs, self.centre, self.scale))
        loops.head_columns(*given, self.trust, columns, personal)
        return columns, personal, np.ascontiguousarray(lesson.allowed.numpy())

    def _rates(self, steps: int, lr: float, lesson: Lesson) -> Floats:
        """AdamW's numbers for a step."""
        one, other, shrink = 1 - _ADAM.beta_1, 1 - _ADAM.beta_2, 1 - lr * self.settings.decay
        settled = 1 - _ADAM.beta_1**steps, 1 - _ADAM.beta_2**steps
        return np.array([one, other, _ADAM.eps, lr / settled[0], shrink, settled[1], 1 / len(lesson)])


def head_scores(values: Values, scaled: Tensor) -> Tensor:
    """w · z + v · relu(W z + b)."""
    hidden = torch.relu(scaled @ values[HIDDEN].T + values[SHIFT][:, 0])
    return scaled @ values[LINEAR][0] + hidden @ values[OUTPUT][0]


def silent(values: Values) -> bool:
    """Whether the head says nothing so far."""
    return not bool(values[LINEAR].any()) and not bool(values[OUTPUT].any())


def scales_of(lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Means of the inputs and 1 / their spread within an event, over the first interactions (docs/methods.md 8.5)."""
    first, seen = [], 0
    for lesson in lessons:
        first.append(lesson.inputs[: SCALED_BY - seen])
        seen += len(first[-1])
        if seen >= SCALED_BY:
            break
    inputs = torch.cat(first).double()
    centre, like = inputs.mean((0, 1)), lessons[0].inputs
    within = (inputs - inputs.mean(1, keepdim=True)).square_().mean((0, 1))
    return centre.to(like), _scale(within, inputs.square_().mean((0, 1)) - centre.square()).to(like)


def _scale(within: Tensor, overall: Tensor) -> Tensor:
    """1 / the spread of inputs within events; of those that are the same for all candidates, over all events."""
    spread = torch.where(within < _SAME**2, overall, within).clamp(min=0).sqrt()
    return 1 / spread.clamp(min=_LEAST_SCALE)


class CatalogueScorer:
    """The head over all items. An input that is a user's activity times an item's feature is linear in the activity,
    so the hidden layer's part that items bring along is a sum of two tables.
    """

    def __init__(self, head: BlendHead, values: Values, bias: Tensor, columns: Tensor) -> None:
        self._linear, self._hidden, shift, self._output = head.folded(values)
        self._pair = [*_PAIR, *range(len(INPUTS), len(self._linear))]
        items = columns.new_empty((len(bias), len(_ITEM)))
        items[:, 0], items[:, 1:] = bias, columns
        active = items[:, _ACTIVE_COLUMNS]
        self._units = (items @ self._hidden[:, _ITEM].T).add_(shift)
        self._active_units = active @ self._hidden[:, _ACTIVE_ITEM].T
        self._trust = head.trust
        self._sums = self._trust * bias + items @ self._linear[_ITEM] - self._linear @ head.centre
        self._active_sums = active @ self._linear[_ACTIVE_ITEM]

    def of_user(self, dot: Tensor, pairs: Tensor, active: float) -> Tensor:
        """Scores of all items for one user: its dot products, the features of pairs (items × features), activity."""
        units = self._units + active * self._active_units
        units.addr_(dot, self._hidden[:, _DOT] + active * self._hidden[:, _ACTIVE_DOT])
        hidden, linear = self._hidden[:, self._pair].clone(), self._linear[self._pair].clone()
        hidden[:, 0] += active * self._hidden[:, _ACTIVE_PAIR]
        linear[0] += active * self._linear[_ACTIVE_PAIR]
        units.addmm_(pairs, hidden.T)
        sums = self._sums + active * self._active_sums + pairs @ linear
        sums += dot * (self._trust + self._linear[_DOT] + active * self._linear[_ACTIVE_DOT])
        return sums.addmv_(units.relu_(), self._output)
