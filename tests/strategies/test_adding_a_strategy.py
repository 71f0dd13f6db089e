"""Adding a strategy is one file, one registry line, one docs heading: done here with a sign step."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from commands import Run
from melon.registry import Entry
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES, space_of
from melon.testing import SMALL_RECOMMENDERS, check_strategy
from test_docs import undocumented

FILE = '''
"""A step of one length for every entry, whatever its gradient."""

from pydantic import Field

from melon.registry import Space
from melon.strategies.base import Proposal, Situation, Strategy, StrategySettings


class SignStepSettings(StrategySettings):
    """`length` is how far every touched entry moves."""

    length: float = Field(0.01, gt=0)


class SignStep(Strategy):
    """θ ← θ − length · sign(Σ_x g_x): there is no learning-rate matrix."""

    name = "sign_step"
    settings_type = SignStepSettings
    settings: SignStepSettings
    space = Space({"length": (0.003, 0.01, 0.03)}, ({"length": 0.01},))

    def propose(self, situation: Situation) -> Proposal:
        values = {}
        for gradient in situation.evidence.gradients:
            old = situation.values[gradient.table]
            values[gradient.table] = old - self.settings.length * gradient.summed(len(old)).sign()
        return Proposal(values)
'''
LINE = Entry("sign_step", "steps of one length, whatever the gradient", "sign_step:SignStep")
HEADING = """
## sign_step

Every touched entry moves by `length` (0.01). Presets: `default`.
"""
FEW = ("--recommender", "bpr", "--split", "0.7,0.05,0.25", "--epochs", "1", "--budget", "2")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The one file."""
    (tmp_path / "sign_step.py").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("sign_step")
    sys.modules.pop("sign_step")


@pytest.fixture
def registered(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The one registry line."""
    monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
    STRATEGIES.add(LINE)
    return module


@pytest.fixture
def stream(tmp_path: Path, run: Run) -> Path:
    path = tmp_path / "flip.parquet"
    assert run("data", "synthetic", "flip", "--out", path, "--events", 600).code == 0
    return path


def test_the_file_passes_the_checks(module: ModuleType) -> None:
    long = {"finite_after_many_batches": "takes a while", "future_does_not_matter": "takes a while"}
    reports = check_strategy(module.SignStep, {"bpr": SMALL_RECOMMENDERS["bpr"]}, exempt=long)
    unexplained = {"learning_rates_shape_and_family", "learning_rates_explain_the_update"}
    assert reports["bpr"].not_applicable.keys() == unexplained | long.keys()


def test_the_line_makes_it_a_choice(registered: ModuleType, stream: Path, run: Run) -> None:
    assert "sign_step" in STRATEGIES.names()
    assert STRATEGIES["sign_step"].load() is registered.SignStep
    assert space_of("sign_step") is registered.SignStep.space
    assert space_of("sign_step").axes
    assert "sign_step" not in ALL_STRATEGIES
    ended = run("evaluate", stream, "--strategy", "sign_step", *FEW)
    assert ended.code == 0, ended.err
    assert "sign_step" in ended.out


@pytest.mark.usefixtures("module")
def test_the_heading_documents_it() -> None:
    assert undocumented(LINE, HEADING) == []
    assert undocumented(LINE, HEADING.replace("`length`", "a length")) == ["length"]


def test_another_package_adds_it_by_an_entry_point(
    module: ModuleType, stream: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As installed: a real entry point, listed by `--help` before anything names it, and used by `evaluate`."""
    entry = f"Entry('sign_step', 'theirs', '{module.__name__}:SignStep')"
    text = f"from melon.registry import Entry\nSIGN_STEP = {entry}\n"
    (tmp_path / "sign_step_registry.py").write_text(text, encoding="utf-8")
    metadata = tmp_path / "sign_step-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sign-step\nVersion: 1.0\n", encoding="utf-8")
    points = "[melon.strategies]\nsign_step = sign_step_registry:SIGN_STEP\n"
    (metadata / "entry_points.txt").write_text(points, encoding="utf-8")

    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "melon", "evaluate", "--help"]
    environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "300"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "sign_step" in done.stdout

    monkeypatch.setattr(STRATEGIES, "_entries", dict(STRATEGIES._entries))
    monkeypatch.setattr(STRATEGIES, "_plugins", None)
    ended = run("evaluate", stream, "--strategy", "sign_step", *FEW)
    assert ended.code == 0, ended.err
    assert STRATEGIES["sign_step"].summary == "theirs"
