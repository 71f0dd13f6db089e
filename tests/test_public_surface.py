"""The public surface: what a notebook or an author of a plug-in imports, by names that stay."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import melon

PACKAGES = ("melon", "melon.models", "melon.strategies", "melon.evaluation", "melon.checks")
HEAVY = {"torch", "polars", "pyarrow", "numba", "matplotlib"}


def package(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_is_there_and_listed(name: str) -> None:
    module = package(name)
    for public in module.__all__:
        assert getattr(module, public) is not None
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018


def test_what_authors_and_notebooks_need() -> None:
    wanted = {
        "melon": {"Melon", "MelonError", "evaluate", "load"},
        "melon.models": {"Entry", "RECOMMENDERS", "Recommender", "RecommenderSettings", "TableSpec"},
        "melon.strategies": {
            *("Entry", "STRATEGIES", "Space", "Strategy", "StrategySettings", "Proposal", "Situation"),
            *("LearningRates", "TableSpec"),
        },
        "melon.evaluation": {"prequential", "metrics", "compare", "holm", "Tally"},
        "melon.checks": {"check_recommender", "check_strategy", "check_pairing"},
    }
    for name, names in wanted.items():
        assert names <= set(package(name).__all__), name


def test_functions_and_not_the_modules_of_the_same_name() -> None:
    from melon.evaluation import compare, prequential

    assert callable(compare)
    assert callable(prequential)
    assert callable(melon.evaluate)


@pytest.mark.parametrize("name", ["melon", "melon.models", "melon.strategies"])
def test_importing_them_is_light(name: str) -> None:
    code = f"import sys, {name}; dir({name}); print(*{{one.partition('.')[0] for one in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_importing_melon_leaves_the_environment_alone() -> None:
    code = "import os; before = dict(os.environ); import melon; assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["melon", "melon.models", "melon.strategies"])
def test_type_checkers_see_every_name(name: str) -> None:
    """The lazy names stand in the block for type checkers too."""
    source = Path(str(package(name).__file__)).read_text(encoding="utf-8")
    imported = {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(package(name).__all__) - {"__version__"} <= imported
