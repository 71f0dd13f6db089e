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
    """Names of the three columns that make an interaction, their positions from 0, and whose were guessed."""

    user: str
    item: str
    time: str
    positions: tuple[int, int, int]
    guessed: tuple[str, ...]


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
    wanted, positions = wanted or {}, []
    listing = ", ".join(map(repr, available)) or "none"
    for role in ROLES:
        name, way = wanted.get(role), option.format(role=role)
        if name is not None:
            same = [position for position, one in enumerate(available) if one == name]
            if not same and numbers and name.isascii() and name.isdigit() and 1 <= int(name) <= len(available):
                same = [int(name) - 1]
            if not same:
                raise DataError(
                    f"{place}: there is no column {name!r} for the {role}. Columns there: {listing}. "
                    f"Name the right one with {way}."
                )
            if len(same) > 1:
                raise DataError(f"{place}: there are several columns named {name!r}; {_way_out(same, way, numbers)}")
        else:
            plain = [plain_name(one) for one in available]
            likely = next((one for one in map(plain_name, usual[role]) if one in plain), None)
            same = [position for position, one in enumerate(plain) if one == likely]
            names = [available[position] for position in same]
            if len(same) > 1:
                way_out = f"name the right one with {way}."
                if len(set(names)) < len(names):
                    way_out = _way_out(same, way, numbers)
                choices = ", ".join(map(repr, names))
                raise DataError(f"{place}: several columns could be the {role}: {choices}; {way_out}")
            if not same:
                need = " An interaction needs a user, an item and a time." if role == "time" else ""
                raise DataError(
                    f"{place}: no column looks like the {role}. Columns there: {listing}.{need} Name it with {way}."
                )
        positions.append(same[0])
    user, item, time = positions
    if len({user, item, time}) < len(ROLES):
        choice = f"user = {available[user]!r}, item = {available[item]!r}, time = {available[time]!r}"
        raise DataError(f"{place}: user, item and time must be three different columns, got {choice}.")
    guessed = tuple(role for role in ROLES if usual is USUAL_NAMES and not wanted.get(role))
    return Columns(available[user], available[item], available[time], (user, item, time), guessed)


def _way_out(positions: Sequence[int], option: str, numbers: bool) -> str:
    if not numbers:
        return "rename all but one."
    choices = " or ".join(f"{option} {position + 1}" for position in positions)
    return f"choose one by its number: {choices}."
