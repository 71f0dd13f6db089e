"""Events from a broker into a service: exactly once, because their place in the broker is their id.

A batch is posted, and only when the service has synced it are its messages acknowledged (NATS) or its offsets committed
(Kafka). Whatever ends in between is delivered again, and the log drops what it knows by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from melon.client import Client
from melon.errors import MissingExtraError, ServiceError, SettingsError

logger = logging.getLogger("melon.bridge")
#: Messages that are posted together, at most, and seconds for which more of them are waited for.
_MOST, _WAIT_S = 1_000, 0.2
#: Seconds between two tries when service or broker cannot be reached.
_PAUSE_S = 1.0
_CONNECT_S = 5.0
#: A message as it is handed on: where it stands, and what it holds.
BridgeMessage = tuple[str, bytes]


@dataclass(frozen=True)
class EventSource:
    """A broker's address, and what is read there; `shown` is the address without a password."""

    kind: str
    server: str
    name: str
    options: Mapping[str, str]
    shown: str


def read_source(url: str) -> EventSource:
    """`nats://[user:password@]host:port/STREAM[?subject=…]` or `kafka://host:port[,host:port]/TOPIC[?setting=…]`."""
    parts = urlsplit(url)
    name, options = unquote(parts.path.strip("/")), {key: values[-1] for key, values in parse_qs(parts.query).items()}
    hosts = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{hosts}/{name}"
    if parts.scheme not in ("nats", "tls", "kafka") or not hosts or not name or "/" in name:
        raise SettingsError(
            f"{shown} is not a source; give nats://HOST:PORT/STREAM, tls://HOST:PORT/STREAM or kafka://HOST:PORT/TOPIC."
        )
    if parts.scheme == "kafka":
        return EventSource("kafka", hosts, name, options, shown)
    if options.keys() - {"subject"}:
        raise SettingsError(f"{shown}: {', '.join(options)} is not an option of a NATS source; the option is subject.")
    return EventSource("nats", f"{parts.scheme}://{parts.netloc}", name, options, shown)


