"""What an API process holds: the log, a replica, item facts, what was served, and who waits for an offset."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from melon.data.ids import Id, IdKind
from melon.errors import ServiceError
from melon.service.answers import ListMaker, Query, about_model
from melon.service.coalesce import Coalescer
from melon.service.config import ServeSettings
from melon.service.ids import plain_id, read_id
from melon.service.learner.guard import REMEDIES
from melon.service.log.base import Appended, Event, Position, Published
from melon.service.log.events import EventLog, LogReader
from melon.service.log.files import BATCHES, runs
from melon.service.log.steps import StepReader
from melon.service.metrics import MetricFamily, ServiceMetrics, disk_free, quality_between, quality_counters
from melon.service.replica import Replica
from melon.service.rules.items import Facts, ItemFacts
from melon.service.served import Served

T = TypeVar("T")
S = TypeVar("S", LogReader, StepReader)
#: The status gives the size of batches over this many.
_RECENT_STEPS = 50
_LOG = logging.getLogger("melon.service")
#: The status gives freshness over this many events.
_FRESHNESS = 4_096
#: Messages that a slow reader of the stream may be behind before older ones are dropped for it.
_STREAM_BEHIND = 256


class Backend:
    """One API process without its HTTP: made once, started by the application, stopped by it."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = ServiceMetrics()
        self.started = time.time()
        self.log = EventLog(settings.folder, settings)
        self.replica = Replica(settings.folder)
        self.facts = ItemFacts()
        self.served = Served(settings.served_most)
        self._maker = ListMaker(self.facts, self.served, self.hidden_from)
        self.coalescer = Coalescer(self.replica, self._maker, settings.queue_lists, self.metrics.scored)
        self.uses = settings.uses()
        self.problem: str | None = None
        self.stopping = False
        self._loaded = False
        self.kinds: dict[str, IdKind | None] = {"user": None, "item": None}
        self._hidden: dict[Id, set[Id]] = {}
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="reading")
        self._readers = threading.local()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._numbers = itertools.count()
        self._listeners: set[asyncio.Queue[Mapping[str, Any]]] = set()
        self._freshness: deque[float] = deque(maxlen=_FRESHNESS)

    # Life.

    async def start(self) -> None:
        """Begin to answer; the model is loaded beside it, and `ready` says when it is there."""
        self._loop = asyncio.get_running_loop()
        self.coalescer.start()
        self.replica.when_applied(self._applied)
        threading.Thread(target=self._load, name="loading", daemon=True).start()

    async def settle(self, seconds: float) -> None:
        """Wait for the model, but not for long."""
        end = time.monotonic() + seconds
        while not self.ready and self.problem is None and time.monotonic() < end:
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Answer what waits, commit what waits, and close everything."""
        self.stopping = True
        await asyncio.to_thread(self.coalescer.stop)
        await asyncio.to_thread(self.replica.stop)
        await asyncio.to_thread(self.log.close)
        self._pool.shutdown(wait=True)

    def _load(self) -> None:
        while True:
            try:
                self.replica.load(timeout=3600.0)
                self._take_kinds()
                self._warm_up()
                reader = LogReader(self.settings.folder)
                for item, _, facts in reader.facts():
                    self.facts.put({self.item(item): None if facts is None else Facts(**facts)})
                for event in reader.hidden():
                    self._hidden.setdefault(self.user(event.user), set()).add(self.item(event.item))
                reader.close()
                self.replica.start()
                self._loaded = True
            except Exception as problem:  # whatever it is, the next checkpoint may be better
                self.problem = str(problem)
                _LOG.exception("the model cannot be loaded")
                time.sleep(1.0)
            else:
                self.problem = None
                return

    def _warm_up(self) -> None:
        """Load compiled kernels, those that follow the learner too, and make one list before somebody waits for one."""
        with self.replica.reading() as (model, position):
            model.warm_up()
            users = model.users.ids([0]).tolist() if len(model.users) else [None]
            self._maker.make(model, position, [Query(user=users[0])], time.time())

    @property
    def ready(self) -> bool:
        return self._loaded and self.problem is None

    def require_ready(self) -> None:
        if not self.ready:
            why = self.problem or "the model is being loaded"
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

    def hidden_from(self, user: Id) -> frozenset[Id]:
        return frozenset(self._hidden.get(user, ()))

    async def put_facts(self, facts: Mapping[Id, Facts | None]) -> int:
        """Store facts of items, then use them; returns the version of the facts."""
        stored = [(plain_id(item), None if one is None else one.plain()) for item, one in facts.items()]
        version = await asyncio.wrap_future(self.log.put_facts(stored))
        await self.reading(lambda: self._use_facts(facts))
        return version

    def _use_facts(self, facts: Mapping[Id, Facts | None]) -> None:
        with self.facts.lock:
            self.facts.put(facts)

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

    async def reading(self, work: Callable[[], T]) -> T:
        """Run something that blocks in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def from_log(self, work: Callable[[LogReader], T]) -> T:
        """Read the log; each thread has a reader of its own."""
        return await self.reading(lambda: work(self._reader(LogReader)))

    async def from_steps(self, work: Callable[[StepReader], T], otherwise: T) -> T:
        """Read what the learner recorded, if it has recorded anything yet."""

        def read() -> T:
            if not (self.settings.folder / BATCHES).exists():
                return otherwise
            return work(self._reader(StepReader))

        return await self.reading(read)

    def _reader(self, kind: type[S]) -> S:
        reader: S | None = getattr(self._readers, kind.__name__, None)
        if reader is None:
            reader = kind(self.settings.folder)
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
                "learner": {"running": runs(self.settings.folder, "learner"), "starts": len(steps.epochs())},
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
        if not self.log.writable:
            alarms["log"] = "the log cannot be written, so posts are refused."
        model = await self.reading(self._model_now) if self.replica.ready else {"model": None, "users": 0, "items": 0}
        offset = self.log.offset
        known = self.replica.position.offset if self.replica.ready else 0
        return {
            "log": {"events": self.log.events, "offset": offset, "writable": self.log.writable},
            **model,
            **learned,
            "alarms": list(alarms.values()),
            "remedies": [REMEDIES.get(name, "") for name in alarms],
            "freshness_s": self.freshness(),
            "lag": max(offset - known, 0),
            "reloads": dict(self.replica.reloads),
            "served": {"lists": self.served.lists, "taken": self.served.taken},
            "uptime_s": round(now - self.started, 1),
        }

    async def metrics_text(self) -> bytes:
        """Everything for Prometheus."""
        status = await self.status()
        counters = await self.from_steps(lambda steps: quality_counters(steps.last()), quality_counters(None))
        families: dict[str, MetricFamily] = {
            "melon_log_offset": ("The last offset that is synced.", (), [((), status["log"]["offset"])]),
            "melon_quarantined": ("Batches that are quarantined.", (), [((), status["quarantined"])]),
            "melon_rows": (
                "Rows of the model.", ("table",), [(("users",), status["users"]), (("items",), status["items"])]
            ),
            "melon_replica_reloads_total": (
                "Checkpoints loaded.", ("why",), [((why,), count) for why, count in status["reloads"].items()]
            ),
            "melon_served_total": ("Lists served to users.", (), [((), self.served.lists)]),
            "melon_taken_total": ("Lists from which something was taken.", (), [((), self.served.taken)]),
            "melon_disk_free_bytes": ("Room where the log is.", (), [((), disk_free(self.settings.folder))]),
            **counters,
        }  # fmt: skip
        return self.metrics.text(families)

    def _model_now(self) -> dict[str, Any]:
        with self.replica.reading() as (model, position):
            return {"model": about_model(model, position), "users": len(model.users), "items": len(model.items)}

    async def wait_for(self, offset: int, seconds: float) -> bool:
        """Wait until the replica knows an offset; False where it does not in time."""
        if self.replica.position.offset >= offset:
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (offset, next(self._numbers), future))
        # A delta may have been applied between the look and the wait.
        self._wake(self.replica.position.offset)
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            # A checkpoint that was loaded instead of a delta wakes nobody.
            return self.replica.position.offset >= offset

    def freshness(self) -> dict[str, float | None]:
        """Seconds from acknowledged to known by this process, over the last events."""
        ages = np.array(self._freshness)
        if not len(ages):
            return {"p50": None, "p95": None}
        return {"p50": round(float(np.median(ages)), 4), "p95": round(float(np.quantile(ages, 0.95)), 4)}

    # The stream of batches.

    @contextlib.contextmanager
    def listening(self) -> Any:
        """A queue that gets a message for each batch; a reader that is too slow misses the oldest ones."""
        queue: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue(_STREAM_BEHIND)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    def _applied(self, published: Published, position: Position) -> None:
        """Called in the replica's thread after each delta."""
        now = time.time()
        ages = [max(now - moment, 0.0) for moment in published.arrived]
        if None in self.kinds.values():
            self._take_kinds()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is stopping
                self._loop.call_soon_threadsafe(self._tell, published, position, ages)

    def _tell(self, published: Published, position: Position, ages: list[float]) -> None:
        self._freshness.extend(ages)
        self.metrics.applied(position, ages, self.log.offset)
        self._wake(position.offset)
        message = {
            "batch": position.batch,
            "offset": position.offset,
            "kind": published.kind,
            "events": len(ages),
            "freshness_s": round(max(ages), 4) if ages else None,
        }
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)

    def _wake(self, offset: int) -> None:
        while self._waiters and (self._waiters[0][0] <= offset or self._waiters[0][2].done()):
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(True)
