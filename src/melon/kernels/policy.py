"""Loads kernels: compiled by numba, or the same source as plain Python (the variable MELON_KERNEL).

Plain Python serves where numba cannot compile, about a thousand times slower, and says so once. Its results differ from
compiled ones in the last digits only. The choice never depends on time: a kernel that is being compiled is waited for.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any, overload

import numpy as np

from melon.errors import SettingsError

VARIABLE, CHOICES = "MELON_KERNEL", ("numba", "python")
_RENAMED = {"auto": "numba", "torch": "python"}

#: The kernels of a module, each an attribute.
Kernels = SimpleNamespace
logger = logging.getLogger("melon")

#: What a scalar argument becomes; numba converts it too.
_SCALARS: dict[Any, Callable[[Any], Any]] = {
    "int64": np.int64,
    "uint64": np.uint64,
    "float32": np.float32,
    "float64": np.float64,
    "boolean": bool,
}

_compiled: dict[str, Kernels] = {}
_plain: dict[str, Kernels] = {}
#: Why a module is not compiled.
_failed: dict[str, str] = {}
_reported: set[str] = set()
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)


@overload
def load(name: str) -> Kernels: ...


@overload
def load(name: str, *, dtype: object) -> Kernels | None: ...


def load(name: str, *, dtype: object = None) -> Kernels | None:
    """The kernels of a module, compiled now unless they are ready; None for numbers other than float32."""
    if dtype is not None and str(dtype).removeprefix("torch.") != "float32":
        return None
    ready = _compiled if os.environ.get(VARIABLE, "") in {"", "numba"} else _plain
    return ready.get(name) or _prepared(name)


def warm_up(*names: str, in_background: bool = False) -> threading.Thread | None:
    """Have kernel modules ready before they are needed: now, or by a background thread, which is returned."""
    _choice()
    if not in_background:
        _prepare(names)
        return None
    thread = threading.Thread(target=_prepare, args=(names,), name="melon-kernel-warm-up", daemon=True)
    thread.start()
    return thread


def require_compiled() -> None:
    """Refuse to run kernels as plain Python, whose last digits differ from those of compiled ones."""
    load("stream")
    if _choice() == "python" or _failed:
        reason = next(iter(_failed.values()), f"{VARIABLE}=python")
        raise SettingsError(
            f"kernels are not compiled here ({reason}), so replicas would differ from the learner; "
            f"unset {VARIABLE} and install a numba that works on this machine."
        )


def _choice() -> str:
    choice = os.environ.get(VARIABLE, "") or "numba"
    if choice in _RENAMED:
        raise SettingsError(f"{VARIABLE}={choice!r} is now called {_RENAMED[choice]!r}.")
    if choice not in CHOICES:
        raise SettingsError(f"{VARIABLE}={choice!r} is unknown; choose one of: {', '.join(CHOICES)}.")
    return choice


def _prepare(names: Sequence[str]) -> None:
    for name in names:
        _prepared(name)


def _prepared(name: str) -> Kernels:
    """Kernels that are compiled or read from disk once for each process; plain ones where that fails."""
    choice = _choice()
    with _locks[name]:
        if choice == "numba" and name not in _compiled and name not in _failed:
            try:
                from melon.kernels import build

                _compiled[name] = build.compiled(name)
            except Exception as problem:  # numba fails in many ways: no wheel, no compiler for the CPU, no memory
                _failed[name] = f"{type(problem).__name__}: {problem}"
        if choice == "numba" and name in _compiled:
            return _compiled[name]
        if name not in _plain:
            _plain[name] = _as_python(name)
    _report(_failed[name] if choice == "numba" else f"{VARIABLE}=python")
    return _plain[name]


def _report(reason: str) -> None:
    if reason not in _reported:
        _reported.add(reason)
        logger.warning("kernels run as plain Python, about a thousand times slower (%s)", reason)


def _as_python(name: str) -> Kernels:
    from melon.kernels.modules import MODULES

    functions = {each: function for module in MODULES[name].modules for each, function in vars(module).items()}
    entries = MODULES[name].signatures.items()
    return SimpleNamespace(**{each: _with_types(functions[each], signature) for each, signature in entries})


def _with_types(function: Callable[..., Any], signature: tuple[Any, ...]) -> Callable[..., Any]:
    """The function with scalars of the types that numba gives them, and overflow as silent as there."""
    to_types = [_SCALARS.get(each) if isinstance(each, str) else None for each in signature]

    @wraps(function)
    def called(*given: Any) -> Any:
        typed = (value if to_type is None else to_type(value) for value, to_type in zip(given, to_types, strict=True))
        with np.errstate(all="ignore"):
            return function(*typed)

    return called


def _forget_threads() -> None:
    """A forked process does not inherit the thread that compiles."""
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
