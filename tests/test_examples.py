"""The programs in examples/ run as they are, and are short."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))


def test_there_are_three() -> None:
    assert [path.stem for path in PROGRAMS] == ["first_model", "keeping_up", "own_strategy"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(program.read_text(encoding="utf-8").splitlines()) <= 50
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"
