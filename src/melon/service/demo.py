"""`melon serve --demo`: a made-up news site replayed into a new service, with a line every two seconds."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from melon.client import Client
from melon.console import say
from melon.data.synthetic import synthetic_stream
from melon.errors import ServiceError
from melon.service.config import ServeSettings
from melon.service.supervisor import Supervisor, listen, url_of

EVENTS = 60_000
_PER_SECOND = 300
_AT_ONCE = 15
_LINE_S = 2.0


def run_demo_service(settings: ServeSettings) -> None:
    """Serve from a temporary folder until Ctrl-C, and let a stream of clicks come in."""
    os.environ.setdefault("MELON_LOG_LEVEL", "WARNING")  # lines about requests would hide ours
    with tempfile.TemporaryDirectory(prefix="melon-demo-") as folder:
        settings = settings.model_copy(update={"model": None, "data": Path(folder), "fit_after": 0})
        listening = listen(settings)
        url, stop = url_of(settings, listening), threading.Event()
        replay = threading.Thread(target=_replay, args=(Client(url, deadline=120.0), stop), daemon=True)

        def started(url: str) -> None:
            say(f"serving on {url}; it knows nothing yet, and {_PER_SECOND} clicks a second come in. Ctrl-C stops it.")
            say(f"try: curl '{url}/v1/recommendations/u17?k=5'")
            replay.start()

        try:
            Supervisor(settings, listening).run(started)
        finally:
            stop.set()


def _replay(client: Client, stop: threading.Event) -> None:
    log = synthetic_stream("news", n_events=EVENTS, seed=0)
    users, items = log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist()
    with client:
        started = last = time.monotonic()
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
                if time.monotonic() - last >= _LINE_S:
                    last = time.monotonic()
                    _line(client)
            except ServiceError as problem:
                if not stop.is_set():
                    say(str(problem))


def _line(client: Client) -> None:
    status = client.status()
    models = client.quality("1m")["models"]
    shares = {name: about.get("HR@10") for name, about in models.items()}
    rates = "  ".join(f"{name} {share:.3f}" for name, share in shares.items() if share is not None)
    fresh = status["freshness_s"]["p95"]
    model = status["model"] or {"batch": 0}
    events, batch = status["log"]["events"], model["batch"]
    say(f"{events:>6} events  batch {batch:>5}  HR@10 of a minute: {rates or '-'}  learned within {fresh or 0:.2f} s")
