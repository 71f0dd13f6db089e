"""A log taken again: any past of the model, byte for byte; the same without somebody, or by another strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from melon.errors import LogError
from melon.learning.deltas import NOTHING, chained
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.service.learner.replay_state import ReplayState, unlearned
from melon.service.learner.start import check_together
from melon.service.log.base import LogId, Position
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import LogReader
from melon.service.log.files import BATCHES, DELTAS, EVENTS, Place, Reader, way_out
from melon.service.log.steps import DeltaReader, StepReader
from melon.strategies.registry import STRATEGIES
from melon.stream.batch import Batch


@dataclass(frozen=True)
class Replayed:
    """A model as it was after a step, and whether its bytes are those that were recorded."""

    model: LiveModel
    position: Position
    extra: dict[str, Any]
    exact: bool


def replay(
    place: Place | Path,
    *,
    offset: int | None = None,
    moment: float | None = None,
    without: Collection[LogId] = (),
    strategy: str | None = None,
) -> Replayed:
    """The model after the last step that ends by an offset, or that was done by a moment; by default, the last one.

    `without` users or by another `strategy` it is a past that was not, in the same batches.
    """
    with LogReader(place) as log, StepReader(place) as steps:
        last = steps.last() if moment is None else steps.done_by(moment)
        if offset is not None:
            last = steps.at(offset)
        number = last.number if last else 0
        checkpoints = Checkpoints(place)
        bases = [base for base in steps.bases() if base <= number and base in checkpoints.numbers()]
        if not bases:
            first = min(steps.bases(), default=0)
            raise LogError(
                f"{place} can be replayed from step {first} on (somebody was forgotten there, or a checkpoint is "
                f"missing), and step {number} is before that; give a later offset or time."
            )
        saved = checkpoints.load(bases[-1])
        model = saved.model if strategy is None else with_strategy(saved.model, strategy)
        model.warm_up()
        replay = ReplayState(model, saved.position, log, {*without, *unlearned(log, steps)})
        exact = strategy is None and not without
        for step, outcome in replay.follow(steps, number):
            if exact and outcome.digest != step.digest:
                raise LogError(
                    f"step {step.number}, offsets {step.first} to {step.last}, gives other bytes than were recorded: "
                    "the log was changed, or this machine computes differently than the learner's (melon log info)."
                )
        extra = {name: value for name, value in saved.extra.items() if name not in ("model", "service")}
        return Replayed(replay.model, replay.position, extra, exact)


def verify(place: Place | Path) -> Iterator[str]:
    """Read every byte of files, steps, checkpoints and deltas: a line for each thing that holds, or an error."""
    try:
        yield from _verified(Place.of(place))
    except (OSError, ArithmeticError, LookupError, TypeError, ValueError) as problem:
        raise LogError(f"{place} is damaged: {problem!r}; {way_out(EVENTS)}") from problem


def _verified(place: Place) -> Iterator[str]:
    for name in (EVENTS, BATCHES, DELTAS):
        if place.exists(name):
            with Reader(place, name) as file:
                yield f"{name.removesuffix('.db')}: {file.check(thorough=True)}"
    with LogReader(place) as log, StepReader(place) as steps:
        (offset, events), first = log.last(), log.first()
        stored, controls, last = log.counted()
        if (first == 1 and stored != events) or first + stored + controls != offset + 1 or last not in (offset, 0):
            raise LogError(
                f"{place.named(EVENTS)} has {stored} events and {controls} controls from offset {first} to {offset}; "
                f"{way_out(EVENTS)}"
            )
        for _ in log.events(1, offset):
            pass
        yield f"log {log.log_id}: {stored} events and {controls} controls, offsets {first} to {offset} without a gap"
        number = reached = 0
        for step in steps.after(0):
            if not number:
                number, reached = step.number - 1, step.first - 1  # older ones go when their events go
                begun = step.first
            if step.number != number + 1 or step.first != reached + 1 or begun > first:
                raise LogError(
                    f"step {step.number} begins at offset {step.first}, and the one before ends at {reached}; "
                    f"{way_out(BATCHES)}"
                )
            number, reached = step.number, max(step.last, reached)
        yield f"{number} steps cover offsets {first} to {reached}"
        checkpoints = Checkpoints(place)
        check_together(place, steps, checkpoints, log)
        for held in checkpoints.numbers():
            recorded, saved = steps.step(held), checkpoints.load(held)  # every byte of it is read
            if held and (recorded is None or recorded.digest != saved.position.digest) and held >= steps.bases()[-1]:
                raise LogError(
                    f"the checkpoint {checkpoints.path(held)} is of other steps; stop the service and move it away."
                )
        yield f"checkpoints of steps {', '.join(map(str, checkpoints.numbers()))} are whole and fit the steps"
        if place.exists(DELTAS):
            yield f"{_checked_deltas(place, steps)} deltas fit the steps"
    replayed = replay(place)
    yield f"replayed to step {replayed.position.batch}: the bytes are those that were recorded"


def _checked_deltas(place: Place, steps: StepReader) -> int:
    """Compare the content of each delta with the digests of its step and of the one before; how many there are."""
    count = number = 0
    with DeltaReader(place) as feed:
        while some := feed.after(number):
            for delta in some:
                before, step, number = steps.step(delta.number - 1), steps.step(delta.number), delta.number
                earlier = NOTHING if number == 1 else before.digest if before is not None else b""
                if earlier and chained(earlier, delta.content) != delta.digest:
                    raise LogError(
                        f"delta {number} in {place.named(DELTAS)} is damaged; stop the service and delete the file."
                    )
                if step is not None and step.done is not None and step.digest != delta.digest:
                    raise LogError(f"delta {number} in {place.named(DELTAS)} is of another step; delete the file.")
                count += 1
    return count


def describe(place: Place | Path) -> dict[str, Any]:
    """What is in a log, how far the learner is, and what it ran on."""
    with LogReader(place) as log:
        offset, events = log.last()
        about: dict[str, Any] = {"log": log.log_id, "events": events, "offset": offset}
    if not Place.of(place).exists(BATCHES):
        return {**about, "steps": "none: no learner has run yet"}
    with StepReader(place) as steps:
        meta, last, checkpoints = steps.meta(), steps.last(), Checkpoints(place)
        reached = last.last if last else 0
        return {
            **about,
            "model": f"{meta.get('start_name')} ({str(meta.get('start'))[:12]})",
            "steps": f"{last.number if last else 0}, up to offset {reached} ({offset - reached} behind)",
            "digest": last.digest.hex() if last and last.digest else None,
            "checkpoints": checkpoints.numbers(),
            "exact from": [f"step {base}" for base in steps.bases()],
            "quarantined": [f"step {one.number}: {one.reason}" for one in steps.quarantined()],
            "alarms": steps.alarms(),
            "ran on": [", ".join(f"{name} {value}" for name, value in epoch.items()) for epoch in steps.epochs()[-3:]],
        }


def with_strategy(model: LiveModel, name: str) -> LiveModel:
    """The same model in the hands of another strategy, with its default settings."""
    old = model.updater
    strategy = STRATEGIES[name].make(seed=old.seed)
    updater = Updater(old.recommender, strategy, old.history, seed=old.seed)
    updater.make_rows(Batch(0, *[np.empty(0, dtype=np.int64)] * 5))  # the strategy's own, for rows that exist
    return LiveModel(
        updater, users=model.users, items=model.items, popular=model.popular, last_time=model.last_time, late=model.late
    )
