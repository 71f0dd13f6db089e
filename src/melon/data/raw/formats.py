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
_ASIN = r"(?:B[0-9A-Z]{9}|[0-9]{9}[0-9X])"


@dataclass(frozen=True)
class Sample:
    """The beginning of a text file, by which its format is recognised: its name and its first lines that hold text.

    `separator_asked` is the separator that a person named.
    """

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


@dataclass(frozen=True)
class Sign:
    """Something by which a format is recognised, in words and as conditions; all that are given must hold."""

    reason: str
    keys: frozenset[str] | None = None  # keys that the JSON objects have; None: no JSON
    header: frozenset[str] = frozenset()  # names among the fields of the first line, without case and punctuation
    others: frozenset[str] | None = None  # the only other names; None: any
    separators: str = ""  # one of them splits the lines
    least_fields: int = 1  # in the first line
    usual: bool = False  # whether one of them must be a usual name of a column
    line: str = ""  # a pattern in the first line
    suffix: str = ""  # of the file's name


@dataclass(frozen=True)
class Variant:
    """One way in which files of a format are laid out."""

    kind: FileKind
    separator: str | None = None  # None: guessed
    fields: tuple[str, ...] = ()  # the fixed fields of a file without a header
    names: Mapping[str, Sequence[str]] | None = None  # role → the names it may have; None: any, or no header
    quote: str | None = '"'
    typed_header: bool = False  # `name:type`, as RecBole writes it


@dataclass(frozen=True)
class Format:
    """A raw format: what it is, how its columns are found, and the layouts it comes in.

    A file that shows one of the `signs` looks like this format; `arrange` gives the order of the fixed fields in a
    file, and a note about it.
    """

    name: str
    description: str
    columns: str
    variants: tuple[Variant, ...]
    signs: tuple[Sign, ...] = ()
    missing_item: str = "missing item"
    arrange: Callable[[Sample], tuple[tuple[str, ...], str]] | None = None


def guess_format(sample: Sample) -> tuple[str, str]:
    """The format that a text file looks like, and why."""
    first, name, keys = sample.lines[0], sample.name.lower(), sample.json_keys
    fields = split_line(first, sample.separator) if sample.separator else [first]
    names = {plain_name(field) for field in fields}
    # The general formats stand first in the table, so the particular ones are asked before them.
    for form in reversed(FORMATS.values()):
        for sign in form.signs:
            if (
                (keys is None if sign.keys is None else keys is not None and sign.keys <= set(keys))
                and (sign.header <= names and (sign.others is None or names - sign.header <= sign.others))
                and (not sign.separators or (sample.separator or " ") in sign.separators)
                and len(fields) >= sign.least_fields
                and (not sign.usual or usual_roles(fields) > 0)
                and re.search(sign.line, first)
                and name.endswith(sign.suffix)
            ):
                return form.name, sign.reason
    raise DataError(
        f"cannot tell the format of {sample.name}, which begins with {first[:120]!r}. "
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


def _amazon_order(sample: Sample) -> tuple[tuple[str, ...], str]:
    """Whether the item comes first (2018) or the user does (2014), decided by what looks like a product's number."""
    rows = [split_line(line, ",") for line in sample.lines]
    first, second = (sum(bool(re.fullmatch(_ASIN, row[n])) for row in rows if len(row) == 4) for n in (0, 1))
    if second > first:
        return _RATINGS, "amazon ratings of 2014: the user comes first"
    if first > second:
        return _AMAZON_2018, "amazon ratings of 2018: the item comes first"
    return _AMAZON_2018, "amazon ratings: no product number to tell the order by, read as of 2018 (item, user)"


def _json_objects(*keys: str) -> Sign:
    listing = " and".join(", ".join(keys).rsplit(",", 1))
    return Sign(f"its objects have {listing}" if keys else "its lines are JSON objects", keys=frozenset(keys))


def _names(user: str, item: str, time: str) -> dict[str, tuple[str, ...]]:
    return {"user": (user,), "item": (item,), "time": (time,)}


_RATINGS = ("user", "item", "rating", "timestamp")
_AMAZON_2018 = ("item", "user", "rating", "timestamp")
_FIXED = _names("user", "item", "timestamp")
_ANY_NAMES = "any names, given by --user --item --time; usual names are found without"

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(
            "csv",
            "values separated by commas, semicolons, tabs or bars, with or without a header",
            _ANY_NAMES,
            (Variant("delimited"),),
            # With two fields the time is missing, which is worth a message about columns if these are columns at all.
            (Sign("its lines have fields", least_fields=3), Sign("its lines have fields", least_fields=2, usual=True)),
        ),
        Format(
            "tsv",
            "tab-separated values with a header",
            _ANY_NAMES,
            (Variant("delimited", "\t"),),
            (
                Sign("its lines have tabs", separators="\t", least_fields=3),
                Sign("its lines have tabs", separators="\t", least_fields=2, usual=True),
            ),
        ),
        Format("parquet", "Parquet", _ANY_NAMES, (Variant("parquet"),)),
        Format("jsonl", "one JSON object per line", _ANY_NAMES, (Variant("jsonl"),), (_json_objects(),)),
        Format(
            "recbole",
            "RecBole .inter file: tab-separated, with a typed header",
            "user_id:token, item_id:token, timestamp:float",
            (Variant("delimited", "\t", (), _names("user_id", "item_id", "timestamp"), quote=None, typed_header=True),),
            (
                Sign("its header is typed", line=r":(token|float)(\t|,|$|_seq)"),
                Sign("its header is typed", suffix=".inter"),
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
            (
                Sign(
                    "its header is user_id, item_id, time",
                    header=frozenset({"userid", "itemid", "time"}),
                    others=frozenset({"negitems"}),
                    separators="\t,",
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
                Sign("its fields are separated by ::", line=r"^[^:]+::[^:]+::[^:]+::[^:]+$"),
                Sign(
                    "its header has userId, movieId and timestamp",
                    header=frozenset({"userid", "movieid", "timestamp"}),
                    separators=",",
                ),
                Sign(
                    "it has four tab-separated fields and no header",
                    separators="\t",
                    line=r"^(?:[^\t]*\t){3}[0-9.]+$",
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
                _json_objects("reviewerID", "asin"),
                Sign(
                    "it has no header, four fields and a product number",
                    separators=",",
                    line=rf'^(?:"?{_ASIN}"?,[^,]*|[^,]*,"?{_ASIN}"?),[^,]*,"?[0-9.]+"?$',
                ),
            ),
            arrange=_amazon_order,
        ),
        Format(
            "yelp",
            "Yelp reviews: one JSON object per line",
            "user_id, business_id, date",
            (Variant("jsonl", names=_names("user_id", "business_id", "date")),),
            (_json_objects("user_id", "business_id", "date"),),
        ),
        Format(
            "adressa",
            "Adressa events: one JSON object per line",
            "userId, id (the article; events without it are front pages, dropped and counted), time",
            (Variant("jsonl", names=_names("userId", "id", "time")),),
            (_json_objects("userId", "time", "eventId"), _json_objects("userId", "time", "activeTime")),
            missing_item=FRONT_PAGE,
        ),
        Format(
            "globo",
            "Globo.com clicks: CSV with a header",
            "user_id, click_article_id, click_timestamp (milliseconds)",
            (Variant("delimited", ",", names=_names("user_id", "click_article_id", "click_timestamp")),),
            (Sign("its header has click_article_id", header=frozenset({"clickarticleid"})),),
        ),
    )
}
