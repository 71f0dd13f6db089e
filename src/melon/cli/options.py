"""Options that several commands share, each declared once: `takes` gives a command some of them as one mapping."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from melon.data.raw.formats import FORMATS

MODEL, PROTOCOL, CHOICE, OUTPUT, MACHINE = "Model", "Protocol", "Choosing settings", "Output", "Machine"
_FILE, _TIMES = "What raw files are like (guessed and said when left out)", "Times"

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
    "recommender": _option(str, MODEL, "What scores: {recommenders}. (default: {recommender})"),
    "strategy": _option(str, MODEL, "What updates it: {strategies}. (default: {strategy})"),
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
        "Fix a setting of the strategy, or recommender.KEY or pretrain.KEY; what is fixed is not searched.",
        "--set",
        metavar="KEY=VALUE",
    ),
    "config": _option(Path, MODEL, "A TOML or JSON file with any of these options; the command line wins."),
    "split": _option(str, PROTOCOL, "Shares of training, validation and test, in time order. (default: {split})"),
    "batch_size": _option(int, PROTOCOL, "Interactions per mini-batch. (default: {batch_size})"),
    "candidates": _option(str, PROTOCOL, "Where negatives come from: {modes}. (default: {candidates})"),
    "negatives": _option(int, PROTOCOL, "Negatives beside each positive. (default: {negatives})"),
    "align_ties": _option(bool, PROTOCOL, "Cut parts and batches only where the time changes.", "--align-ties"),
    "lists": _option(
        bool,
        PROTOCOL,
        "Rank by lists of the whole catalogue, as users see them, beside sampled candidates. (default: yes)",
        "--lists/--no-lists",
    ),
    "retrain_every": _option(
        int,
        PROTOCOL,
        "Beside the baselines, evaluate a model that is trained from scratch every N interactions.",
        metavar="N",
    ),
    "seed": _option(int, PROTOCOL, "Root of all randomness. (default: {seed})"),
    "epochs": _option(int, CHOICE, "At most this many pre-training passes; fewer where fewer do better."),
    "budget": _option(
        int,
        CHOICE,
        "Trials on the selection window, the same for every strategy; 0 takes the defaults. (default: {budget})",
    ),
    "minutes": _option(
        float,
        CHOICE,
        "Minutes of choosing, then the best so far is taken. (default: 30 with --strategy auto, else no limit)",
    ),
    "threads": _option(int, MACHINE, "Threads of the arithmetic. (default: {threads})"),
}
#: The same where nothing has to be named.
AUTO_EVALUATION: Mapping[str, Any] = {
    **EVALUATION,
    "recommender": _option(str, MODEL, "What scores: auto, {recommenders}. (default: auto, which is blend)"),
    "strategy": _option(
        str, MODEL, "What updates it: auto, {strategies}. (default: auto, which is default with --half-life auto)"
    ),
}
#: What a raw file is like.
RAW: Mapping[str, Any] = {
    "format": _option(str, _FILE, f"The raw format: {', '.join(FORMATS)}."),
    "user": _option(str, _FILE, "User column: its name, or its number."),
    "item": _option(str, _FILE, "Item column: its name, or its number."),
    "time": _option(str, _FILE, "Time column: its name, or its number."),
    "separator": _option(str, _FILE, "What stands between fields: ',' ';' '|' tab or another character."),
    "header": _option(
        bool,
        _FILE,
        "Whether the first line names the columns; without, give columns by number: --user 1.",
        "--header/--no-header",
    ),
    "encoding": _option(str, _FILE, "Encoding of the text: utf-8, cp1252, latin-1, utf-16, …"),
    "time_unit": _option(str, _TIMES, "s, ms, us or ns, where times are numbers."),
    "time_format": _option(
        str, _TIMES, "How dates are written: '%d.%m.%Y %H:%M', '%m/%d/%Y', …; or excel for its day numbers."
    ),
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
