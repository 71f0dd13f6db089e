"""How a command ended, for tests that run `melon` inside their process (the fixture `run`)."""

from collections.abc import Callable
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return " ".join(self.err.split())


Run = Callable[..., Ended]
