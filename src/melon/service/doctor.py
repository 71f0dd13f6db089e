"""`melon doctor`: what a service needs, looked at one by one; and whether anything still names a forgotten person."""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from melon.errors import MelonError
from melon.service.config import LOOPBACK, ServeSettings
from melon.service.keys import keys_of
from melon.service.learner.replaying import describe
from melon.service.learner.start import check_together
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import LogReader
from melon.service.log.files import BATCHES, EVENTS, LEAST_SQLITE, Place, place_of
from melon.service.log.steps import StepReader
from melon.service.metrics import disk_free

_LEAST_DISK = 1 << 30


class Finding(NamedTuple):
    """One thing that was looked at."""

    ok: bool
    what: str
    found: str


def examine(settings: ServeSettings, forgotten: str | None = None) -> list[Finding]:
    """Look at everything; a look that fails is a finding, never an error."""
    looks: list[tuple[str, Callable[[], str]]] = [
        ("Python", lambda: sys.version.split()[0]),
        ("SQLite", _sqlite),
        ("model", lambda: _model(settings)),
        ("folder", lambda: _folder(settings.folder)),
        ("disk", lambda: _disk(settings.folder)),
        ("log", lambda: _log(place_of(settings))),
        ("keys", lambda: _keys(settings)),
    ]
    if forgotten is not None:
        looks.append((f"traces of {forgotten!r}", lambda: _traces(settings.folder, forgotten)))
    return [_finding(what, look) for what, look in looks]


def _finding(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(True, what, look())
    except (MelonError, OSError, ValueError) as problem:
        return Finding(False, what, str(problem))


def _sqlite() -> str:
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split(".")[:3]) < LEAST_SQLITE:
        raise ValueError(f"{version} may lose a write-ahead log; pip install 'apsw>=3.51.3'")
    return version


def _model(settings: ServeSettings) -> str:
    if settings.model is None:
        if not place_of(settings).exists(BATCHES):
            return "none: the service starts cold"
        about = describe(place_of(settings))
        return f"{about['model']} of the folder, steps: {about['steps']}"
    from melon.learning.model import LiveModel

    model, _ = LiveModel.load(settings.model)
    return f"{model.updater.strategy.name} on {model.updater.recommender.name}, {len(model.items)} items"


def _folder(folder: Path) -> str:
    if not folder.exists():
        above = next(path for path in folder.absolute().parents if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise ValueError(f"{folder} cannot be made: {above} cannot be written")
        return f"{folder} is not there yet; the first start makes it"
    probe = folder / f"doctor.{os.getpid()}"
    started = time.perf_counter()
    try:
        with probe.open("wb") as file:
            file.write(b"melon")
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)
    return f"{folder} can be written; one sync takes {(time.perf_counter() - started) * 1000:.1f} ms"


def _disk(folder: Path) -> str:
    free = disk_free(folder)
    if free < _LEAST_DISK:
        raise ValueError(f"{free / 1e9:.1f} GB free; make room before the log is full")
    return f"{free / 1e9:.1f} GB free"


def _log(place: Place) -> str:
    if not place.exists(EVENTS):
        return "none yet"
    with LogReader(place) as reader:
        offset, events = reader.last()
        if place.exists(BATCHES):
            with StepReader(place) as steps:
                check_together(place, steps, Checkpoints(place), reader)
    return f"{events} events, offset {offset}; steps and checkpoints fit"


def _keys(settings: ServeSettings) -> str:
    file = keys_of(settings)
    keys = file.keys()
    if file.problem is not None:
        raise ValueError(file.problem)
    if not keys and file.required:
        raise ValueError(f"none, so all requests are refused; make one with melon keys add --data {settings.folder}")
    if not keys and settings.host not in LOOPBACK:
        raise ValueError(f"none, and {settings.host} can be reached from outside")
    if keys and file.path.stat().st_mode & 0o077:
        raise ValueError(f"others may read {file.path}; chmod 600 it")
    ended = sum(key.expires is not None and key.expires <= time.time() for key in keys.values())
    return f"{len(keys)} keys, {ended} of them ended" if keys else "none: loopback only"


def _traces(folder: Path, user: str) -> str:
    """Look for an id in every file: as bytes, which finds texts in databases, JSON and tables of ids alike."""
    needles = {user.encode(), json.dumps(user).strip('"').encode()}
    if len(user) < 4 or user.isdigit():
        raise ValueError("an id this short or of digits only cannot be told from other bytes; look with melon log info")
    places = [str(path) for path in sorted(folder.rglob("*")) if path.is_file() and _contains(path, needles)]
    if places:
        raise ValueError(f"still in {', '.join(places)}; files are rewritten when the learner has saved past it")
    return f"none in {folder}"


def _contains(path: Path, needles: set[bytes]) -> bool:
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(needle) >= 0 for needle in needles)
