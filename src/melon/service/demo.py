"""`melon serve --demo`: a made-up news site replayed into a new service, with a line every two seconds."""

from __future__ import annotations

import os
import subprocess
import sys
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
from melon.service.keys import local_token
from melon.service.supervisor import Supervisor, listen

EVENTS = 60_000
_PER_SECOND = 300
_AT_ONCE = 15
_LINE_S = 2.0
#: What learns beside `auto`, which is served: fitted on clicks of the day before, in the background.
_STRATEGIES = ("default", "melon")
_YESTERDAY, _FIT_MINUTES = 6_000, 0.5


def run_demo_service(settings: ServeSettings) -> None:
    """Serve from a temporary folder until Ctrl-C, and let a stream of clicks come in."""
    os.environ.setdefault("MELON_LOG_LEVEL", "WARNING")  # lines about requests would hide ours
    with tempfile.TemporaryDirectory(prefix="melon-demo-") as folder:
        given = {"model": None, "data": Path(folder) / "live", "fit_after": 0}
        fits = {} if settings.challengers else {name: Path(folder) / name for name in _STRATEGIES}
        challengers = settings.challengers or tuple(f"{name}={path}" for name, path in fits.items())
        settings = settings.model_copy(update={**given, "challengers": challengers})
        listening = listen(settings)
        stop = threading.Event()
        supervisor = Supervisor(settings, listening, later=fits)

        def started(url: str) -> None:
            say(f"serving on {url}; no model yet, {_PER_SECOND} clicks a second. Ctrl-C stops it.")
            page = f"{url}/#key={local_token(settings.folder)}"
            say(f"open {page} in a browser to see it learn, or try: curl '{url}/v1/recommendations/u17?k=5'")
            threading.Thread(target=_challenge, args=(supervisor, fits, stop), daemon=True).start()
            for work, client in (
                (_replay, Client(url, deadline=600.0)),
                (_watch, Client(url, timeout=_LINE_S, deadline=0.0)),
            ):
                threading.Thread(target=work, args=(client, stop), daemon=True).start()

        try:
            supervisor.run(started)
        finally:
            stop.set()


def _challenge(supervisor: Supervisor, fits: Mapping[str, Path], stop: threading.Event) -> None:
    """Fit the challengers in processes that step back for others; each joins, and catches up, when it is there."""
    for name, path in fits.items():
        say(
            f"challenger {name}: BPR with {name} is fitted on {_YESTERDAY} earlier clicks of the site, beside serving "
            f"(settings are chosen for {60 * _FIT_MINUTES:.0f} s at most); then it learns every click of today, too."
        )
        words = [sys.executable, "-c", _FIT, name, str(path), str(os.getpid())]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                if stop.wait(0.2):
                    process.kill()
        if stop.is_set():
            return
        if process.returncode:
            say(f"challenger {name} could not be fitted; the demo continues without it.")
        else:
            supervisor.add_challenger(name)


_FIT = """
import os, sys
from pathlib import Path
from melon.service.demo import fit_challenger
from melon.service.process import die_with
die_with(int(sys.argv[3])); os.nice(5); fit_challenger(sys.argv[1], Path(sys.argv[2]))
"""


def fit_challenger(strategy: str, folder: Path) -> None:
    """Save a model that was fitted on the clicks before those that are replayed."""
    from melon.estimator import Melon

    # In batches of the size that comes in: that is what MeLON's rates are trained for.
    model = Melon("bpr", strategy, budget=2, minutes=_FIT_MINUTES, batch_size=_AT_ONCE, threads=1, progress=False)
    model.fit([(user, item, n) for n, (user, item) in enumerate(_clicks()[:_YESTERDAY])]).save(folder)


def _clicks() -> list[tuple[str, str]]:
    """The site's clicks in order: those of yesterday, then those that come in."""
    log = synthetic_stream("news", n_events=_YESTERDAY + EVENTS, seed=0)
    users, items = log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist()
    return [(f"u{user}", f"i{item}") for user, item in zip(users, items, strict=True)]


def _replay(client: Client, stop: threading.Event) -> None:
    clicks = _clicks()[_YESTERDAY:]
    with client:
        started = time.monotonic()
        for first in range(0, len(clicks), _AT_ONCE):
            while not stop.is_set() and time.monotonic() < started + first / _PER_SECOND:
                stop.wait(0.02)
            if stop.is_set():
                return
            try:
                client.record_many([{"user": user, "item": item} for user, item in clicks[first : first + _AT_ONCE]])
            except ServiceError as problem:
                if not stop.is_set():
                    say(str(problem))
    say("all clicks are posted; the service runs until Ctrl-C.")


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
