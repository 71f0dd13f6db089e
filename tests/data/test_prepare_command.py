"""What `melon data prepare` prints and refuses."""

from pathlib import Path

from commands import Run

TEXT = """Customer;Product;Date
Andr\xe9;tea;31.12.2024 14:05
Andr\xe8;milk;30.12.2024 09:00
;tea;30.12.2024 09:00
NA;tea;30.12.2024 09:00
bob;tea;yesterday
"""


def test_only_what_was_guessed_is_called_guessed_and_one_is_not_plural(run: Run, tmp_path: Path) -> None:
    raw, out = tmp_path / "one.csv", tmp_path / "s.parquet"
    raw.write_text("user,item,bought\nanna,tea,1500000000\n")
    ended = run("data", "prepare", raw, "--out", out, "--min-interactions", "1", "--time", "bought")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{out}: 1 interaction of 1 user and 1 item\n")
    assert "columns user = 'user', item = 'item' (guessed by name)" in ended.out


def test_guesses_and_bad_rows_are_told_in_plain_words(run: Run, tmp_path: Path) -> None:
    raw, out = tmp_path / "shop.csv", tmp_path / "s.parquet"
    raw.write_bytes(TEXT.encode("latin-1"))
    ended = run("data", "prepare", raw, "--out", out, "--min-interactions", "1")
    assert ended.code == 0, ended.err
    told = ended.out.replace(str(out), "s.parquet").splitlines()
    first, second, *rest = told
    assert first == "s.parquet: 2 interactions of 2 users and 2 items"
    assert second.startswith("read 5 rows as csv in ")
    assert second.endswith("3 bad, 0 dropped because their user or item has fewer than 1 interactions")
    assert [line.strip() for line in rest] == [
        "shop.csv is not valid UTF-8 and was read as cp1252 (guessed); if letters look wrong, name another with "
        "--encoding",
        "shop.csv is read as csv: its lines have fields",
        "shop.csv: separator ';' (guessed)",
        "shop.csv: columns user = 'Customer', item = 'Product', time = 'Date' (guessed by name)",
        "shop.csv: times are dates, read as %d.%m.%Y %H:%M (guessed)",
        "1 row left out: missing user",
        "shop.csv, line 4: ;tea;30.12.2024 09:00",
        "1 row left out: missing user (written NA)",
        "shop.csv, line 5: NA;tea;30.12.2024 09:00",
        "1 row left out: unparsable time",
        "shop.csv, line 6: bob;tea;yesterday",
        "which texts mean a missing id is set with --missing",
    ]
    assert "BadRow" not in ended.out


def test_times_are_told_in_one_unit(run: Run, tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    raw.write_text("user,item,time\n1,2,1600000000.5\n1,3,1600000001.5\n")
    ended = run("data", "prepare", raw, "--out", tmp_path / "s.parquet", "--min-interactions", "1")
    assert "times are seconds" in ended.out
    assert "in us" not in ended.out


def test_all_options_together(run: Run, tmp_path: Path) -> None:
    raw, out = tmp_path / "raw.txt", tmp_path / "s.parquet"
    raw.write_bytes("NA~x~03/04/2024\nAndr\xe9~x~04/04/2024\n-~x~05/04/2024\n".encode("cp1252"))
    words = ("--separator", "~", "--no-header", "--user", "1", "--item", "2", "--time", "3", "--encoding", "cp1252")
    more = ("--time-format", "%d/%m/%Y", "--missing", "-", "--min-interactions", "1")
    ended = run("data", "prepare", raw, "--out", out, *words, *more)
    assert ended.code == 0, ended.err
    assert "2 interactions of 2 users" in ended.out
    assert "guessed" not in ended.out
    assert "missing user (written -)" in ended.out


def test_a_line_of_json_that_is_too_deep(run: Run, tmp_path: Path) -> None:
    raw = tmp_path / "deep.jsonl"
    raw.write_text('{"user": 1, "item": 2, "time": ' + "[" * 100_000 + "\n")
    ended = run("data", "prepare", raw, "--out", tmp_path / "s.parquet")
    assert ended.code == 1
    assert len(ended.err) < 1_000


def test_help_shows_examples_of_the_options(run: Run) -> None:
    shown = run("data", "prepare", "--help").out
    for words in (
        "--separator ';' --encoding cp1252",
        "--time-format '%d.%m.%Y'",
        "--no-header --user 1",
        "excel",
    ):
        assert words in shown
