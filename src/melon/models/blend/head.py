"""The blend's head (docs/methods.md 8.5): a linear part and one hidden layer over scaled inputs, trained by softmax.

It weighs what the rows say against what streaming state says. Trained on data that its rows have seen it would trust
them too far, so it is *trained* on the selection window beside rows that have not seen the window, and the recommender
that was trained on everything takes over what it has learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from melon.errors import CheckpointError
from melon.kernels import policy
from melon.kernels.blend_head import LINES_AT_ONCE, HeadTables
from melon.stream.saved import MOST
from melon.tables import TableSpec
from melon.types import Arrays, Flags, Floats, Ints, Singles

LINEAR, HIDDEN, SHIFT, OUTPUT = TABLES = ("head_linear", "head_hidden", "head_shift", "head_output")
#: Scales come from the first interactions of training, this many, then fixed.
SCALED_BY = 4_000
#: One in so many passes is enough for a head that was trained on the same events beside other rows.
_LAST_PASSES = 4
_LEAST_SCALE, _SAME = 1e-3, 1e-6
_BETA_1, _BETA_2, _EPS = 0.9, 0.999, 1e-8
_STEPS = "steps"
#: What a head that rests has seen: interactions, pairs, and sums over pairs of inputs, squared spread, and squares.
_RESTING = _SEEN, _PAIRS, _SUM, _SPREAD, _SQUARES = ("seen", "pairs", "sum", "spread", "squares")

HeadValues = Mapping[str, Singles]


@dataclass(frozen=True)
class HeadSettings:
    """How a head is trained."""

    units: int
    negatives: int
    lr: float
    decay: float
    meta_training_lr: float
    passes: int
    #: A head that was not trained on a window rests for this many interactions, and its inputs are then scaled by them.
    rest: int = 256
    #: How many of the negatives are items that the user had, and how many are drawn from the latest events.
    own_negatives: int = 0
    popular_negatives: int = 0


def head_tables(inputs: int, units: int) -> tuple[TableSpec, ...]:
    """The head as tables. Both parts say nothing at first: a blend starts as its personal score."""
    return (
        TableSpec(LINEAR, "shared", "weight", inputs, rows=1),
        TableSpec(HIDDEN, "shared", "weight", inputs, (1 / (3 * inputs)) ** 0.5, rows=units),
        TableSpec(SHIFT, "shared", "bias", 1, rows=units),
        TableSpec(OUTPUT, "shared", "weight", units, rows=1),
    )


@dataclass(frozen=True)
class HeadExamples:
    """What a batch teaches a head: inputs n × (1 + negatives) × features, the item taken first.

    `allowed` is False for negatives that do not count, because they are the user's own.
    """

    inputs: Singles
    allowed: Flags
    #: What is added to scores while training, n × (1 + negatives): minus the log of how often an item is drawn, so that
    #: items of which more are drawn than others do not seem less likely (sampled softmax). None: all are drawn alike.
    offsets: Singles | None = None
    #: The users and items that the inputs are of.
    pairs: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class HeadStep:
    """New values of the head's tables, and what its optimiser will remember once they are written."""

    values: dict[str, Any]
    memory: Arrays


