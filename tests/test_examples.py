"""The programs in examples/ run as they are, and are short."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def test_there_are_three() -> None:
    assert [path.stem for path in PROGRAMS] == ["first_model", "keeping_up", "own_strategy"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(program: Path, tmp_path: Path) -> None:
    assert len(program.read_text(encoding="utf-8").splitlines()) <= 50
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
