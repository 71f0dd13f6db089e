"""Every error that melon raises on purpose.

    MelonError
    ├── DataError          a file, a row or a column of input
    ├── StreamError        a split, a part or a candidate set that cannot be made
    ├── SettingsError      a name or a value that was asked for and does not exist
    ├── CheckpointError    a saved model that cannot be written or read
    ├── LearningError      a model that left the finite numbers
    ├── ConformanceError   a recommender or strategy that breaks a rule of melon.testing
    ├── NotFittedError     a question to a model that has learned nothing yet
    ├── MissingExtraError  an optional dependency that is not installed
    ├── LogError           a log of events that cannot be opened, read or written
    │   ├── StorageError   the files or the database of a log cannot be used now
    │   ├── BusyError      too much waits to be written; try again shortly
    │   ├── HeldError      another process has the log for itself
    │   └── DiskFullError  no room; nothing of the last append was stored
    ├── ServiceError       a request that the service refuses, or a service that cannot be reached
    └── StoppedError       a command that was stopped and can go on

A message names the value, the place and the way out.
"""

from __future__ import annotations

from collections.abc import Iterable


class MelonError(Exception):
    """Base of all errors that are about the user's input or environment rather than a fault of melon's."""


class DataError(MelonError):
    """Input that cannot be read as interactions."""


class StreamError(MelonError):
    """A stream that cannot be split or sampled as asked."""


class SettingsError(MelonError):
    """An unknown name, or a value outside its range."""


class CheckpointError(MelonError):
    """A checkpoint that cannot be written, or that is truncated, foreign or from another configuration."""


class LearningError(MelonError):
    """A non-finite score, loss or parameter; the message names the batch."""


class ConformanceError(MelonError):
    """A recommender or a strategy fails a check of `melon.testing`; the message names the check and the values."""


class NotFittedError(MelonError):
    """A model was asked before it was fitted."""


class MissingExtraError(MelonError):
    """An optional dependency is needed; the message says what to install."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the extra {extra!r}: pip install 'melon-recommender[{extra}]' "
            f"(in a clone of melon: pip install -e '.[{extra}]')."
        )
        self._given = purpose, extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        """For processes that hand it on."""
        return type(self), self._given


class LogError(MelonError):
    """A service's log that belongs to another model or process, is damaged, or cannot be written."""


class StorageError(LogError):
    """The files or the database of a service cannot be used now; nothing is wrong with what was asked."""


class BusyError(LogError):
    """More is waiting than the log takes on; the caller should try again shortly."""


class HeldError(LogError):
    """Another process has the right to write; `url` is where it takes requests, if it does."""

    def __init__(self, message: str, url: str | None) -> None:
        super().__init__(message)
        self.url = url


class DiskFullError(LogError):
    """The disk is full: nothing of the append was stored, and everything acknowledged before is still there."""


class ServiceError(MelonError):
    """A request that the service refuses: HTTP status, a code to act on, a hint, and the index of the bad event.

    A client that cannot reach the service raises it with the status 0.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        index: int | None = None,
        request: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.status, self.code, self.message = status, code, message
        self.hint, self.index, self.request, self.retry_after = hint, index, request, retry_after


class StoppedError(MelonError):
    """A command was stopped from outside (Ctrl-C); the message says how to go on."""


#: Settings, presets and choices of earlier versions, by the name that they have now.
RENAMED = {
    "born": "known",
    "fading": "half_life",
    "fading_speed": "half_life_speed",
    "head_practice_lr": "head_training_lr",
    "linear": "stream",
    "practice_l2": "meta_training_l2",
    "practice_lr": "meta_training_lr",
    "practised": "stream",
}


#: Settings that are gone: the value under which a model is what it was, and what to do instead of another one.
GONE: dict[str, tuple[object, str]] = {
    "bounded": (True, "T is a factor on the row's own step or, with residual = false, the new row itself"),
    "decay_clock": ("interactions", "half-lives are counted in interactions"),
    "fading_clock": ("interactions", "half-lives are counted in interactions"),
    "half_life_speed": (0.1, "a half-life is searched, and learned by forms that are meta-trained through the stream"),
    "variant": ("A", "S2Meta has the cell of its publication alone"),
}


def unknown_name(kind: str, name: str, choices: Iterable[str]) -> SettingsError:
    """The error for a name that is not one of the choices: its new name, or the nearest one and all of them."""
    import difflib

    names = sorted(choices)
    if RENAMED.get(name) in names:
        return SettingsError(f"{kind} {name!r} is now called {RENAMED[name]!r}.")
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return SettingsError(f"unknown {kind} {name!r}.{guess} Choose one of: {', '.join(names)}.")


def require_plots(purpose: str) -> None:
    """Raise now if nothing can be drawn here; `purpose` begins the message."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise MissingExtraError(purpose, "plots") from None


def require_serving(purpose: str) -> None:
    """Raise now if no service can be run here."""
    from importlib.util import find_spec

    if not all(
        find_spec(name)
        for name in ("apsw", "fastapi", "httptools", "prometheus_client", "pydantic_settings", "uvicorn")
    ):
        raise MissingExtraError(purpose, "serve")


def require_torch(purpose: str) -> None:
    """Raise now if PyTorch is not installed."""
    if not has_torch():
        raise MissingExtraError(purpose, "torch")


def has_torch() -> bool:
    """Whether PyTorch can be imported."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True
