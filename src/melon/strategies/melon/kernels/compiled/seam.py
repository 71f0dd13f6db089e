"""Where numba is met: how kernels are compiled, and where what was compiled is kept for the next process."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba

from melon.strategies.melon.kernels.compiled import generator

#: Everything that turns sums into vectors, and nothing that lets a NaN or an infinity go unseen.
OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "nsz", "arcp", "contract"},
    "error_model": "numpy",
    "boundscheck": False,
    "nogil": True,
}

Compiled = Callable[..., Any]
logger = logging.getLogger("melon")


@dataclass(frozen=True)
class Kernels:
    """The compiled entries for a width (the padded one), ready to be called."""

    width: int
    rows_forward: Compiled
    rows_backward: Compiled
    fold: Compiled
    shared_forward: Compiled
    shared_backward: Compiled
    attend: Compiled
    attend_back: Compiled
    unit_terms: Compiled
    unit_terms_back: Compiled


def part(function: Compiled) -> Compiled:
    """A kernel that only other kernels call; it is compiled into them."""
    made: Compiled = numba.njit(**OPTIONS)(function)
    return made


def entry(function: Compiled) -> Compiled:
    """A kernel that is called from Python, kept on disk with all its parts."""
    made: Compiled = numba.njit(cache=True, **OPTIONS)(function)
    return made


@dataclass(frozen=True)
class Suite:
    """Kernels that are compiled together: the file's name, what a person reads, the text, and each entry's types."""

    name: str
    title: str
    takes: str
    text: str
    signatures: Mapping[str, tuple[Any, ...]]


def build(width: int) -> Kernels:
    """The pair kernels for a padded width."""
    suite = Suite("pairs", "the pair kernel", "about half a minute", generator.source(width), _signatures())
    return Kernels(width, **compiled(suite))


def compiled(suite: Suite) -> dict[str, Compiled]:
    """The entries of a suite: from disk where a process on this machine has built them, else compiled now."""
    # Whatever ails the usual place (read-only, full, a broken file), a fresh one serves this process.
    with suppress(Exception), _alone(_home()) as home:
        return _built(suite, _anchor(home, suite))
    return _built(suite, _anchor(Path(tempfile.mkdtemp(prefix="melon-")), suite))


def _built(suite: Suite, anchor: Path) -> dict[str, Compiled]:
    """Load the text as a module of its own; its file is what numba's cache on disk hangs on."""
    spec = importlib.util.spec_from_file_location(anchor.stem, anchor)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[anchor.stem] = module  # what is read back from disk looks its module up by name
    spec.loader.exec_module(module)
    entries: dict[str, Any] = {name: getattr(module, name) for name in suite.signatures}
    new = not all(any(Path(each.stats.cache_path).glob(f"*.{name}-*.nbi")) for name, each in entries.items())
    began = time.monotonic()
    if new:
        logger.warning("compiling %s, once per machine; this takes %s", suite.title, suite.takes)
    for name, each in entries.items():
        each.compile(suite.signatures[name])
    if new:
        logger.warning("%s is compiled (%.0f s)", suite.title, time.monotonic() - began)
    return entries


def _signatures() -> dict[str, tuple[Any, ...]]:
    flat, table, cube, sums = (
        numba.float32[::1],
        numba.float32[:, ::1],
        numba.float32[:, :, ::1],
        numba.float64[:, ::1],
    )
    whole, number = numba.int64, numba.float32
    blocks = numba.types.UniTuple(whole, 2)  # type: ignore[no-untyped-call]  # numba is typed in parts
    places, flags, doubles = numba.int64[::1], numba.boolean[:, ::1], numba.float64[::1]
    rows = (blocks, whole, places, places, places, *[table] * 6, flat)
    shared = (blocks, whole, table, cube, cube, table, table, flat, number, number)
    return {
        "rows_forward": (*rows, flat),
        "rows_backward": (*rows, table, sums, table, table, flat),
        "fold": (table, places, table),
        "shared_forward": (*shared, table),
        "shared_backward": (*shared, table, sums, table, table),
        "attend": (flat, number, table, cube, flags, places, table, table, table),
        "attend_back": (table, cube, flags, places, table, table, table, doubles),
        "unit_terms": (flat, table, table, places, places, *[table] * 4, flat, table, table, table),
        "unit_terms_back": (flat, places, places, *[table] * 3, flat, *[table] * 5, sums, sums, sums),
    }


def _home() -> Path:
    """Where kernels are kept: in the user's cache."""
    told = os.environ.get("XDG_CACHE_HOME")
    return (Path(told) if told else Path.home() / ".cache") / "melon" / "kernels"


def _anchor(home: Path, suite: Suite) -> Path:
    """The file that holds the text, written once, under a name that changes with anything that matters."""
    text = suite.text
    matters = text + inspect.getsource(sys.modules[__name__]) + numba.__version__
    anchor = home / f"melon_{suite.name}_{hashlib.sha256(matters.encode()).hexdigest()[:16]}.py"
    if not anchor.exists() or anchor.read_text(encoding="utf-8") != text:
        handle, name = tempfile.mkstemp(dir=home)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(anchor)
    return anchor


@contextmanager
def _alone(home: Path) -> Iterator[Path]:
    """Let one process at a time compile, so that the others find its work."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        with suppress(ImportError):  # where there are no such locks, two processes may do the same work
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield home
