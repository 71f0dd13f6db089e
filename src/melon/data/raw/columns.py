"""Which column is the user, which the item and which the time, when nobody said so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from melon.errors import DataError

ROLES = ("user", "item", "time")

# Names are compared without case, underscores and blanks: `userId`, `user_id` and `User ID` are one name.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "userid", "uid", "visitorid", "customerid", "memberid", "reviewerid", "users"),
    "item": (
        *("item", "itemid", "iid", "movieid", "articleid", "clickarticleid", "productid", "asin", "parentasin"),
        *("businessid", "newsid", "videoid", "trackid", "songid", "contentid", "items"),
    ),
    "time": (
        *("time", "ts", "timestamp", "datetime", "unixtime", "eventtime", "clicktimestamp", "unixreviewtime"),
        *("date", "createdat", "times"),
    ),
}


@dataclass(frozen=True)
class Columns:
    """The names of the three columns that make an interaction."""

    user: str
    item: str
    time: str


def first_line(error: Exception) -> str:
    """What a library says about an input, without its advice to programmers."""
    return str(error).partition("\n")[0]


def plain(name: str) -> str:
    """A column's name without case, blanks and punctuation."""
    return re.sub(r"[^0-9a-z]", "", name.lower())


def find_columns(
    available: Sequence[str],
    place: str,
    asked: Mapping[str, str | None] | None = None,
    *,
    usual: Mapping[str, Sequence[str]] = USUAL_NAMES,
    option: str = "--{role}",
) -> Columns:
    """The named columns, or else the first usual name that is there; an error lists what is there.

    `option` is how the caller lets a person name a column, for the messages.
    """
    asked = asked or {}
    found: dict[str, str] = {}
    for role in ROLES:
        named_by = option.format(role=role)
        found[role] = find_column(available, place, role, asked.get(role), usual[role], named_by)
    if len(set(found.values())) < len(ROLES):
        raise DataError(
            f"{place}: user, item and time must be three different columns, got "
            f"{', '.join(f'{role} = {name!r}' for role, name in found.items())}."
        )
    return Columns(**found)


def find_column(
    available: Sequence[str], place: str, role: str, asked: str | None, usual: Sequence[str], option: str
) -> str:
    """One column by its role."""
    there = ", ".join(map(repr, available)) or "none"
    if asked is not None:
        if list(available).count(asked) > 1:
            raise DataError(f"{place}: there are several columns named {asked!r}; rename all but one.")
        if asked not in available:
            raise DataError(
                f"{place}: there is no column {asked!r} for the {role}. Columns there: {there}. "
                f"Name the right one with {option}."
            )
        return asked
    by_plain: dict[str, list[str]] = {}
    for name in available:
        by_plain.setdefault(plain(name), []).append(name)
    for candidate in usual:
        names = by_plain.get(plain(candidate), [])
        if len(names) > 1:
            raise DataError(
                f"{place}: several columns could be the {role}: {', '.join(map(repr, names))}. "
                f"Name the right one with {option}."
            )
        if names:
            return names[0]
    raise DataError(f"{place}: no column looks like the {role}. Columns there: {there}. Name it with {option}.")
