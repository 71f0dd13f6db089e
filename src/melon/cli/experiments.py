"""Commands about many models: advice, grids, tuning, reports, the paper's experiment, the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from melon.cli.options import (
    CHOICE,
    MACHINE,
    MODEL,
    OUTPUT,
    PROTOCOL,
    AlignTies,
    Assignments,
    BatchSize,
    Budget,
    CandidateMode,
    Config,
    Device,
    Epochs,
    Fading,
    FullRanking,
    Negatives,
    Preset,
    PretrainMode,
    Ray,
    Recommender,
    RetrainEvery,
    Seed,
    Split,
    Strategy,
    Stream,
    Threads,
    requested,
)
from melon.recommenders.registry import RECOMMENDERS


def advise(
    stream: Stream,
    minutes: Annotated[float, typer.Option(help="How long it may take; more data and more strategies in more.")] = 5.0,
    recommenders: Annotated[
        str | None,
        typer.Option(help=f"With commas between them. (default: {', '.join(RECOMMENDERS.names())})"),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(help="With commas between them, in the order in which to try them. (default: seven, quick first)"),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Strategies at a time, each in its own process.")] = 1,
    batch_size: BatchSize = None,
    negatives: Negatives = None,
    seed: Seed = None,
    threads: Threads = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
) -> None:
    """Say which strategy fits a stream: a quick run on its most recent part, judged on what came last.

    Settings are chosen on the earlier part of it. A dearer strategy is advised only where the data show that it is
    better; otherwise the cheapest.
    """
    given = {"batch_size": batch_size, "negatives": negatives, "seed": seed, "threads": threads}
    from melon.advice.advise import advise_stream

    advise_stream(
        stream,
        minutes=minutes,
        recommenders=recommenders,
        strategies=strategies,
        config={name: value for name, value in given.items() if value is not None},
        jobs=jobs,
        as_json=json,
    )


def bench(
    streams: Annotated[list[Path], typer.Argument(help="Prepared streams (melon data prepare makes them).")],
    out: Annotated[Path, typer.Option(help="The folder of the records; run again to go on in it.")],
    recommenders: Annotated[str, typer.Option(help="With commas between them.", rich_help_panel=MODEL)] = "bpr",
    strategies: Annotated[
        str, typer.Option(help="With commas between them, or all: the nine that are compared.", rich_help_panel=MODEL)
    ] = "all",
    seeds: Annotated[int, typer.Option(help="5 means seeds 0 to 4.", rich_help_panel=PROTOCOL)] = 3,
    jobs: Annotated[int, typer.Option(help="Cells at a time, each in its own process.", rich_help_panel=MACHINE)] = 1,
    ray: Ray = None,
    preset: Preset = None,
    pretrain: PretrainMode = None,
    fading: Fading = None,
    assignments: Assignments = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="A TOML or JSON file of options; one that names a strategy speaks of its cells only. Or a folder of "
            "STREAM-RECOMMENDER-STRATEGY.toml, as melon tune writes them. Repeatable.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Shares of training, validation and test; STREAM=… for one of the streams. Repeatable. "
            "(default: 0.95,0.005,0.045)",
            rich_help_panel=PROTOCOL,
        ),
    ] = None,
    batch_size: BatchSize = None,
    candidates: CandidateMode = None,
    negatives: Negatives = None,
    align_ties: AlignTies = None,
    full_ranking: FullRanking = None,
    retrain_every: RetrainEvery = None,
    epochs: Epochs = None,
    budget: Budget = None,
    threads: Threads = None,
    device: Device = None,
    rates: Annotated[
        bool,
        typer.Option(
            "--rates",
            help="Also keep the learning rates of a batch of each cell, for the report.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
) -> None:
    """Evaluate many strategies, recommenders, streams and seeds under one protocol, one record for each.

    Cells that have a record are not run again, so a bench that was stopped goes on where it was. What the cells of a
    stream and seed share (pre-training, the tuned Default, the baselines) is done once.
    """
    given = locals()
    asked = requested({**given, "config": None, "split": None})
    from melon.bench.run import bench_streams

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


def tune(
    stream: Stream,
    out: Annotated[Path, typer.Option(help="The config file to write (TOML).", rich_help_panel=OUTPUT)],
    recommender: Recommender = None,
    strategy: Strategy = None,
    trials: Annotated[int, typer.Option(help="Settings to try.", rich_help_panel=CHOICE)] = 40,
    together: Annotated[
        int,
        typer.Option(
            "--round",
            help="Trials that are asked for together: at most so many run at a time, whatever --jobs says.",
            rich_help_panel=CHOICE,
        ),
    ] = 4,
    no_pruning: Annotated[
        bool,
        typer.Option(
            "--no-pruning",
            help="Go through with every trial, also where it falls far behind the best so far.",
            rich_help_panel=CHOICE,
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(help="Trials at a time, each in its own process.", rich_help_panel=MACHINE)] = 1,
    ray: Ray = None,
    study: Annotated[
        Path | None,
        typer.Option(
            help="Keeps the trials; run again to go on in it. (default: beside --out, ending in .journal)",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
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
    seed: Seed = None,
    epochs: Epochs = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Search a strategy's settings on data before the test part, and write the best as a file for --config.

    Trials are judged by HR@5 + NDCG@10 on late training data and the validation part. What is done is kept, so a tuning
    that was stopped goes on where it was.
    """
    asked = requested(locals())
    from melon.tuning.tune import tune_stream

    tune_stream(
        stream,
        asked,
        trials=trials,
        together=together,
        pruning=not no_pruning,
        jobs=jobs,
        ray=ray,
        study=study,
        out=out,
    )


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that melon bench made, or result files.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write the report to. (default: report in the first folder)")
    ] = None,
) -> None:
    """Tell what a bench showed: tables, comparisons, figures and verdicts, as one page and as Markdown.

    Every number comes from the records and the ranks beside them; nothing is run again.
    """
    from melon.report.build import report_folders

    report_folders(folders, out)