@dataclass
class Bridge:
    """Takes batches from a source to a service, until it is stopped or (with `drain`) nothing waits any more."""

    source: EventSource
    client: Client
    group: str = "melon"
    drain: bool = False
    stopping: threading.Event = field(default_factory=threading.Event)
    accepted: int = 0
    known: int = 0
    refused: int = 0

    def run(self) -> None:
        if self.source.kind == "kafka":
            self._kafka()
        else:
            asyncio.run(self._nats())

    def post(self, messages: Sequence[BridgeMessage]) -> bool:
        """Post messages until the service has them; those that it cannot take are named in the log and left out.

        False where the bridge is stopped before that: then nothing may be acknowledged.
        """
        events = [event for place, content in messages if (event := self._event(place, content)) is not None]
        while events:
            try:
                done = self.client.record_many(events)
            except ServiceError as problem:
                if problem.status == 400 and problem.index is not None:
                    self._refuse(events.pop(problem.index)["event_id"], problem.message)
                    continue
                if problem.status not in (0, 429, 502, 503, 504, 507):
                    raise
                logger.warning("%s; trying again", problem)
                if self.stopping.wait(_PAUSE_S):
                    return False
                continue
            self.accepted, self.known = self.accepted + done.accepted, self.known + done.duplicates
            if done.conflicting:
                logger.error(
                    "%d messages have ids of other events: is %s another one by now?",
                    done.conflicting,
                    self.source.name,
                )
                self.refused += done.conflicting
            break
        return True

    def _event(self, place: str, content: bytes) -> dict[str, Any] | None:
        try:
            event = json.loads(content)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            self._refuse(place, "no JSON object")
            return None
        return {**event, "event_id": place}

    def _refuse(self, place: str, why: str) -> None:
        self.refused += 1
        logger.error("%s is left out: %s", place, why)

    # NATS JetStream.

    async def _nats(self) -> None:
        try:
            import nats
            from nats.errors import Error
            from nats.errors import TimeoutError as NothingWaits
        except ImportError:
            raise MissingExtraError("a bridge from NATS", "nats") from None
        try:  # a connection that is lost later is made again for ever; the first one shows whether the address is right
            connection = await asyncio.wait_for(
                nats.connect(self.source.server, max_reconnect_attempts=-1, reconnect_time_wait=1), _CONNECT_S
            )
        except (Error, OSError, TimeoutError) as problem:
            raise SettingsError(f"{self.source.shown} cannot be reached: {problem or 'no answer'}.") from None
        try:
            while not self.stopping.is_set():
                try:
                    made, waiting = await self._subscribe(connection)
                    while not self.stopping.is_set():
                        try:
                            messages = await waiting.fetch(_MOST, timeout=_WAIT_S)
                        except NothingWaits:
                            if self.drain and not connection.is_reconnecting and await _is_empty(waiting):
                                return
                            continue
                        named = [(f"nats/{made}/{one.metadata.sequence.stream}", one.data) for one in messages]
                        if await asyncio.to_thread(self.post, named):
                            for one in messages:
                                await one.ack()
                except (Error, OSError) as problem:  # the server is away, or has just come back
                    logger.warning("%s: %r; trying again", self.source.shown, problem)
                    await asyncio.sleep(_PAUSE_S)
        finally:
            with contextlib.suppress(Error, OSError):
                await connection.close()

    async def _subscribe(self, connection: Any) -> tuple[str, Any]:
        """The stream's name in ids, and its consumer. A stream that was deleted and made again counts from 1 again, so
        its time of creation is a part of the name.
        """
        from nats.js.errors import NotFoundError

        jetstream, name = connection.jetstream(), self.source.name
        try:
            stream = await jetstream.stream_info(name)
        except NotFoundError:
            raise SettingsError(f"{self.source.shown}: there is no stream {name!r}.") from None
        subject = self.source.options.get("subject", "")
        waiting = await jetstream.pull_subscribe(subject, durable=self.group, stream=name)
        created = stream.created
        stamp = created if isinstance(created, str) else f"{created:%Y%m%dT%H%M%S.%f}" if created else ""
        return f"{name}@{stamp}", waiting

    # Kafka.

    def _kafka(self) -> None:
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError:
            raise MissingExtraError("a bridge from Kafka", "kafka") from None
        settings = {
            **self.source.options,
            "bootstrap.servers": self.source.server,
            "group.id": self.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        try:
            consumer = Consumer(settings, logger=logger)
        except KafkaException as problem:
            raise SettingsError(f"{self.source.shown}: {problem.args[0].str()}.") from None
        consumer.subscribe([self.source.name])
        heard = time.monotonic()
        try:
            while not self.stopping.is_set():
                got = consumer.consume(_MOST, _WAIT_S)
                messages = [one for one in got if one.error() is None]
                for one in got:
                    if one.error() is not None:
                        logger.warning("%s: %s", self.source.shown, one.error())
                if not messages:
                    if self.drain and consumer.assignment() and _read_all(consumer):
                        return
                    if self.drain and time.monotonic() - heard > 60:
                        raise SettingsError(f"{self.source.shown} has sent nothing for a minute.")
                    continue
                heard = time.monotonic()
                named = [
                    (f"kafka/{one.topic()}/{one.partition()}/{one.offset()}", one.value() or b"") for one in messages
                ]
                if self.post(named):
                    with contextlib.suppress(KafkaException):  # they come again, and are known
                        consumer.commit(asynchronous=False)
        finally:
            consumer.close()


async def _is_empty(waiting: Any) -> bool:
    about = await waiting.consumer_info()
    return not about.num_pending and not about.num_ack_pending


def _read_all(consumer: Any) -> bool:
    """Whether everything that the assigned partitions have was handed on."""
    ends = [consumer.get_watermark_offsets(one, timeout=5)[1] for one in consumer.assignment()]
    return all(
        at.offset >= end or end == 0 for at, end in zip(consumer.position(consumer.assignment()), ends, strict=True)
    )
