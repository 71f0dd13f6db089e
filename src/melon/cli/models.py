"""Commands about one model: evaluate it, make it, use it, look into it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from melon.cli.options import AUTO_EVALUATION, OUTPUT, RAW, AsJson, Model, Stream, requested, takes

if TYPE_CHECKING:
    from melon.data.ids import IdBook, Ids
    from melon.data.interactions import Interactions

#: Options that a model does not have which is trained on a whole stream.
_OF_EVALUATIONS_ONLY = (
    "pretrain",
    "split",
    "candidates",
    "negatives",
    "lists",
    "retrain_every",
)


@takes("request", AUTO_EVALUATION, combine=requested)
def evaluate(
    stream: Stream,
    *,
    request: dict[str, Any],
    json: Annotated[
        Path | None,
        typer.Option(help="Write the full result here, and the rank of each event beside it.", rich_help_panel=OUTPUT),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with the table and the curve over time.", rich_help_panel=OUTPUT),
    ] = None,
    save_config: Annotated[
        Path | None,
        typer.Option(help="Write the chosen settings here (TOML), for --config.", rich_help_panel=OUTPUT),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the same command where it was stopped.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Evaluate a strategy on a stream: predict each batch, then learn it, and compare with baselines.

    Settings that you do not give are chosen on the selection window: late training data and the validation part. The
    test part is not read until then.
    """
    from melon.atomic import require_writable, write_text
    from melon.errors import SettingsError, require_plots
    from melon.evaluator import evaluate as run
    from melon.fitting.auto import why_auto
    from melon.fitting.config import config_text
    from melon.lab.page import result_page
    from melon.lab.terminal import show_result
    from melon.progress import say

    if html is not None:
        require_plots("--html")
        require_writable(html)
    if save_config is not None:
        if save_config.suffix != ".toml":
            raise SettingsError(f"--save-config {save_config} must end in .toml.")
        require_writable(save_config)
    result = run(stream, **request, json=json, resume=resume)
    record = result.record
    if html is not None:
        write_text(html, result_page([record]))
    if save_config is not None:
        write_text(save_config, config_text(record))
    show_result(record)
    choice = record["config"]["chosen"][record["strategy"]]
    written = [f"wrote {path}" for path in (json, html, save_config) if path is not None]
    why = why_auto(request, choice["settings"], len(choice["trials"]))
    for line in (why, *written):
        if line is not None:
            say(line)


@takes("request", AUTO_EVALUATION, *_OF_EVALUATIONS_ONLY, combine=requested)
def pretrain(
    stream: Stream,
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    *,
    request: dict[str, Any],
) -> None:
    """Train a recommender on a whole stream and save it, ready to learn on and to recommend.

    Epochs and settings that you do not give are chosen on the selection window at the end of the stream.
    """
    from melon.atomic import require_writable
    from melon.data.files import load_stream
    from melon.errors import StoppedError
    from melon.estimator import Melon
    from melon.fitting.auto import settle_auto, why_auto
    from melon.fitting.config import whole_number
    from melon.fitting.search import words
    from melon.progress import say
    from melon.strategies.registry import STRATEGIES

    if "epochs" in request:
        whole_number("epochs", request["epochs"], 1)
    strategy = settle_auto(request)["strategy"]
    fixed = STRATEGIES[strategy].preset(request.get("preset", "default"))
    arguments = {name: value for name, value in request.items() if name in _ARGUMENTS}
    model = Melon(**arguments | {"settings": {**fixed, **request["settings"]}})
    require_writable(out / "model")
    log = load_stream(stream)
    try:
        model.fit(log)
    except KeyboardInterrupt:
        raise StoppedError(_how_to_repeat(model.choices_, strategy, out)) from None
    model.save(out)
    for name, settings in model.choices_.items():
        say(f"chosen for {name}: {words(settings)}")
    why = why_auto(request, {})
    if why is not None:
        say(why)
    say(f'wrote {out}. Next: melon recommend {out} --user ID; or melon serve {out}; or in Python melon.load("{out}")')


#: Arguments that `Melon` has under the same name.
_ARGUMENTS = frozenset(
    (
        "recommender",
        "strategy",
        "seed",
        "epochs",
        "batch_size",
        "half_life",
        "recommender_settings",
        "pretrain_settings",
    )
) | {"budget", "minutes", "threads"}


