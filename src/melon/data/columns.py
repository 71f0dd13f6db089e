"""Which column holds the user, which the item and which the time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from melon.errors import DataError

ROLES = ("user", "item", "time")

# Names are compared without case, underscores and blanks: `userId`, `user_id` and `User ID` are one name.
USUAL_NAMES: Mapping[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "visitorid", "customerid", "memberid", "reviewerid", "users"),
        *("customer", "client", "clientid", "buyer", "buyerid", "shopper", "shopperid", "visitor", "member"),
        *("reader", "readerid", "reviewer", "accountid"),
    ),
    "item": (
        *("item", "itemid", "iid", "movieid", "articleid", "clickarticleid", "productid", "asin", "parentasin"),
        *("businessid", "newsid", "videoid", "trackid", "songid", "contentid", "items"),
        *("product", "article", "movie", "video", "track", "song", "book", "bookid", "sku", "stockcode"),
    ),
    "time": (
        *("time", "ts", "timestamp", "datetime", "unixtime", "eventtime", "clicktimestamp", "unixreviewtime"),
        *("date", "createdat", "times", "eventdate", "orderdate", "invoicedate", "purchasedate", "purchasetime"),
        *("ordertime", "clicktime", "visittime", "reviewtime"),
    ),
}


@dataclass(frozen=True)
class Columns:
    """Names of the three columns that make an interaction, and their positions counted from 0."""

    user: str
    item: str
    time: str
    positions: tuple[int, int, int] = (0, 1, 2)

    def __str__(self) -> str:
        return f"user = {self.user!r}, item = {self.item!r}, time = {self.time!r}"


def first_line(error: Exception) -> str:
    """First line of a library's message about an input, without its advice to programmers."""
    return str(error).partition("\n")[0]


def plain_name(name: str) -> str:
    """A column's name without case, blanks and punctuation."""
    return re.sub(r"[^0-9a-z]", "", name.lower())


def find_columns(
    available: Sequence[str],
    place: str,
    wanted: Mapping[str, str | None] | None = None,
    *,
    usual: Mapping[str, Sequence[str]] = USUAL_NAMES,
    option: str = "--{role}",
    numbers: bool = False,
) -> Columns:
    """The wanted columns, or else the first usual name among those available; an error lists what is available.

    `option` is how a person names a column, for the messages; with `numbers`, a column's number (from 1) is as good as
    its name.
    """
    wanted = wanted or {}
    positions = {
        role: _find(available, place, role, wanted.get(role), usual[role], option.format(role=role), numbers)
        for role in ROLES
    }
    if len(set(positions.values())) < len(ROLES):
        choice = ", ".join(f"{role} = {available[position]!r}" for role, position in positions.items())
        raise DataError(f"{place}: user, item and time must be three different columns, got {choice}.")
    user, item, time = positions.values()
    return Columns(available[user], available[item], available[time], (user, item, time))


def _find(
    available: Sequence[str],
    place: str,
    role: str,
    wanted: str | None,
    usual: Sequence[str],
    option: str,
    numbers: bool,
) -> int:
    listing = ", ".join(map(repr, available)) or "none"
    if wanted is not None:
        same = [position for position, name in enumerate(available) if name == wanted]
        if not same and numbers and wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= len(available):
            return int(wanted) - 1
        if not same:
            raise DataError(
                f"{place}: there is no column {wanted!r} for the {role}. Columns there: {listing}. "
                f"Name the right one with {option}."
            )
        if len(same) > 1:
            raise DataError(f"{place}: there are several columns named {wanted!r}; {_way_out(same, option, numbers)}")
        return same[0]
    by_name: dict[str, list[int]] = {}
    for position, name in enumerate(available):
        by_name.setdefault(plain_name(name), []).append(position)
    for candidate in usual:
        same = by_name.get(plain_name(candidate), [])
        if len(same) > 1:
            names = [available[position] for position in same]
            if len(set(names)) < len(names):
                way_out = _way_out(same, option, numbers)
            else:
                way_out = f"name the right one with {option}."
            raise DataError(f"{place}: several columns could be the {role}: {', '.join(map(repr, names))}; {way_out}")
        if same:
            return same[0]
    need = " An interaction needs a user, an item and a time." if role == "time" else ""
    raise DataError(f"{place}: no column looks like the {role}. Columns there: {listing}.{need} Name it with {option}.")


def _way_out(positions: Sequence[int], option: str, numbers: bool) -> str:
    if not numbers:
        return "rename all but one."
    choices = " or ".join(f"{option} {position + 1}" for position in positions)
    return f"choose one by its number: {choices}."
