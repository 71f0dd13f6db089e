"""A random walk: post, repeat, crash, forget, unlearn, quarantine, retry. The log is a dictionary, bytes a replay's."""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as walk
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from service_scenes import LOG, clean_replay, saved_model, settings, wait_until

from melon.errors import LearningError
from melon.learning.deltas import state_digest
from melon.learning.updater import Updater
from melon.service.learner.loop import Learner
from melon.service.log.base import Event
from melon.service.log.events import EventLog, LogReader
from melon.service.replica import Replica

PEOPLE, THINGS = st.integers(0, 6).map("u{}".format), st.integers(0, 30).map("i{}".format)
LISTS = st.lists(st.tuples(PEOPLE, THINGS, st.integers(0, 3)), min_size=1, max_size=12)


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="melon-walk-"))
        self.folder, self.time, self.number = self.home / "live", 10_000, 0
        self.known: dict[str, Event] = {}
        self.order: list[Event | None] = []
        self.forgotten: set[int] = set()

    @initialize()
    def begin(self) -> None:
        self.model = saved_model(self.home / "model")
        self.log = EventLog(self.folder, LOG)
        self.learner = Learner(self.settings())
        self.replica = Replica(self.folder)
        self.replica.load()

    def settings(self) -> Any:
        return settings(self.folder, self.model, batch_most=9, negatives=5, keep_deltas_bytes=60_000)

    @rule(events=LISTS)
    def post(self, events: list[tuple[str, str, int]]) -> None:
        posted = []
        for user, item, later in events:
            self.time, self.number = self.time + later, self.number + 1
            posted.append(Event(user, item, self.time, event_id=f"e{self.number}"))
        assert self.log.append(posted).accepted == len(posted)
        self.known |= {str(event.event_id): event for event in posted}
        self.order += posted

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        if not self.known:
            return
        event = self.known[data.draw(st.sampled_from(sorted(self.known)))]
        assert self.log.append([event]).duplicates == 1
        assert self.log.append([dataclasses.replace(event, item="other")]).conflicting == 1

    @rule(steps=st.integers(1, 4))
    def learn(self, steps: int) -> None:
        for _ in range(steps):
            self.learner.step()

    @rule()
    def save(self) -> None:
        self.learner.save(wait=True)

    @rule()
    def crash(self) -> None:
        """Nothing is saved and nothing is said; the next learner finds what was recorded."""
        before = self.learner.position
        self.learner.__exit__(None, None, None)
        self.learner = Learner(self.settings())
        assert self.learner.position == before

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = EventLog(self.folder, LOG)

    @rule(user=PEOPLE)
    def forget(self, user: str, *, unlearn: bool = False) -> None:
        assert self.log.forget(user, unlearn=unlearn).result() == len(self.order) + 1
        self.forgotten |= {place for place, one in enumerate(self.order) if one is not None and one.user == user}
        self.order.append(None)
        while self.learner.step():
            pass
        self.learner.save(wait=True)
        self.log.close()  # which takes the ids out
        self.log = EventLog(self.folder, LOG)
        self.known = {name: one for name, one in self.known.items() if one.user != user}

    @rule()
    def quarantined(self) -> None:
        def fail(*_: object) -> float:
            raise LearningError("not finite")

        with pytest.MonkeyPatch.context() as broken:
            broken.setattr(Updater, "learn", fail)
            self.learner.step()
        self.learner.step()

    @rule()
    def retry(self) -> None:
        quarantined = self.learner.book.quarantined()
        if quarantined:
            self.log.control("retry", {"batch": quarantined[0].number}).result()
            self.order.append(None)

    @rule()
    def follow(self) -> None:
        self.replica.follow()

    @invariant()
    def the_log_is_the_dictionary(self) -> None:
        if not hasattr(self, "log"):
            return
        with LogReader(self.folder) as reader:
            stored = {one.offset - 1: one for one in reader.events(1, reader.last()[0])}
            assert reader.last() == (len(self.order), sum(one is not None for one in self.order))
        for place, one in enumerate(self.order):
            assert (one is None) == (place not in stored)
            if one is not None:
                held = stored[place]
                assert (held.item, held.time) == (one.item, one.time)
                assert held.user == one.user if place not in self.forgotten else held.event_id is None

    def teardown(self) -> None:
        if hasattr(self, "learner"):
            while self.learner.step():
                pass
            self.learner.save(wait=True)
            self.replica.follow()
            copy, digest = clean_replay(self.folder)
            assert digest == self.learner.position.digest == self.replica.position.digest
            assert state_digest(copy) == state_digest(self.learner.replay.model)
            with self.replica.reading() as (held, _):
                assert state_digest(held, answering=True) == state_digest(copy, answering=True)
            self.replica.close()
            self.learner.__exit__(None, None, None)
            self.log.close()
        shutil.rmtree(self.home)


class LongWalk(Walk):
    """The same, and once in a while somebody's events are unlearned: a process beside the learner makes the model."""

    unlearned = 0

    @precondition(lambda self: self.unlearned < 2)
    @rule(user=PEOPLE)
    def unlearn(self, user: str) -> None:
        self.unlearned += 1
        self.forget(user, unlearn=True)
        offset = len(self.order)

        def done() -> bool:
            self.learner.consider_fitting()
            return self.learner.book.unlearned() >= offset

        wait_until(done, 600)
        assert self.learner.position.offset == offset
        assert self.learner.book.bases() == [self.learner.position.batch]


HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_a_random_walk() -> None:
    run_state_machine_as_test(Walk, settings=walk(max_examples=4, stateful_step_count=15, suppress_health_check=HEALTH))


@pytest.mark.slow
def test_many_random_walks() -> None:
    """MELON_WALKS says how many, 60 unless set."""
    walks = int(os.environ.get("MELON_WALKS", "60"))
    run_state_machine_as_test(
        LongWalk, settings=walk(max_examples=walks, stateful_step_count=40, suppress_health_check=HEALTH, deadline=None)
    )
