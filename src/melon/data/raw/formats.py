"""The raw formats that can be read: their names, their layouts, and which one a file looks like."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from melon.data.columns import ROLES, USUAL_NAMES, plain_name
from melon.errors import DataError

FRONT_PAGE = "front page without article"
SEPARATORS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}

FileKind = Literal["delimited", "jsonl", "parquet"]

# Reviewers' ids begin with A and are longer; an ASIN is B and nine characters, or an ISBN-10.
_ASIN = re.compile(r"B[0-9A-Z]{9}|[0-9]{9}[0-9X]")


@dataclass(frozen=True)
class Sample:
    """The beginning of a text file, by which its format is recognised: its name and its first lines that hold text.

    `separator_asked` is the separator that a person named.
    """

    name: str
    lines: Sequence[str]
    separator_asked: str | None = None

    @cached_property
    def is_json(self) -> bool:
        """Whether any line begins as a JSON object does."""
        return any(line.lstrip().startswith("{") for line in self.lines)

    @cached_property
    def json_keys(self) -> list[str]:
        """Keys of the JSON objects among the lines, in order of appearance."""
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
        if self.separator_asked or self.is_json:
            return self.separator_asked
        fields = {mark: len(split_line(self.lines[0], mark)) for mark in SEPARATORS}
        # An interaction has three fields; two are worth a message about the third.
        least = min(3, max(2, *fields.values()))
        evenness = {mark: self._evenness(mark) for mark, count in fields.items() if count >= least}
        best = [mark for mark, share in evenness.items() if share == max(evenness.values())]
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
        """Fields of the first line."""
        return split_line(self.lines[0], self.separator) if self.separator else [self.lines[0]]

    @cached_property
    def names(self) -> set[str]:
        """Names that the first line gives to the columns if it is a header."""
        return {plain_name(name) for name in self.fields}

    def _evenness(self, mark: str) -> float:
        counts = [len(split_line(line, mark)) for line in self.lines]
        return sum(count == counts[0] for count in counts) / len(counts)


@dataclass(frozen=True)
class Variant:
    """One way in which files of a format are laid out."""

    kind: FileKind
    separator: str | None = None  # None: guessed
    fields: tuple[str, ...] = ()  # the fixed fields of a file without a header
    names: Mapping[str, Sequence[str]] | None = None  # role → the names it may have; None: any usual name
    quote: str | None = '"'
    typed_header: bool = False  # `name:type`, as RecBole writes it

    @property
    def is_open(self) -> bool:
        """Whether this is a table of text whose columns may have any names, or none."""
        return self.kind == "delimited" and not self.fields and self.names is None


@dataclass(frozen=True)
class Format:
    """A raw format: what it is, how its columns are found, and the layouts it comes in.

    `recognise` says why a file looks like this format, or None; `arrange` gives the order of the fixed fields in a
    file, and a note about it.
    """

    name: str
    description: str
    columns: str
    variants: tuple[Variant, ...]
    missing_item: str = "missing item"
    recognise: Callable[[Sample], str | None] = lambda _: None
    arrange: Callable[[Sample], tuple[tuple[str, ...], str]] | None = None


def guess_format(sample: Sample) -> tuple[str, str]:
    """The format that a text file looks like, and why."""
    # The general formats stand first in the table, so the particular ones are asked before them.
    for form in reversed(FORMATS.values()):
        if reason := form.recognise(sample):
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


def _csv(sample: Sample) -> str | None:
    # With two fields the time is missing, which is worth a message about columns if these are columns at all.
    if len(sample.fields) > 2 or (len(sample.fields) == 2 and usual_roles(sample.fields)):
        return "its lines have fields"
    return None


def _tsv(sample: Sample) -> str | None:
    return "its lines have tabs" if sample.separator == "\t" and _csv(sample) else None


def _jsonl(sample: Sample) -> str | None:
    return "its lines are JSON objects" if sample.is_json else None


def _recbole(sample: Sample) -> str | None:
    typed = re.search(r":(token|float)(\t|,|$|_seq)", sample.lines[0])
    inter = sample.name.lower().endswith(".inter")
    return "its header is typed" if not sample.is_json and (inter or typed) else None


def _rechorus(sample: Sample) -> str | None:
    fits = sample.separator in ("\t", ",") and sample.names - {"negitems"} == {"userid", "itemid", "time"}
    return "its header is user_id, item_id, time" if fits else None


def _movielens(sample: Sample) -> str | None:
    if re.fullmatch(r"[^:]+::[^:]+::[^:]+::[^:]+", sample.lines[0]):
        return "its fields are separated by ::"
    if sample.separator == "," and {"userid", "movieid", "timestamp"} <= sample.names:
        return "its header has userId, movieId and timestamp"
    if sample.separator == "\t" and len(sample.fields) == 4 and re.fullmatch(r"[0-9.]+", sample.fields[3]):
        return "it has four tab-separated fields and no header"
    return None


def _amazon(sample: Sample) -> str | None:
    if {"reviewerID", "asin"} <= set(sample.json_keys):
        return "its objects have reviewerID and asin"
    rating = sample.separator == "," and len(sample.fields) == 4 and re.fullmatch(r"[0-9.]+", sample.fields[3])
    if rating and any(_ASIN.fullmatch(field) for field in sample.fields[:2]):
        return "it has no header, four fields and a product number"
    return None


def _yelp(sample: Sample) -> str | None:
    fits = {"user_id", "business_id", "date"} <= set(sample.json_keys)
    return "its objects have user_id, business_id and date" if fits else None


def _adressa(sample: Sample) -> str | None:
    keys = set(sample.json_keys)
    fits = {"userId", "time"} <= keys and keys & {"eventId", "activeTime"}
    return "its objects have userId, time and eventId or activeTime" if fits else None


def _globo(sample: Sample) -> str | None:
    return "its header has click_article_id" if "clickarticleid" in sample.names else None


def _amazon_order(sample: Sample) -> tuple[tuple[str, ...], str]:
    """Whether the item comes first (2018) or the user does (2014), decided by what looks like a product's number."""
    rows = [split_line(line, ",") for line in sample.lines]
    first = sum(bool(_ASIN.fullmatch(row[0])) for row in rows if len(row) == 4)
    second = sum(bool(_ASIN.fullmatch(row[1])) for row in rows if len(row) == 4)
    if second > first:
        return _RATINGS, "amazon ratings of 2014: the user comes first"
    if first > second:
        return _AMAZON_2018, "amazon ratings of 2018: the item comes first"
    return _AMAZON_2018, "amazon ratings: no product number to tell the order by, read as of 2018 (item, user)"


