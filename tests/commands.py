"""How a command ended, for tests that run `melon` inside their process (the fixture `run`, or `melon`)."""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return " ".join(self.err.split())


Run = Callable[..., Ended]


def melon(*words: object) -> Ended:
    """`melon …` inside this process, for fixtures that several tests share."""
    from melon import cli

    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["melon", *map(str, words)]),
        mock.patch.dict(os.environ, COLUMNS="300"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
    return Ended(code, out.getvalue(), err.getvalue())
