"""What an API process holds: the log, a replica, item facts, what was served, and who waits for an offset."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from melon.data.ids import Id, IdKind
from melon.errors import MelonError, ServiceError
from melon.service.answers import AnsweredList, ListMaker, Query, about_model
from melon.service.coalesce import Coalescer
from melon.service.config import ServeSettings
from melon.service.ids import plain_id, read_id
from melon.service.learner.challenger import challenger_states, home
from melon.service.learner.guard import REMEDIES
from melon.service.log.base import Appended, Event, Position, Published
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import BATCHES, place_of
from melon.service.log.steps import StepReader
from melon.service.metrics import MetricFamily, ServiceMetrics, disk_free, quality_between, quality_counters
from melon.service.replica import Replica
from melon.service.rules.items import Facts, ItemFacts
from melon.service.served import Served
from melon.service.webhook import Webhooks

T = TypeVar("T")
S = TypeVar("S", LogReader, StepReader)
#: The status gives the size of batches over this many.
_RECENT_STEPS = 50
_LOG = logging.getLogger("melon.service")
#: Facts that are taken in use between two lists.
_FACTS_AT_ONCE = 250
#: The status gives freshness over this many events.
_FRESHNESS = 4_096
#: Seconds between two looks at what other API processes have stored.
_FOLLOW_S = 0.05
#: Seconds between two looks whether alarms have changed.
_TOLD_EVERY_S = 5.0
#: Messages that a slow reader of the stream may be behind before older ones are dropped for it.
_STREAM_BEHIND = 256
#: Clients of the stream, at most: each takes a part of the loop that answers everybody.
MOST_LISTENERS = 100


@dataclass
class Arm:
    """A challenger whose lists some users get: its share of them, and what makes the lists."""

    name: str
    share: float
    replica: Replica
    coalescer: Coalescer
    ready: bool = False


class Backend:
    """One API process without its HTTP: made once, started by the application, stopped by it."""

    def __init__(self, settings: ServeSettings, tenant: str = "") -> None:
        self.settings = settings
        self.metrics = ServiceMetrics(tenant)
        self.started = time.time()
        self._hooks = Webhooks(settings)
        self.log = EventLog(place_of(settings), settings)
        self.replica = Replica(place_of(settings))
        self.facts = ItemFacts()
        self.served = Served(settings.served_most)
        self._maker = ListMaker(self.facts, self.served, self.hidden_from, item_users=settings.item_users)
        self.coalescer = Coalescer(self.replica, self._maker, settings.queue_lists)
        self._arms = [self._arm(name, share) for name, share in settings.shares().items()]
        self.uses = settings.uses()
        self.problem: str | None = None
        self.stopping = False
        self._loaded = False
        #: Whether kernels are compiled; before that, lists are of what is popular.
        self.warm = False
        self._damage: str | None = None
        self._beats: list[asyncio.Task[None]] = []
        self._alarmed: deque[tuple[float, str]] = deque(maxlen=100)
        self._fact_versions: dict[Id, int] = {}
        self.kinds: dict[str, IdKind | None] = {"user": None, "item": None}
        self._hidden: dict[Id, set[Id]] = {}
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="reading")
        self._readers = threading.local()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The offset that each request waits for; the delta that reaches it wakes the request.
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._listeners: set[asyncio.Queue[str]] = set()
        self._freshness: deque[float] = deque(maxlen=_FRESHNESS)

    def _arm(self, name: str, share: float) -> Arm:
        """What makes the lists of users who get those of a challenger."""
        replica, given = Replica(home(self.settings.folder, name)), self.settings
        maker = ListMaker(self.facts, self.served, self.hidden_from, item_users=given.item_users, challenger=name)
        return Arm(name, share, replica, Coalescer(replica, maker, given.queue_lists))

    # Life.

    async def start(self) -> None:
        """Begin to answer; the model is loaded beside it, and `ready` says when it is there."""
        self._loop = asyncio.get_running_loop()
        self.coalescer.start()
        self.replica.when_applied(self._applied)
        self._beats = [asyncio.create_task(self._beat()), asyncio.create_task(self._watch_alarms())]
        threading.Thread(target=self._load, name="loading", daemon=True).start()
        for arm in self._arms:
            arm.coalescer.start()
            threading.Thread(target=self._load_arm, args=(arm,), name=f"loading {arm.name}", daemon=True).start()
        threading.Thread(target=self._check_log, name="checking", daemon=True).start()

    async def settle(self, seconds: float) -> None:
        """Wait for the model and its kernels, but not for long."""
        end = time.monotonic() + seconds
        while not (self.ready and self.warm) and self.problem is None and time.monotonic() < end:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Answer what waits, commit what waits, and close everything."""
        self.stopping = True
        for task in self._beats:
            task.cancel()
        for coalescer in (self.coalescer, *(arm.coalescer for arm in self._arms)):
            await asyncio.to_thread(coalescer.stop)
        for replica in (self.replica, *(arm.replica for arm in self._arms)):
            await asyncio.to_thread(replica.close)
        await asyncio.to_thread(self.log.close)
        self._pool.shutdown(wait=True)

    async def _watch_alarms(self) -> None:
        """Remember when alarms were raised and were over, and tell the configured addresses."""
        known = dict[str, str]()
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            try:
                status = await self.status()
            except MelonError as problem:
                _LOG.warning("alarms cannot be read: %s", problem)
                continue
            now = dict(zip(status["alarm_names"], status["alarms"], strict=True))
            for name in now.keys() ^ known.keys():
                state, text = ("raised", now[name]) if name in now else ("over", known[name])
                self._alarmed.append((time.time(), f"alarm {name}" if name in now else f"alarm {name} is over"))
                if self.settings.webhooks:
                    news = {"alarm": name, "state": state, "text": text, "remedy": REMEDIES.get(name, "")}
                    await asyncio.to_thread(self._hooks.send, {**news, "log": self.log.log_id})
            known = now

    def marks(self, since: float) -> list[dict[str, Any]]:
        """What happened in this process: alarms, and checkpoints that were loaded after the first one."""
        loaded = [(when, "reload", f"this server loaded a checkpoint ({why})") for when, why in self.replica.reloaded]
        told = [*loaded, *((when, "alarm", text) for when, text in self._alarmed)]
        return [{"time": when, "kind": kind, "text": text} for when, kind, text in told if when >= since]

    async def _beat(self) -> None:
        """Give signs of life, from the loop that answers: the supervisor restarts a process that gives none."""
        while True:
            self.log.beat()
            await asyncio.sleep(1.0)

    def _check_log(self) -> None:
        """Read every page of the log once, beside serving: a damaged one must not be taken for a whole one."""
        try:
            with LogReader(place_of(self.settings)) as reader:
                reader.check()
        except MelonError as problem:
            _LOG.error("%s", problem)
            self._damage = str(problem)

    def _load(self) -> None:
        while True:
            try:
                self.replica.load(timeout=3600.0)
                self._take_kinds()
                with LogReader(place_of(self.settings)) as reader:
                    seen = self._take_stored(reader, (0, 0))
                self._loaded = True  # events are stored and popular lists made from here on
                self._warm_up()
                self.replica.start()
                self.warm = True
            except Exception as problem:  # whatever it is, the next checkpoint may be better
                self.problem = str(problem)
                _LOG.exception("the model cannot be loaded")
                time.sleep(1.0)
            else:
                self.problem = None
                break
        if place_of(self.settings).url is not None:
            self._follow_others(seen)

    def _take_stored(self, reader: LogReader, seen: tuple[int, int]) -> tuple[int, int]:
        """Use the facts behind a version and the hidden items behind an offset; how far that has come."""
        version, offset = seen
        for item, version, facts in list(reader.facts(seen[0])):
            self._use_facts({self.item(item): None if facts is None else Facts(**facts)}, version)
        return version, self._hide(self._hidden, reader, offset)

    def _hide(self, hidden: dict[Id, set[Id]], reader: LogReader, offset: int) -> int:
        """Add the items that events behind an offset hide from their users; the last of those events."""
        users = reader.users_of()
        for event in reader.hidden(offset):
            user = self.user(users.get(event.user, event.user))
            hidden.setdefault(user, set()).add(self.item(event.item))
            offset = event.offset
        return offset

    def _take_controls(self, reader: LogReader, after: int) -> int:
        """Do what controls behind an offset ask of what this process remembers; the last of them."""
        moved = False
        while (control := reader.control_after(after)) is not None:
            after = control.offset
            moved = moved or control.kind in ("retract", "alias")
            if control.kind == "forget":
                user = self.user(control.body["user"])
                self.served.forget(user)
                self._hidden.pop(user, None)
        if moved:
            hidden: dict[Id, set[Id]] = {}
            self._hide(hidden, reader, 0)
            self._hidden = hidden
        return after

    def _follow_others(self, seen: tuple[int, int]) -> None:
        """Use what other API processes have stored, as soon as it is there."""
        reader, controls = None, self.log.offset
        while not self.stopping:
            try:
                reader = reader or LogReader(place_of(self.settings))
                if reader.changed():
                    seen = self._take_stored(reader, seen)
                    controls = self._take_controls(reader, controls)
                time.sleep(_FOLLOW_S)
            except MelonError as problem:
                _LOG.warning("what other processes store cannot be followed: %s", problem)
                time.sleep(1.0)
        if reader is not None:
            reader.close()

    def _load_arm(self, arm: Arm) -> None:
        """Have the model of a challenger, once it has one; until it has caught up, its users get the served model."""
        try:
            arm.replica.load(timeout=math.inf)
            with arm.replica.reading() as (model, _):
                pass
            model.warm_up()
            arm.replica.start()
        except MelonError as problem:
            _LOG.warning("challenger %s makes no lists: %s", arm.name, problem)
        else:
            arm.ready = True

    def arm_of(self, user: Id | None) -> Arm | None:
        """The challenger whose lists a user gets, by a hash of the id; None: the served model's."""
        if user is None or not self._arms:
            return None
        digest = hashlib.blake2b(f"{self.settings.seed}/{user}".encode(), digest_size=8).digest()
        place = int.from_bytes(digest) / 2**64
        for arm in self._arms:
            if place < arm.share:
                behind = self.log.offset - arm.replica.position.offset if arm.ready else math.inf
                return arm if behind <= self.settings.max_lag else None
            place -= arm.share
        return None

    def _warm_up(self) -> None:
        """Load compiled kernels, those that follow the learner too, and make one list before somebody waits for one."""
        with self.replica.reading() as (model, position):
            pass  # no delta is applied yet, and popular lists may be made meanwhile
        model.warm_up()
        users = model.users.ids([0]).tolist() if len(model.users) else [None]
        maker = ListMaker(ItemFacts(), self.served, self.hidden_from)
        maker.make(model, position, [Query(user=users[0])], time.time())

    @property
    def ready(self) -> bool:
        return self._loaded and self.problem is None and self._damage is None

    @property
    def unready(self) -> str | None:
        """Why requests are refused, in words."""
        return None if self.ready else self._damage or self.problem or "the model is being loaded"

    def require_ready(self) -> None:
        why = self.unready
        if why is not None:
            raise ServiceError(503, "not_ready", f"The service is not ready: {why}.", hint="Try again.", retry_after=1)

    # Ids of the kind that the model's books have.

    def user(self, value: Any) -> Id:
        return read_id(value, self.kinds["user"], "user")

    def item(self, value: Any) -> Id:
        return read_id(value, self.kinds["item"], "item")

    def _take_kinds(self) -> None:
        with self.replica.reading() as (model, _):
            self.kinds = {"user": model.users.kind, "item": model.items.kind}

    # Writing.

    async def append(self, events: Sequence[Event]) -> Appended:
        """Append events; returns when they are synced."""
        started = time.perf_counter()
        appended = await asyncio.wrap_future(self.log.submit(events))
        self.metrics.committed(appended, time.perf_counter() - started)
        for event in events:
            if event.use == "hide":
                self._hidden.setdefault(self.user(event.user), set()).add(self.item(event.item))
        return appended

    async def retract(self, user: Id, item: Id, kind: str | None = None) -> int:
        """Take a user's events of an item out of histories; returns how many they were. What was learned stays."""
        count, _ = await asyncio.wrap_future(self.log.retract(plain_id(user), plain_id(item), kind))
        if count and item in self._hidden.get(user, ()):
            events = await self.from_log(lambda log: log.of_user(plain_id(user), 1 << 62))
            if not any(event.use == "hide" and event.item == plain_id(item) for event in events):
                self._hidden.get(user, set()).discard(item)
        return count

    async def alias(self, previous: Id, user: Id) -> int:
        """Let a visitor be a user from here on; returns the offset at which the model knows."""
        offset = await asyncio.wrap_future(self.log.alias(plain_id(previous), plain_id(user)))
        self._hidden.setdefault(user, set()).update(self._hidden.pop(previous, ()))
        return offset

    def hidden_from(self, user: Id) -> frozenset[Id]:
        return frozenset(self._hidden.get(user, ()))

    async def put_facts(self, facts: Mapping[Id, Facts | None]) -> int:
        """Store facts of items, then use them; returns the version of the facts."""

        def put() -> Future[int]:
            return self.log.put_facts(
                [(plain_id(item), None if one is None else one.plain()) for item, one in facts.items()]
            )

        version = await asyncio.wrap_future(await self.reading(put))
        await self.reading(lambda: self._use_facts(facts, version))
        return version

    async def change_facts(self, item: Id, change: Callable[[Facts | None], Facts]) -> int:
        """Change the facts of an item from what the log has now, then use them; returns the version of the facts."""

        def changed(body: Mapping[str, Any] | None) -> Mapping[str, Any]:
            return change(None if body is None else Facts(**body)).plain()

        version, body = await asyncio.wrap_future(self.log.change_facts(plain_id(item), changed))
        await self.reading(lambda: self._use_facts({item: Facts(**body)}, version))
        return version

    def _use_facts(self, facts: Mapping[Id, Facts | None], version: int) -> None:
        """Use facts whose last has a version, the ones before it the versions before; never older ones for newer."""
        numbered = list(zip(facts.items(), range(version - len(facts) + 1, version + 1), strict=True))
        for start in range(0, len(numbered), _FACTS_AT_ONCE):
            with self.facts.lock:
                newer = {
                    item: (one, number)
                    for (item, one), number in numbered[start : start + _FACTS_AT_ONCE]
                    if number > self._fact_versions.get(item, 0)
                }
                self.facts.put({item: one for item, (one, _) in newer.items()})
                self._fact_versions.update({item: number for item, (_, number) in newer.items()})

    async def forget(self, user: Id, *, unlearn: bool) -> int:
        """Put the wish to forget a person into the log; returns its offset."""
        offset = await asyncio.wrap_future(self.log.forget(plain_id(user), unlearn=unlearn))
        owned = await self.reading(lambda: self._disowned(str(user)))
        if owned:
            await self.put_facts(owned)
        self.served.forget(user)
        self._hidden.pop(user, None)
        return offset

    def _disowned(self, owner: str) -> dict[Id, Facts | None]:
        with self.facts.lock:
            return self.facts.without_owner(owner)

    # Reading.

    async def lists(self, queries: Sequence[Query]) -> list[AnsweredList]:
        """A list for each query; while kernels are compiled, what is popular."""
        if not self.warm:
            plain = {"source": "popular", "candidates": None, "filter_seen": False}
            queries = [dataclasses.replace(query, **plain) for query in queries]  # type: ignore[arg-type]
        if not self._arms:
            return await self.coalescer.lists(queries)
        by_arm: dict[Coalescer, list[int]] = {}
        for place, query in enumerate(queries):
            arm = self.arm_of(query.user) if query.source == "model" else None
            by_arm.setdefault(self.coalescer if arm is None else arm.coalescer, []).append(place)
        answers: dict[int, AnsweredList] = {}
        for coalescer, places in by_arm.items():
            lists = await coalescer.lists([queries[place] for place in places])
            answers.update(zip(places, lists, strict=True))
        return [answers[place] for place in range(len(queries))]

    def alarms(self) -> dict[str, str]:
        """What an operator should know of this process, by name."""
        kernels = (
            None if self.warm or not self._loaded else "kernels are compiled, once per machine; lists are popular items"
        )
        named = {**self.log.alarms, "damage": self._damage, "load": self.problem, "api kernels": kernels}
        if self.replica.ready and self.log.offset - self.replica.position.offset > self.settings.max_lag:
            lag = self.log.offset - self.replica.position.offset
            named["api lag"] = f"answers are {lag} entries of the log behind; is the learner running?"
        return {name: text for name, text in named.items() if text is not None}

    async def reading(self, work: Callable[[], T]) -> T:
        """Run something that blocks in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def from_log(self, work: Callable[[LogReader], T]) -> T:
        """Read the log; each thread has a reader of its own."""
        return await self.reading(lambda: work(self._reader(LogReader)))

    async def from_steps(self, work: Callable[[StepReader], T], otherwise: T) -> T:
        """Read what the learner recorded, if it has recorded anything yet."""

        def read() -> T:
            if not hasattr(self._readers, "StepReader") and not place_of(self.settings).exists(BATCHES):
                return otherwise
            return work(self._reader(StepReader))

        return await self.reading(read)

    def _reader(self, kind: type[S]) -> S:
        reader: S | None = getattr(self._readers, kind.__name__, None)
        if reader is None:
            reader = kind(place_of(self.settings))
            setattr(self._readers, kind.__name__, reader)
        return reader

    async def status(self) -> dict[str, Any]:
        """Log, model, quality and freshness in one look."""
        now = time.time()

        def steps_of(steps: StepReader) -> dict[str, Any]:
            newest = steps.newest(_RECENT_STEPS)
            sizes = [step.about["events"] for step in newest if step.about.get("events")]
            quality = quality_between(steps.since(now - 3600.0), newest[0] if newest else None)
            return {
                "quality": {"HR@10": quality["models"].get("served", {}).get("HR@10")},
                "quarantined": len(steps.quarantined(1000)),
                "alarms": steps.named_alarms(),
                "learner": {"running": place_of(self.settings).runs("learner"), "starts": len(steps.epochs())},
                "batch_size": {
                    "median": float(np.median(sizes)) if sizes else None,
                    "most": self.settings.batch_most,
                    "tuned": self.replica.tuned,
                },
            }

        nothing: dict[str, Any] = {
            "quality": {"HR@10": None},
            "quarantined": 0,
            "alarms": {},
            "batch_size": {},
            "learner": {"running": False, "starts": 0},
        }
        learned = await self.from_steps(steps_of, nothing)
        alarms = dict(learned["alarms"])
        if not learned["learner"]["running"] and learned["learner"]["starts"]:
            alarms["learner"] = "the learner does not run; events are stored and lists go on, and nothing is learned."
        alarms |= self.alarms()
        model = await self.reading(self._model_now) if self.replica.ready else {"model": None, "users": 0, "items": 0}
        offset = self.log.offset
        known = self.replica.position.offset if self.replica.ready else 0
        return {
            "log": {"events": self.log.events, "offset": offset, "writable": self.log.writable},
            **model,
            **learned,
            "alarms": list(alarms.values()),
            "alarm_names": list(alarms),
            "remedies": [REMEDIES.get(name, "") for name in alarms],
            "freshness_s": self.freshness(),
            "lag": max(offset - known, 0),
            "reloads": dict(self.replica.reloads),
            "served": {"lists": self.served.lists.total(), "taken": self.served.taken.total()},
            "challengers": await self.reading(self._challengers),
            "uptime_s": round(now - self.started, 1),
        }

    def _challengers(self) -> dict[str, dict[str, Any]]:
        """How far each challenger is, which users get its lists, and how many of these were taken from."""
        shares, states = self.settings.shares(), challenger_states(self.settings.folder)
        for name, state in states.items():
            state["lag"] = max(self.log.offset - state.pop("offset"), 0)
            if name in shares:
                state |= {"share": shares[name], "lists": self.served.lists[name], "taken": self.served.taken[name]}
        return states

    async def metrics_text(self) -> bytes:
        """Everything for Prometheus."""
        status = await self.status()
        counters = await self.from_steps(lambda steps: quality_counters(steps.last()), quality_counters(None))
        families: dict[str, MetricFamily] = {
            "melon_quarantined": ("Batches that are quarantined.", (), [((), status["quarantined"])]),
            "melon_alarm": (
                "1 for each alarm that is raised now.", ("name",), [((name,), 1) for name in status["alarm_names"]]
            ),
            "melon_rows": (
                "Rows of the model.", ("table",), [(("users",), status["users"]), (("items",), status["items"])]
            ),
            "melon_served_total": (
                "Lists served to users, by the challenger that made them.", ("challenger",),
                [((name,), self.served.lists[name]) for name in {"", *self.served.lists}],
            ),
            "melon_taken_total": (
                "Lists from which something was taken.", ("challenger",),
                [((name,), self.served.taken[name]) for name in {"", *self.served.lists}],
            ),
            "melon_challenger_lag_events": (
                "Offsets that a challenger has not learned yet.", ("challenger",),
                [((name,), one["lag"]) for name, one in status["challengers"].items()],
            ),
            "melon_disk_free_bytes": ("Room where the log is.", (), [((), disk_free(self.settings.folder))]),
            **counters,
        }  # fmt: skip
        return self.metrics.text(families)

    def _model_now(self) -> dict[str, Any]:
        with self.replica.reading() as (model, position):
            return {"model": about_model(model, position), "users": len(model.users), "items": len(model.items)}

    async def wait_for(self, offset: int, seconds: float, user: Id | None = None) -> bool:
        """Wait until the model that answers a user knows an offset; False where it does not in time."""
        arm, end = self.arm_of(user), time.monotonic() + seconds
        # A delta of the served model wakes who waits; one of a challenger, or a checkpoint, wakes nobody.
        replica, patience = (self.replica, 1.0) if arm is None else (arm.replica, 0.01)
        while replica.position.offset < offset and (left := end - time.monotonic()) > 0:
            future = asyncio.get_running_loop().create_future()
            self._waiting[future] = offset
            try:
                await asyncio.wait((future,), timeout=min(left, patience))
            finally:
                del self._waiting[future]
        return replica.position.offset >= offset

    def freshness(self) -> dict[str, float | None]:
        """Seconds from acknowledged to known by this process, over the last events."""
        ages = np.array(self._freshness)
        if not len(ages):
            return {"p50": None, "p95": None}
        return {"p50": round(float(np.median(ages)), 4), "p95": round(float(np.quantile(ages, 0.95)), 4)}

    # The stream of batches.

    @contextlib.contextmanager
    def listening(self) -> Any:
        """A queue that gets a message for each batch, encoded; a reader that is too slow misses the oldest ones."""
        if len(self._listeners) >= MOST_LISTENERS:
            raise ServiceError(
                503, "busy", f"{MOST_LISTENERS} clients listen already.", hint="Try again later.", retry_after=30
            )
        queue: asyncio.Queue[str] = asyncio.Queue(_STREAM_BEHIND)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    def _applied(self, published: Published, position: Position) -> None:
        """Called in the replica's thread after each delta."""
        now = self.log.clock.now()
        ages = [max(now - moment, 0.0) for moment in published.arrived]
        if None in self.kinds.values():
            self._take_kinds()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is stopping
                self._loop.call_soon_threadsafe(self._tell, published, position, ages)

    def _tell(self, published: Published, position: Position, ages: list[float]) -> None:
        self._freshness.extend(ages)
        self.metrics.applied(position, ages, self.log.offset)
        for future, offset in self._waiting.items():
            if offset <= position.offset and not future.done():
                future.set_result(None)
        if not self._listeners:
            return
        content = {
            "batch": position.batch,
            "offset": position.offset,
            "kind": published.kind,
            "events": len(ages),
            "freshness_s": round(max(ages), 4) if ages else None,
        }
        message = f"id: {position.batch}\nevent: batch\ndata: {json.dumps(content)}\n\n"
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)
