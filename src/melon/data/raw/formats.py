"""How a raw file is laid out: what separates its fields, and which column is the user, the item and the time."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from melon.errors import DataError, SettingsError, unknown_name

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


#: Texts that mean "no id" in exported tables; an empty field always does.
MISSING = ("NaN", "nan", "None", "null", "NULL", "N/A", "NA")
#: Separators that are guessed, and how they are called. MovieLens has the one of two characters.
SEPARATORS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'", "::": "'::'"}

#: Published data, and kinds of files: what stands where in tables without a header, and names that are not usual ones.
FORMATS: Mapping[str, Mapping[str, str]] = {
    "movielens": {"user": "1", "item": "2", "time": "4"},
    "amazon": {"item": "1", "user": "2", "time": "4"},
    "amazon-2014": {"user": "1", "item": "2", "time": "4"},
    "adressa": {"item": "id"},
    **{name: {} for name in ("yelp", "globo", "recbole", "rechorus", "csv", "tsv", "jsonl", "parquet")},
}

FileKind = Literal["csv", "jsonl", "parquet"]

_NUMBER_OR_DATE = re.compile(r"\s*[+-]?[0-9][0-9.,:/TZ+ -]*(?:[eE][+-]?[0-9]+)?\s*")
_SHOWN = 120


@dataclass(frozen=True)
class ReadOptions:
    """What a person said about raw files; whatever is None is guessed."""

    columns: Mapping[str, str | None] = field(default_factory=dict)  # role → name or number
    format: str | None = None  # of `FORMATS`
    separator: str | None = None
    header: bool | None = None
    encoding: str | None = None
    time_unit: str | None = None
    time_format: str | None = None
    missing: tuple[str, ...] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise unknown_name("format", self.format, FORMATS)
        if self.separator is not None:
            mark = {"tab": "\t", "\\t": "\t"}.get(self.separator, self.separator)
            if mark not in SEPARATORS and (len(mark) != 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n'):
                raise SettingsError(
                    f"--separator must be '::' or one character that is not a letter or digit, got {mark!r}; replace a "
                    "longer one in the file first, for example by tabs."
                )
            object.__setattr__(self, "separator", mark)
        if self.time_format is not None:
            if self.time_unit is not None:
                raise SettingsError("--time-unit is about numbers and --time-format about dates; give one of them.")
            if "%" not in self.time_format:
                raise SettingsError(
                    f"--time-format must be a pattern such as '%d.%m.%Y %H:%M'; got {self.time_format!r}."
                )

    def wanted(self, *, numbers: bool) -> dict[str, str]:
        """Columns by role, as the format has them or as a person said; the format's numbers are for tables alone."""
        usual = FORMATS[self.format or "csv"].items()
        known = {role: name for role, name in usual if numbers or not name.isdigit()}
        return known | {role: name for role, name in self.columns.items() if name is not None}

    @property
    def describes_a_table(self) -> bool:
        """Whether an option was given that only tables of text have."""
        return self.separator is not None or self.header is not None


@dataclass(frozen=True)
class Layout:
    """How one particular file is read; `notes` name what was guessed beside the columns."""

    kind: FileKind
    columns: Columns
    separator: str = ","
    quote: str | None = '"'
    header: bool = False
    fields: int = 0
    missing: tuple[str, ...] = ()  # texts that mean "no id"
    notes: tuple[str, ...] = ()


def layout_of(lines: Sequence[str], options: ReadOptions, place: str) -> Layout:
    """How a text file is read that begins with these lines: as JSON lines where one is an object, else as CSV."""
    keys = [] if options.describes_a_table else _json_keys(lines)
    if keys:
        return Layout("jsonl", find_columns(keys, place, options.wanted(numbers=False)), missing=options.missing or ())
    if lines[0].lstrip().startswith("{") and not options.describes_a_table:
        raise DataError(
            f"{place}: none of its first lines is a whole JSON object with names and values. The first is "
            f"{lines[0][:_SHOWN]!r}; write one object on each line, or say with --separator how fields are separated."
        )
    return _table_layout(lines, options, place)


