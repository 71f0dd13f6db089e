"""Help pages, and options that several commands share, each declared once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

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
        "melon data prepare names.csv --missing '' --out stream.parquet   (a user may be called NA)",
    ),
    "data info": ("melon data info stream.parquet",),
    "data synthetic": ("melon data synthetic news --events 20000 --out stream.parquet",),
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
    "log copy": ("melon log copy model.live 'postgresql://melon@db.example/melon'",),
    "log forget": ("melon log forget model.live ann",),
    "demo": ("melon demo --out demo",),
    "serve": (
        "melon serve model/",
        "melon serve model/ --config melon.toml --host 0.0.0.0 --port 80",
        "melon serve --demo",
    ),
    "bridge": ("melon bridge nats://127.0.0.1:4222/CLICKS http://127.0.0.1:8000",),
    "keys add": ("melon keys add --data model.live --scope read --scope write --days 90 --note shop",),
    "keys list": ("melon keys list --data model.live",),
    "keys revoke": ("melon keys revoke 3f2a91bc --data model.live",),
    "backup": ("melon backup model.live /backups/2026-11-18",),
    "restore": ("melon restore /backups/2026-11-18 model.live --replace",),
    "promote": ("melon promote rates model.live",),
    "rollback": ("melon rollback model.live",),
    "doctor": ("melon doctor model/", "melon doctor --data model.live --forgotten ann@example.org"),
}


def epilog(command: str) -> str | None:
    """The end of a command's help: its examples, one to a line."""
    lines = EXAMPLES.get(command)
    return "\n".join(["Examples:", "", *lines]) if lines else None


#: Commands and options that have another name now, with what to write instead.
RENAMED = {
    "advise": "melon evaluate STREAM, or melon bench STREAM --out DIR and melon report DIR, which says what to take",
    "tune": "melon evaluate STREAM --budget N --save-config FILE",
    "--tune": "--budget N: settings are searched on each cell's selection window",
    "--trials": "--budget",
    "--full-ranking": "--lists, which is on by default: no item is left out that a real list would show",
    "--fading": "--half-life",
    "--align-ties": "no option: parts and batches are cut by count",
    "--rates": "melon explain MODEL STREAM, which draws the learning rates of any batch",
    "--k-core": "--min-interactions, or prepare the stream again",
    "--device": "no option: tables are numpy arrays in the memory of the machine",
}


def refuse_old_name(word: str) -> None:
    """Raise for a command or an option of an earlier version, with its new name."""
    name = word.partition("=")[0]
    if name in RENAMED:
        raise SettingsError(f"{name} was removed. Use {RENAMED[name]}.")


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

    from melon.data.raw.formats import FORMATS
    from melon.fitting.config import CellConfig
    from melon.models.registry import RECOMMENDERS
    from melon.strategies.registry import STRATEGIES
    from melon.stream.candidates import MODES

    shown = {field.name: _shown(field.default) for field in fields(CellConfig)}
    names = {"recommenders": RECOMMENDERS.names(), "strategies": STRATEGIES.names(), "modes": MODES, "formats": FORMATS}
    return text.format_map(shown | {name: ", ".join(listed) for name, listed in names.items()})


def _shown(value: Any) -> str:
    return ",".join(f"{share:g}" for share in value) if isinstance(value, tuple) else str(value)


MODEL, PROTOCOL, CHOICE, OUTPUT, MACHINE = "Model", "Protocol", "Choosing settings", "Output", "Machine"
_FILE, _TIMES = "Raw files (guessed and printed if not given)", "Times"

