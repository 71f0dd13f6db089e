"""Undocumented means failing: every command, strategy, recommender, setting, format and error is looked up in docs."""

import inspect
import json
import re
import runpy
from pathlib import Path

import polars as pl
import pytest
import typer

import melon
from commands import Run
from documentation import avoided, commands, expanded, http_reference, serve_settings
from melon import errors
from melon.cli import app
from melon.learning.pretrain import PretrainSettings
from melon.models.losses import LOSSES
from melon.models.registry import RECOMMENDERS
from melon.registry import Entry
from melon.strategies.base import StrategySettings
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import MODES
from melon.testing import SMALL_RECOMMENDERS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("research/**/*.md")])
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
#: Lessons that build on each other; tests/test_tutorials.py runs them in order.
IN_ORDER = sorted(DOCS.glob("tutorials/[1-5]-*.md"))
ERRORS = [thing for thing in vars(errors).values() if isinstance(thing, type) and issubclass(thing, Exception)]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) +`?{re.escape(heading)}`?\s*$", text, flags=re.MULTILINE)
    assert found, f"no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, flags=re.MULTILINE)
    return rest[: end.start()] if end else rest


def anchors(text: str) -> set[str]:
    """The names under which a page's headings can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


#: The heading under which a page has the settings that several of its entries share.
COMMON = "Settings in common"
COMMANDS = dict(commands(typer.main.get_command(app)))


def test_every_benchmark_is_listed() -> None:
    folder = ROOT / "benchmarks"
    listed = (ROOT / "research" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{path.stem}.py`" in listed for path in (ROOT / "research" / "benchmarks").glob("*.py"))
    rows = re.findall(r"^\| `(\w+)\.py`( \*)? \|", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    missing = {path.stem for path in folder.glob("*.py")} ^ {name for name, _ in rows}
    assert not missing, f"benchmarks/README.md and the folder differ: {sorted(missing)}"
    (speed,) = re.findall(r"^SPEED := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, star in rows if star} == set(speed.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    assert COMMANDS[name].help
    for each in COMMANDS[name].params:
        assert getattr(each, "help", "") or each.name == "help", f"{name} {each.name} has no help text"


def test_commands_in_the_docs_exist() -> None:
    groups = {name.rpartition(" ")[0] for name in COMMANDS} - {"melon"}
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()] + re.findall(r"`(melon [^`]*)`", text)
        for first, second in (found for line in lines for found in re.findall(r"^melon ([a-z]+)(?: ([a-z]+))?", line)):
            name = f"melon {first} {second}" if f"melon {first}" in groups else f"melon {first}"
            assert name in COMMANDS, f"{page.name} names {name!r}, which is no command"


@pytest.mark.parametrize(
    ("entry", "page"),
    [*((each, "strategies.md") for each in STRATEGIES), *((each, "recommenders.md") for each in RECOMMENDERS)],
    ids=lambda value: value.name if isinstance(value, Entry) else "",
)
def test_every_choice_has_a_heading_and_its_settings_a_line(entry: Entry, page: str) -> None:
    assert undocumented(entry, text_of(page)) == []


@pytest.mark.parametrize("entry", [*STRATEGIES], ids=lambda entry: entry.name)
def test_every_strategy_has_idea_formula_settings_when_and_source(entry: Entry) -> None:
    text = section(text_of("strategies.md"), entry.name)
    idea = text.strip().splitlines()[0]
    assert idea[0].isupper()
    assert "```\n" in text
    for part in ("| setting | default | meaning |", "Presets: ", "**When.** ", "**Source.** "):
        assert part in text, part


def undocumented(entry: Entry, text: str) -> list[str]:
    """Own settings and presets that a page names neither under the heading of an entry nor among common settings."""
    told = section(text, entry.name) + (section(text, COMMON) if f"## {COMMON}" in text else "")
    told += "".join(section(text, other) for other in re.findall(r"^\| (?:all|others) of `(\w+)`", told, re.MULTILINE))
    settings = entry.load().settings_type.model_fields.keys() - StrategySettings.model_fields.keys()
    return sorted(name for name in (*settings, *entry.presets) if f"`{name}`" not in told)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        *((name, "evaluation.md") for name in MODES),
        *((name, "recommenders.md") for name in (*LOSSES, *PretrainSettings.model_fields)),
        *((each.__name__, "errors.md") for each in ERRORS),
    ],
)
def test_every_name_is_documented(name: str, page: str) -> None:
    assert f"`{name}`" in text_of(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{page.name} links to {target}"
        if anchor and not anchor.startswith("melon."):  # names in the code; the strict build of the site looks these up
            assert anchor in anchors(expanded(goal.read_text(encoding="utf-8"))), f"{page.name} links to {target}"


def test_the_walks_of_the_design_name_what_there_is() -> None:
    line = r"^((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z]+\.py) +(\w[\w.]*(?:, \w+)*)"
    lines = re.findall(line, section(text_of("design.md"), "Two walks"), re.MULTILINE)
    assert len(lines) > 20
    for path, names in lines:
        home = ROOT / "src" / "melon" / path
        files = [home] if home.is_file() else [*home.glob("*.py")]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.split(r"[., ]+", names):
            assert re.search(rf"^ *(?:def|class) {name}\b", text, re.M), f"docs/design.md: no {names} in {path}"


def test_cited_sections_of_methods_and_decisions_exist() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    for page in ("methods.md", "decisions.md"):
        headings = set(re.findall(r"^#+ ([\d.]*\d)\.? ", text_of(page), re.MULTILINE))
        for file in files:
            cited = re.findall(rf"docs/{page} (\d+(?:\.\d+)*)", file.read_text(encoding="utf-8"))
            assert set(cited) <= headings, f"{file.name} cites docs/{page} {sorted(set(cited) - headings)}"


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert not named - targets, page.name


def python_in(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_in(page) and page not in IN_ORDER], ids=lambda page: page.name
)
def test_python_in_the_docs_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ratings = [f"{n % 11},{n % 13},4.0,{1_600_000_000 + n}" for n in range(400)]
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *ratings]), encoding="utf-8")
    (tmp_path / "program.py").write_text(python_in(page), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # One kind of recommender shows that the lines of a page run; conformance is the matter of tests/test_checks.py.
    monkeypatch.setattr("melon.checks.SMALL_RECOMMENDERS", {"bpr": SMALL_RECOMMENDERS["bpr"]})
    runpy.run_path("program.py", run_name="__main__")  # in this process: starting another takes longer than most pages


def test_the_result_file_is_told_field_by_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--budget", "1", "--epochs", "1", "--set", "recommender.dim=4", "--split", "0.7,0.1,0.2"]
    for words in (
        ["data", "synthetic", "news", "--out", "stream.parquet", "--events", "2000"],
        ["evaluate", "stream.parquet", "--json", "result.json", *few],
    ):
        ended = run(*words)
        assert ended.code == 0, ended.err
    record = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    told = section(text_of("evaluation.md"), "The result file")
    columns = pl.read_parquet_schema(tmp_path / record["ranks"])
    for name in (*record, *record["baselines"], *columns):
        of_method = re.sub(r"^(rank|list_all|list_first_time)_", "", name)
        assert f"`{name}`" in told or f"`{of_method}`" in told, f"docs/evaluation.md does not tell about {name}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_page_has_no_phrase_that_readers_stumble_over(page: Path) -> None:
    assert not avoided(page.read_text(encoding="utf-8"))


def test_neither_have_help_texts_routes_settings_and_public_names() -> None:
    helps = [text or "" for one in COMMANDS.values() for text in (one.help, *(each.help for each in one.params))]
    names = [getattr(melon, name) for name in melon.__all__]
    members = [member for one in names if isinstance(one, type) for member in vars(one).values()]
    docstrings = [inspect.getdoc(one) or "" for one in (*names, *members) if callable(one)]
    tables = [text.replace("|", "\n") for text in (http_reference(), serve_settings())]
    assert not [bad for text in (*helps, *docstrings, *tables) for bad in avoided(text)]


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert section(text, "[Unreleased]") is not None
    assert re.search(rf"^## \[{re.escape(melon.__version__)}\]", text, re.MULTILINE)
