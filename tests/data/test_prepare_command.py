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


def test_guesses_and_bad_rows_are_told_in_plain_words(run: Run, tmp_path: Path) -> None:
    raw, out = tmp_path / "shop.csv", tmp_path / "s.parquet"
    raw.write_bytes(TEXT.encode("latin-1"))
    ended = run("data", "prepare", raw, "--out", out)
    assert ended.code == 0, ended.err
    for said in (
        "2 interactions of 2 users and 2 items",
        "read as cp1252 (guessed)",
        "separator ';' (guessed)",
        "user = 'Customer', item = 'Product', time = 'Date' (guessed by name)",
        "read as %d.%m.%Y %H:%M (guessed); without a zone, taken as UTC",
        "2 rows left out: missing user",
        "shop.csv, line 5: NA;tea;30.12.2024 09:00",
        "shop.csv, line 6: bob;tea;yesterday",
    ):
        assert said in ended.out


def test_everything_is_kept_and_a_filter_that_drops_much_is_a_warning(run: Run, tmp_path: Path) -> None:
    raw, out = tmp_path / "shop.csv", tmp_path / "s.parquet"
    rows = [f"{n % 5},{n % 3},{n}" for n in range(30)] + [f"once {n},0,{n}" for n in range(9)] + ["0,0,0"]
    raw.write_text("\n".join(["user,item,time", *rows]))
    ended = run("data", "prepare", raw, "--out", out)
    assert "40 interactions of 14 users" in ended.out
    assert "1 exact repeats of another interaction (same user, item and time) are kept" in ended.out
    assert "warning" not in ended.out
    ended = run("data", "prepare", raw, "--out", out, "--min-interactions", "2")
    assert "warning: the filter dropped 22% of the interactions" in ended.out
    assert "1 keeps everything" in ended.out


def test_all_options_together(run: Run, tmp_path: Path) -> None:
    raw, out = tmp_path / "raw.txt", tmp_path / "s.parquet"
    raw.write_bytes("NA~x~03/04/2024\nAndr\xe9~x~04/04/2024\n-~x~05/04/2024\n".encode("cp1252"))
    words = ("--separator", "~", "--no-header", "--user", "1", "--item", "2", "--time", "3", "--encoding", "cp1252")
    more = ("--time-format", "%d/%m/%Y", "--missing", "-", "--min-interactions", "1")
    ended = run("data", "prepare", raw, "--out", out, *words, *more)
    assert ended.code == 0, ended.err
    assert "2 interactions of 2 users" in ended.out
    assert "guessed" not in ended.out
    assert "line 3: -~x~05/04/2024" in ended.out
