"""`melon data`: raw interactions become streams, and streams are looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from melon.cli.options import Stream
from melon.data.raw.formats import FORMATS

data = typer.Typer(help="Prepare raw interaction files as a stream, and look at streams.", no_args_is_help=True)


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
    from melon.terminal.tables import show_preparation

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
    from melon.terminal.tables import show_info

    show_info(describe(load_stream(stream)), as_json=json)


@data.command("synthetic")
def data_synthetic(
    kind: Annotated[str, typer.Argument(help="flip, news or drift: streams with a known answer.")],
    out: Annotated[Path, typer.Option(help="The stream to write.")],
    events: Annotated[int | None, typer.Option(help="Interactions.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same stream.")] = 0,
) -> None:
    """Make a synthetic stream, to try things on."""
    from melon.demo import write_synthetic

    written = write_synthetic(kind, out, events, seed)
    typer.echo(f"{written}: {kind}, seed {seed}")
