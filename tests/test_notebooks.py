"""The notebooks in examples/ run from top to bottom, and nothing in them is written to standard error."""

import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: Libraries that a notebook compares with and that are not installed with melon.
NEEDS = {"same_task": ("implicit", "lenskit")}


def test_there_are_four() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "comparing_strategies", "csv_to_service", "learning_rates", "same_task"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    for library in NEEDS.get(path.stem, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"pip install {library} to run this notebook")
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert outputs
    red = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert not red
