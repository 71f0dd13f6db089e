"""Undocumented means failing: every command, option, strategy, recommender, format and error is looked up in docs."""

import ast
import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

import melon
from commands import Run
from melon import errors
from melon.checks import SMALL_RECOMMENDERS
from melon.cli import app
from melon.data.raw.formats import FORMATS
from melon.learning.pretrain import PretrainSettings
from melon.recommenders.losses import LOSSES
from melon.recommenders.registry import RECOMMENDERS
from melon.registry import Entry
from melon.settings import Settings
from melon.strategies.base import StrategySettings
from melon.strategies.melon.linear import LinearSettings
from melon.strategies.melon.rates import INPUTS
from melon.strategies.melon.settings import RateSettings
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import MODES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
SHARED = "Options that several commands share"
EVERYWHERE = {"--help", "--install-completion", "--show-completion"}
#: Pages that melon writes; naming one is no citation.
WRITTEN = {"report.md"}
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


def commands(group: Any, path: str = "melon") -> Iterator[tuple[str, Any]]:
    """Every command with its whole name; groups are walked, not yielded."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        elif not command.hidden:
            yield f"{path} {name}", command


def options(command: Any) -> set[str]:
    """The long spelling of every option that is not hidden."""
    visible = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    names = {name for each in visible for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}
    return names - EVERYWHERE


ROOT_COMMAND = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT_COMMAND))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_its_options_are_documented(name: str) -> None:
    text = text_of("cli.md")
    known = section(text, name) + section(text, SHARED)
    for option in sorted(options(COMMANDS[name])):
        assert re.search(rf"{option}(?![\w-])", known), f"docs/cli.md does not tell about {name} {option}"


def test_the_walks_of_the_design_name_what_is_there() -> None:
    text = text_of("design.md").partition("## Two walks")[2].partition("## Load-bearing")[0]
    lines = re.findall(r"^ *(\S+\.py) +(\w[\w.]*(?:, \w+)*)", text, re.MULTILINE)
    assert len(lines) > 15
    for path, names in lines:
        code = (ROOT / "src" / "melon" / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^ *(?:class|def) {name}\b", code, re.MULTILINE), f"docs/design.md: {path} has no {name}"


def test_every_benchmark_is_listed() -> None:
    folder = ROOT / "benchmarks"
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


@pytest.mark.parametrize("name", COMMANDS)
def test_options_in_the_docs_exist(name: str) -> None:
    told = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", section(text_of("cli.md"), name)))
    assert not told - options(COMMANDS[name])


def test_shared_options_are_shared() -> None:
    told = set(re.findall(r"^\| `(--[a-z][\w-]*)`", section(text_of("cli.md"), SHARED), re.MULTILINE))
    assert told
    for name in ("melon evaluate", "melon pretrain"):
        assert not told - options(COMMANDS[name]), name


def test_commands_in_the_docs_exist() -> None:
    groups = {name.rpartition(" ")[0] for name in COMMANDS} - {"melon"}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
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


def undocumented(entry: Entry, text: str) -> list[str]:
    """Own settings and presets that a page does not name under the heading of an entry."""
    told = section(text, entry.name)
    settings = entry.load().settings_type.model_fields.keys() - StrategySettings.model_fields.keys()
    return sorted(name for name in (*settings, *entry.presets) if f"`{name}`" not in told)


@pytest.mark.parametrize("name", StrategySettings.model_fields)
def test_settings_of_every_strategy_are_documented_once(name: str) -> None:
    text = text_of("strategies.md")
    assert f"`{name}`" in section(text, "Fading") + section(text, "A bound on steps")


def plain_default(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if value in ((), INPUTS):
        return "all" if value else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(
    ("heading", "settings"), [("Settings", LinearSettings), ("Settings of the network form", RateSettings)]
)
def test_the_settings_of_melon_have_the_defaults_that_its_page_tells(heading: str, settings: type[Settings]) -> None:
    told: dict[str, str] = {}
    for line in section(text_of("melon.md"), heading).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        if len(cells) > 1 and names:
            told |= dict(zip(names, [each.strip(" `") for each in cells[1].split(",")], strict=True))
    fields = settings.model_fields
    assert told == {name: plain_default(field.default) for name, field in fields.items()}


@pytest.mark.parametrize(
    ("name", "page"),
    [
        *((name, "formats.md") for name in FORMATS),
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
        if anchor:
            assert anchor in anchors(goal.read_text(encoding="utf-8")), f"{page.name} links to {target}"


def test_every_page_is_reached_from_the_index() -> None:
    index = text_of("index.md")
    for page in sorted(DOCS.rglob("*.md")):
        if page.name != "index.md":
            assert f"({page.relative_to(DOCS).as_posix()})" in index, f"docs/index.md does not link to {page.name}"


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert not named - targets, page.name


def python_in(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if python_in(page)], ids=lambda page: page.name)
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
    few = ["--budget", "1", "--epochs", "1", "--set", "recommender.dim=4", "--split", "0.7,0.1,0.2", "--full-ranking"]
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
        assert f"`{name}`" in told or f"`rank_{name}`" in told, f"docs/evaluation.md does not tell about {name}"


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert section(text, "[Unreleased]") is not None
    assert re.search(rf"^## \[{re.escape(melon.__version__)}\]", text, re.MULTILINE)


# Citations: source, tests and pages name documents, sections of the specification and decisions.

NUMBER = r"\d+(?:\.\d+)*"
URL = re.compile(r"\w+://\S+")
PAGE = re.compile(r"(?<![\w./-])(?:\.{1,2}/)*[\w-][\w./-]*\.md\b")
SECTIONS = re.compile(
    rf"(?:methods|design)\.md,?\s+(?:#:? )?(?:sections? )?({NUMBER}(?:(?:,| and| to|–)\s*(?:tables? )?{NUMBER})*)"
)
TITLE = re.compile(r"([\w/.-]+\.md), \"([^\"\n]+)\"")
LABEL = re.compile(rf"\[[Mm]ethods ({NUMBER})\]\([^)#]*#([\w-]+)\)")
DECISION = re.compile(r"\bADRs?\s+0*(\d+)|docs/adr/0*(\d+)|\[decision\s+(\d+)\]")


def tracked_files() -> list[Path]:
    """Text files that git knows; without git, those of the folders and pages that a release holds."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in listed.stdout.split("\0") if name]
    paths = [ROOT / name for name in names] if listed.returncode == 0 and names else [*ROOT.glob("*"), *walked()]
    return [path for path in paths if path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ""} and path.is_file()]


