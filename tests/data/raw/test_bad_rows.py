"""A bad row is never silently lost: counted by reason, shown with its line, and an error when strict."""

from pathlib import Path

import polars as pl
import pytest

from melon.data.files import load_stream
from melon.data.prepare import PreparationReport, prepare
from melon.errors import DataError


def prepared(tmp_path: Path, text: str | bytes, name: str = "raw.csv", **options: object) -> PreparationReport:
    raw = tmp_path / name
    raw.write_bytes(text if isinstance(text, bytes) else text.encode())
    return prepare(raw, out=tmp_path / "s.parquet", min_interactions=1, **options)  # type: ignore[arg-type]


def lines_by_reason(report: PreparationReport) -> dict[str, list[int]]:
    for each in report.bad:
        assert each.count >= len(each.examples)
        assert all(row.file.endswith(("raw.csv", "raw.jsonl", "raw.inter", "raw.dat")) for row in each.examples)
    return {each.reason: [row.line for row in each.examples] for each in report.bad}


MESSY = """user,item,time,note
1,10,100,a
,10,101,a
2,,102,a
3,10,,a
4,10,soon,a
5,10,-7,a
6,10,nan,a
7,10,inf,a

8,10,103
9,10,104,a,b
10,10,105,a
"""


def test_reasons_and_lines(tmp_path: Path) -> None:
    report = prepared(tmp_path, MESSY)
    assert lines_by_reason(report) == {
        "missing user": [3],
        "missing item": [4],
        "missing time": [5],
        "unparsable time": [6, 9],
        "negative time": [7],
        "NaN time": [8],
        "wrong number of fields": [11, 12],
    }
    assert report.bad_rows == 9
    assert report.rows_read == 11
    assert report.interactions == 2
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == [1, 10]
    shown = {row.line: row.text for each in report.bad for row in each.examples}
    assert shown[6] == "4,10,soon,a"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_strict_stops_at_the_first(ending: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"raw\.csv, line 3: missing user: ',10,101,a'.*--strict"):
        prepared(tmp_path, MESSY.replace("\n", ending), strict=True)
    assert not (tmp_path / "s.parquet").exists()
    late = "user,item,time\n1,2,3\n1,2,3,4\n1,2,x\n"
    with pytest.raises(DataError, match=r"line 3: wrong number of fields"):
        prepared(tmp_path, late, strict=True)


def test_strict_is_content_with_a_clean_file_and_blank_lines(tmp_path: Path) -> None:
    report = prepared(tmp_path, "\n\nuser,item,time\n1,2,3\n\n1,3,4\n\n", strict=True)
    assert (report.interactions, report.rows_read, report.bad) == (2, 2, ())


def test_only_the_first_few_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    rows = "".join(f"{n},1,{'x' if n % 2 else n}\n" for n in range(1000))
    report = prepared(tmp_path, "user,item,time\n" + rows)
    (bad,) = report.bad
    assert (bad.reason, bad.count) == ("unparsable time", 500)
    assert [row.line for row in bad.examples] == [3, 5, 7, 9, 11]


def test_a_bad_row_does_not_turn_integers_into_texts(tmp_path: Path) -> None:
    report = prepared(tmp_path, "user,item,time\n1,2,3\nuser,item,time\n4,5,6\n")
    assert lines_by_reason(report) == {"unparsable time": [3]}
    log = load_stream(tmp_path / "s.parquet")
    assert log.user_ids.tolist() == [1, 4]
    assert log.item_ids.tolist() == [2, 5]


def test_quoted_fields_may_hold_separators_and_line_ends(tmp_path: Path) -> None:
    text = 'user,item,time,text\n"a,b",1,10,"one ""two"""\nc,2,11,"over\ntwo lines"\nd,3,x,plain\ne,4,12,"x, y"\n'
    report = prepared(tmp_path, text)
    assert lines_by_reason(report) == {"unparsable time": [5]}
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["a,b", "c", "e"]


def test_a_stray_quote_costs_its_own_line_only(tmp_path: Path) -> None:
    text = 'user,item,time\na,1,10\nb,"2,11\nc,3,12\nd,4" pipe,13\ne,5" by 6",14\n'
    report = prepared(tmp_path, text)
    assert lines_by_reason(report) == {"unbalanced quotes": [3, 5]}
    log = load_stream(tmp_path / "s.parquet")
    assert log.user_ids.tolist() == ["a", "c", "e"]
    assert log.item_ids.tolist() == ["1", "3", '5" by 6"']


