"""`melon serve --demo`: a made-up news site replayed into a new service, with a line every two seconds."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from melon.client import Client
from melon.data.synthetic import synthetic_stream
from melon.errors import ServiceError
from melon.progress import say
from melon.service.config import ServeSettings
from melon.service.supervisor import Supervisor, listen

EVENTS = 60_000
_PER_SECOND = 300
_AT_ONCE = 15
_LINE_S = 2.0
#: What learns beside `auto`, which is served.
_CHALLENGERS = ("default=bpr/default", "melon=bpr/melon")


def run_demo_service(settings: ServeSettings) -> None:
    """Serve from a temporary folder until Ctrl-C, and let a stream of clicks come in."""
    os.environ.setdefault("MELON_LOG_LEVEL", "WARNING")  # lines about requests would hide ours
    with tempfile.TemporaryDirectory(prefix="melon-demo-") as folder:
        given = {"model": None, "data": Path(folder), "fit_after": 0}
        settings = settings.model_copy(update={**given, "challengers": settings.challengers or _CHALLENGERS})
        listening = listen(settings)
        stop = threading.Event()

        def started(url: str) -> None:
            say(f"serving on {url}; it knows nothing yet, and {_PER_SECOND} clicks a second come in. Ctrl-C stops it.")
            say(f"open {url}/ in a browser to see it learn, or try: curl '{url}/v1/recommendations/u17?k=5'")
            for work, client in (
                (_replay, Client(url, deadline=600.0)),
                (_watch, Client(url, timeout=_LINE_S, deadline=0.0)),
            ):
                threading.Thread(target=work, args=(client, stop), daemon=True).start()

        try:
            Supervisor(settings, listening).run(started)
        finally:
            stop.set()


def _replay(client: Client, stop: threading.Event) -> None:
    log = synthetic_stream("news", n_events=EVENTS, seed=0)
    users, items = log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist()
    with client:
        started = time.monotonic()
        for first in range(0, len(users), _AT_ONCE):
            while not stop.is_set() and time.monotonic() < started + first / _PER_SECOND:
                stop.wait(0.02)
            if stop.is_set():
                return
            events = [
                {"user": f"u{users[n]}", "item": f"i{items[n]}"}
                for n in range(first, min(first + _AT_ONCE, len(users)))
            ]
            try:
                client.record_many(events)
            except ServiceError as problem:
                if not stop.is_set():
                    say(str(problem))
    say("all clicks have come in; the service goes on until Ctrl-C.")


def _watch(client: Client, stop: threading.Event) -> None:
    """Say every other second how it goes, from the start on."""
    started = time.monotonic()
    with client:
        while not stop.wait(_LINE_S):
            try:
                say(line(client.status(), client.quality("1m")["models"]))
            except ServiceError:
                if not stop.is_set():
                    say(f"{time.monotonic() - started:>6.0f} s      the processes start")


def line(status: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """How the service does, in one line."""
    events = f"{status['log']['events']:>6} events"
    if not status["model"]:
        return f"{events}  stored; the learner starts"
    if not status["model"]["batch"]:
        reason = next(iter(status["alarms"]), "the learner loads its kernels")
        return f"{events}  stored; {reason}"
    shares = {name: about.get("HR@10") for name, about in models.items()}
    rates = "  ".join(f"{name} {share:.3f}" for name, share in shares.items() if share is not None)
    fresh = status["freshness_s"]["p95"] or 0.0
    batch = status["model"]["batch"]
    return f"{events}  batch {batch:>5}  HR@10 of a minute: {rates or '-'}  learned within {fresh:.2f} s"
