"""The raw formats that can be read: their names, their layouts, and which one a file looks like."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from melon.data.raw.columns import ROLES, USUAL_NAMES, Columns, find_columns, plain
from melon.errors import DataError, unknown_name

FRONT_PAGE = "front page without article"

Kind = Literal["delimited", "jsonl", "parquet"]

# Reviewers' ids begin with A and are longer; an ASIN is B and nine characters, or an ISBN-10.
ASIN = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")


@dataclass(frozen=True)
class Variant:
    """One way in which files of a format are laid out."""

    kind: Kind
    separator: str = ","
    fields: tuple[str, ...] = ()  # the fixed fields of a file without a header
    names: Mapping[str, Sequence[str]] | None = None  # role → the names it may have; None: any usual name
    quote: str | None = '"'
    typed_header: bool = False  # `name:type`, as RecBole writes it

    @property
    def header(self) -> bool:
        """Whether the first line names the columns."""
        return self.kind == "delimited" and not self.fields


@dataclass(frozen=True)
class Format:
    """A raw format: what it is, how its columns are found, and the layouts it comes in."""

    name: str
    description: str
    columns: str
    variants: tuple[Variant, ...]
    missing_item: str = "missing item"


@dataclass(frozen=True)
class Layout:
    """How one particular file is read."""

    kind: Kind
    columns: Columns
    separator: str = ","
    quote: str | None = '"'
    header: bool = False
    fields: tuple[str, ...] = ()
    missing_item: str = "missing item"
    note: str = ""


def _names(user: str, item: str, time: str) -> dict[str, tuple[str, ...]]:
    return {"user": (user,), "item": (item,), "time": (time,)}


_AMAZON_2018 = ("item", "user", "rating", "timestamp")
_AMAZON_2014 = ("user", "item", "rating", "timestamp")
_RATINGS = ("user", "item", "rating", "timestamp")

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        Format(
            "csv",
            "comma-separated values with a header",
            "any names, given by --user --item --time; usual names are found without",
            (Variant("delimited"),),
        ),
        Format(
            "tsv",
            "tab-separated values with a header",
            "any names, given by --user --item --time; usual names are found without",
            (Variant("delimited", "\t"),),
        ),
        Format(
            "parquet",
            "Parquet",
            "any names, given by --user --item --time; usual names are found without",
            (Variant("parquet"),),
        ),
        Format(
            "jsonl",
            "one JSON object per line",
            "any names, given by --user --item --time; usual names are found without",
            (Variant("jsonl"),),
        ),
        Format(
            "recbole",
            "RecBole .inter file: tab-separated, with a typed header",
            "user_id:token, item_id:token, timestamp:float",
            (
                Variant(
                    "delimited",
                    "\t",
                    names=_names("user_id", "item_id", "timestamp"),
                    quote=None,
                    typed_header=True,
                ),
            ),
        ),
        Format(
            "rechorus",
            "ReChorus data: tab- or comma-separated, with a header",
            "user_id, item_id, time; neg_items is ignored",
            (
                Variant("delimited", "\t", names=_names("user_id", "item_id", "time")),
                Variant("delimited", ",", names=_names("user_id", "item_id", "time")),
            ),
        ),
        Format(
            "movielens",
            "MovieLens ratings: ratings.dat (::), u.data (tab) or ratings.csv",
            "user, item, rating, timestamp in this order; in ratings.csv userId, movieId, timestamp",
            (
                # Two-character separators are not read directly: split at each colon, every other field is empty.
                Variant("delimited", ":", ("user", "", "item", "", "rating", "", "timestamp"), quote=None),
                Variant("delimited", "\t", _RATINGS, quote=None),
                Variant("delimited", ",", names=_names("userId", "movieId", "timestamp")),
            ),
        ),
        Format(
            "amazon",
            "Amazon ratings (CSV without header) or reviews (JSON lines)",
            "2018: item, user, rating, timestamp; 2014: user, item, rating, timestamp (told apart by the ids); "
            "reviews: reviewerID, asin, unixReviewTime",
            (
                Variant("jsonl", names=_names("reviewerID", "asin", "unixReviewTime")),
                Variant("delimited", ",", _AMAZON_2018),
            ),
        ),
        Format(
            "yelp",
            "Yelp reviews: one JSON object per line",
            "user_id, business_id, date",
            (Variant("jsonl", names=_names("user_id", "business_id", "date")),),
        ),
        Format(
            "adressa",
            "Adressa events: one JSON object per line",
            "userId, id (the article; events without it are front pages, dropped and counted), time",
            (Variant("jsonl", names=_names("userId", "id", "time")),),
            missing_item=FRONT_PAGE,
        ),
        Format(
            "globo",
            "Globo.com clicks: CSV with a header",
            "user_id, click_article_id, click_timestamp (milliseconds)",
            (Variant("delimited", names=_names("user_id", "click_article_id", "click_timestamp")),),
        ),
    )
}


def format_named(name: str) -> Format:
    """The format of that name, or an error that lists them."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return FORMATS[name]


def split_line(line: str, separator: str, quote: str | None = '"') -> list[str]:
    """The fields of one line."""
    if quote is None or quote not in line:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator, quotechar=quote), [])


def json_fields(lines: Sequence[str]) -> list[str]:
    """The keys of the JSON objects among these lines, in order of appearance."""
    keys: dict[str, None] = {}
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            keys.update(dict.fromkeys(value))
    return list(keys)


