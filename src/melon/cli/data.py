"""`melon data`: prepare raw interactions as streams, and look at streams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from melon.cli.options import RAW, AsJson, Commands, Stream, takes
from melon.data.raw.formats import MISSING

data = Commands(help="Prepare raw interaction files as a stream, and look at streams.", no_args_is_help=True)

_FILTER = "What is kept"


@data.command("prepare")
@takes("columns", RAW)
def data_prepare(
    raw: Annotated[list[Path], typer.Argument(help="Raw files, gzip and zip included.")],
    out: Annotated[Path, typer.Option(help="The stream to write (Parquet, with files of the original ids beside it).")],
    *,
    columns: dict[str, Any],
    missing: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT,TEXT",
            help=f"Texts that mean 'no id'. Empty fields always do; with --missing '' only these. "
            f"(default: {','.join(MISSING)})",
            rich_help_panel=_FILTER,
        ),
    ] = None,
    min_interactions: Annotated[
        int,
        typer.Option(help="Drop users and items with fewer interactions; the paper: 20.", rich_help_panel=_FILTER),
    ] = 1,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first bad row.", rich_help_panel=_FILTER)
    ] = False,
) -> None:
    """Turn raw interactions into a time-ordered stream.

    Options that you do not give are guessed and printed. What can be read in two ways is refused; the message names
    the option that decides.
    """
    from melon.data.prepare import prepare
    from melon.lab.terminal import show_preparation

    report = prepare(
        list(raw),
        out=out,
        **columns,
        missing=None if missing is None else [text for text in missing.split(",") if text],
        min_interactions=min_interactions,
        strict=strict,
    )
    show_preparation(report, out)


@data.command("info")
def data_info(
    stream: Stream,
    json: AsJson = False,
) -> None:
    """Describe a stream: size, span, how fast items and users come and go."""
    from melon.data.files import load_stream
    from melon.data.info import describe
    from melon.lab.terminal import show_info

    show_info(describe(load_stream(stream)), as_json=json)


@data.command("synthetic")
def data_synthetic(
    kind: Annotated[str, typer.Argument(help="flip, news or drift: streams with a known answer.")],
    out: Annotated[Path, typer.Option(help="The stream to write.")],
    events: Annotated[int | None, typer.Option(help="Number of interactions.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the stream.")] = 0,
) -> None:
    """Make a synthetic stream, to try things on."""
    from melon.demo import write_synthetic

    written = write_synthetic(kind, out, events, seed)
    typer.echo(f"{written}: {kind}, seed {seed}")
