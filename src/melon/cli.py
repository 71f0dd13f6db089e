"""The `melon` command: thin; everything heavy is imported when a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from melon.data.formats import FORMATS
from melon.errors import MelonError, SettingsError, StoppedError
from melon.recommenders.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES

app = typer.Typer(
    name="melon",
    help="A recommender that keeps up with its users: predict each batch, learn from it, serve the next one better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Prepare raw interaction files as a stream, and look at streams.", no_args_is_help=True)
app.add_typer(data, name="data")

_STOPPED = 130  # what a shell says of a command that Ctrl-C ended
_MODEL, _PROTOCOL, _CHOICE, _OUTPUT, _MACHINE = "Model", "Protocol", "Choosing settings", "Output", "Machine"

Stream = Annotated[Path, typer.Argument(help="A prepared stream (melon data prepare makes one).")]
Recommender = Annotated[
    str | None,
    typer.Option(help=f"What scores: {', '.join(RECOMMENDERS.names())}. (default: bpr)", rich_help_panel=_MODEL),
]
Strategy = Annotated[
    str | None,
    typer.Option(help=f"What updates it: {', '.join(STRATEGIES.names())}. (default: default)", rich_help_panel=_MODEL),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Settings that are fixed together: default, or the paper's. (default: default)", rich_help_panel=_MODEL
    ),
]
PretrainMode = Annotated[
    str | None,
    typer.Option(
        "--pretrain",
        help="shared: one pre-trained recommender for all strategies; own: each trains its own. (default: shared)",
        rich_help_panel=_MODEL,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Fix a setting of the strategy, or recommender.KEY or pretrain.KEY; what is fixed is not searched.",
        rich_help_panel=_MODEL,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A TOML or JSON file with any of these options; the command line wins.", rich_help_panel=_MODEL),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Shares of training, validation and test, in time order. (default: 0.95,0.005,0.045)",
        rich_help_panel=_PROTOCOL,
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(help="Interactions per mini-batch. (default: 256)", rich_help_panel=_PROTOCOL)
]
CandidateMode = Annotated[
    str | None,
    typer.Option(
        help="Where negatives come from: catalogue, full-log or born. (default: catalogue)", rich_help_panel=_PROTOCOL
    ),
]
Negatives = Annotated[
    int | None, typer.Option(help="Negatives beside each positive. (default: 99)", rich_help_panel=_PROTOCOL)
]
AlignTies = Annotated[
    bool | None,
    typer.Option("--align-ties", help="Cut parts and batches only where the time changes.", rich_help_panel=_PROTOCOL),
]
FullRanking = Annotated[
    bool | None,
    typer.Option("--full-ranking", help="Also rank among the whole catalogue.", rich_help_panel=_PROTOCOL),
]
Fading = Annotated[
    str | None,
    typer.Option(
        help="Let idle items fade: off, auto (chosen or learned), or a half-life in interactions. (default: off)",
        rich_help_panel=_MODEL,
    ),
]
Seed = Annotated[int | None, typer.Option(help="Root of all randomness. (default: 0)", rich_help_panel=_PROTOCOL)]
Epochs = Annotated[
    int | None,
    typer.Option(help="At most this many pre-training passes; fewer where fewer do better.", rich_help_panel=_CHOICE),
]
Budget = Annotated[
    int | None,
    typer.Option(
        help="Trials on the selection window, the same for every strategy. (default: 8)", rich_help_panel=_CHOICE
    ),
]
Threads = Annotated[int | None, typer.Option(help="Torch threads. (default: 1)", rich_help_panel=_MACHINE)]
Device = Annotated[
    str | None, typer.Option(help="Where the tables live: cpu, cuda, … (default: cpu)", rich_help_panel=_MACHINE)
]
Json = Annotated[
    Path | None,
    typer.Option("--json", help="Write the full result here, ranks of every event beside it.", rich_help_panel=_OUTPUT),
]
Page = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page with the table and the curve over time.", rich_help_panel=_OUTPUT),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on where the same command was stopped.", rich_help_panel=_OUTPUT)
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """A recommender that keeps up with its users."""
    if version:
        from melon import __version__

        typer.echo(__version__)
        raise typer.Exit


@data.command("prepare")
def data_prepare(
    raw: Annotated[list[Path], typer.Argument(help="Raw files, gzip and zip included.")],
    out: Annotated[Path, typer.Option(help="The stream to write (Parquet, with side-cars for the original ids).")],
    format: Annotated[  # noqa: A002
        str | None, typer.Option(help=f"The raw format: {', '.join(FORMATS)}. Guessed and said when left out.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Name of the user column.")] = None,
    item: Annotated[str | None, typer.Option(help="Name of the item column.")] = None,
    time: Annotated[str | None, typer.Option(help="Name of the time column.")] = None,
    time_unit: Annotated[
        str | None, typer.Option(help="s, ms, us or ns where times are numbers; else guessed.")
    ] = None,
    min_interactions: Annotated[int, typer.Option(help="Drop users and items with fewer.")] = 20,
    k_core: Annotated[bool, typer.Option("--k-core", help="Repeat that until nothing more is dropped.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
) -> None:
    """Turn raw interactions into a time-ordered stream."""
    from melon.data.prepare import prepare
    from melon.experiments.show import show_preparation

    report = prepare(
        list(raw),
        out=out,
        format=format,
        user=user,
        item=item,
        time=time,
        time_unit=time_unit,
        min_interactions=min_interactions,
        k_core=k_core,
        strict=strict,
    )
    show_preparation(report, out)


@data.command("info")
def data_info(
    stream: Stream,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what is in a stream: size, span, how fast items and users come and go."""
    from melon.data.files import load_stream
    from melon.data.info import describe
    from melon.experiments.show import show_info

    show_info(describe(load_stream(stream)), as_json=json)