def layout_of(form: Format, lines: Sequence[str], place: str, asked: Mapping[str, str | None]) -> Layout:
    """How a text file of this format that begins with these lines is read."""
    first = lines[0]
    variant = next((each for each in form.variants if _fits(each, lines)), None)
    if variant is None:
        raise DataError(
            f"{place} does not look like {form.name} ({form.description}; columns: {form.columns}). "
            f"Its first line is {first[:120]!r}. Choose another --format: {', '.join(FORMATS)}."
        )
    usual = variant.names or USUAL_NAMES
    if variant.kind == "jsonl":
        # A JSON object may leave a field out, so a fixed name need not be among the first lines.
        there = json_fields(lines)
        if variant.names is not None:
            there += [name for role in ROLES for name in variant.names[role] if name not in there]
        columns = find_columns(there, place, asked, usual=usual)
        return Layout("jsonl", columns, missing_item=form.missing_item)
    fields, note = variant.fields, ""
    if form.name == "amazon":
        fields, note = amazon_order(lines)
    if variant.header:
        fields = tuple(split_line(first, variant.separator, variant.quote))
    if variant.typed_header:
        fields = tuple(name.split(":")[0] for name in fields)
        asked = {role: name.split(":")[0] if name else None for role, name in asked.items()}
    columns = find_columns([name for name in fields if name], place, asked, usual=usual)
    return Layout(
        "delimited", columns, variant.separator, variant.quote, variant.header, fields, form.missing_item, note
    )


def amazon_order(lines: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Whether the item comes first (2018) or the user does (2014), told by what looks like a product's number."""
    rows = [split_line(line, ",") for line in lines]
    first = sum(bool(ASIN.fullmatch(row[0])) for row in rows if len(row) == 4)
    second = sum(bool(ASIN.fullmatch(row[1])) for row in rows if len(row) == 4)
    if second > first:
        return _AMAZON_2014, "amazon ratings of 2014: the user comes first"
    if first > second:
        return _AMAZON_2018, "amazon ratings of 2018: the item comes first"
    return _AMAZON_2018, "amazon ratings: no product number to tell the order by, read as of 2018 (item, user)"


def _fits(variant: Variant, lines: Sequence[str]) -> bool:
    first = lines[0]
    if variant.kind == "jsonl":
        return any(line.lstrip().startswith("{") for line in lines)
    if variant.fields:
        # A bad first line must not hide the format, so any line with the right fields will do.
        return any(
            len(parts) == len(variant.fields)
            and all((not name) == (not part) for name, part in zip(variant.fields, parts, strict=True))
            for parts in (split_line(line, variant.separator, variant.quote) for line in lines)
        )
    fields = split_line(first, variant.separator, variant.quote)
    return len(fields) > 2 and (not variant.typed_header or all(":" in name for name in fields))


def guess_format(name: str, lines: Sequence[str]) -> tuple[str, str]:
    """The format that a text file of this name and these first lines looks like, and why."""
    first = lines[0]
    suffix = name.rpartition(".")[2].lower()
    if any(line.lstrip().startswith("{") for line in lines):
        return _guess_json(set(json_fields(lines)))
    if suffix == "inter" or re.search(r":(token|float)(\t|,|$|_seq)", first):
        return "recbole", "its header is typed"
    if re.fullmatch(r"[^:]+::[^:]+::[^:]+::[^:]+", first):
        return "movielens", "its fields are separated by ::"
    separator = "\t" if "\t" in first else ","
    fields = split_line(first, separator)
    known = {plain(field) for field in fields}
    if "clickarticleid" in known:
        return "globo", "its header has click_article_id"
    if {"userid", "movieid", "timestamp"} <= known:
        return "movielens", "its header has userId, movieId and timestamp"
    if known - {"negitems"} == {"userid", "itemid", "time"}:
        return "rechorus", "its header is user_id, item_id, time"
    if len(fields) == 4 and re.fullmatch(r"[0-9.]+", fields[3]):
        if separator == "\t":
            return "movielens", "it has four tab-separated fields and no header"
        if ASIN.fullmatch(fields[0]) or ASIN.fullmatch(fields[1]):
            return "amazon", "it has no header, four fields and a product number"
    if len(fields) > 2:
        return ("tsv", "its lines have tabs") if separator == "\t" else ("csv", "its lines have commas")
    raise DataError(
        f"cannot tell the format of {name}, which begins with {first[:120]!r}. "
        f"Say it with --format, one of: {', '.join(FORMATS)}."
    )


def _guess_json(keys: set[str]) -> tuple[str, str]:
    if {"reviewerID", "asin"} <= keys:
        return "amazon", "its objects have reviewerID and asin"
    if {"user_id", "business_id", "date"} <= keys:
        return "yelp", "its objects have user_id, business_id and date"
    if {"userId", "time"} <= keys and keys & {"eventId", "activeTime"}:
        return "adressa", "its objects have userId, time and eventId or activeTime"
    return "jsonl", "its lines are JSON objects"


def parquet_layout(form: Format, columns: Sequence[str], place: str, asked: Mapping[str, str | None]) -> Layout:
    """How a Parquet file with these columns is read."""
    found = find_columns(columns, place, asked)
    return replace(Layout("parquet", found), missing_item=form.missing_item)
