"""The `melon` command: thin; everything heavy is imported when a command runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from melon.cli.data import data
from melon.cli.experiments import bench, demo, report, reproduce
from melon.cli.log import bridge, log, promote, rollback
from melon.cli.models import evaluate, explain, learn, pretrain, recommend, similar
from melon.cli.options import Commands, epilog
from melon.cli.serve import backup, doctor, keys, restore, serve
from melon.errors import MelonError, SettingsError, StoppedError

app = Commands(
    name="melon",
    help="A recommender that learns while it is used: predict each batch, learn from it, serve the next one better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_COMMANDS = (pretrain, recommend, similar, learn, evaluate, bench, report, explain, reproduce, demo)
for _command in (*_COMMANDS, serve, promote, rollback, doctor, backup, restore, bridge):
    app.command(epilog=epilog(_command.__name__))(_command)
for _name, _group in (("data", data), ("keys", keys), ("log", log)):
    app.add_typer(_group, name=_name)
    for _registered in _group.registered_commands:
        _registered.epilog = epilog(f"{_name} {_registered.name}")

_STOPPED = 130  # what a shell says of a command that Ctrl-C ended


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """A recommender that learns while it is used."""
    if version:
        from melon import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; a user's mistake ends with one line that says what to do, never with a traceback."""
    try:
        code = app(prog_name="melon", standalone_mode=False)
    except MelonError as problem:
        codes = {SettingsError: 2, StoppedError: _STOPPED}
        _fail(str(problem), codes.get(type(problem), 1))
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped.", _STOPPED)
    except Exception as problem:
        # Typer's own usage errors know how to show themselves; anything else is our fault and keeps its traceback.
        show = getattr(problem, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(problem, "exit_code", 2))
    else:
        if code == _STOPPED:  # Typer keeps Ctrl-C to itself
            _fail("stopped.", _STOPPED)
        sys.exit(code)


def _fail(message: str, code: int) -> None:
    typer.secho(f"melon: {message}", err=True, fg=None if not sys.stderr.isatty() else "red")
    sys.exit(code)