def reproduce(
    data: Annotated[
        Path, typer.Option(help="The folder with the paper's raw files, or with streams that stand in for them.")
    ] = Path("data"),
    out: Annotated[
        Path | None, typer.Option(help="The folder of the records. (default: runs/paper, or runs/paper-quick)")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small budget: bpr, three strategies, one seed, little pre-training.")
    ] = False,
    configs: Annotated[
        Path, typer.Option(help="A folder of tuned configs; those that were tuned on these very streams are taken.")
    ] = Path("configs"),
    tune: Annotated[bool, typer.Option("--tune", help="Tune every cell first, instead of taking configs.")] = False,
    trials: Annotated[int, typer.Option(help="Trials of each tuning.")] = 16,
    recommenders: Annotated[str | None, typer.Option(help="Names, separated by commas. (default: bpr,ncf)")] = None,
    strategies: Annotated[str | None, typer.Option(help="Names, separated by commas. (default: all nine)")] = None,
    seeds: Annotated[int | None, typer.Option(help="5 means seeds 0 to 4. (default: 5)")] = None,
    jobs: Annotated[int, typer.Option(help="Cells at a time, each in its own process.")] = 1,
    ray: Ray = None,
    epochs: Epochs = None,
    budget: Budget = None,
    threads: Threads = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is there and what is missing.")] = False,
) -> None:
    """Run the paper's experiment: prepare its datasets, tune or take configs, bench every strategy, and report.

    Datasets are looked for as raw files, then as prepared streams that stand in for them. Whatever is missing is told,
    with where it is to be had. Run the same command again to go on.
    """
    from melon.paper.reproduce import Reproduction
    from melon.paper.reproduce import reproduce as run

    small: dict[str, Any] = {"epochs": 4, "budget": 2} if quick else {}
    given = {"epochs": epochs, "budget": budget, "threads": threads}
    asked = Reproduction(
        data=data,
        out=out or Path("runs/paper-quick" if quick else "runs/paper"),
        recommenders=recommenders or ("bpr" if quick else "bpr,ncf"),
        strategies=strategies or ("default,eals,melon" if quick else "all"),
        seeds=seeds or (1 if quick else 5),
        options={**small, **{name: value for name, value in given.items() if value is not None}},
        configs=configs,
        tune=trials if tune else None,
        jobs=jobs,
        ray=ray,
        dry_run=dry_run,
    )
    raise typer.Exit(run(asked))


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write the stream, the results and the page to.")] = Path(
        "demo"
    ),
    events: Annotated[int, typer.Option(help="Length of the embedded stream.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Same seed, same demo.")] = 0,
) -> None:
    """Run every strategy on an embedded synthetic stream: a table and a page with the curves, in a few minutes."""
    from melon.demo import run_demo

    run_demo(out, events, seed)