class BlendHead:
    """h(x) = w · z + v · relu(W z + b) with z the inputs, centred and scaled. It proposes; the updater alone writes."""

    def __init__(self, inputs: int, settings: HeadSettings) -> None:
        self.settings = settings
        self.centre: Singles = np.zeros(inputs, dtype=np.float32)
        self.scale: Singles = np.ones(inputs, dtype=np.float32)
        self._memory: Arrays = {}

    def folded(self, values: HeadValues) -> tuple[float, HeadTables]:
        """The same function of unscaled inputs, and what every score of it has too much."""
        linear, hidden = values[LINEAR] * self.scale, values[HIDDEN] * self.scale
        shift = (values[SHIFT] - (hidden @ self.centre)[:, None]).astype(np.float32, copy=False)
        return float(linear[0] @ self.centre), HeadTables(linear, hidden, shift, np.ascontiguousarray(values[OUTPUT]))

    def step(self, values: HeadValues, head_examples: HeadExamples) -> HeadStep:
        """One online step from the present values of its tables; pure."""
        if self.resting:
            return HeadStep({}, self._rested(head_examples))
        steps = int(self._memory[_STEPS]) + 1 if self._memory else 1
        moments = [f"{order}/{name}" for order in (1, 2) for name in TABLES]
        held = [np.ascontiguousarray(values[name]) for name in TABLES]
        before = (
            [self._memory[name] for name in moments] if self._memory else [np.zeros_like(each) for each in held * 2]
        )
        after = [np.empty_like(each) for each in held * 3]
        rates = self._rates(steps, self.settings.lr, head_examples)
        policy.load("blend").head_step(
            *self._columns(head_examples), rates, *_tables([*held, *before]), *_tables(after)
        )
        new = dict(zip((*TABLES, *moments), after, strict=True))
        return HeadStep({name: new.pop(name) for name in TABLES}, {_STEPS: np.array(steps), **new})

    def keep(self, memory: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Store the optimiser's state after a step has been written."""
        self.centre, self.scale = memory.get("centre", self.centre), memory.get("scale", self.scale)  # type: ignore[assignment]
        self._memory = {name: array for name, array in memory.items() if name not in ("centre", "scale")}

    @property
    def resting(self) -> bool:
        """Whether the inputs have no scales yet: without a training window, the first interactions give them."""
        return self.settings.rest > 0 and _STEPS not in self._memory and not bool(self.centre.any())

    def memory(self) -> Arrays:
        """Everything that is no table: scales and what the optimiser remembers."""
        return {"centre": self.centre, "scale": self.scale, **self._memory}

    def recall(self, memory: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Become what `memory` described; what no such head can have is a `CheckpointError`."""
        (inputs,), units = self.centre.shape, self.settings.units
        shapes = {LINEAR: (1, inputs), HIDDEN: (units, inputs), SHIFT: (units, 1), OUTPUT: (1, units)}
        form: dict[str, tuple[tuple[int, ...], type]] = dict.fromkeys(("centre", "scale"), ((inputs,), np.float32))
        if _STEPS in memory:
            form |= {f"{order}/{name}": (shape, np.float32) for name, shape in shapes.items() for order in (1, 2)}
            form[_STEPS] = ((), np.int64)
        elif _SEEN in memory:
            form |= dict.fromkeys((_SEEN, _PAIRS), ((), np.int64))
            form |= dict.fromkeys((_SUM, _SPREAD, _SQUARES), ((inputs,), np.float64))
        if memory.keys() != form.keys():
            raise CheckpointError(f"the blend's head has saved {sorted(memory)} instead of {sorted(form)}.")
        for name, (shape, dtype) in form.items():
            held = memory[name]
            if held.shape != shape or held.dtype != dtype or not np.isfinite(held).all():
                raise CheckpointError(
                    f"the saved {name!r} of the blend's head is not {shape} finite numbers of {dtype.__name__}."
                )
            if dtype is np.int64 and not 0 < int(held) <= MOST:
                raise CheckpointError(f"the saved {name!r} of the blend's head is {int(held)}, which is not a count.")
        if _SEEN in memory and memory["centre"].any():
            raise CheckpointError("the saved head of the blend has scales and waits for scales.")
        self.keep({name: np.array(held) for name, held in memory.items()})

    def meta_train(
        self, values: HeadValues, head_batches: Sequence[HeadExamples], known: Arrays | None = None
    ) -> Arrays:
        """Train on recorded training examples in order of time, several times over, from the given values; pure.

        Where a head is `known` that was trained on the same events beside other rows, the last passes have to do, from
        that head on.
        """
        if not head_batches:
            return {}
        settings, kernels, steps = self.settings, policy.load("blend"), 0
        twin = BlendHead(len(self.centre), settings)
        passes = range(settings.passes - settings.passes // _LAST_PASSES if known else 0, settings.passes)
        if known:
            values = {name: np.asarray(array, dtype=np.float32) for name, array in known.items()}
            twin.centre, twin.scale = values["centre"], values["scale"]
        else:
            twin.centre, twin.scale = scales_of(head_batches)
        held = [np.array(values[name]) for name in TABLES]
        now, then = [*held, *(np.zeros_like(each) for each in held * 2)], [np.empty_like(each) for each in held * 3]
        given = [(head_examples, twin._columns(head_examples)) for head_examples in head_batches]
        for number in passes:
            lr = settings.meta_training_lr * (1 - 0.9 * number / settings.passes)  # to a tenth, so that it settles
            for head_examples, columns in given:
                steps += 1
                kernels.head_step(*columns, self._rates(steps, lr, head_examples), *_tables(now), *_tables(then))
                now, then = then, now
        return {"centre": twin.centre, "scale": twin.scale, **dict(zip(TABLES, now, strict=False))}

    def take_over(self, meta_training: Mapping[str, npt.NDArray[np.generic]]) -> Arrays:
        """Load what was trained: scales are stored here, and new values of the head's tables are returned."""
        missing = sorted({"centre", "scale", *TABLES} - meta_training.keys())
        if missing or meta_training["centre"].shape != self.centre.shape:
            raise CheckpointError(
                f"this is not a trained head of a blend with these settings: {', '.join(missing) or 'its inputs'} "
                "do not fit. Train it again with the settings that are deployed."
            )
        self.keep({name: np.array(meta_training[name], dtype=np.float32) for name in ("centre", "scale")})
        return {name: np.array(meta_training[name], dtype=np.float32) for name in TABLES}

    def _rested(self, head_examples: HeadExamples) -> Arrays:
        """What is known of the inputs' scales after one more example: the scales themselves, once it is enough."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = _sums(head_examples.inputs, self._memory)
        if int(sums[_SEEN]) < self.settings.rest:
            return sums
        centre, scale = _scales(sums)
        return {"centre": centre, "scale": scale}

    def _columns(self, head_examples: HeadExamples) -> tuple[Singles, Singles, Flags]:
        """A training example as the kernel's step takes it."""
        lines, width, features = head_examples.inputs.shape
        many, blocks = min(lines, LINES_AT_ONCE) * width, -(-lines // LINES_AT_ONCE)
        columns, personal = np.empty((blocks, features, many), np.float32), np.empty((blocks, many), np.float32)
        policy.load("blend").head_columns(head_examples.inputs, self.centre, self.scale, columns, personal)
        if head_examples.offsets is not None:
            personal.reshape(-1)[: lines * width] += head_examples.offsets.reshape(-1)
        return columns, personal, np.ascontiguousarray(head_examples.allowed)

    def _rates(self, steps: int, lr: float, head_examples: HeadExamples) -> Floats:
        """AdamW's numbers for a step: weights shrink apart from the gradient's step."""
        shrink, settled = 1 - lr * self.settings.decay, (1 - _BETA_1**steps, 1 - _BETA_2**steps)
        return np.array([1 - _BETA_1, 1 - _BETA_2, _EPS, lr / settled[0], shrink, settled[1], 1 / len(head_examples)])


def silent(values: HeadValues) -> bool:
    """Whether the head says nothing so far."""
    return not bool(values[LINEAR].any()) and not bool(values[OUTPUT].any())


def scales_of(head_batches: Sequence[HeadExamples]) -> tuple[Singles, Singles]:
    """Means of the inputs and 1 / their spread within an event, over the first interactions (docs/methods.md 8.5)."""
    sums: Arrays = {}
    for head_examples in head_batches:
        sums = _sums(head_examples.inputs[: SCALED_BY - int(sums.get(_SEEN, 0))], sums)
        if int(sums[_SEEN]) >= SCALED_BY:
            break
    return _scales(sums)


def _sums(inputs: Singles, before: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """How many interactions and pairs there are, and sums over pairs: with those of the examples `before`."""
    wide = inputs.astype(np.float64)
    squares = np.einsum("ncf,ncf->f", wide, wide)
    totals = wide.sum(1)
    wide -= (totals / inputs.shape[1])[:, None]
    spread = np.einsum("ncf,ncf->f", wide, wide)
    added = (np.array(len(wide)), np.array(wide.shape[0] * wide.shape[1]), totals.sum(0), spread, squares)
    return {name: before[name] + new if before else new for name, new in zip(_RESTING, added, strict=True)}


def _scales(sums: Mapping[str, npt.NDArray[Any]]) -> tuple[Singles, Singles]:
    """Means, and 1 / the spread of inputs within events; of those that are the same for all candidates, over all.

    An input that never changed is left out: nothing was learned of what it means when it does.
    """
    centre, within, squares = (sums[name] / int(sums[_PAIRS]) for name in (_SUM, _SPREAD, _SQUARES))
    spread = np.sqrt(np.maximum(np.where(within < _SAME**2, squares - np.square(centre), within), 0))
    scale = np.where(spread < _SAME, 0.0, 1 / np.maximum(spread, _LEAST_SCALE))
    return centre.astype(np.float32), scale.astype(np.float32)


def _tables(arrays: Sequence[Singles]) -> list[HeadTables]:
    return [HeadTables(*arrays[start : start + 4]) for start in range(0, len(arrays), 4)]