def test_ragged_lines_of_separators_with_two_characters(tmp_path: Path) -> None:
    text, columns = "1::2::3::100\n1::2::3\n1::2::3::4::5\n2::2::3::101\n", {"user": "1", "item": "2", "time": "4"}
    report = prepared(tmp_path, text, "raw.dat", **columns)
    assert lines_by_reason(report) == {"wrong number of fields": [2, 3]}


def test_malformed_json(tmp_path: Path) -> None:
    text = (
        '{"user": 1, "item": 2, "time": 100}\n'
        "not json\n"
        "\n"
        '{"user": 1, "item": 2, "time": 10\n'
        "[1, 2, 3]\n"
        '{"user": 1, "item": 2}\n'
        '{"item": 2, "time": 101}\n'
        '{"user": 1, "item": null, "time": 101}\n'
        '{"user": 1, "item": 3, "time": NaN}\n'
        '{"user": 2, "item": 3, "time": 102, "more": {"a": [1]}}\n'
    )
    report = prepared(tmp_path, text, "raw.jsonl")
    assert lines_by_reason(report) == {
        "malformed JSON line": [2, 4, 5, 9],
        "missing time": [6],
        "missing user": [7],
        "missing item": [8],
    }
    assert (report.rows_read, report.interactions) == (9, 2)
    with pytest.raises(DataError, match="line 2: malformed JSON line: 'not json'"):
        prepared(tmp_path, text, "raw.jsonl", strict=True)


def test_bytes_that_are_not_utf8_are_said(tmp_path: Path) -> None:
    report = prepared(tmp_path, b"user,item,time\ncaf\xe9,1,10\nb,2,11\n")
    assert any("not valid UTF-8 and was read as cp1252 (guessed)" in note for note in report.notes)
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["café", "b"]
    report = prepared(
        tmp_path, b'{"user": "\xe9", "item": 1, "time": 1}\n{"user": "b", "item": 1, "time": 2}\n', "raw.jsonl"
    )
    assert report.interactions == 2
    report = prepared(tmp_path, "user,item,time\né,1,10\nb,2,11\n".encode("utf-16"))
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["é", "b"]


def test_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    report = prepared(tmp_path, "\ufeffuser,item,time\n1,2,3\n")
    assert report.interactions == 1


def test_parquet_rows(tmp_path: Path) -> None:
    pl.DataFrame(
        {"user": [1.0, None, 2.5, 3.0], "item": ["a", "b", "c", ""], "time": [1.5, 2.0, 3.0, 4.0]}
    ).write_parquet(tmp_path / "raw.parquet")
    report = prepare(tmp_path / "raw.parquet", out=tmp_path / "s.parquet", min_interactions=1)
    shown = {each.reason: [row.line for row in each.examples] for each in report.bad}
    assert shown == {"missing user": [2], "user is not a whole number": [3], "missing item": [4]}
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == [1]


