"""Which column holds the user, which the item and which the time."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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


FRONT_PAGE = "front page without article"
#: Texts that mean "no id" in exported tables; an empty field always does.
MISSING = ("NaN", "nan", "None", "null", "NULL", "N/A", "NA")
SEPARATORS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}

FileKind = Literal["delimited", "jsonl", "parquet"]

# Reviewers' ids begin with A and are longer; an ASIN is B and nine characters, or an ISBN-10.
_ASIN = r"(?:B[0-9A-Z]{9}|[0-9]{9}[0-9X])"
_NUMBER_OR_DATE = re.compile(r"\s*[+-]?[0-9][0-9.,:/TZ+ -]*(?:[eE][+-]?[0-9]+)?\s*")


@dataclass(frozen=True)
class ReadOptions:
    """What a person said about raw files; whatever is None is guessed."""

    format: str | None = None
    columns: Mapping[str, str | None] = field(default_factory=dict)  # role → name or number
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
            if len(mark) != 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n':
                raise SettingsError(
                    f"--separator must be one character that is no letter or digit, got {mark!r}; replace a longer one "
                    "in the file first, say by tabs."
                )
            object.__setattr__(self, "separator", mark)
        if self.time_format is not None:
            if self.time_unit is not None:
                raise SettingsError("--time-unit is about numbers and --time-format about dates; give one of them.")
            if "%" not in self.time_format and self.time_format != "excel":
                raise SettingsError(
                    f"--time-format must be a pattern such as '%d.%m.%Y %H:%M', or excel; got {self.time_format!r}."
                )

    @property
    def describes_a_table(self) -> bool:
        """Whether an option was given that only tables of text have."""
        return self.separator is not None or self.header is not None


@dataclass(frozen=True)
class Sample:
    """The beginning of a text file: its name, its first lines that hold text, and the separator a person named."""

    name: str
    lines: Sequence[str]
    separator_asked: str | None = None

    @cached_property
    def json_keys(self) -> list[str] | None:
        """Keys of the JSON objects among the lines, in order of appearance; None if no line begins as an object."""
        if not any(line.lstrip().startswith("{") for line in self.lines):
            return None
        keys: dict[str, None] = {}
        for line in self.lines:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                keys.update(dict.fromkeys(value))
        return list(keys)

    @cached_property
    def separator(self) -> str | None:
        """The separator that was asked for, or else the one that splits the lines most evenly; None if none does."""
        if self.separator_asked or self.json_keys is not None:
            return self.separator_asked
        counts = {
            mark: [len(split_line(line, mark)) if '"' in line else line.count(mark) + 1 for line in self.lines]
            for mark in SEPARATORS
        }
        # An interaction has three fields; two are worth a message about the third.
        least = min(3, max(2, *(count[0] for count in counts.values())))
        evenness = {mark: count.count(count[0]) for mark, count in counts.items() if count[0] >= least}
        best = [mark for mark, lines in evenness.items() if lines == max(evenness.values())]
        if len(best) > 1:
            # Of two that split equally, one may give columns with usual names.
            named = [mark for mark in best if usual_roles(split_line(self.lines[0], mark))]
            best = named if len(named) == 1 else best
        if len(best) > 1:
            choices = " or ".join(SEPARATORS[mark] for mark in best)
            raise DataError(f"{self.name}: the separator can be {choices}; say which with --separator.")
        return best[0] if best else None

    @cached_property
    def fields(self) -> list[str]:
        """The fields of the first line."""
        return split_line(self.lines[0], self.separator) if self.separator else [self.lines[0]]

    def looks_like_columns(self) -> bool:
        """Whether the lines have three fields, or two of which one has a usual name: then the time is missing."""
        return len(self.fields) >= 3 or (len(self.fields) == 2 and usual_roles(self.fields) > 0)

    def has(self, *names: str, others: Sequence[str] | None = None) -> bool:
        """Whether the first line has these names; with `others`, no more than these besides."""
        found = {plain_name(field) for field in self.fields}
        return found.issuperset(names) and (others is None or found - set(names) <= set(others))


@dataclass(frozen=True)
class Variant:
    """One way in which files of a format are laid out."""

    kind: FileKind
    separator: str | None = None  # None: guessed
    fields: tuple[str, ...] = ()  # the fixed fields of a file without a header
    names: Mapping[str, Sequence[str]] | None = None  # role → the names it may have; None: any, or no header
    quote: str | None = '"'
    typed_header: bool = False  # `name:type`, as RecBole writes it


#: Something by which a format is recognised, in words and as a test.
Sign = tuple[str, Callable[[Sample], bool]]


@dataclass(frozen=True)
class Format:
    """A raw format: what it is, how its columns are found, the layouts it comes in, and its signs."""

    name: str
    description: str
    columns: str
    variants: tuple[Variant, ...]
    signs: tuple[Sign, ...] = ()
    missing_item: str = "missing item"


@dataclass(frozen=True)
class Layout:
    """How one particular file is read; `notes` name what was guessed beside the columns."""

    kind: FileKind
    columns: Columns
    separator: str = ","
    quote: str | None = '"'
    header: bool = False
    fields: int = 0
    missing_item: str = "missing item"
    missing: tuple[str, ...] = ()  # texts that mean "no id"
    notes: tuple[str, ...] = ()


def guess_format(sample: Sample) -> tuple[str, str]:
    """The format that a text file looks like, and why."""
    # The general formats stand first in the table, so the particular ones are asked before them.
    for form in reversed(FORMATS.values()):
        for reason, shows in form.signs:
            if shows(sample):
                return form.name, reason
    raise DataError(
        f"cannot tell the format of {sample.name}, which begins with {sample.lines[0][:120]!r}. "
        f"Say it with --format, one of: {', '.join(FORMATS)}; or say how fields are separated with --separator."
    )


def split_line(line: str, separator: str, quote: str | None = '"') -> list[str]:
    """The fields of one line."""
    if quote is None or quote not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator, quotechar=quote), [])
    except csv.Error:  # a stray carriage return, or a field that is very long
        return line.split(separator)


def usual_roles(fields: Sequence[str]) -> int:
    """How many of user, item and time are among these names of columns."""
    names = {plain_name(name) for name in fields}
    return sum(bool(names & set(USUAL_NAMES[role])) for role in ROLES)


def layout_of(form: Format, sample: Sample, options: ReadOptions, place: str) -> Layout:
    """How a text file of this format is read."""
    if options.describes_a_table and not any(one.kind == "delimited" and one.names is None for one in form.variants):
        raise SettingsError(
            f"--separator, --header and --no-header are for csv and tsv, and {place} is read as {form.name}; "
            "choose --format csv."
        )
    variant = next((one for one in form.variants if _fits(one, sample)), None)
    if variant is None:
        raise DataError(
            f"{place} does not look like {form.name} ({form.description}; columns: {form.columns}). "
            f"Its first line is {sample.lines[0][:120]!r}. Choose another --format: {', '.join(FORMATS)}."
        )
    if variant.kind == "delimited":
        return _delimited(form, variant, sample, options, place)
    if not sample.json_keys and variant.names is None:
        raise DataError(
            f"{place}: none of its first lines is a whole JSON object with names and values. The first is "
            f"{sample.lines[0][:120]!r}; write one object on each line."
        )
    # A JSON object may leave a field out, so a fixed name need not be among the first lines.
    fixed = [name for role in ROLES for name in (variant.names or {}).get(role, ())]
    available = list(dict.fromkeys((sample.json_keys or []) + fixed))
    columns = find_columns(available, place, options.columns, usual=variant.names or USUAL_NAMES)
    return Layout("jsonl", columns, missing_item=form.missing_item, missing=options.missing or ())


def _fits(variant: Variant, sample: Sample) -> bool:
    if variant.kind == "jsonl":
        return sample.json_keys is not None
    separator = sample.separator_asked or variant.separator or sample.separator
    if variant.kind != "delimited" or separator is None:
        return False
    if variant.fields:
        # A bad first line must not hide the format, so any line with the right fields is enough.
        return any(
            len(parts) == len(variant.fields)
            and all((not name) == (not part) for name, part in zip(variant.fields, parts, strict=True))
            for parts in (split_line(line, separator, variant.quote) for line in sample.lines)
        )
    fields = split_line(sample.lines[0], separator, variant.quote)
    return len(fields) > 1 and (not variant.typed_header or all(":" in name for name in fields))


def _delimited(form: Format, variant: Variant, sample: Sample, options: ReadOptions, place: str) -> Layout:
    separator = options.separator or variant.separator or sample.separator or ","
    notes: tuple[str, ...] = ()
    if not (options.separator or variant.separator):
        notes += (f"separator {SEPARATORS[separator]} (guessed)",)
    wanted, header = options.columns, not variant.fields
    names = list(variant.fields) or split_line(sample.lines[0], separator, variant.quote)
    if form.name == "amazon":
        names, note = _amazon_order(sample)
        notes += (note,)
    if variant.typed_header:
        names = [name.split(":")[0] for name in names]
        wanted = {role: name.split(":")[0] if name else None for role, name in wanted.items()}
    if variant.names is None:
        header = _has_header(names, sample, options, place)
        if not header:
            names = [str(number + 1) for number in range(len(names))]
        if not header and options.header is None:
            notes += ("no header (guessed: the first line looks like an interaction)",)
    columns = find_columns(names, place, wanted, usual=variant.names or USUAL_NAMES, numbers=True)
    missing = MISSING if options.missing is None else options.missing
    return Layout("delimited", columns, separator, variant.quote, header, len(names), form.missing_item, missing, notes)


def _has_header(names: Sequence[str], sample: Sample, options: ReadOptions, place: str) -> bool:
    """Whether the first line names the columns; an error where it may and may not."""
    wanted = [options.columns.get(role) for role in ROLES]
    numbers = all(name and name.isdigit() for name in wanted)
    by_number = "give the columns by their numbers: --user 1 --item 2 --time 3"
    first = f"the first line, {sample.lines[0][:120]!r},"
    if options.header is False and not numbers:
        raise DataError(f"{place}: without a header, {by_number}. There are {len(names)} columns.")
    if options.header is not None:
        return options.header
    looks_like_data = any(_NUMBER_OR_DATE.fullmatch(name[:60]) for name in names) and usual_roles(names) < 2
    by_name = all(name is None or name in names for name in wanted) and any(wanted)
    if not looks_like_data or (by_name and not numbers):
        return True
    if numbers and by_name:
        raise DataError(f"{place}: {first} can be a header or an interaction; say --header or --no-header.")
    if not numbers:
        raise DataError(
            f"{place}: {first} looks like an interaction and not like names of columns. If there is no header, say "
            f"--no-header and {by_number}. If it is one, say --header."
        )
    return False


def _amazon_order(sample: Sample) -> tuple[list[str], str]:
    """Whether the item comes first (2018) or the user does (2014), decided by what looks like a product's number."""
    rows = [split_line(line, ",") for line in sample.lines]
    first, second = (sum(bool(re.fullmatch(_ASIN, row[n])) for row in rows if len(row) == 4) for n in (0, 1))
    if second > first:
        return list(_RATINGS), "amazon ratings of 2014: the user comes first"
    if first > second:
        return list(_AMAZON_2018), "amazon ratings of 2018: the item comes first"
    return list(_AMAZON_2018), "amazon ratings: no product number to tell the order by, read as of 2018 (item, user)"