def _json_keys(lines: Sequence[str]) -> list[str]:
    """Keys of the JSON objects among the lines, in order of appearance."""
    keys: dict[str, None] = {}
    for line in lines:
        if not line.lstrip().startswith("{"):
            continue
        try:
            keys.update(dict.fromkeys(json.loads(line)))
        except (ValueError, RecursionError):
            continue
    return list(keys)


def _table_layout(lines: Sequence[str], options: ReadOptions, place: str) -> Layout:
    separator, notes = options.separator, tuple[str, ...]()
    if separator is None:
        separator = _guessed_separator(lines, place)
        notes += (f"separator {SEPARATORS[separator]} (guessed)",)
    names = split_line(lines[0], separator)
    if all(":" in name for name in names):  # RecBole's header has types: user_id:token
        names = [name.partition(":")[0] for name in names]
    header = _has_header(names, lines[0], options, place)
    if not header:
        names = [str(number + 1) for number in range(len(names))]
        if options.header is None:
            notes += ("no header (guessed: the first line looks like an interaction)",)
    columns = find_columns(names, place, options.wanted(numbers=True), numbers=True)
    missing = MISSING if options.missing is None else options.missing
    if separator != "::":
        return Layout("csv", columns, separator, '"', header, len(names), missing, notes)
    # Two characters cannot be read directly: split at each colon, every other field is empty.
    user, item, time = columns.positions
    columns = replace(columns, positions=(2 * user, 2 * item, 2 * time))
    return Layout("csv", columns, ":", None, header, 2 * len(names) - 1, missing, notes)


def _guessed_separator(lines: Sequence[str], place: str) -> str:
    """The one that splits the lines most evenly."""
    counts = {
        mark: [len(split_line(line, mark)) if '"' in line else line.count(mark) + 1 for line in lines]
        for mark in SEPARATORS
    }
    # An interaction has three fields; two are worth a message about the third.
    least = min(3, max(2, *(count[0] for count in counts.values())))
    evenness = {mark: count.count(count[0]) for mark, count in counts.items() if count[0] >= least}
    best = [mark for mark, even in evenness.items() if even == max(evenness.values())]
    if len(best) > 1:
        # Of two that split equally, one may give columns with usual names.
        named = [mark for mark in best if usual_roles(split_line(lines[0], mark))]
        best = named if len(named) == 1 else best
    if not best:
        raise DataError(
            f"cannot find the separator of {place}, which begins with {lines[0][:_SHOWN]!r}; give it with --separator."
        )
    if len(best) > 1:
        choices = " or ".join(SEPARATORS[mark] for mark in best)
        raise DataError(f"{place}: the separator can be {choices}; give it with --separator.")
    return best[0]


def split_line(line: str, separator: str) -> list[str]:
    """The fields of one line."""
    if '"' not in line or len(separator) > 1:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:  # a stray carriage return, or a field that is very long
        return line.split(separator)


def usual_roles(fields: Sequence[str]) -> int:
    """How many of user, item and time are among these names of columns."""
    names = {plain_name(name) for name in fields}
    return sum(bool(names & set(USUAL_NAMES[role])) for role in ROLES)


def _has_header(names: Sequence[str], line: str, options: ReadOptions, place: str) -> bool:
    """Whether the first line names the columns; an error where it may and may not."""
    columns = options.wanted(numbers=True)
    wanted = [columns.get(role) for role in ROLES]
    numbers = all(name and name.isdigit() for name in wanted)
    by_number = "give the columns by their numbers: --user 1 --item 2 --time 3"
    first = f"the first line, {line[:_SHOWN]!r},"
    if options.header is False and not numbers:
        raise DataError(f"{place}: without a header, {by_number}. There are {len(names)} columns.")
    if options.header is not None:
        return options.header
    looks_like_data = any(_NUMBER_OR_DATE.fullmatch(name[:60]) for name in names) and usual_roles(names) < 2
    by_name = all(name is None or name in names for name in wanted) and any(wanted)
    if not looks_like_data or (by_name and not numbers):
        return True
    if numbers and by_name:
        raise DataError(f"{place}: {first} can be a header or an interaction; give --header or --no-header.")
    if not numbers:
        raise DataError(
            f"{place}: {first} looks like an interaction and not like names of columns. If there is no header, give "
            f"--no-header and {by_number}. If it is a header, give --header."
        )
    return False