@data.command("synthetic")
def data_synthetic(
    kind: Annotated[str, typer.Argument(help="flip, news or drift: streams with a known answer.")],
    out: Annotated[Path, typer.Option(help="The stream to write.")],
    events: Annotated[int | None, typer.Option(help="Interactions.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same stream.")] = 0,
) -> None:
    """Make a synthetic stream, to try things on."""
    from melon.experiments.demo import write_synthetic

    written = write_synthetic(kind, out, events, seed)
    typer.echo(f"{written}: {kind}, seed {seed}")


@app.command()
def evaluate(
    stream: Stream,
    recommender: Recommender = None,
    strategy: Strategy = None,
    preset: Preset = None,
    pretrain: PretrainMode = None,
    fading: Fading = None,
    assignments: Assignments = None,
    config: Config = None,
    split: Split = None,
    batch_size: BatchSize = None,
    candidates: CandidateMode = None,
    negatives: Negatives = None,
    align_ties: AlignTies = None,
    full_ranking: FullRanking = None,
    seed: Seed = None,
    epochs: Epochs = None,
    budget: Budget = None,
    threads: Threads = None,
    device: Device = None,
    json: Json = None,
    html: Page = None,
    resume: Resume = False,
) -> None:
    """Evaluate a strategy on a stream, prequentially, beside the baselines it has to beat.

    Settings that are not given are chosen on the selection window: late training data and the validation part. The
    test part is not read until then.
    """
    asked = _asked(locals())
    from melon.experiments.session import evaluate_stream

    evaluate_stream(stream, asked, json=json, html=html, resume=resume)