def test_several_files_are_one_stream(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\n1,2,300\nx,2,y\n")
    (tmp_path / "b.csv").write_text("time,user,item\n100,1,7\n200,,7\n")
    report = prepare([tmp_path / "a.csv", tmp_path / "b.csv"], out=tmp_path / "s.parquet", min_interactions=1)
    assert report.rows_read == 4
    assert {each.reason: each.count for each in report.bad} == {"unparsable time": 1, "missing user": 1}
    assert load_stream(tmp_path / "s.parquet").times.tolist() == [100, 300]


def test_ids_that_mean_missing_are_bad_rows(tmp_path: Path) -> None:
    tokens = ["NaN", "nan", "None", "null", "NULL", "N/A", "NA"]
    text = "user,item,time\nann,tea,1\n" + "".join(f"{token},tea,2\n" for token in tokens) + "ann,NA,3\n,tea,4\n"
    report = prepared(tmp_path, text)
    assert {bad.reason: bad.count for bad in report.bad} == {"missing user": len(tokens) + 1, "missing item": 1}
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["ann"]
    with pytest.raises(DataError, match=r"line 3: missing user: 'NaN,tea,2'"):
        prepared(tmp_path, text, strict=True)
    report = prepared(tmp_path, text, missing=())
    assert {bad.reason: bad.count for bad in report.bad} == {"missing user": 1}
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["ann", *tokens]
    report = prepared(tmp_path, text, missing=["tea", "null"])
    assert {bad.reason: bad.count for bad in report.bad} == {"missing item": 7, "missing user": 2}


def test_missing_ids_do_not_turn_integers_into_texts(tmp_path: Path) -> None:
    prepared(tmp_path, "user,item,time\n1,5,1\nNaN,5,2\n2,5,3\n")
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == [1, 2]
    prepared(tmp_path, "user,item,time\n1,5,1\n0,5,2\n-1,5,3\n", missing=["0", "-1"])
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == [1]


def test_texts_of_json_and_parquet_are_what_they_are(tmp_path: Path) -> None:
    row = '{"user": "%s", "item": 1, "time": 5}\n'
    prepared(tmp_path, row % "NA" + row % "b", "raw.jsonl")
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["NA", "b"]
    prepared(tmp_path, row % "NA" + row % "b", "raw.jsonl", missing=["NA"])
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["b"]


def test_whole_numbers_with_a_decimal_point_are_integers(tmp_path: Path) -> None:
    report = prepared(tmp_path, "user,item,time\n27.0,1.10,1\n3.0,1.1,2\n,1.0,3\n")
    log = load_stream(tmp_path / "s.parquet")
    assert log.user_ids.tolist() == [27, 3]
    assert log.item_ids.tolist() == ["1.10", "1.1"]
    assert any("user ids are whole numbers with a decimal point" in note for note in report.notes)
    report = prepared(tmp_path, "user,item,time\n27.0,1,1\n27,1,2\n")
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["27.0", "27"]
    assert not any("decimal point" in note for note in report.notes)


def test_users_whose_names_differ_in_one_byte_stay_two(tmp_path: Path) -> None:
    prepared(tmp_path, "user,item,time\nAndré,1,10\nAndrè,1,11\n".encode("latin-1"))
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["André", "Andrè"]


@pytest.mark.parametrize("name", ["raw.csv", "raw.jsonl"])
def test_lines_that_cannot_be_decoded_are_bad_rows(name: str, tmp_path: Path) -> None:
    text = "user,item,time\né,1,10\n" if name == "raw.csv" else '{"user": "é", "item": 1, "time": 10}\n'
    bad = b"\xe9,1,11\n" if name == "raw.csv" else b'{"user": "\xe9", "item": 1, "time": 11}\n'
    report = prepared(tmp_path, text.encode() + bad, name, encoding="utf-8")
    assert lines_by_reason(report) == {"not valid utf-8": [2 + (name == "raw.csv")]}
    assert load_stream(tmp_path / "s.parquet").user_ids.tolist() == ["é"]


def test_deep_json(tmp_path: Path) -> None:
    good = '{"user": 1, "item": 2, "time": 3}\n'
    for deep in ("[" * 100_000, '{"user": ' + "[" * 100_000 + "]" * 100_000 + ', "item": 1, "time": 1}'):
        report = prepared(tmp_path, f"{good}{deep}\n{good}", "raw.jsonl")
        assert lines_by_reason(report) == {"malformed JSON line": [2]}
        assert all(len(row.text) < 200 for bad in report.bad for row in bad.examples)


def test_no_whole_json_object(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none of its first lines is a whole JSON object.*one object on each line"):
        prepared(tmp_path, '{"user": 1, "item": 2, "time": ' + "[" * 100_000 + "\n", "raw.jsonl")


def test_what_people_read_about_bad_rows(tmp_path: Path) -> None:
    rows = "".join(f"{n},1,x\n" for n in range(1_200)) + "1,1,5\n" * 1_300
    report = prepared(tmp_path, f"user,item,time\n1,2,3\n,[b]{'y' * 500},4\n{rows}")
    unparsable, missing = map(str, report.bad)
    assert unparsable.splitlines()[1] == "  raw.csv, line 4: 0,1,x"
    assert "1,195 more" in unparsable
    assert missing.endswith("…")
