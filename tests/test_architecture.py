"""The architecture as tests: layers, quick imports, a small public surface, and things that no file may do."""

import ast
import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import melon
from melon import errors
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
FILES = sorted(SRC.rglob("*.py"))

#: What `import melon` and `melon --help` leave alone: torch, the data libraries, and every extra.
HEAVY = {"torch", "numba", "polars", "pyarrow", "pandas", "safetensors"}
EXTRAS = {"matplotlib", "fastapi", "uvicorn", "prometheus_client", "apsw", "httpx", "ray", "psycopg"}

#: Libraries with one home: nobody else may import them.
HOMES = {
    "fastapi": ("melon.service.http",),
    "uvicorn": ("melon.service.http",),
    "prometheus_client": ("melon.service.metrics",),
    "apsw": ("melon.service",),
    "psycopg": ("melon.service.log.postgres",),
    "httpx": ("melon.client",),
    "matplotlib": ("melon.lab", "melon.errors", "melon.evaluation.result"),
    "jinja2": ("melon.lab.page",),
    "ray": ("melon.lab.bench",),
    "numba": ("melon.kernels.build",),
}

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_NAMES = {"eval", "exec", "compile", "__import__"}
_FALSE = ast.dump(ast.Constant(False))
UNSAFE_ATTRIBUTES = {("torch", "load"), ("torch", "save"), ("pd", "read_pickle"), ("pandas", "read_pickle")}


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in the file; `from a import b` gives both a and a.b."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} line {node.lineno}: write the whole name instead of a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def loaded_after(code: str) -> set[str]:
    """Top-level modules in memory after the code has run in a fresh interpreter."""
    tail = "\nimport json, sys\nprint('\\n' + json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_layers_point_one_way() -> None:
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_registries_are_light() -> None:
    code = """
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
[(entry.name, entry.summary, entry.space, entry.presets) for entry in (*RECOMMENDERS, *STRATEGIES)]
"""
    assert not loaded_after(code) & (HEAVY | EXTRAS)


def test_help_is_light() -> None:
    code = """
import sys
from melon.cli import main
for words in (["--help"], ["evaluate", "--help"], ["bench", "--help"], ["data", "--help"]):
    sys.argv = ["melon", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
"""
    assert not loaded_after(code) & (HEAVY | EXTRAS)


def test_one_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree_of(path).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign) and not (
                isinstance(node.value, ast.Call) and ast.unparse(node.value.func).endswith("TypeVar")
            ):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in (name.lstrip("_") for name in names):
                if name[:1].isupper() and not name.isupper():
                    homes.setdefault(name, []).append(module_name(path))
    assert not {name: where for name, where in homes.items() if len(where) > 1}, "a class or type of this name exists"


def test_every_module_says_what_it_is_for() -> None:
    """The first line of a docstring says in one sentence what the module is for."""
    firsts = {path: (ast.get_docstring(tree_of(path)) or "").partition("\n")[0] for path in FILES}
    assert [str(path) for path, first in firsts.items() if not first.endswith((".", ":"))] == []


def test_nothing_runs_what_it_reads() -> None:
    """No pickles, no evaluated text: a file from a stranger is data and nothing else."""
    assert [offence for path in FILES for offence in unsafe(path)] == []


def unsafe(path: Path) -> Iterator[str]:
    names = set(imported(path))
    yield from (f"{path}: {name}" for name in names if name.partition(".")[0] in UNSAFE_MODULES)
    yield from (f"{path}: {module}.{name}" for module, name in UNSAFE_ATTRIBUTES if f"{module}.{name}" in names)
    for node in ast.walk(tree_of(path)):
        place = f"{path} line {getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Name) and node.id in UNSAFE_NAMES:
            yield f"{place}: {node.id}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in UNSAFE_ATTRIBUTES:
                yield f"{place}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.dump(node.value) != _FALSE:
            yield f"{place}: allow_pickle"


def test_unsafe_code_is_noticed(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import pickle\nfrom torch import load\neval('1')\ntorch.load(1)\nnp.load(1, allow_pickle=True)\n")
    assert len(list(unsafe(bad))) == 5


def test_libraries_stay_at_home() -> None:
    strangers = [
        f"{module_name(path)} imports {name}, see {homes}"
        for path in FILES
        for name in imported(path)
        if (homes := HOMES.get(name.partition(".")[0]))
        and not any(module_name(path) == home or module_name(path).startswith(home + ".") for home in homes)
    ]
    assert strangers == []


def test_scripts_import_what_there_is() -> None:
    """Benchmarks and research are run by hand; a rename must not break them unseen."""
    modules = {module_name(path) for path in FILES}
    for path in (path for folder in ("benchmarks", "research", "examples") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("melon"):
                home = importlib.import_module(str(node.module))
                for alias in node.names:
                    known = hasattr(home, alias.name) or f"{node.module}.{alias.name}" in modules
                    assert known, f"{path} imports {alias.name} from {node.module}"


def test_a_strategy_knows_no_other_strategy_and_no_recommender() -> None:
    own = {entry.target.partition(":")[0] for entry in STRATEGIES if entry.target.startswith("melon.")}
    recommenders = {entry.target.partition(":")[0] for entry in RECOMMENDERS}
    for path in sorted((SRC / "melon" / "strategies").rglob("*.py")):
        module = module_name(path)
        met = set(imported(path))
        assert not met & (own - {module}), f"{module} imports another strategy"
        assert not met & recommenders, f"{module} asks which recommender it has"


def test_a_strategy_is_not_built_on_another() -> None:
    classes = [entry.load() for entry in STRATEGIES]
    for one in classes:
        assert not any(issubclass(one, other) for other in classes if other is not one), one


def test_one_tree_of_errors() -> None:
    classes = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, Exception)]
    assert len(classes) > 1
    for one in classes:
        assert issubclass(one, errors.MelonError), one
        assert one.__name__ in (errors.__doc__ or ""), f"draw {one.__name__} at the top of errors.py"
        assert one.__doc__, one


def test_errors_live_in_one_file() -> None:
    strays = [
        f"{path} line {node.lineno}: {node.name} belongs in errors.py"
        for path in FILES
        if path.name != "errors.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for base in node.bases
        if isinstance(base, ast.Name) and base.id.endswith(("Error", "Exception"))
    ]
    assert strays == []


def test_the_version_is_said_once() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project.get("version", melon.__version__) == melon.__version__
