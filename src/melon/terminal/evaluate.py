"""`melon evaluate` and `melon pretrain`: load, run with progress, write, show; a stopped run says how to go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from melon.atomic import require_writable, write_text
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.record import write_result
from melon.bench.work import Work, work_folder
from melon.console import model_progress, say
from melon.data.files import load_stream
from melon.errors import SettingsError, StoppedError
from melon.extras import require_plots
from melon.fitting.auto import settle_auto, why_auto
from melon.report.result import result_page
from melon.terminal.tables import show_result
from melon.types import Plain


def evaluate_stream(stream: Path, asked: Plain, *, json: Path | None, html: Path | None, resume: bool) -> None:
    """`melon evaluate`."""
    config = CellConfig(**settle_auto(asked))
    if json is not None and json.suffix != ".json":
        raise SettingsError(f"--json {json} must end in .json; the ranks go beside it.")
    if html is not None:
        require_plots("--html")
    for wanted in (json, html):
        if wanted is not None:
            require_writable(wanted)
    log = load_stream(stream)
    folder = work_folder(json, log, config.plain())
    if not resume:
        Work(folder).forget()
    work = Work(folder)
    try:
        with model_progress() as progress:
            result = Cell(log, config, progress, work).run(str(stream))
    except KeyboardInterrupt:
        raise StoppedError(
            f"stopped; what was finished is kept in {folder}. Run the same command with --resume to go on from there."
        ) from None
    record = write_result(result.record, result.ranks, json) if json else result.record
    if html is not None:
        write_text(html, result_page([record]))
    work.forget()
    show_result(record)
    chosen = record["config"]["chosen"][config.strategy]
    _say_why(asked, chosen["settings"], len(chosen["trials"]))
    for written in (json, html):
        if written is not None:
            say(f"wrote {written}")


def pretrain_stream(stream: Path, asked: Plain, out: Path) -> None:
    """`melon pretrain`."""
    from melon.estimator import Melon

    config = CellConfig(**settle_auto(asked))
    if config.device != "cpu":
        raise SettingsError(f"device = {config.device!r} will not do: a saved model is trained on the cpu.")
    log = load_stream(stream)
    with model_progress() as progress:
        model = Melon(
            config.recommender,
            config.strategy,
            seed=config.seed,
            epochs=config.epochs,
            batch_size=config.batch_size,
            settings=config.fixed,
            recommender_settings=config.recommender_settings,
            pretrain_settings=config.pretrain_settings,
            budget=config.budget,
            minutes=config.minutes,
            threads=config.threads,
            report=progress.note,
        )
        require_writable(out / "model")
        progress.stage(f"pre-training {config.recommender} on {len(log):,} interactions")
        try:
            model.fit(log)
        except KeyboardInterrupt:
            raise StoppedError(_how_to_go_on(model.choices, config.strategy, out)) from None
        model.save(out)
    for name, chosen in model.choices.items():
        say(f"chosen for {name}: {', '.join(f'{key}={value}' for key, value in chosen.items()) or 'defaults'}")
    _say_why(asked, {})
    say(f'wrote {out}: use it with melon.load("{out}")')


def _how_to_go_on(choices: Mapping[str, Plain], strategy: str, out: Path) -> str:
    """What a stopped pre-training tells: its choices, once made, need not be made again."""
    message = f"stopped before anything was written to {out}. Run the same command again to start over"
    if not choices:
        return message + "."
    decided = {f"pretrain.{name}": value for name, value in choices["pre-training"].items() if name in ("l2", "epochs")}
    decided |= choices[strategy]
    flags = " ".join(f"--set {name}={'null' if value is None else value}" for name, value in decided.items())
    return f"{message}, or go on with what was chosen: {flags} --budget 1"


def _say_why(asked: Plain, chosen: Plain, tried: int = 0) -> None:
    line = why_auto(asked, chosen, tried)
    if line is not None:
        say(line)
