"""Commands about experiments: bench, report, reproduce, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from melon.cli.options import EVALUATION, MACHINE, MODEL, PROTOCOL, Ray, requested, takes

#: A bench names many of these, each in a way of its own.
_OF_ONE_CELL = ("recommender", "strategy", "seed", "config", "split", "minutes")


@takes("options", EVALUATION, *_OF_ONE_CELL, combine=requested)
def bench(
    streams: Annotated[list[Path], typer.Argument(help="Prepared streams (melon data prepare makes them).")],
    out: Annotated[Path, typer.Option(help="The folder of the records; run the same command again to continue.")],
    recommenders: Annotated[str, typer.Option(help="Names, separated by commas.", rich_help_panel=MODEL)] = "bpr",
    strategies: Annotated[
        str, typer.Option(help="Names, separated by commas, or all (nine, as in the paper).", rich_help_panel=MODEL)
    ] = "all",
    seeds: Annotated[int, typer.Option(help="5 means seeds 0 to 4.", rich_help_panel=PROTOCOL)] = 3,
    jobs: Annotated[int, typer.Option(help="Cells at a time, each in its own process.", rich_help_panel=MACHINE)] = 1,
    ray: Ray = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="A TOML or JSON file of options for all cells, or a folder of STREAM-RECOMMENDER-STRATEGY.toml, as "
            "melon evaluate --save-config writes them. Repeatable.",
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
    *,
    options: dict[str, Any],
) -> None:
    """Evaluate many strategies, recommenders, streams and seeds under one protocol, one record for each.

    Cells with a record are not run again, so a stopped bench resumes where it was. What the cells of a stream and
    seed share (pre-training, plain fine-tuning, the baselines) is done once.
    """
    from melon.lab.bench import bench_streams
    from melon.lab.terminal import BenchProgress, show_bench

    result = bench_streams(
        streams,
        options,
        recommenders=recommenders,
        strategies=strategies,
        seeds=seeds,
        splits=split or [],
        configs=config or [],
        jobs=jobs,
        ray=ray,
        out=out,
        progress=BenchProgress(),
    )
    raise typer.Exit(show_bench(result))


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of melon bench, or result files.")],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write the report to. (default: report in the first folder)")
    ] = None,
) -> None:
    """Report the results of a bench: tables, comparisons, figures and conclusions, as one page, CSV and LaTeX.

    All numbers come from the records and the ranks beside them; nothing is run again.
    """
    from melon.lab.report import report_folders
    from melon.progress import say

    say(report_folders(folders, out).summary)


@takes("options", EVALUATION, only=("budget", "threads"))
def reproduce(
    data: Annotated[
        Path, typer.Option(help="The folder with the paper's raw files, or with prepared streams that replace them.")
    ] = Path("data"),
    out: Annotated[
        Path | None, typer.Option(help="The folder of the records. (default: runs/paper, or runs/paper-quick)")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small budget: bpr, three strategies, one seed, little pre-training.")
    ] = False,
    configs: Annotated[
        Path, typer.Option(help="A folder of tuned configs; only those tuned on the same streams are used.")
    ] = Path("research/configs"),
    forms: Annotated[
        str, typer.Option(help="published: as published; stream: all meta-trained through the stream; or both.")
    ] = "published,stream",
    recommenders: Annotated[str | None, typer.Option(help="Names, separated by commas. (default: bpr,ncf)")] = None,
    strategies: Annotated[str | None, typer.Option(help="Names, separated by commas. (default: all nine)")] = None,
    seeds: Annotated[int | None, typer.Option(help="5 means seeds 0 to 4. (default: 5)")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes of the published form. (default: 100 on bpr, 3 on ncf)")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Cells at a time, each in its own process.")] = 1,
    ray: Ray = None,
    *,
    options: dict[str, Any],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print which files are there or missing.")] = False,
) -> None:
    """Run the experiment of the MeLON paper (AAAI 2022): prepare, bench every strategy in two forms, report.

    It looks for raw files, then for prepared streams that replace them. For what is missing it says
    where to get it. The same command resumes a stopped run.
    """
    from melon.lab.paper import Reproduction
    from melon.lab.paper import reproduce as run

    small: dict[str, Any] = {"budget": 2} if quick else {}
    request = Reproduction(
        data=data,
        out=out or Path("runs/paper-quick" if quick else "runs/paper"),
        forms=forms,
        recommenders=recommenders or ("bpr" if quick else "bpr,ncf"),
        strategies=strategies or ("default,eals,melon" if quick else "all"),
        seeds=seeds or (1 if quick else 5),
        epochs=epochs or (4 if quick else None),
        options={**small, **options},
        configs=configs,
        jobs=jobs,
        ray=ray,
        dry_run=dry_run,
    )
    raise typer.Exit(run(request))


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write the stream, the results and the page to.")] = Path(
        "demo"
    ),
    events: Annotated[int, typer.Option(help="Length of the embedded stream.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the demo.")] = 0,
) -> None:
    """Run every strategy on an embedded synthetic stream: a table and a page with the curve, in a few minutes."""
    from melon.demo import run_demo

    run_demo(out, events, seed)
