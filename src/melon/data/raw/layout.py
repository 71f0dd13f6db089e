"""What a person said about raw files, and how one particular file is read: separator, header, columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from melon.data.columns import ROLES, USUAL_NAMES, Columns, find_columns
from melon.data.raw.formats import FORMATS, SEPARATORS, FileKind, Format, Sample, Variant, split_line, usual_roles
from melon.errors import DataError, SettingsError, unknown_name

#: Texts without quotes that mean "no id" in exported tables; an empty field always does.
MISSING = ("NaN", "nan", "None", "null", "NULL", "N/A", "NA")

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


def parquet_layout(available: Sequence[str], options: ReadOptions, place: str) -> Layout:
    """How a Parquet file with these columns is read."""
    if options.describes_a_table:
        raise SettingsError(f"--separator, --header and --no-header are for tables of text, and {place} is Parquet.")
    columns = find_columns(available, place, options.columns, numbers=True)
    return Layout("parquet", columns, missing=options.missing or ())


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
    if form.arrange:
        order, note = form.arrange(sample)
        names, notes = list(order), (*notes, note)
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
