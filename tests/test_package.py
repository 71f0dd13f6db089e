"""The package: built, installed into a clean environment as a person would, and run; workflows are well-formed."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import melon

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_one() -> None:
    assert PROJECT["version"] == melon.__version__
    assert f"version: {melon.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_workflows_and_citation_are_well_formed() -> None:
    tool = Path(sys.executable).with_name("check-jsonschema")
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    done = subprocess.run(
        [tool, "--builtin-schema", "vendor.github-workflows", *workflows], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def clean_environment(python: Path) -> dict[str, str]:
    """Nothing of this run's: no path to the sources, the environment's tools first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {"PATH": f"{python.parent}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_a_wheel_and_an_sdist_are_built_installed_and_run(tmp_path: Path) -> None:
    """Takes dependencies from the index that pip is set up for."""
    dist, venv = tmp_path / "dist", tmp_path / "venv"
    python = venv / "bin" / "python"
    environment = clean_environment(python)

    def run(*words: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"melon/py.typed", "melon/service/console/index.html", "melon/lab/templates/page.html"} <= set(names)
    assert any(name.endswith("licenses/THIRD_PARTY.md") for name in names)
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "docs/index.md", "mkdocs.yml", "Makefile"} <= files

    run(sys.executable, "-m", "venv", venv)
    run(python, "-m", "pip", "install", "-q", str(wheel))
    assert str(venv) in run(python, "-c", "import melon; print(melon.__file__)")
    assert melon.__version__ in run("melon", "--version")
    run("melon", "data", "synthetic", "news", "--events", "2000", "--out", "stream.parquet")
    run("melon", "pretrain", "stream.parquet", "--budget", "0", "--epochs", "1", "--out", "model")
    assert "rank" in run("melon", "recommend", "model", "--user", "1")
    assert "melon-recommender[serve]" in run("melon", "serve", "model", code=1)
    assert "melon-recommender[plots]" in run("melon", "evaluate", "stream.parquet", "--html", "page.html", code=1)
    run(python, "-m", "pip", "check")