@app.command()
def bench(
    streams: Annotated[list[Path], typer.Argument(help="Prepared streams (melon data prepare makes them).")],
    out: Annotated[Path, typer.Option(help="The folder of the records; run again to go on in it.")],
    recommenders: Annotated[str, typer.Option(help="With commas between them.", rich_help_panel=_MODEL)] = "bpr",
    strategies: Annotated[
        str, typer.Option(help="With commas between them, or all: the nine that are compared.", rich_help_panel=_MODEL)
    ] = "all",
    seeds: Annotated[int, typer.Option(help="5 means seeds 0 to 4.", rich_help_panel=_PROTOCOL)] = 3,
    jobs: Annotated[int, typer.Option(help="Cells at a time, each in its own process.", rich_help_panel=_MACHINE)] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="auto | ADDRESS", help="Run the cells on a Ray cluster instead.", rich_help_panel=_MACHINE
        ),
    ] = None,
    preset: Preset = None,
    pretrain: PretrainMode = None,
    fading: Fading = None,
    assignments: Assignments = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="A TOML or JSON file of options; one that names a strategy speaks of its cells only. Repeatable.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Shares of training, validation and test; STREAM=… for one of the streams. Repeatable. "
            "(default: 0.95,0.005,0.045)",
            rich_help_panel=_PROTOCOL,
        ),
    ] = None,
    batch_size: BatchSize = None,
    candidates: CandidateMode = None,
    negatives: Negatives = None,
    align_ties: AlignTies = None,
    full_ranking: FullRanking = None,
    epochs: Epochs = None,
    budget: Budget = None,
    threads: Threads = None,
    device: Device = None,
    rates: Annotated[
        bool,
        typer.Option(
            "--rates",
            help="Also keep the learning rates of a batch of each cell, for the report.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
) -> None:
    """Evaluate many strategies, recommenders, streams and seeds under one protocol, one record for each.

    Cells that have a record are not run again, so a bench that was stopped goes on where it was. What the cells of a
    stream and seed share (pre-training, the tuned Default, the baselines) is done once.
    """
    given = locals()
    asked = _asked({**given, "config": None, "split": None})
    from melon.experiments.bench import bench_streams

    code = bench_streams(
        streams,
        asked,
        recommenders=recommenders,
        strategies=strategies,
        seeds=seeds,
        splits=split or [],
        configs=config or [],
        jobs=jobs,
        ray=ray,
        rates=rates,
        out=out,
    )
    raise typer.Exit(code)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that melon bench made, or result files.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write the report to. (default: report in the first folder)")
    ] = None,
) -> None:
    """Tell what a bench showed: tables, comparisons, figures and verdicts, as one page and as Markdown.

    Every number comes from the records and the ranks beside them; nothing is run again.
    """
    from melon.experiments.report import report_folders

    report_folders(folders, out)


@app.command()
def pretrain(
    stream: Stream,
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    recommender: Recommender = None,
    strategy: Strategy = None,
    preset: Preset = None,
    assignments: Assignments = None,
    config: Config = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    epochs: Epochs = None,
    budget: Budget = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Train a recommender on a whole stream and save it, ready to learn on and to recommend.

    The number of epochs and the settings that are not given are chosen on the selection window at the stream's end.
    """
    asked = _asked(locals())
    from melon.experiments.session import pretrain_stream

    pretrain_stream(stream, asked, out)


@app.command()
def explain(
    checkpoint: Annotated[Path, typer.Argument(help="A saved model (melon pretrain and Melon.save make one).")],
    stream: Stream,
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")] = Path("explain.png"),
    at: Annotated[
        int | None,
        typer.Option(help="The event at which the batch starts. (default: the first that is new to the model)"),
    ] = None,
    batch: Annotated[int, typer.Option(help="So many batches further on.")] = 0,
    batch_size: Annotated[
        int | None, typer.Option(help="Interactions in the batch. (default: as the model learns)")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Draw the learning-rate matrix of a batch: how far each interaction would move each parameter, and why.

    The batch is looked at as if it were learned now; nothing is learned and the model stays as it is.
    """
    from melon.experiments.explain import explain_model

    explain_model(checkpoint, stream, out=out, at=at, batch=batch, batch_size=batch_size, as_json=json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write the stream, the results and the page to.")] = Path(
        "demo"
    ),
    events: Annotated[int, typer.Option(help="Length of the embedded stream.")] = 30_000,
    seed: Annotated[int, typer.Option(help="Same seed, same demo.")] = 0,
) -> None:
    """Run the main job on an embedded synthetic stream: a table and a page with the curve, in about two minutes."""
    from melon.experiments.demo import run_demo

    run_demo(out, events, seed)


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Options as cell settings: the config file first, then whatever the command line says."""
    from dataclasses import fields

    from melon.experiments.config import CellConfig, parse_assignments, parse_fading, read_config
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


if __name__ == "__main__":
    main()