def walked() -> Iterator[Path]:
    for folder in ("src", "tests", "benchmarks", "docs", "configs"):
        yield from (ROOT / folder).rglob("*")


def cited_page(name: str, path: Path) -> Path | None:
    """The page that a file means: from the root, from beside the file, or by its bare name in docs."""
    places = (ROOT / name, path.parent / name, *([DOCS / name] if "/" not in name else []))
    return next((place for place in places if place.is_file()), None)


@cache
def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ +(.+?)\s*$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)


def section_numbers(page: Path) -> set[str]:
    return {found[1] for title in headings(page) if (found := re.match(rf"({NUMBER})\.?\s", title))}


def missing_citations(text: str, path: Path) -> list[tuple[int, str]]:
    """(line, what is cited there and does not exist): pages, sections, titles and decisions, but no web addresses."""
    text = URL.sub(lambda found: " " * len(found[0]), text)
    missing: list[tuple[int, str]] = []

    def note(at: int, what: str) -> None:
        missing.append((text.count("\n", 0, at) + 1, what))

    for found in PAGE.finditer(text):
        if found[0] not in WRITTEN and cited_page(found[0], path) is None:
            note(found.start(), found[0])
    for found in SECTIONS.finditer(text):
        page = DOCS / found[0].partition(".md")[0]
        known = section_numbers(page.with_suffix(".md"))
        for number in re.findall(NUMBER, found[1]):
            if number not in known:
                note(found.start(), f"docs/{page.name}.md {number}")
    for found in TITLE.finditer(text):
        named = cited_page(found[1], path)
        if named is not None and found[2] not in headings(named):
            note(found.start(), f'{found[1]}, "{found[2]}"')
    for found in LABEL.finditer(text):
        if not found[2].startswith(f"{found[1].replace('.', '')}-"):
            note(found.start(), f"[methods {found[1]}] leads to #{found[2]}")
    for found in DECISION.finditer(text):
        number = int(next(filter(None, found.groups())))
        if not list((DOCS / "adr").glob(f"{number:04}-*.md")):
            note(found.start(), f"decision {number}")
    return sorted(missing)


