"""Compiled kernels on disk: one compilation for all processes, and a folder that cannot be used is no failure."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melon.kernels import build
from melon.kernels.modules import MODULES


def test_the_first_process_reads_what_its_child_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a process compiles itself may differ in the last digits from what others read from disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels = build.compiled("neighbours")
    functions = [getattr(kernels, name) for name in MODULES["neighbours"].signatures]
    assert all(function.stats.cache_hits.total() for function in functions)
    assert not any(function.stats.cache_misses.total() for function in functions)
    counts = np.zeros((3, 1))
    kernels.count_items(counts, np.full(3, -1), np.zeros(3, np.int64), np.zeros(1), np.array([1, 1]), 0)
    assert counts.tolist() == [[0], [2], [0]]


@pytest.mark.slow
def test_the_process_that_compiles_has_the_bits_of_the_next_one(tmp_path: Path) -> None:
    """Where a process ran what it had compiled itself, MeLON's rows differed from those of every later process."""
    code = """
import hashlib
from melon.testing import toy_batches
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.strategies.melon.published import PublishedMeLON as MeLON
updater = Updater(BPR({"dim": 32}, seed=1), MeLON(), seed=1)
for batch in toy_batches():
    updater.learn(batch)
tables = [table.state()["values"].tobytes() for table in updater.recommender.tables.values()]
print(hashlib.sha256(b"".join(tables)).hexdigest())
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "MELON_KERNEL": "numba"}
    rows, files = [], []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        rows.append(done.stdout)
        files.append({file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.nbc")})
    assert files[0]
    assert files[0] == files[1]
    assert rows[0] == rows[1]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that would have been compiled, in order."""
    files: list[Path] = []

    def entries(kernels: Any, file: Path) -> dict[str, Any]:
        files.append(file)
        assert file.read_text(encoding="utf-8") == kernels.text()
        return dict.fromkeys(kernels.signatures)

    monkeypatch.setattr(build, "_entries", entries)
    monkeypatch.setattr(build, "_temporary", [])
    return files


def test_nowhere_to_keep_it_is_no_failure_and_said_once(
    built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="melon"):
        build.compiled("factor")
        build.compiled("stream")
    assert [file.name.split("_")[1] for file in built] == ["factor", "stream"]
    assert not any(tmp_path in file.parents for file in built)
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"compiled kernels cannot be kept in {tmp_path / 'file' / 'melon' / 'kernels'}" in message
    assert "XDG_CACHE_HOME" in message


@pytest.mark.slow
def test_a_home_that_cannot_be_written_still_learns_and_lists(tmp_path: Path) -> None:
    """Everything compiles for real, twice over: a service of another user, or one whose home is read-only."""
    code = """
import logging
import numpy as np
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.strategies.default import Default
logging.basicConfig(level=logging.WARNING)
model = LiveModel(Updater(BPR({"dim": 4}), Default()))
for _ in range(3):
    model.learn_events([1, 2, 3, 1], [4, 5, 6, 5])
print([[one.item for one in listed] for listed in model.recommend([1, 2], 2)])
"""
    (tmp_path / "home").write_text("")
    outputs = []
    for home in (tmp_path / "home", tmp_path / "cache"):
        environment = {**os.environ, "XDG_CACHE_HOME": str(home), "MELON_KERNEL": "numba"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        outputs.append((done.stdout, done.stderr.count("cannot be kept"), done.stderr.count("cannot compile")))
    assert outputs == [(outputs[0][0], 1, 0), (outputs[0][0], 0, 0)]
    assert outputs[0][0] == "[[6], [6, 4]]\n"


def test_the_same_text_has_the_same_file(built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.compiled("factor")
    build.compiled("factor")
    assert built[0] == built[1]
    built[0].write_text("broken")
    build.compiled("factor")  # `entries` finds the text as it should be
    assert built[2] == built[0]


def test_another_version_that_is_being_compiled_is_not_waited_for(
    built: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.compiled("factor")
    with built[0].with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        same = threading.Thread(target=build.compiled, args=("factor",), daemon=True)
        same.start()
        same.join(0.2)
        assert same.is_alive()
        monkeypatch.setattr(build.numba, "__version__", "another")
        other = threading.Thread(target=build.compiled, args=("factor",), daemon=True)
        other.start()
        other.join(20)
        assert not other.is_alive()
    same.join(20)
    assert len(built) == 3
    assert len(set(built)) == 2
