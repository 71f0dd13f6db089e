"""Options that several commands share, and what they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from melon.recommenders.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES

MODEL, PROTOCOL, CHOICE, OUTPUT, MACHINE = "Model", "Protocol", "Choosing settings", "Output", "Machine"

Stream = Annotated[Path, typer.Argument(help="A prepared stream (melon data prepare makes one).")]
Recommender = Annotated[
    str | None,
    typer.Option(help=f"What scores: {', '.join(RECOMMENDERS.names())}. (default: bpr)", rich_help_panel=MODEL),
]
Strategy = Annotated[
    str | None,
    typer.Option(help=f"What updates it: {', '.join(STRATEGIES.names())}. (default: default)", rich_help_panel=MODEL),
]
AutoRecommender = Annotated[
    str | None,
    typer.Option(
        "--recommender",
        help=f"What scores: auto, {', '.join(RECOMMENDERS.names())}. (default: auto, which is blend)",
        rich_help_panel=MODEL,
    ),
]
AutoStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        help=f"What updates it: auto, {', '.join(STRATEGIES.names())}. (default: auto, which is default with fading)",
        rich_help_panel=MODEL,
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings that are fixed together: default, or the paper's. (default: default)", rich_help_panel=MODEL
    ),
]
PretrainMode = Annotated[
    str | None,
    typer.Option(
        "--pretrain",
        help="shared: one pre-trained recommender for all strategies; own: each trains its own. (default: shared)",
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
        help="Shares of training, validation and test, in time order. (default: 0.95,0.005,0.045)",
        rich_help_panel=PROTOCOL,
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Interactions per mini-batch. (default: 256)", rich_help_panel=PROTOCOL)
]
CandidateMode = Annotated[
    str | None,
    typer.Option(
        help="Where negatives come from: catalogue, full-log or born. (default: catalogue)", rich_help_panel=PROTOCOL
    ),
]
Negatives = Annotated[
    int | None, typer.Option(help="Negatives beside each positive. (default: 99)", rich_help_panel=PROTOCOL)
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
        help="Beside the baselines, a model trained from scratch every so many interactions: what freshness costs.",
        rich_help_panel=PROTOCOL,
    ),
]
Fading = Annotated[
    str | None,
    typer.Option(
        help="Let idle items fade: off, auto (chosen or learned), or a half-life in interactions. (default: off)",
        rich_help_panel=MODEL,
    ),
]
Seed = Annotated[int | None, typer.Option(help="Root of all randomness. (default: 0)", rich_help_panel=PROTOCOL)]
Epochs = Annotated[
    int | None,
    typer.Option(help="At most this many pre-training passes; fewer where fewer do better.", rich_help_panel=CHOICE),
]
Budget = Annotated[
    int | None,
    typer.Option(
        help="Trials on the selection window, the same for every strategy. (default: 8)", rich_help_panel=CHOICE
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Choose for at most so long, then take the best so far. (default: 30 with --strategy auto, else no limit)",
        rich_help_panel=CHOICE,
    ),
]
Threads = Annotated[int | None, typer.Option(help="Torch threads. (default: 1)", rich_help_panel=MACHINE)]
Ray = Annotated[
    str | None,
    typer.Option(metavar="auto | ADDRESS", help="Run on a Ray cluster instead.", rich_help_panel=MACHINE),
]
Device = Annotated[
    str | None, typer.Option(help="Where the tables live: cpu, cuda, … (default: cpu)", rich_help_panel=MACHINE)
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


def asked_for(given: dict[str, Any]) -> dict[str, Any]:
    """Options as cell settings: the config file first, then whatever the command line says."""
    from dataclasses import fields

    from melon.bench.config import CellConfig, parse_assignments, parse_fading, read_config
    from melon.stream.split import parse_split

    sections = parse_assignments(given["assignments"] or [])
    asked: dict[str, Any] = read_config(given["config"]) if given["config"] else {}
    asked |= {each.name: given[each.name] for each in fields(CellConfig) if given.get(each.name) is not None}
    if given.get("fading") is not None:
        asked["fading"] = parse_fading(given["fading"])
    if given.get("split") is not None:
        asked["split"] = parse_split(given["split"])
    for section, field in (
        ("strategy", "settings"),
        ("recommender", "recommender_settings"),
        ("pretrain", "pretrain_settings"),
    ):
        asked[field] = {**asked.get(field, {}), **sections[section]}
    return asked