Stream = Annotated[Path, typer.Argument(help="A prepared stream (melon data prepare makes one).")]
Model = Annotated[Path, typer.Argument(help="The folder of a saved model (melon pretrain and Melon.save make one).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Ray = Annotated[
    str | None,
    typer.Option(metavar="auto | ADDRESS", help="Run on a Ray cluster instead.", rich_help_panel=MACHINE),
]


def _option(kind: Any, panel: str, text: str, *names: str, **more: Any) -> Any:
    """An option that may be left out."""
    return Annotated[kind | None, typer.Option(*names, help=text, rich_help_panel=panel, **more)]


#: Options that are fields of an evaluation (`CellConfig`), and the two that fill in several of them.
EVALUATION: Mapping[str, Any] = {
    "recommender": _option(str, MODEL, "Recommender (gives items scores): {recommenders}. (default: {recommender})"),
    "strategy": _option(str, MODEL, "Strategy (updates the recommender): {strategies}. (default: {strategy})"),
    "preset": _option(str, MODEL, "Settings that are fixed together: default, or the paper's. (default: {preset})"),
    "pretrain": _option(
        str,
        MODEL,
        "shared: one pre-trained recommender for all strategies; own: each trains its own. (default: {pretrain})",
    ),
    "half_life": _option(
        str,
        MODEL,
        "Half-life of idle items: off, auto (searched or learned), or a number of interactions. "
        "(default: auto with --strategy auto, else {half_life})",
    ),
    "assignments": _option(
        list[str],
        MODEL,
        "Fix a setting of the strategy, or recommender.KEY or pretrain.KEY; it is then not searched.",
        "--set",
        metavar="KEY=VALUE",
    ),
    "config": _option(Path, MODEL, "A TOML or JSON file with any of these options; the command line wins."),
    "split": _option(str, PROTOCOL, "Shares of training, validation and test, in time order. (default: {split})"),
    "batch_size": _option(int, PROTOCOL, "Interactions per mini-batch. (default: {batch_size})"),
    "candidates": _option(str, PROTOCOL, "Where candidates come from: {modes}. (default: {candidates})"),
    "negatives": _option(int, PROTOCOL, "Candidates beside the item taken. (default: {negatives})"),
    "lists": _option(
        bool,
        PROTOCOL,
        "Also rank by lists of the whole catalogue, as users see them. (default: yes)",
        "--lists/--no-lists",
    ),
    "retrain_every": _option(
        int,
        PROTOCOL,
        "Also evaluate a model that is trained from scratch every N interactions.",
        metavar="N",
    ),
    "seed": _option(int, PROTOCOL, "Seed of everything random. (default: {seed})"),
    "epochs": _option(int, CHOICE, "Pre-training passes, at most; fewer if fewer are better."),
    "budget": _option(
        int,
        CHOICE,
        "Trials on the selection window, the same for every strategy; 0 takes the defaults. (default: {budget})",
    ),
    "minutes": _option(
        float,
        CHOICE,
        "Minutes for choosing; then the best so far is taken. (default: 30 with --strategy auto, else no limit)",
    ),
    "threads": _option(int, MACHINE, "Threads that compute. (default: {threads})"),
}
#: The same where nothing has to be named.
AUTO_EVALUATION: Mapping[str, Any] = {
    **EVALUATION,
    "recommender": _option(str, MODEL, "Recommender: auto, {recommenders}. (default: auto, which is blend)"),
    "strategy": _option(
        str, MODEL, "Update strategy: auto, {strategies}. (default: auto, which is default with --half-life auto)"
    ),
}
#: What a raw file is like.
RAW: Mapping[str, Any] = {
    "user": _option(str, _FILE, "User column: its name, or its number."),
    "item": _option(str, _FILE, "Item column: its name, or its number."),
    "time": _option(str, _FILE, "Time column: its name, or its number."),
    "format": _option(str, _FILE, "Published data by name: {formats}; it says which columns are which."),
    "separator": _option(str, _FILE, "Separator of fields: ',' ';' '|' '::' tab or another character."),
    "header": _option(
        bool,
        _FILE,
        "Whether the first line names the columns; if not, give columns by number: --user 1.",
        "--header/--no-header",
    ),
    "encoding": _option(str, _FILE, "Encoding of the text: utf-8, cp1252, latin-1, utf-16, …"),
    "time_unit": _option(str, _TIMES, "s, ms, us or ns, if times are numbers."),
    "time_format": _option(str, _TIMES, "How dates are written: '%d.%m.%Y %H:%M', '%m/%d/%Y', …"),
}


def takes(
    parameter: str,
    options: Mapping[str, Any],
    *left_out: str,
    only: tuple[str, ...] | None = None,
    combine: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command shared options; those that were used come as one mapping in `parameter`.

    The options stand where that parameter stands in the command's signature: all of them but those that are
    `left_out`, or `only` some. `combine` makes the mapping of what was given.
    """
    names = [name for name in only or options if name not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for own in signature.parameters.values():
            shared = [inspect.Parameter(name, own.kind, default=None, annotation=options[name]) for name in names]
            parameters += shared if own.name == parameter else [own]

        @wraps(command)
        def run(**given: Any) -> None:
            used = {name: value for name in names if (value := given.pop(name)) is not None}
            command(**given, **{parameter: combine(used)})

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def requested(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command as fields of an evaluation: the config file first, then the command line."""
    from melon.fitting.auto import AUTO, SETTINGS
    from melon.fitting.config import parse_assignments, parse_half_life, read_config
    from melon.stream.split import parse_split

    sections = parse_assignments(given.pop("assignments", []))
    request: dict[str, Any] = read_config(given.pop("config")) if "config" in given else {}
    names = {"recommender", "strategy"}
    if request.pop("auto", False) and not names & given.keys():
        request |= dict.fromkeys(names, AUTO)
    for name, parse in (("half_life", parse_half_life), ("split", parse_split)):
        if name in given:
            given[name] = parse(given[name])
    if given.get("recommender", AUTO) not in (AUTO, request.get("recommender")):  # settings of auto's blend are not its
        request["recommender_settings"] = {
            name: value for name, value in request.get("recommender_settings", {}).items() if name not in SETTINGS
        }
    request |= given
    for section, field in (
        ("strategy", "settings"),
        ("recommender", "recommender_settings"),
        ("pretrain", "pretrain_settings"),
    ):
        request[field] = {**request.get(field, {}), **sections[section]}
    return request
