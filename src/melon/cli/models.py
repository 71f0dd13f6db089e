"""Commands about one model: evaluate it, make it, look into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from melon.cli.options import (
    AlignTies,
    Assignments,
    AutoRecommender,
    AutoStrategy,
    BatchSize,
    Budget,
    CandidateMode,
    Config,
    Device,
    Epochs,
    Fading,
    FullRanking,
    Json,
    Minutes,
    Negatives,
    Page,
    Preset,
    PretrainMode,
    Resume,
    RetrainEvery,
    Seed,
    Split,
    Stream,
    Threads,
    asked_for,
)


def evaluate(
    stream: Stream,
    recommender: AutoRecommender = None,
    strategy: AutoStrategy = None,
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
    retrain_every: RetrainEvery = None,
    seed: Seed = None,
    epochs: Epochs = None,
    budget: Budget = None,
    minutes: Minutes = None,
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
    asked = asked_for(locals())
    from melon.terminal.evaluate import evaluate_stream

    evaluate_stream(stream, asked, json=json, html=html, resume=resume)


def pretrain(
    stream: Stream,
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    recommender: AutoRecommender = None,
    strategy: AutoStrategy = None,
    preset: Preset = None,
    fading: Fading = None,
    assignments: Assignments = None,
    config: Config = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    epochs: Epochs = None,
    budget: Budget = None,
    minutes: Minutes = None,
    threads: Threads = None,
    device: Device = None,
) -> None:
    """Train a recommender on a whole stream and save it, ready to learn on and to recommend.

    The number of epochs and the settings that are not given are chosen on the selection window at the stream's end.
    """
    asked = asked_for(locals())
    from melon.terminal.evaluate import pretrain_stream

    pretrain_stream(stream, asked, out)


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
    from melon.explain.picture import explain_model
    from melon.terminal.tables import show_rates

    rates = explain_model(checkpoint, stream, out=out, at=at, batch=batch, batch_size=batch_size)
    show_rates(rates, out, as_json=json)
