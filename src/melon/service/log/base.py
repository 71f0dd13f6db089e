"""What is in the log: events and controls in one order, and the boundaries at which the learner cut them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from melon.service.config import Use

#: An id as the log holds it. UUIDs are texts here; the model's book says what they are.
LogId = int | str
#: Whom or what clients describe.
ProfileKind = Literal["user", "item"]
#: What one step of the learner was: a batch of `events`, a control of this kind, or a `switch` to another model.
StepKind = str
Status = Literal["planned", "learned", "quarantined"]


@dataclass(frozen=True, slots=True)
class ControlRule:
    """A kind of control: what is said of it in charts, and which fields of its body are ids of users.

    What it does to the model stands in `learner.replay_state.PERFORM`; a kind that is not there changes no model.
    Fields that are ids of users are given to the pseudonym when the person is forgotten.
    """

    text: str
    people: tuple[str, ...] = ()


#: Every kind of control. A log with another one was written by a later version, and no step takes it.
CONTROLS: dict[str, ControlRule] = {
    "forget": ControlRule("a person was forgotten", ("user",)),
    "retry": ControlRule("a quarantined batch was tried again"),
    "resume": ControlRule("learning was resumed"),
    "promote": ControlRule("a challenger was promoted"),
    "rollback": ControlRule("the model before was served again"),
    "retract": ControlRule("events were taken out of a history", ("user",)),
    "alias": ControlRule("a visitor turned out to be a user", ("user", "previous")),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One interaction as it is handed to the log; the caller has checked ids, time and type.

    Without a `time` (seconds) the log stamps its own. An `event_id` is stored once: a repeat with the same content is
    a duplicate, one with other content is conflicting. `recommended` says that the service itself showed the item.
    """

    user: LogId
    item: LogId
    time: int | None = None
    type: str = "view"
    event_id: str | None = None
    use: Use = "learn"
    recommended: bool = False
    recommendation: str | None = None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as the log has it."""

    offset: int
    user: LogId
    item: LogId
    time: int
    type: str
    event_id: str | None
    use: Use
    recommended: bool
    recommendation: str | None
    arrived: float


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of one list of events, all of it synced.

    `offset` is where the list is known to the log: of its last accepted event or, in a list of repeats, of the latest
    event that it repeats. A model that has reached this offset knows the list.
    """

    accepted: int
    duplicates: int
    conflicting: int
    offset: int


@dataclass(frozen=True, slots=True)
class Control:
    """Something to be done at one place in the stream. It has an offset of its own, and no batch straddles it."""

    offset: int
    kind: str
    body: Mapping[str, Any]
    arrived: float
    #: Of one that forgets a person: 1 when the ids have left all rows, 2 when the bytes between rows were searched.
    erased: int = 0


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step of the learner, numbered: which offsets it took, what became of them, and the digest after it.

    `first` … `last` are offsets; a switch takes none and has `first = last + 1`. `about` holds what was measured
    (`events`, `loss`, `moved`, `ms`, `late`, …) and `totals` the quality counters since the service started, so that
    the counters of any window are the difference of two steps.
    """

    number: int
    kind: StepKind
    first: int
    last: int
    epoch: int
    status: Status
    reason: str | None = None
    digest: bytes | None = None
    planned: float = 0.0
    done: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)

    @property
    def switched(self) -> bool:
        """Whether another model is served from this step on."""
        return self.kind == "switch" or bool(self.about.get("switched"))


@dataclass(frozen=True, slots=True)
class Position:
    """Where a model stands: its deployed version, steps taken, the last offset it knows, and the digest chain."""

    version: str
    batch: int
    offset: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Published:
    """A delta as the feed has it; `arrived` says when each of its events arrived (no part of the digest)."""

    number: int
    offset: int
    kind: StepKind
    digest: bytes
    content: bytes
    arrived: tuple[float, ...]