def _names(user: str, item: str, time: str) -> dict[str, tuple[str, ...]]:
    return {"user": (user,), "item": (item,), "time": (time,)}


_RATINGS = ("user", "item", "rating", "timestamp")
_AMAZON_2018 = ("item", "user", "rating", "timestamp")
_ANY_NAMES = "any names, given by --user --item --time; usual names are found without"

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "csv",
            "values separated by commas, semicolons, tabs or bars, with or without a header",
            _ANY_NAMES,
            (Variant("delimited"),),
            recognise=_csv,
        ),
        Format("tsv", "tab-separated values with a header", _ANY_NAMES, (Variant("delimited", "\t"),), recognise=_tsv),
        Format("parquet", "Parquet", _ANY_NAMES, (Variant("parquet"),)),
        Format("jsonl", "one JSON object per line", _ANY_NAMES, (Variant("jsonl"),), recognise=_jsonl),
        Format(
            "recbole",
            "RecBole .inter file: tab-separated, with a typed header",
            "user_id:token, item_id:token, timestamp:float",
            (Variant("delimited", "\t", (), _names("user_id", "item_id", "timestamp"), quote=None, typed_header=True),),
            recognise=_recbole,
        ),
        Format(
            "rechorus",
            "ReChorus data: tab- or comma-separated, with a header",
            "user_id, item_id, time; neg_items is ignored",
            (
                Variant("delimited", "\t", names=_names("user_id", "item_id", "time")),
                Variant("delimited", ",", names=_names("user_id", "item_id", "time")),
            ),
            recognise=_rechorus,
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
            recognise=_movielens,
        ),
        Format(
            "amazon",
            "Amazon ratings (CSV without header) or reviews (JSON lines)",
            "2018: item, user, rating, timestamp; 2014: user, item, rating, timestamp (recognised by the ids); "
            "reviews: reviewerID, asin, unixReviewTime",
            (
                Variant("jsonl", names=_names("reviewerID", "asin", "unixReviewTime")),
                Variant("delimited", ",", _AMAZON_2018),
            ),
            recognise=_amazon,
            arrange=_amazon_order,
        ),
        Format(
            "yelp",
            "Yelp reviews: one JSON object per line",
            "user_id, business_id, date",
            (Variant("jsonl", names=_names("user_id", "business_id", "date")),),
            recognise=_yelp,
        ),
        Format(
            "adressa",
            "Adressa events: one JSON object per line",
            "userId, id (the article; events without it are front pages, dropped and counted), time",
            (Variant("jsonl", names=_names("userId", "id", "time")),),
            missing_item=FRONT_PAGE,
            recognise=_adressa,
        ),
        Format(
            "globo",
            "Globo.com clicks: CSV with a header",
            "user_id, click_article_id, click_timestamp (milliseconds)",
            (Variant("delimited", ",", names=_names("user_id", "click_article_id", "click_timestamp")),),
            recognise=_globo,
        ),
    )
}
