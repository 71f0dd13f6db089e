"""Commands that use a saved model: recommend, find similar items, learn new interactions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from melon.cli.options import RAW, AsJson, Model, takes

ListLength = Annotated[int, typer.Option("--k", "-k", help="Items in a list.")]


def recommend(
    model: Model,
    user: Annotated[list[str], typer.Option(help="A user's id. Repeatable.")],
    k: ListLength = 10,
    seen: Annotated[bool, typer.Option("--seen", help="Also list items that the user has had.")] = False,
    json: AsJson = False,
) -> None:
    """Print the best items for users, best first.

    A user whom the model does not know is scored as a newcomer, and the list says so.
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
    """Print the items that are most like others, by the cosine of their vectors or, for the blend, by their users."""
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
    """Let a saved model learn new interactions in time order, and save it.

    Users and items may be new. The folder holds the old model until the new one is complete.
    """
    from melon.atomic import require_writable
    from melon.catchup import catch_up, read_new
    from melon.estimator import load
    from melon.progress import say

    target = out or model
    loaded = load(model)
    require_writable(target / "model")
    log, notes = read_new(list(new), loaded.live, **columns)
    for note in notes:
        say(note)
    learned = catch_up(loaded, log)
    loaded.save(target)
    say(str(learned))
    say(f"wrote {target}")


def _plain(items: Any) -> list[dict[str, Any]]:
    return [{"item": one.item if isinstance(one.item, int) else str(one.item), "score": one.score} for one in items]


def _print_json(content: Any) -> None:
    import json

    typer.echo(json.dumps(content, ensure_ascii=False))


def _print_table(title: str, items: Any) -> None:
    from melon.evaluation.table import ResultTable, TableCell
    from melon.progress import say

    if not items:
        say(f"{title}\n  no item is left to recommend; --seen lists those that the user has had too")
        return
    lines = [(str(rank), str(one.item), f"{one.score:.4f}") for rank, one in enumerate(items, 1)]
    say(str(ResultTable(["rank", "item", "score"], [[*map(TableCell, line)] for line in lines], left=2, title=title)))
