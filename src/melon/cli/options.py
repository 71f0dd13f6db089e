"""Options that several commands share, and what they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL, PROTOCOL, CHOICE, OUTPUT, MACHINE = "Model", "Protocol", "Choosing settings", "Output", "Machine"

Stream = Annotated[Path, typer.Argument(help="A prepared stream (melon data prepare makes one).")]
Recommender = Annotated[
    str | None,
    typer.Option(help="What scores: {recommenders}. (default: {recommender})", rich_help_panel=MODEL),
]
Strategy = Annotated[
    str | None,
    typer.Option(help="What updates it: {strategies}. (default: {strategy})", rich_help_panel=MODEL),
]
AutoRecommender = Annotated[
    str | None,
    typer.Option(
        "--recommender",
        help="What scores: auto, {recommenders}. (default: auto, which is blend)",
        rich_help_panel=MODEL,
    ),
]
AutoStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        help="What updates it: auto, {strategies}. (default: auto, which is default with --fading auto)",
        rich_help_panel=MODEL,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings that are fixed together: default, or the paper's. (default: {preset})", rich_help_panel=MODEL
    ),
]
PretrainMode = Annotated[
    str | None,
    typer.Option(
        "--pretrain",
        help="shared: one pre-trained recommender for all strategies; own: each trains its own. (default: {pretrain})",
        rich_help_panel=MODEL,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Fix a setting of the strategy, or recommender.KEY or pretrain.KEY; what is fixed is not searched.",
        rich_help_panel=MODEL,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A TOML or JSON file with any of these options; the command line wins.", rich_help_panel=MODEL),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Shares of training, validation and test, in time order. (default: {split})",
        rich_help_panel=PROTOCOL,
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Interactions per mini-batch. (default: {batch_size})", rich_help_panel=PROTOCOL)
]
CandidateMode = Annotated[
    str | None,
    typer.Option(help="Where negatives come from: {modes}. (default: {candidates})", rich_help_panel=PROTOCOL),
]
Negatives = Annotated[
    int | None, typer.Option(help="Negatives beside each positive. (default: {negatives})", rich_help_panel=PROTOCOL)
]
AlignTies = Annotated[
    bool | None,
    typer.Option("--align-ties", help="Cut parts and batches only where the time changes.", rich_help_panel=PROTOCOL),
]
FullRanking = Annotated[
    bool | None,
    typer.Option("--full-ranking", help="Also rank among the whole catalogue.", rich_help_panel=PROTOCOL),
]
RetrainEvery = Annotated[
    int | None,
    typer.Option(
        help="Beside the baselines, evaluate a model that is trained from scratch every N interactions.",
        metavar="N",
        rich_help_panel=PROTOCOL,
    ),
]
Fading = Annotated[
    str | None,
    typer.Option(
        help="Let idle items fade: off, auto (the half-life is searched or learned), or a half-life in interactions. "
        "(default: auto with --strategy auto, else {fading})",
        rich_help_panel=MODEL,
    ),
]
Seed = Annotated[int | None, typer.Option(help="Root of all randomness. (default: {seed})", rich_help_panel=PROTOCOL)]
Epochs = Annotated[
    int | None,
    typer.Option(help="At most this many pre-training passes; fewer where fewer do better.", rich_help_panel=CHOICE),
]
Budget = Annotated[
    int | None,
    typer.Option(
        help="Trials on the selection window, the same for every strategy; 0 takes the defaults. (default: {budget})",
        rich_help_panel=CHOICE,
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Minutes of choosing, then the best so far is taken. (default: 30 with --strategy auto, else no limit)",
        rich_help_panel=CHOICE,
    ),
]
Threads = Annotated[int | None, typer.Option(help="Torch threads. (default: {threads})", rich_help_panel=MACHINE)]
Ray = Annotated[
    str | None,
    typer.Option(metavar="auto | ADDRESS", help="Run on a Ray cluster instead.", rich_help_panel=MACHINE),
]
Device = Annotated[
    str | None, typer.Option(help="Where the tables live: cpu, cuda, … (default: {device})", rich_help_panel=MACHINE)
]
Json = Annotated[
    Path | None,
    typer.Option("--json", help="Write the full result here, ranks of every event beside it.", rich_help_panel=OUTPUT),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page with the table and the curve over time.", rich_help_panel=OUTPUT),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on where the same command was stopped.", rich_help_panel=OUTPUT)
]


def requested(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command as fields of an evaluation: the config file first, then the command line."""
    from dataclasses import fields

    from melon.bench.config import CellConfig, parse_assignments, parse_fading, read_config
    from melon.fitting.auto import AUTO
    from melon.stream.split import parse_split

    sections = parse_assignments(given["assignments"] or [])
    request: dict[str, Any] = read_config(given["config"]) if given["config"] else {}
    names = {"recommender", "strategy"}
    if request.pop("auto", False) and not any(given.get(name) for name in names):
        request |= dict.fromkeys(names, AUTO)
    request |= {field.name: given[field.name] for field in fields(CellConfig) if given.get(field.name) is not None}
    if given.get("fading") is not None:
        request["fading"] = parse_fading(given["fading"])
    if given.get("split") is not None:
        request["split"] = parse_split(given["split"])
    for section, field in (
        ("strategy", "settings"),
        ("recommender", "recommender_settings"),
        ("pretrain", "pretrain_settings"),
    ):
        request[field] = {**request.get(field, {}), **sections[section]}
    return request
