"""Compiles kernel modules with numba and keeps the machine code on disk for the next process.

The only module that imports numba. A kernel module is written out as one file in the user's cache folder,
under a name that is a hash of everything that matters; numba keeps what it compiled beside it. So one compilation
serves every process, every installation and every clone of the same version on a machine.

A child process compiles, and this one reads the result from disk. Code that numba compiles and code that it reads back
share parts in different ways, which shows in the last digits; like this, the first run has the bits of all others. Nor
does a background warm-up keep a service from answering.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
from numba.core import sigutils
from numba.core.registry import cpu_target

from melon.atomic import write_text
from melon.kernels.modules import MODULES, KernelModule
from melon.kernels.types import Fields

#: No reordering of floating-point operations. NUMBA_BOUNDSCHECK=1 checks every index.
EXACT: dict[str, Any] = {"error_model": "numpy", "nogil": True}
#: Everything that turns sums into vectors, and nothing that lets a NaN or an infinity go unseen.
FAST: dict[str, Any] = {**EXACT, "fastmath": {"reassoc", "nsz", "arcp", "contract"}}

CompiledFunction = Callable[..., Any]
logger = logging.getLogger("melon")

_temporary: list[tempfile.TemporaryDirectory[str]] = []
#: Python's syntax trees count their depth once for all threads: two that build trees at a time raise SystemError.
_one_writer = threading.Lock()


def entry(function: CompiledFunction) -> CompiledFunction:
    """A kernel that is called from Python; numba keeps it on disk with all its parts."""
    return _decorated(function, FAST, cache=True)


def part(function: CompiledFunction) -> CompiledFunction:
    """A kernel that only other kernels call; it is compiled into them."""
    return _decorated(function, FAST)


def exact_entry(function: CompiledFunction) -> CompiledFunction:
    """An entry whose floating-point operations stay in order."""
    return _decorated(function, EXACT, cache=True)


def exact_part(function: CompiledFunction) -> CompiledFunction:
    """A part whose floating-point operations stay in order."""
    return _decorated(function, EXACT)


def compiled(name: str) -> SimpleNamespace:
    """The entries of a kernel module by name, from disk, where the first process on this machine puts them.

    Where the cache folder cannot be used (read-only, full, a broken file), a temporary one serves this process.
    """
    kernels, home = MODULES[name], cache_folder()
    with _one_writer:
        text = kernels.text()
    try:
        home.mkdir(parents=True, exist_ok=True)
        file = _written(home, name, kernels, text)
        with _one_process_at_a_time(file):
            entries = _entries(kernels, file)
    except Exception as problem:  # any error of the folder: try a fresh one
        entries = _entries(kernels, _written(_temporary_folder(home, problem), name, kernels, text))
    return SimpleNamespace(**entries)


def cache_folder() -> Path:
    """Where compiled kernels are kept: in the user's cache."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "melon" / "kernels"


def _decorated(function: CompiledFunction, options: dict[str, Any], **more: Any) -> CompiledFunction:
    dispatcher: CompiledFunction = numba.njit(**options, **more)(function)
    return dispatcher


def _entries(kernels: KernelModule, file: Path) -> dict[str, CompiledFunction]:
    """The compiled functions of a file; its module is what numba's cache on disk belongs to."""
    entries = _functions(kernels, file)
    if not all(any(Path(each.stats.cache_path).glob(f"{file.stem}.{name}-*.nbi")) for name, each in entries.items()):
        _compile_in_child(kernels, file)
    _compile(kernels, entries)
    return entries


def _functions(kernels: KernelModule, file: Path) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # what is read back from disk looks its module up by name
    spec.loader.exec_module(module)
    return {name: getattr(module, name) for name in kernels.signatures}


def _compile(kernels: KernelModule, entries: dict[str, Any]) -> None:
    """Compile each function for its types, or read it from disk; always in this order, since they share parts.

    Other types are compiled on demand where that cannot change a result, and refused elsewhere.
    """
    for name, signature in (*kernels.signatures.items(), *kernels.also.items()):
        entries[name].compile(tuple(_type(each) for each in signature))
    if not kernels.exact:
        for function in entries.values():
            function.disable_compile()


def _compile_in_child(kernels: KernelModule, file: Path) -> None:
    if not sys.executable or getattr(sys, "frozen", False):
        return  # no Python to start: this process compiles
    began = time.monotonic()
    if kernels.takes:
        logger.warning("compiling %s, once per machine; this takes %s", kernels.title, kernels.takes)
    name = next(name for name, each in MODULES.items() if each is kernels)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "melon.kernels.build", name, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"the compiler ended with {done.returncode}"])[-1])
    if kernels.takes:
        logger.warning("%s is compiled (%.0f s)", kernels.title, time.monotonic() - began)


def _type(written: str | Fields) -> Any:
    if isinstance(written, Fields):
        types = [_type(each) for each in written.types]
        if len(set(types)) == 1:  # numba has a type of its own for these
            return numba.types.NamedUniTuple(types[0], len(types), written.of)  # type: ignore[no-untyped-call]
        return numba.types.NamedTuple(types, written.of)  # type: ignore[no-untyped-call]  # numba is typed in parts
    return sigutils.normalize_signature(f"({written},)")[0][0]  # type: ignore[no-untyped-call]


def _written(home: Path, name: str, kernels: KernelModule, text: str) -> Path:
    """The file that holds the text, written once."""
    source, machine = inspect.getsource(sys.modules[__name__]), cpu_target.target_context.codegen().magic_tuple()
    machine = *machine, numba.config.BOUNDSCHECK  # type: ignore[attr-defined]  # numba is typed in parts
    matters = (text, kernels.signatures, kernels.also, source, numba.__version__, sys.implementation.cache_tag, machine)
    file = home / f"melon_{name}_{hashlib.sha256(repr(matters).encode()).hexdigest()[:16]}.py"
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)
    return file


@contextmanager
def _one_process_at_a_time(file: Path) -> Iterator[None]:
    """Let one process compile a file, so that the others find its work; other versions do not wait."""
    with file.with_suffix(".lock").open("w") as lock:
        with suppress(ImportError):  # where there are no such locks, two processes may do the same work
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _temporary_folder(home: Path, problem: Exception) -> Path:
    """A folder that lasts as long as this process; says once why."""
    if not _temporary:
        _temporary.append(tempfile.TemporaryDirectory(prefix="melon-kernels-"))
        logger.warning(
            "compiled kernels cannot be kept in %s (%s), so each process compiles them anew; "
            "let XDG_CACHE_HOME name a folder that can be written",
            home,
            problem,
        )
    return Path(_temporary[0].name)


if __name__ == "__main__":
    _kernels = MODULES[sys.argv[1]]
    _compile(_kernels, _functions(_kernels, Path(sys.argv[2])))
