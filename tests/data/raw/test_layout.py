"""Separators, headers and columns are guessed and said, and refused where two readings are possible."""

from pathlib import Path
from typing import Any

import pytest

from melon.data.files import load_stream
from melon.data.prepare import PreparationReport, prepare
from melon.errors import DataError, MelonError, SettingsError

ROWS = [("ann", "tea", 1_600_000_000), ("bob", "milk", 1_600_000_001)]


def prepared(tmp_path: Path, text: str, **options: Any) -> tuple[list[tuple[Any, ...]], PreparationReport]:
    (tmp_path / "raw.csv").write_text(text)
    report = prepare(tmp_path / "raw.csv", out=tmp_path / "s.parquet", min_interactions=1, **options)
    log = load_stream(tmp_path / "s.parquet")
    users, items = log.user_ids[log.users].tolist(), log.item_ids[log.items].tolist()
    return list(zip(users, items, log.times.tolist(), strict=True)), report


def table(separator: str, header: str = "user,item,time") -> str:
    lines = ([header.split(",")] if header else []) + [list(map(str, row)) for row in ROWS]
    return "".join(separator.join(line) + "\n" for line in lines)


@pytest.mark.parametrize(("separator", "said"), [(",", "','"), (";", "';'"), ("\t", "tab"), ("|", "'|'")])
def test_separators_are_guessed_and_said(separator: str, said: str, tmp_path: Path) -> None:
    events, report = prepared(tmp_path, table(separator))
    assert events == ROWS
    assert any(said in note for note in report.notes)


@pytest.mark.parametrize("separator", [";", "|", "~", "\t"])
def test_separators_can_be_said(separator: str, tmp_path: Path) -> None:
    said = {"\t": "tab"}.get(separator, separator)
    events, report = prepared(tmp_path, table(separator), separator=said)
    assert events == ROWS
    assert not any("separator" in note for note in report.notes)
    for name in ("tab", "\\t"):
        assert prepared(tmp_path, table("\t"), separator=name)[0] == ROWS


def test_decimal_commas_do_not_hide_semicolons(tmp_path: Path) -> None:
    text = "user;item;price;time\nann;tea;1,50;1600000000\nbob;milk;2,75;1600000001\n"
    assert prepared(tmp_path, text)[0] == ROWS
    text = text.partition("\n")[2]
    with pytest.raises(DataError, match=r"looks like an interaction.*--no-header"):
        prepared(tmp_path, text)
    assert prepared(tmp_path, text, separator=";", user="1", item="2", time="4")[0] == ROWS


def test_two_separators_that_split_equally_are_refused(tmp_path: Path) -> None:
    text = "a,1;b,2;c\nd,3;e,4;f\n"
    with pytest.raises(DataError, match="the separator can be ',' or ';'; give it with --separator"):
        prepared(tmp_path, text)


@pytest.mark.parametrize("separator", ["", ":::", "a", "7", '"', "é"])
def test_impossible_separators(separator: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--separator must be"):
        prepared(tmp_path, table(","), separator=separator)


def test_files_without_a_header(tmp_path: Path) -> None:
    text = table(",", header="")
    by_number = {"user": "1", "item": "2", "time": "3"}
    events, report = prepared(tmp_path, text, header=False, **by_number)
    assert events == ROWS
    assert not any("no header" in note for note in report.notes)
    events, report = prepared(tmp_path, text, **by_number)
    assert events == ROWS
    assert any("no header (guessed" in note for note in report.notes)
    with pytest.raises(DataError, match=r"looks like an interaction.*--no-header.*--user 1 --item 2 --time 3"):
        prepared(tmp_path, text)
    with pytest.raises(DataError, match=r"without a header.*--user 1 --item 2 --time 3.*3 columns"):
        prepared(tmp_path, text, header=False)
    with pytest.raises(DataError, match="no column '4' for the time"):
        prepared(tmp_path, text, header=False, user="1", item="2", time="4")


def test_a_byte_order_mark_without_a_header(tmp_path: Path) -> None:
    text = "\ufeff" + table(",", header="")
    assert prepared(tmp_path, text, header=False, user="1", item="2", time="3")[0] == ROWS


def test_a_first_line_of_numbers_that_are_also_columns_is_refused(tmp_path: Path) -> None:
    text = "1,2,3\n7,8,1600000000\n"
    numbers = {"user": "1", "item": "2", "time": "3"}
    with pytest.raises(DataError, match="can be a header or an interaction; give --header or --no-header"):
        prepared(tmp_path, text, **numbers)
    assert prepared(tmp_path, text, header=True, **numbers)[0] == [(7, 8, 1_600_000_000)]
    assert len(prepared(tmp_path, text, header=False, **numbers)[0]) == 2


def test_columns_by_number_beside_a_header(tmp_path: Path) -> None:
    assert prepared(tmp_path, table(",", "a,b,c"), user="1", item="2", time="3")[0] == ROWS


def test_equal_names_are_chosen_by_number(tmp_path: Path) -> None:
    text = "user,item,item,time\nann,x,tea,1600000000\nbob,y,milk,1600000001\n"
    with pytest.raises(DataError, match=r"could be the item: 'item', 'item'.*--item 2 or --item 3"):
        prepared(tmp_path, text)
    with pytest.raises(DataError, match=r"several columns named 'item'; .* by its number: --item 2 or --item 3"):
        prepared(tmp_path, text, item="item")
    assert prepared(tmp_path, text, item="3")[0] == ROWS


@pytest.mark.parametrize(
    "header", ["customer,product,date", "Customer ID,Product ID,Order Date", "client,sku,InvoiceDate", "uid,iid,ts"]
)
def test_usual_names(header: str, tmp_path: Path) -> None:
    events, report = prepared(tmp_path, table(",", header))
    assert events == ROWS
    names = header.split(",")
    assert any(f"user = {names[0]!r}, item = {names[1]!r}, time = {names[2]!r} (guessed" in n for n in report.notes)


@pytest.mark.parametrize("text", ["user,item\n1,2\n", "user;item\n1;2\n", "user,item,price\n1,2,3\n"])
def test_a_missing_time_column_is_named(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column looks like the time.*'user', 'item'.*needs a user.*--time"):
        prepared(tmp_path, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_unit": "s", "time_format": "%Y"}, "give one of them"),
        ({"time_format": "dd.mm.yyyy"}, "must be a pattern such as"),
        ({"encoding": "klingon"}, "unknown encoding 'klingon'"),
        ({"encoding": "base64"}, "unknown encoding 'base64'"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(MelonError, match=message):
        prepared(tmp_path, table(","), **options)


def test_stray_carriage_returns_and_quotes(tmp_path: Path) -> None:
    events, report = prepared(tmp_path, table(",") + 'NaN"x,\r,5,\r6\n')
    assert events == ROWS
    assert report.bad_rows == 1