def _objects(*keys: str) -> Sign:
    reason = f"its objects have {' and'.join(', '.join(keys).rsplit(',', 1))}" if keys else "its lines are JSON objects"
    return reason, lambda sample: sample.json_keys is not None and set(keys) <= set(sample.json_keys)


def _table(reason: str, shows: Callable[[Sample], object]) -> Sign:
    return reason, lambda sample: sample.json_keys is None and bool(shows(sample))


def _names(user: str, item: str, time: str) -> dict[str, tuple[str, ...]]:
    return {"user": (user,), "item": (item,), "time": (time,)}


_RATINGS = ("user", "item", "rating", "timestamp")
_AMAZON_2018 = ("item", "user", "rating", "timestamp")
_AMAZON_LINE = rf'^(?:"?{_ASIN}"?,[^,]*|[^,]*,"?{_ASIN}"?),[^,]*,"?[0-9.]+"?$'
_FIXED = _names("user", "item", "timestamp")
_RECHORUS = _names("user_id", "item_id", "time")
_ANY_NAMES = "any names, given by --user --item --time; usual names are found without"

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "csv",
            "values separated by commas, semicolons, tabs or bars, with or without a header",
            _ANY_NAMES,
            (Variant("delimited"),),
            (_table("its lines have fields", Sample.looks_like_columns),),
        ),
        Format(
            "tsv",
            "tab-separated values with a header",
            _ANY_NAMES,
            (Variant("delimited", "\t"),),
            (_table("its lines have tabs", lambda s: s.separator == "\t" and s.looks_like_columns()),),
        ),
        Format("parquet", "Parquet", _ANY_NAMES, (Variant("parquet"),)),
        Format("jsonl", "one JSON object per line", _ANY_NAMES, (Variant("jsonl"),), (_objects(),)),
        Format(
            "recbole",
            "RecBole .inter file: tab-separated, with a typed header",
            "user_id:token, item_id:token, timestamp:float",
            (Variant("delimited", "\t", (), _names("user_id", "item_id", "timestamp"), quote=None, typed_header=True),),
            (
                _table(
                    "its header is typed",
                    lambda s: (
                        re.search(r":(token|float)(\t|,|$|_seq)", s.lines[0]) or s.name.lower().endswith(".inter")
                    ),
                ),
            ),
        ),
        Format(
            "rechorus",
            "ReChorus data: tab- or comma-separated, with a header",
            "user_id, item_id, time; neg_items is ignored",
            (Variant("delimited", "\t", names=_RECHORUS), Variant("delimited", ",", names=_RECHORUS)),
            (
                _table(
                    "its header is user_id, item_id, time",
                    lambda s: s.separator in ("\t", ",") and s.has("userid", "itemid", "time", others=["negitems"]),
                ),
            ),
        ),
        Format(
            "movielens",
            "MovieLens ratings: ratings.dat (::), u.data (tab) or ratings.csv",
            "user, item, rating, timestamp in this order; in ratings.csv userId, movieId, timestamp",
            (
                # Two-character separators are not read directly: split at each colon, every other field is empty.
                Variant("delimited", ":", ("user", "", "item", "", "rating", "", "timestamp"), _FIXED, quote=None),
                Variant("delimited", "\t", _RATINGS, _FIXED, quote=None),
                Variant("delimited", ",", names=_names("userId", "movieId", "timestamp")),
            ),
            (
                _table("its fields are separated by ::", lambda s: re.search("^([^:]+::){3}[^:]+$", s.lines[0])),
                _table(
                    "its header has userId, movieId and timestamp",
                    lambda s: s.separator == "," and s.has("userid", "movieid", "timestamp"),
                ),
                _table(
                    "it has four tab-separated fields and no header",
                    lambda s: s.separator == "\t" and re.search(r"^(?:[^\t]*\t){3}[0-9.]+$", s.lines[0]),
                ),
            ),
        ),
        Format(
            "amazon",
            "Amazon ratings (CSV without header) or reviews (JSON lines)",
            "2018: item, user, rating, timestamp; 2014: user, item, rating, timestamp (recognised by the ids); "
            "reviews: reviewerID, asin, unixReviewTime",
            (
                Variant("jsonl", names=_names("reviewerID", "asin", "unixReviewTime")),
                Variant("delimited", ",", _AMAZON_2018, _FIXED),
            ),
            (
                _objects("reviewerID", "asin"),
                _table(
                    "it has no header, four fields and a product number",
                    lambda s: s.separator == "," and re.search(_AMAZON_LINE, s.lines[0]),
                ),
            ),
        ),
        Format(
            "yelp",
            "Yelp reviews: one JSON object per line",
            "user_id, business_id, date",
            (Variant("jsonl", names=_names("user_id", "business_id", "date")),),
            (_objects("user_id", "business_id", "date"),),
        ),
        Format(
            "adressa",
            "Adressa events: one JSON object per line",
            "userId, id (the article; events without it are front pages, dropped and counted), time",
            (Variant("jsonl", names=_names("userId", "id", "time")),),
            (_objects("userId", "time", "eventId"), _objects("userId", "time", "activeTime")),
            missing_item=FRONT_PAGE,
        ),
        Format(
            "globo",
            "Globo.com clicks: CSV with a header",
            "user_id, click_article_id, click_timestamp (milliseconds)",
            (Variant("delimited", ",", names=_names("user_id", "click_article_id", "click_timestamp")),),
            (_table("its header has click_article_id", lambda s: s.has("clickarticleid")),),
        ),
    )
}
