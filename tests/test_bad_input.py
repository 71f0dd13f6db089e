"""Mistakes: one line that names the value, the place and the way out; never a traceback, and nothing is lost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from commands import Ended, Run

SMALL = (
    "--split",
    "0.7,0.05,0.25",
    "--epochs",
    "1",
    "--budget",
    "1",
    "--negatives",
    "15",
    "--batch-size",
    "64",
    "--no-lists",
)


def events(count: int = 600, users: int = 40, items: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "user": rng.integers(0, users, count),
        "item": rng.integers(0, items, count),
        "ts": 1_600_000_000 + 10 * np.arange(count),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "s.parquet", **columns: Any) -> Path:
        data = {key: value for key, value in (events() | columns).items() if value is not None}
        pl.DataFrame(data).write_parquet(tmp_path / name)
        return tmp_path / name

    return write


Write = Callable[..., Path]


def refused(ended: Ended, code: int, *words: str) -> None:
    assert ended.code == code, ended
    assert ended.err.strip().splitlines()[-1].startswith("melon: "), ended.err
    for word in words:
        assert word in ended.said, ended.err


# Streams.


@pytest.mark.parametrize("words", [("data", "info", "S"), ("evaluate", "S"), ("pretrain", "S", "--out", "m")])
def test_a_stream_that_is_not_there(words: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    ended = run(*(tmp_path / "none.parquet" if word == "S" else word for word in words))
    refused(ended, 1, "there is no stream", "none.parquet", "melon data prepare")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"ts": None, "when": [1] * 600}, ("no column looks like the time", "'when'", "--time")),
        ({"user": None, "reader": [1] * 600}, ("no column looks like the user", "'reader'")),
        ({"ts": np.arange(600) - 5}, ("time of event 0 is negative (-5)", "melon data prepare")),
        ({"ts": ["soon"] * 600}, ("'soon'",)),
        ({"item": np.full(600, 7)}, ("has 1 item; an evaluation needs at least two",)),
        ({"user": np.full(600, 7)}, ("has 1 user; an evaluation needs at least two",)),
    ],
)
def test_streams_that_cannot_be_evaluated(
    columns: dict[str, Any], words: tuple[str, ...], run: Run, write: Write
) -> None:
    refused(run("evaluate", write(**columns), *SMALL), 1, *words)


def test_an_empty_stream(run: Run, tmp_path: Path) -> None:
    pl.DataFrame({name: np.empty(0, dtype=np.int64) for name in ("user", "item", "ts")}).write_parquet(
        tmp_path / "s.parquet"
    )
    refused(run("evaluate", tmp_path / "s.parquet"), 1, "has no interactions")
    (tmp_path / "e.parquet").touch()
    refused(run("evaluate", tmp_path / "e.parquet"), 1, "e.parquet is empty")
    (tmp_path / "c.parquet").write_text("user,item,ts\n1,2,3\n")
    refused(run("evaluate", tmp_path / "c.parquet"), 1, "is not a Parquet file", "melon data prepare")
    refused(run("evaluate", tmp_path), 1, "is a folder")


def test_fewer_items_than_candidates(run: Run, write: Write) -> None:
    ended = run("evaluate", write(), "--split", "0.7,0.05,0.25")
    refused(ended, 1, "60 items, too few for 99 negatives", "--negatives, at most 59")
    assert "pre-training" not in ended.err  # nothing was begun


# Raw files.


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("", (), ("empty",)),
        ("who,what,when\n1,2,3\n", (), ("'who'", "--user")),
        ("user,item,time\n1,2,10\n1,3,nan\n", ("--strict",), ("line 3", "nan")),
        (
            "user,item,time\n1,2,10\n1,3,20\n",
            ("--min-interactions", "20"),
            ("nothing is left of 2", "--min-interactions"),
        ),
    ],
)
def test_raw_files_that_cannot_be_prepared(
    text: str, more: tuple[str, ...], words: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    raw, out = tmp_path / "raw.csv", tmp_path / "s.parquet"
    raw.write_text(text)
    refused(run("data", "prepare", raw, "--out", out, *more), 1, *words)
    assert not out.exists()


def test_raw_files_that_are_not_there(run: Run, tmp_path: Path) -> None:
    raw = tmp_path / "raw.csv"
    refused(run("data", "prepare", raw, "--out", tmp_path / "s.parquet"), 1, "raw.csv")
    raw.write_text("user,item,time\n1,2,3\n")
    ended = run("data", "prepare", raw, "--out", tmp_path / "s.parquet", "--time-unit", "weeks")
    refused(ended, 2, "weeks", "ms")
    refused(run("data", "prepare", raw, "--out", tmp_path / "s.csv"), 2, "must end in .parquet")
    refused(run("data", "prepare", raw, "--out", tmp_path / "s.parquet", "--min-interactions", "0"), 2, "1 or more")


# Names and values.


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--recommender", "bqr"), 2, "unknown recommender 'bqr'. Did you mean 'bpr'?"),
        (("--preset", "paperr"), 2, "unknown preset of default 'paperr'. Did you mean 'paper'?"),
        (("--candidates", "all"), 2, "Choose one of: catalogue, full-log, known."),
        (("--set", "recommender.dims=1"), 2, "unknown setting of recommender 'blend' 'dims'. Did you mean 'dim'?"),
        (("--set", "pretrain.l3=1"), 2, "unknown setting of pre-training 'l3'"),
        (("--set", "lr"), 2, "--set 'lr' must look like key=value"),
        (("--set", "lr=-1"), 2, "lr = -1 is not valid"),
        (("--set", "lr=NaN"), 2, "lr = nan is not valid"),
        (("--half-life", "sometimes"), 2, "half_life = 'sometimes' must be off, auto, or a half-life"),
        (("--split", "0.7,0.3"), 1, "split '0.7,0.3' must be three shares"),
        (("--split", "0.999,0.0005,0.0005"), 1, "leaves the test part empty"),
        (("--batch-size", "0"), 2, "batch_size = 0"),
        (("--recommender", "ials", "--strategy", "mwnet"), 2, "strategy 'mwnet' has nothing to update"),
        (("--config", "none.toml"), 2, "the config file none.toml cannot be read"),
        (("--json", "result.txt"), 2, "--json result.txt must end in .json"),
    ],
)
def test_wishes_that_cannot_be_met(words: tuple[str, ...], code: int, said: str, run: Run, write: Write) -> None:
    refused(run("evaluate", write(), *SMALL, *words), code, said)


@pytest.mark.parametrize("words", ["--recommender bqr", "--set lr=-1"])
def test_pretrain_refuses_the_same(words: str, run: Run, write: Write, tmp_path: Path) -> None:
    refused(run("pretrain", write(), "--out", tmp_path / "m", *words.split()), 2)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate",),
        ("evaluate", "s", "--seed", "x"),
        ("evaluate", "s", "--sed", "1"),
        ("evalute",),
        ("data", "prepare", "r"),
    ],
)
def test_usage_errors_are_shown_by_the_command_line_itself(words: tuple[str, ...], run: Run) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert ended.err


def test_synthetic_streams_that_do_not_exist(run: Run, tmp_path: Path) -> None:
    ended = run("data", "synthetic", "flop", "--out", tmp_path / "s.parquet")
    refused(ended, 2, "unknown synthetic stream 'flop'", "Choose one of: drift, flip, news")
    refused(run("data", "synthetic", "flip", "--out", tmp_path / "s.parquet", "--events", "0"), 2, "n_events")
    refused(run("data", "synthetic", "flip", "--out", tmp_path / "s.csv"), 2, ".parquet")
    refused(run("data", "synthetic", "flip", "--out", tmp_path / "s.parquet", "--seed", "-1"), 2, "seed")
    assert list(tmp_path.iterdir()) == []


# Outputs.


def test_outputs_that_cannot_be_written_are_told_before_anything_is_done(
    run: Run, write: Write, tmp_path: Path
) -> None:
    stream, file = write(), tmp_path / "file"
    file.write_text("mine")
    for option, target in (
        ("--json", file / "r.json"),
        ("--html", file / "p.html"),
        ("--html", tmp_path),
    ):
        ended = run("evaluate", stream, *SMALL, option, target)
        refused(ended, 1, f"{target} cannot be written")
        assert "choosing" not in ended.err
    for target in (file, file / "m"):
        ended = run("pretrain", stream, "--out", target)
        refused(ended, 1, f"{target}", "cannot be written")
        assert "pre-training" not in ended.err
    refused(run("data", "synthetic", "flip", "--out", file / "s.parquet"), 1, "cannot be written")
    refused(run("demo", "--out", file / "d", "--events", "500"), 1, "cannot be written")
    assert file.read_text() == "mine"


def test_a_page_without_matplotlib_is_refused_before_anything_is_done(
    run: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = run("evaluate", write(), *SMALL, "--html", tmp_path / "p.html")
    refused(ended, 1, "needs the extra 'plots'", "pip install -e '.[plots]'")
    assert "choosing" not in ended.err
    refused(run("demo", "--out", tmp_path / "d"), 1, "melon demo needs the extra 'plots'", "melon-recommender[plots]")


def test_a_full_disk_while_writing_the_result_keeps_the_work(
    run: Run, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, out = write(), tmp_path / "out" / "r.json"
    inner = pl.DataFrame.write_parquet

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    refused(run("evaluate", stream, *SMALL, "--json", out), 1, "cannot be written: No space left on device")
    monkeypatch.setattr(pl.DataFrame, "write_parquet", inner)
    ended = run("evaluate", stream, *SMALL, "--json", out, "--resume")
    assert ended.code == 0, ended.err
    assert "choosing" not in ended.err  # all of it was kept
    assert json.loads(out.read_text())["interactions_evaluated"] == 150


def test_odd_but_valid_names_are_no_mistakes(run: Run, write: Write, tmp_path: Path) -> None:
    (tmp_path / "a [").mkdir()
    stream = write("a [/bold] name.parquet")  # a folder and a file whose path reads like markup
    out = tmp_path / "r [red] x.json"
    assert run("data", "info", stream).code == 0
    ended = run("evaluate", stream, *SMALL, "--json", out, "--html", tmp_path / "p [" / "i].html")
    assert ended.code == 0, ended.err
    assert "a [/bold] name.parquet" in ended.out
    assert json.loads(out.read_text())["ranks"] == "r [red] x.ranks.parquet"
    raw = tmp_path / "raw.csv"
    pl.DataFrame({"user": events()["user"], "item": events()["item"], "time": events()["ts"]}).write_csv(raw)
    ended = run("data", "prepare", raw, "--out", tmp_path / "a [" / "bold].parquet", "--min-interactions", "1")
    assert ended.code == 0, ended.err
    assert "a [/bold].parquet" in ended.out


def test_a_mistake_as_a_real_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "melon", "evaluate", "nowhere.parquet"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert (
        done.stderr
        == "melon: there is no stream nowhere.parquet; make one with: melon data prepare RAW --out nowhere.parquet\n"
    )