def explain(
    checkpoint: Model,
    stream: Stream,
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")] = Path("explain.png"),
    at: Annotated[
        int | None,
        typer.Option(help="The event at which the batch starts. (default: the first that is new to the model)"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Interactions in the batch. (default: as the model learns)")
    ] = None,
    json: AsJson = False,
) -> None:
    """Draw the learning-rate matrix of a batch: how far each interaction would move each parameter.

    The matrix is that of learning the batch now. The saved model does not change.
    """
    from melon.lab.figures import explain_model
    from melon.lab.terminal import show_rates

    rates = explain_model(checkpoint, stream, out=out, at=at, batch_size=batch_size)
    show_rates(rates, out, as_json=json)


def _how_to_repeat(choices: Mapping[str, Mapping[str, Any]], strategy: str, out: Path) -> str:
    """The message of a stopped pre-training: choices that were made need not be made again."""
    message = f"stopped before anything was written to {out}. Run the same command again to start over"
    if not choices:
        return message + "."
    decided = {f"pretrain.{name}": value for name, value in choices["pre-training"].items() if name in ("l2", "epochs")}
    decided |= choices[strategy]
    flags = " ".join(f"--set {name}={'null' if value is None else value}" for name, value in decided.items())
    return f"{message}, or repeat it with the settings that were chosen: {flags} --budget 1"


ListLength = Annotated[int, typer.Option("--k", "-k", help="Items in a list.")]


def recommend(
    model: Model,
    user: Annotated[list[str], typer.Option(help="A user's id. Repeatable.")],
    k: ListLength = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Also list items that the user has had.")] = False,
    json: AsJson = False,
) -> None:
    """Print the best items for users, best first.

    An unknown user gets the list of a new user, and the output says so.
    """
    from melon.estimator import load

    loaded = load(model)
    ids = [loaded.live.users.parse(text) for text in user]
    lists = loaded.recommend(ids, k=k, filter_seen=not seen)
    if json:
        _print_json(
            [{"user": str(one.user), "source": one.source, "items": _plain(one.items)} for one in lists],
        )
        return
    for one, row in zip(lists, loaded.live.users.rows(ids).tolist(), strict=True):
        unknown = " (not known yet: the list of a newcomer)" if row < 0 else ""
        note = unknown if one.source == "model" else " (the model has nothing to say of this user: popular items)"
        _print_table(f"user {one.user}{note}", one.items)


def similar(
    model: Model,
    item: Annotated[list[str], typer.Option(help="An item's id. Repeatable.")],
    k: ListLength = 10,
    json: AsJson = False,
) -> None:
    """Print the items most similar to given ones, by the cosine of their vectors or, for the blend, by common users."""
    from melon.estimator import load

    loaded = load(model)
    ids = [loaded.live.items.parse(text) for text in item]
    lists = loaded.similar_items(ids, k=k)
    if json:
        _print_json([{"item": str(one), "items": _plain(like)} for one, like in zip(ids, lists, strict=True)])
        return
    for one, like in zip(ids, lists, strict=True):
        _print_table(f"like item {one}", like)


@takes("columns", RAW)
def learn(
    model: Model,
    new: Annotated[list[Path], typer.Argument(help="A prepared stream, or raw files as for melon data prepare.")],
    out: Annotated[Path | None, typer.Option(help="Save to another folder. (default: the model's own)")] = None,
    *,
    columns: dict[str, Any],
) -> None:
    """Learn new interactions with a saved model, in time order, and save the model.

    Users and items may be new. The folder holds the old model until the new one is complete.
    """
    from melon.atomic import require_writable
    from melon.estimator import load
    from melon.progress import counted, say

    target = out or model
    loaded = load(model)
    require_writable(target / "model")
    log, notes = _read(new, columns)
    users, items = loaded.live.users, loaded.live.items
    log = replace(log, user_ids=_as_in(users, log.user_ids), item_ids=_as_in(items, log.item_ids))
    for note in notes:
        say(note)
    known, late = (loaded.n_users, loaded.n_items), loaded.live.late
    loaded.partial_fit(log).save(target)
    if late := loaded.live.late - late:
        say(
            f"warning: {counted(late, 'interaction')} of {len(log):,} are older than the newest in the model, but were "
            "learned as new ones. If the model had them already, they now count twice."
        )
    new_users, new_items = loaded.n_users - known[0], loaded.n_items - known[1]
    counts = counted(new_users, "new user"), counted(new_items, "new item")
    say(f"learned {counted(len(log), 'interaction')}, {', '.join(counts)}")
    say(f"wrote {target}")


def _read(paths: Sequence[Path], columns: dict[str, Any]) -> tuple[Interactions, Sequence[str]]:
    """A prepared stream, or raw files of which no user or item is dropped; and what to know of them."""
    from melon.data.files import load_stream
    from melon.data.prepare import prepare
    from melon.errors import DataError

    if len(paths) == 1 and paths[0].suffix == ".parquet" and not columns:
        try:
            return load_stream(paths[0]), []
        except DataError:
            if not paths[0].is_file():
                raise
    with tempfile.TemporaryDirectory(prefix="melon-") as folder:
        out = Path(folder) / "new.parquet"
        report = prepare(paths, out=out, **columns)
        bad = [f"{report.bad_rows:,} of {report.rows_read:,} rows could not be read and are left out"]
        return load_stream(out), [*report.notes, *(bad if report.bad_rows else [])]


def _as_in(book: IdBook, ids: Ids) -> Ids:
    """Ids as the kind that the model's ids have: a file cannot say whether 7 is a number or a text."""
    import numpy as np

    if book.kind in (None, "int" if ids.dtype.kind in "iu" else "str"):
        return ids
    converted: Ids = np.empty(len(ids), dtype=np.int64 if book.kind == "int" else object)
    converted[:] = [book.parse(str(one)) for one in ids.tolist()]
    return converted


def _plain(items: Any) -> list[dict[str, Any]]:
    return [{"item": one.item if isinstance(one.item, int) else str(one.item), "score": one.score} for one in items]


def _print_json(content: Any) -> None:
    import json

    typer.echo(json.dumps(content, ensure_ascii=False))


def _print_table(title: str, items: Any) -> None:
    from melon.evaluation.table import ResultTable, TableCell
    from melon.progress import say

    if not items:
        say(f"{title}\n  no item is left to recommend; --seen also lists the user's own items")
        return
    lines = [(str(rank), str(one.item), f"{one.score:.4f}") for rank, one in enumerate(items, 1)]
    say(str(ResultTable(["rank", "item", "score"], [[*map(TableCell, line)] for line in lines], left=2, title=title)))
