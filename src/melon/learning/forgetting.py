"""Passing events by without learning them, and forgetting a person: rows, past and name."""

from __future__ import annotations

import uuid

import numpy as np

from melon.data.ids import Id
from melon.learning.model import IdSequence, LiveModel
from melon.stream.batch import Batch
from melon.tables import Table, TableSpec
from melon.types import Ints, Scores


def observe_only(model: LiveModel, user_ids: IdSequence, item_ids: IdSequence, times: Ints) -> None:
    """Take note of events in the order given without learning from them: the past knows them, no row is taught.

    Newcomers get their first rows. Times before `last_time` count as `last_time`.
    """
    updater = model.updater
    users, items = model.users.rows(user_ids, add=True), model.items.rows(item_ids, add=True)
    late, moments = times < model.last_time, np.maximum(times, model.last_time)
    keys = model.users.keys(users), model.items.keys(items)
    updater.make_rows(Batch(updater.history.events, users, items, moments, *keys))
    updater.recommender.observe(users, items, moments, updater.history)
    updater.history.append(users, items)
    model.popular.observe(items)
    model.late += int(late.sum())
    model.last_time = int(moments[-1])


def forget(model: LiveModel, user: Id, pseudonym: Id) -> int | None:
    """Forget a person: the row is the first row of the pseudonym, which has no past; None where nobody is known.

    The row number is not given to anybody else. What others learned from the person's interactions stays.
    """
    row = int(model.users.rows([user])[0])
    if row < 0:
        return None
    # The decay clock may stand where the last batch began: a model that was saved and loaded would write other bytes.
    model.updater.recommender.clock.now = model.updater.moment(model.last_time).now
    forget_past(model, row, pseudonym)
    key, place = model.users.keys([row]), np.array([row])
    updater, recommender = model.updater, model.updater.recommender
    for name, table in recommender.tables.items():
        if table.spec.role == "user" and row < table.rows:
            table.scatter(place, first_rows(table.spec, key, like=table, seed=recommender.seed))
            for state in updater.row_state.get(name, {}).values():
                if row < state.rows:
                    state.scatter(place, first_rows(state.spec, key, like=table, seed=0))
    return row


def forget_past(model: LiveModel, row: int, pseudonym: Id) -> None:
    """Take a user's interactions out of the past, and the id out of the book."""
    model.updater.history.forget(row)
    model.updater.recommender.forget_user(row)
    model.users.rename(row, pseudonym)


#: A change of the past that no event makes: ("retract", user row, item row), ("move", user row, to another's), or
#: ("rename", user row, id as JSON has it).
Edit = tuple[str, int, int | str]


def edit_past(model: LiveModel, edit: Edit) -> None:
    """Change the past alone: no row of a table is written."""
    kind, row, other = edit
    history = model.updater.history
    if kind == "rename":
        model.users.rename(row, uuid.UUID(str(other)) if model.users.kind == "uuid" else other)
        return
    partner = int(other)
    if kind == "retract":
        history.retract(row, partner)
    else:
        history.move(row, partner)
        model.updater.recommender.forget_user(row)


def first_rows(spec: TableSpec, keys: Ints, *, like: Table, seed: int) -> Scores:
    """What rows of a table are when they are made."""
    fresh = Table(spec, seed=seed, dtype=like.dtype)
    fresh.grow(len(keys), keys)
    return fresh.everything()
