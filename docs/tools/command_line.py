"""The reference of the command line as Markdown, generated from the commands themselves."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any


def reference() -> str:
    """One section for each command: what it does, arguments and options by panel, examples."""
    import typer

    from melon.cli import app

    return "\n".join(_section(name, command) for name, command in commands(typer.main.get_command(app)))


def commands(group: Any, path: str = "melon") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name; groups are walked, hidden commands left out."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def _section(name: str, command: Any) -> str:
    parameters = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    usage = " ".join([name, *(each.name.upper() for each in arguments), "[OPTIONS]"])
    lines = [f"## {name}\n", _prose(command.help or ""), f"```\n{usage}\n```\n"]
    panels: dict[str, list[Any]] = {}
    for each in parameters:
        panels.setdefault(getattr(each, "rich_help_panel", None) or "", []).append(each)
    if parameters:
        lines.append("| argument or option | meaning |\n|---|---|")
        for panel, members in panels.items():
            lines += [f"| **{panel}** | |"] if panel else []
            lines += [f"| {_names(each)} | {_cell(each.help or '')} |" for each in members]
    if command.epilog:
        lines.append(f"\n{_examples(command.epilog)}")
    return "\n".join([*lines, ""])


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    names = [*parameter.opts, *parameter.secondary_opts]
    kind = getattr(parameter.type_descriptor.annotation, "__name__", "").lower()
    metavar = "" if parameter.is_flag else f" {parameter.metavar or kind.upper()}".rstrip()
    metavar = metavar.replace("|", "\\|")
    return ", ".join(f"`{name}{metavar if name == names[-1] else ''}`" for name in names)


def _cell(text: str) -> str:
    from melon.cli.options import _filled

    return " ".join((_filled(text) or "").split()).replace("|", "\\|")


def _prose(text: str) -> str:
    return re.sub(r"\n{2,}", "\n\n", text.replace("\b", "").strip()) + "\n"


def _examples(epilog: str) -> str:
    lines = [line.strip() for line in epilog.replace("\b", "").splitlines() if line.strip()]
    return "\n".join(["```", *(line for line in lines if line != "Examples:"), "```"])


if __name__ == "__main__":
    sys.stdout.write(reference())
