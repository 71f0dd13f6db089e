"""A replica: a copy of the model that follows the learner's deltas and answers bit for bit as the learner would."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from melon.errors import CheckpointError, LogError, MelonError, StorageError
from melon.learning.deltas import Delta, apply, chained
from melon.learning.model import LiveModel
from melon.service.log.base import Position, Published
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.files import DELTAS, Closing, Place
from melon.service.log.steps import DeltaReader

logger = logging.getLogger("melon.service")
_POLL = 0.004
#: Seconds between two looks whether the learner has made the feed anew.
_RECONNECT = 0.1
_PATIENCE = 1.0

Applied = Callable[[Published, Position], None]


class Replica(Closing):
    """The model as an API process has it. `start` follows in a thread; answers are read inside `reading`."""

    def __init__(self, place: Place | Path) -> None:
        self.place = Place.of(place)
        self._checkpoints = Checkpoints(self.place)
        self._lock = threading.RLock()
        self._moved = threading.Condition()
        self._model: LiveModel | None = None
        self._position: Position | None = None
        self._feed: DeltaReader | None = None
        self._inode = self._refused = 0
        self._next_look = 0.0
        self._wanted = False  # a delta waits for its turn
        self._calls: list[Applied] = []
        self._loaded: Callable[[], None] = lambda: None
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._run, name="replica", daemon=True)
        self.reloads: Counter[str] = Counter()
        #: When and why checkpoints were loaded after the first one.
        self.reloaded: deque[tuple[float, str]] = deque(maxlen=100)
        #: Interactions in a batch when the model's settings were chosen, where that is known.
        self.tuned: int | None = None

    @property
    def ready(self) -> bool:
        """Whether there is a model to answer from."""
        return self._model is not None

    @property
    def position(self) -> Position:
        """Where the model stands."""
        if self._position is None:
            raise LogError(f"no model was loaded from {self.place} yet; wait until the learner has made one.")
        return self._position

    def load(self, timeout: float = 60.0) -> None:
        """Load the newest checkpoint, waiting for the learner to write the first one."""
        end = time.monotonic() + timeout
        while not self._reload("start"):
            if time.monotonic() > end or self._stop.is_set():
                raise CheckpointError(f"the learner has written no checkpoint in {self.place} in {timeout:g} seconds.")
            time.sleep(0.05)

    def start(self) -> None:
        """Follow the feed in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    @contextmanager
    def reading(self) -> Iterator[tuple[LiveModel, Position]]:
        """The model and where it stands; no delta is applied inside the block, so keep it short."""
        if self._wanted:
            # A lock is not fair: who takes it again and again would keep the next delta out.
            with self._moved:
                self._moved.wait_for(lambda: not self._wanted, _PATIENCE)
        with self._lock:
            position = self.position
            assert self._model is not None
            yield self._model, position

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Wait until the model knows an offset; False where it does not in time."""
        with self._moved:
            return self._moved.wait_for(lambda: self._position is not None and self._position.offset >= offset, timeout)

    def when_applied(self, call: Applied) -> None:
        """Have a function called after each delta, in the replica's thread."""
        self._calls.append(call)

    def when_loaded(self, call: Callable[[], None]) -> None:
        """Have a function called after each checkpoint that was loaded, in the thread that loaded it."""
        self._loaded = call

    def follow(self) -> bool:
        """Apply what has been published since; whether there was anything."""
        if self._model is None or not self._connected():
            return False
        assert self._feed is not None
        if not self._feed.changed():
            return False
        progress = False
        while some := self._feed.after(self.position.batch):
            for delta in some:
                why = self._applied(delta)
                if why is not None:
                    # A checkpoint leads past what cannot be applied; until there is one, the model stays.
                    again, self._refused = self._refused == delta.number, delta.number
                    if not self._reload(why, beyond=-1 if why == "digest" and not again else self.position.batch):
                        self._feed.forget_version()
                        return progress
                    progress = True
                    break
                progress = True
        newest = max(self._checkpoints.numbers(), default=self.position.batch)
        if newest != self.position.batch and self._feed.digest(self.position.batch) not in (None, self.position.digest):
            # A power cut took the step that this model knows, and the learner has taken another one instead.
            self._feed.forget_version()
            return self._reload("digest")
        if self._feed.newest() < self.position.batch and newest < self.position.batch:
            self._feed.forget_version()
            return self._reload("anew")  # the learner has begun again, behind this model
        return progress or self._reload("gap", beyond=self.position.batch)

    def _applied(self, published: Published) -> str | None:
        """Apply one delta; says why it cannot be, where it cannot."""
        before = self.position
        if published.number != before.batch + 1:
            return "gap"
        if published.kind == "switch":
            return "switch"
        if chained(before.digest, published.content) != published.digest:
            return "digest"
        delta = Delta.from_bytes(published.content)
        position = Position(before.version, published.number, published.offset, published.digest)
        self._wanted = True
        try:
            with self._lock:
                assert self._model is not None
                apply(self._model, delta)
                self._position = position
        finally:
            self._wanted = False
            with self._moved:
                self._moved.notify_all()
        for call in self._calls:
            call(published, position)
        return None

    def _reload(self, why: str, beyond: int = -1) -> bool:
        """Load the newest checkpoint if it is of a later step; False where there is none."""
        try:
            numbers = [number for number in self._checkpoints.numbers() if number > beyond]
            saved = self._checkpoints.newest() if numbers else None
        except (MelonError, OSError) as error:  # being written, or just removed
            logger.info("no checkpoint could be loaded: %s", error)
            return False
        if saved is None:
            return False
        if self._model is not None:
            saved.model.warm_up()  # another recommender has other kernels; lists go on meanwhile
        with self._lock:
            self._model, self._position = saved.model, saved.position
        self.tuned = saved.extra.get("estimator", {}).get("batch_size")
        del saved
        self.reloads[why] += 1
        if why != "start":
            self.reloaded.append((time.time(), why))
        self._loaded()
        with self._moved:
            self._moved.notify_all()
        return True

    def _connected(self) -> bool:
        """Whether the feed is open: the file that is there now, which a learner may have made anew."""
        now = time.monotonic()
        if self._feed is not None and now < self._next_look:
            return True
        self._next_look = now + _RECONNECT
        try:
            inode = 0 if self.place.url else (self.place.folder / DELTAS).stat().st_ino
            if self._feed is None or inode != self._inode:
                if self._feed is not None:
                    self._feed.close()
                self._feed, self._inode = DeltaReader(self.place), inode
        except (OSError, LogError):
            return False
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                moved = self.follow()
            except StorageError as problem:
                logger.warning("the replica stands still: %s", problem)
                self._stop.wait(_PATIENCE)
                continue
            except Exception:
                logger.exception("the replica could not follow; it loads a checkpoint")
                self._reload("error")
                self._stop.wait(_PATIENCE)
                continue
            if not moved:
                self._stop.wait(_POLL)