def test_the_walks_name_functions_that_exist() -> None:
    walks = section((ROOT / "docs" / "design.md").read_text(encoding="utf-8"), "Two walks")
    steps = re.findall(r"^\s*([\w/]+\.py)\s+([\w.]+(?:, [\w.]+)*)", walks, re.MULTILINE)
    assert len(steps) >= 18
    for file, names in steps:
        tree = ast.parse((ROOT / "src" / "melon" / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        for name in names.split(", "):
            assert set(name.split(".")) <= defined, f"{file} has no {name}"


class TestCitations:
    def test_what_is_cited_exists(self) -> None:
        missing = [
            f"{path.relative_to(ROOT)}:{line}: {what}"
            for path in tracked_files()
            if path != Path(__file__)  # which makes up some that are missing
            for line, what in missing_citations(path.read_text(encoding="utf-8"), path)
        ]
        assert not missing, "cited, but not there:\n" + "\n".join(missing)

    def test_files_are_looked_at(self) -> None:
        looked_at = set(tracked_files())
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "docs/index.md", "tests/test_docs.py"):
            assert ROOT / name in looked_at
        for folder in ("src", "tests", "benchmarks", "docs", "configs"):
            assert any(ROOT / folder in path.parents for path in looked_at), folder

    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("docs/methods.md 3.0.4, 4.11 and 7; methods.md 4", []),
            ("docs/methods.md 4.9, row 16", []),
            ("docs/methods.md 5.1 and tables 6.1 to 6.3", []),
            ("docs/methods.md 9.9", [(1, "docs/methods.md 9.9")]),
            ("one\ntwo (docs/methods.md 1.3, 1.77)", [(2, "docs/methods.md 1.77")]),
            ("docs/methods.md 4.2–4.99", [(1, "docs/methods.md 4.99")]),
            ("docs/design.md 3", [(1, "docs/design.md 3")]),
            ('docs/design.md, "Result format"', []),
            ('docs/design.md, "Result shape"', [(1, 'docs/design.md, "Result shape"')]),
            ("see NOWHERE.md", [(1, "NOWHERE.md")]),
            ("see docs/nowhere.md and [there](../elsewhere.md#part)", [(1, "../elsewhere.md"), (1, "docs/nowhere.md")]),
            ("concepts.md, docs/concepts.md and ../README.md", []),
            ("https://example.org/docs/nowhere.md, docs/*.md and melon report's report.md", []),
            ("[methods 5.8](methods.md#58-what-a-comparison-may-claim)", []),
            ("[methods 5.7](methods.md#58-what-a-comparison-may-claim)", [(1, "[methods 5.7] leads to #58-what-")]),
            ("ADR 5, ADR\n0009 and docs/adr/0004", []),
            ("(ADR 77), docs/adr/0078", [(1, "decision 77"), (1, "decision 78")]),
        ],
    )
    def test_what_is_missing_is_noticed(self, text: str, wanted: list[tuple[int, str]]) -> None:
        found = missing_citations(text, DOCS / "index.md")
        assert [line for line, _ in found] == [line for line, _ in wanted]
        assert all(told.startswith(start) for (_, told), (_, start) in zip(found, wanted, strict=True)), found


class TestGlossary:
    def rows(self) -> list[list[str]]:
        text = text_of("glossary.md").partition("## Words we avoid")[0]
        lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
        return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]

    def test_each_word_stands_once_in_its_place(self) -> None:
        words = [re.sub(r"[^a-z0-9 -]", "", word.casefold()) for word, *_ in self.rows()]
        assert words == sorted(set(words))

    def test_what_it_names_is_in_the_code(self) -> None:
        code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
        for word, _, where in self.rows():
            for name in re.findall(r"`(\w+)`", where):
                assert re.search(rf"^ *(?:class|def) {name}\b|^{name}\b", code, re.MULTILINE), f"{word}: {name}"
