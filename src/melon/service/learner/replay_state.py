"""A model on its way through a log: one recorded step after another, the same bytes whenever they are taken again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from melon.data.ids import Id, IdBook, IdKind
from melon.errors import LogError
from melon.learning.deltas import Interacted, Recorder, chained
from melon.learning.model import Edit, LiveModel, edit_past, forget, observe_only
from melon.service.log.base import CONTROLS, LoggedStep, LogId, Position, StoredEvent
from melon.service.log.events import LogReader
from melon.service.log.steps import StepReader
from melon.stream.batch import Batch
from melon.types import Ints

_NOBODY = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Learnable:
    """The events of a step that can be learned, in order, as the model's books have their ids."""

    stored: tuple[StoredEvent, ...] = ()
    users: list[Id] = field(default_factory=list)
    items: list[Id] = field(default_factory=list)
    times: Ints = field(default_factory=lambda: _NOBODY)
    #: Events whose ids are of another kind than the model's: they stay in the log, and nothing can learn them.
    odd: int = 0

    def __len__(self) -> int:
        return len(self.users)


@dataclass(frozen=True)
class StepOutcome:
    """What a step did: its delta, the digest after it, and what was measured on the way."""

    content: bytes
    digest: bytes
    about: Mapping[str, Any]
    arrived: tuple[float, ...] = ()


@dataclass(frozen=True)
class Change:
    """What a control did to the model: what is noted, interactions it added to the past, a row that was forgotten, how
    it edited the past.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    past: Interacted = field(default_factory=Interacted)
    forgotten: tuple[int, Id] | None = None
    edit: Edit | None = None


class ReplayState:
    """The model, where it stands, and the steps that it takes. A step that fails leaves the position as it was."""

    def __init__(self, model: LiveModel, position: Position, log: LogReader, without: Collection[LogId] = ()) -> None:
        self.model, self.position, self._log, self._without = model, position, log, frozenset(without)
        self._recorder = Recorder(model)

    def events(self, first: int, last: int) -> Learnable:
        """The events of these offsets that are there to be learned."""
        events = self._log.events(first, last)
        stored = [event for event in events if event.use == "learn" and event.user not in self._without]
        users = typed(self.model.users, [event.user for event in stored])
        items = typed(self.model.items, [event.item for event in stored])
        good = [n for n in range(len(stored)) if users[n] is not None and items[n] is not None]
        some = tuple(stored[n] for n in good)
        times = np.array([event.time for event in some], dtype=np.int64)
        return Learnable(
            some, [users[n] for n in good], [items[n] for n in good], times, len(stored) - len(good)  # type: ignore[misc]
        )  # fmt: skip

    def follow(self, steps: StepReader, last: int | None = None) -> Iterator[tuple[LoggedStep, StepOutcome]]:
        """Take the recorded steps that are done, one by one, up to a number."""
        for step in steps.after(self.position.batch):
            if step.done is None or (last is not None and step.number > last):
                return
            yield step, self.perform(step, steps.retried_by(step))

    def perform(self, step: LoggedStep, retried: LoggedStep | None = None) -> StepOutcome:
        """Take a step as it is recorded: learned, or passed by if it was quarantined.

        `retried` is the step that a retry is about.
        """
        change, arrived = Change(), tuple[float, ...]()
        if step.kind == "events":
            events = self.events(step.first, step.last)
            past, about = self._learn(events, learned=step.status != "quarantined")
            change, arrived = Change(about, past), tuple(event.arrived for event in events.stored)
        elif step.kind == "retry":
            if retried is not None and step.status != "quarantined":
                change = Change(self._learn_again(self.events(retried.first, retried.last)))
        elif step.kind in PERFORM:
            control = self._log.control_after(step.first - 1)
            if control is not None and control.offset == step.first:
                change = PERFORM[step.kind](self.model, control.body)
        elif step.kind not in CONTROLS and step.kind != "switch":
            raise LogError(
                f"step {step.number} is a control {step.kind!r}, which this melon does not know; serve the log with "
                "the melon that wrote it, or a later one."
            )
        content = self._recorder.take(step.number, change.past, change.forgotten, change.edit).to_bytes()
        digest = chained(self.position.digest, content)
        self.position = Position(self.position.version, step.number, max(step.last, self.position.offset), digest)
        return StepOutcome(content, digest, change.about, arrived)

    def _learn(self, events: Learnable, *, learned: bool) -> tuple[Interacted, dict[str, Any]]:
        model = self.model
        about: dict[str, Any] = {"events": len(events), "odd": events.odd, "late": 0, "loss": None, "moved": None}
        if not len(events):
            return Interacted(), about
        # Offsets are the order; time never runs back, so that a late event counts as happening now.
        moments = np.maximum.accumulate(np.maximum(events.times, model.last_time))
        about["late"] = int((events.times < moments).sum())
        if learned:
            (about["loss"],) = model.learn_events(events.users, events.items, moments)
            about["moved"] = model.updater.moved
        else:
            observe_only(model, events.users, events.items, moments)
        model.late += about["late"]
        rows = model.users.rows(events.users), model.items.rows(events.items)
        return Interacted(*rows, moments), about

    def _learn_again(self, events: Learnable) -> dict[str, Any]:
        """Learn events that the past knows already."""
        model, updater = self.model, self.model.updater
        users, items = model.users.rows(events.users), model.items.rows(events.items)
        if not len(events):
            return {"events": 0}
        keys = np.zeros(len(users), dtype=np.int64)  # all of them have rows
        times = np.full(len(users), model.last_time)
        loss = updater.rehearse(Batch(updater.history.events, users, items, times, keys, keys))
        return {"events": len(events), "loss": loss, "moved": updater.moved}


def _forget(model: LiveModel, body: Mapping[str, Any]) -> Change:
    """Forget the person whom a control names; the row is a pseudonym's from then on."""
    row = None
    if model.users.kind is not None:
        user, pseudonym = typed(model.users, [body["user"], body["pseudonym"]])
        if user is not None and pseudonym is not None:
            row = forget(model, user, pseudonym)
    return Change({"known": row is not None}, forgotten=None if row is None or pseudonym is None else (row, pseudonym))


