"""Help pages of commands: flags without a type, paragraphs that wrap, defaults filled in, and examples at the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from melon.errors import SettingsError

_SHORT = {"help_option_names": ["--help", "-h"]}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "data prepare": (
        "melon data prepare ratings.csv.gz --out stream.parquet",
        "melon data prepare clicks.csv --user reader --item article --time clicked_at --out stream.parquet",
        "melon data prepare german.csv --separator ';' --encoding cp1252 --time-format '%d.%m.%Y' --out s.parquet",
        "melon data prepare plain.txt --no-header --user 1 --item 2 --time 4 --out stream.parquet",
        "melon data prepare sheet.csv --time-format excel --out stream.parquet",
        "melon data prepare names.csv --missing '' --out stream.parquet   (a user may be called NA)",
    ),
    "data info": ("melon data info stream.parquet",),
    "data synthetic": ("melon data synthetic news --events 20000 --out stream.parquet",),
    "advise": ("melon advise stream.parquet --minutes 10",),
    "evaluate": (
        "melon evaluate stream.parquet --json result.json --html result.html",
        "melon evaluate stream.parquet --recommender bpr --strategy melon --set lr=0.5",
        "melon evaluate stream.parquet --recommender bpr --strategy eals --budget 40 --save-config tuned.toml",
    ),
    "bench": (
        "melon bench stream.parquet --strategies default,eals,melon --seeds 3 --jobs 2 --out runs/first",
        "melon bench a.parquet b.parquet --recommenders bpr,ncf --split a=0.8,0.02,0.18 --out runs/second",
    ),
    "report": ("melon report runs/first", "melon report runs/first runs/second --out both"),
    "reproduce": ("melon reproduce --data raw/ --dry-run", "melon reproduce --data raw/ --quick"),
    "pretrain": (
        "melon pretrain stream.parquet --out model/",
        "melon pretrain stream.parquet --recommender bpr --strategy melon --budget 16 --out model/",
    ),
    "recommend": ("melon recommend model/ --user 42", "melon recommend model/ --user ann --user bob --k 5 --json"),
    "similar": ("melon similar model/ --item 1193 --k 5",),
    "learn": (
        "melon learn model/ new.csv",
        "melon learn model/ monday.csv tuesday.csv --user visitor --item page --time at --out newer/",
    ),
    "explain": ("melon explain model/ stream.parquet --out rates.png",),
    "log info": ("melon log info model.live",),
    "log verify": ("melon log verify model.live",),
    "log replay": (
        "melon log replay model.live --to 2026-11-16T18:00:00Z --out yesterday/",
        "melon log replay model.live --strategy melon --out other/",
    ),
    "log export": ("melon log export model.live --out events.ndjson",),
    "log import": ("melon log import model.live events.ndjson",),
    "log forget": ("melon log forget model.live ann",),
    "demo": ("melon demo --out demo",),
    "serve": (
        "melon serve model/",
        "melon serve model/ --config melon.toml --host 0.0.0.0 --port 80",
        "melon serve --demo",
    ),
    "keys add": ("melon keys add --data model.live --scope read --scope write --days 90 --note shop",),
    "keys list": ("melon keys list --data model.live",),
    "keys revoke": ("melon keys revoke 3f2a91bc --data model.live",),
    "backup": ("melon backup model.live /backups/2026-11-18",),
    "restore": ("melon restore /backups/2026-11-18 model.live --replace",),
    "doctor": ("melon doctor model/", "melon doctor --data model.live --forgotten ann@example.org"),
}


def epilog(command: str) -> str | None:
    """The end of a command's help: its examples, one to a line."""
    lines = EXAMPLES.get(command)
    return "\n".join(["Examples:", "", *lines]) if lines else None


#: Commands and options that have another name now, with what to write instead.
RENAMED = {
    "tune": "melon evaluate STREAM --budget N --save-config FILE",
    "--tune": "--budget N: settings are searched on each cell's selection window",
    "--trials": "--budget",
    "--full-ranking": "--lists, which is on by default: no item is left out that a real list would show",
    "--fading": "--half-life",
    "--device": "no option: tables are numpy arrays in the memory of the machine",
}


def refuse_old_name(word: str) -> None:
    """Raise for a command or an option of an earlier version, with its new name."""
    name = word.partition("=")[0]
    if name in RENAMED:
        raise SettingsError(f"{name} is no longer there. Use {RENAMED[name]}.")


class MelonCommand(TyperCommand):
    """A command whose help says `{name}` where a default or a list of names belongs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            if word.startswith("--") and word not in known:
                refuse_old_name(word)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.help = _wrapped(self.help)
        for parameter in self.params:
            parameter.help = _filled(getattr(parameter, "help", None))  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


class MelonGroup(TyperGroup):
    """A group of commands, in the same style."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        refuse_old_name(args[0])
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_flag_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.help = _wrapped(self.help)
        super().format_help(ctx, formatter)


class Commands(typer.Typer):
    """A Typer app of such commands; `-h` is `--help` everywhere."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=MelonGroup, context_settings=dict(_SHORT), **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=MelonCommand, context_settings=dict(_SHORT), **options)


def _without_flag_types(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


def _wrapped(text: str | None) -> str | None:
    """Paragraphs on one line each, so that the terminal breaks them; indented ones stay as they are."""
    if text is None:
        return None
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(one.split()) if not one.startswith("  ") else one for one in paragraphs)


def _filled(text: str | None) -> str | None:
    """`{batch_size}` becomes the default of that field of an evaluation, `{recommenders}` the names there are."""
    if text is None or "{" not in text:
        return text
    from dataclasses import fields

    from melon.fitting.config import CellConfig
    from melon.models.registry import RECOMMENDERS
    from melon.strategies.registry import STRATEGIES
    from melon.stream.candidates import MODES

    shown = {field.name: _shown(field.default) for field in fields(CellConfig)}
    names = {"recommenders": RECOMMENDERS.names(), "strategies": STRATEGIES.names(), "modes": MODES}
    return text.format_map(shown | {name: ", ".join(listed) for name, listed in names.items()})


def _shown(value: Any) -> str:
    return ",".join(f"{share:g}" for share in value) if isinstance(value, tuple) else str(value)