def _retract(model: LiveModel, body: Mapping[str, Any]) -> Change:
    """Take a pair out of a user's past, unless the log has another event of it."""
    row, column = _row_of(model.users, body["user"]), _row_of(model.items, body["item"])
    return _edited(model, ("retract", row, column) if body["gone"] and min(row, column) >= 0 else None)


def _alias(model: LiveModel, body: Mapping[str, Any]) -> Change:
    """Give a visitor's past to a user; one who is new takes over the visitor's row with what it learned."""
    row, to = _row_of(model.users, body["previous"]), _row_of(model.users, body["user"])
    if row < 0 or typed(model.users, [body["user"]])[0] is None:
        return _edited(model, None)
    return _edited(model, ("rename", row, body["user"]) if to < 0 else ("move", row, to))


def _edited(model: LiveModel, edit: Edit | None) -> Change:
    if edit is not None:
        edit_past(model, edit)
    return Change({"known": edit is not None}, edit=edit)


#: What a control does to the model, by its kind, from its body. Replays do the same: it must follow from these alone.
PERFORM: dict[str, Callable[[LiveModel, Mapping[str, Any]], Change]] = {
    "forget": _forget, "retract": _retract, "alias": _alias,
}  # fmt: skip


def unlearned(log: LogReader, steps: StepReader) -> frozenset[LogId]:
    """The pseudonyms of people whose events have been unlearned: no step takes these events any more."""
    last = steps.unlearned()
    return frozenset(control.body["pseudonym"] for control in log.to_unlearn() if control.offset <= last)


def typed(book: IdBook, ids: list[LogId]) -> list[Id | None]:
    """Ids as a book has them; None where one cannot be. A book without ids takes the kind of the first one."""
    kind: IdKind = book.kind or ("int" if ids and isinstance(ids[0], int) else "str")
    wanted = int if kind == "int" else str
    typed: list[Id | None] = [one if type(one) is wanted else None for one in ids]
    return [_uuid(one) for one in typed] if kind == "uuid" else typed


def _row_of(book: IdBook, one: LogId) -> int:
    (known,) = typed(book, [one])
    return -1 if known is None else int(book.rows([known])[0])


def _uuid(one: Id | None) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(one))
    except ValueError:
        return None
