"""The site: it is built strictly, it asks nobody outside for anything, and it holds every command, route and name."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import melon
from melon.service.config import ServeSettings
from melon.service.http.app import bare_app
from melon.strategies.registry import STRATEGIES
from test_docs import COMMANDS

ROOT = Path(__file__).parents[1]
#: Attributes by which a page loads something, as opposed to links that a person may follow.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """The addresses from which a page loads something."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if LOADS.get(tag) == name]


def test_pages_load_nothing_from_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        reader = Loads()
        reader.feed(text)
        outside = [address for address in reader.addresses if re.match(r"(https?:)?//", address)]
        assert not outside, f"{page.name} loads {outside}"
        # The theme's script fetches Mermaid only where a page has a diagram of it.
        assert 'class="mermaid"' not in text, page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_the_reference_is_whole(site: Path) -> None:
    cli = (site / "cli.html").read_text(encoding="utf-8")
    assert all(f'id="{name.replace(" ", "-")}"' in cli for name in COMMANDS)
    options = {name for one in COMMANDS.values() for each in one.params for name in each.opts if name.startswith("--")}
    assert all(name in cli for name in options - {"--help"})
    http = (site / "api.html").read_text(encoding="utf-8")
    assert all(path in http for path in bare_app().openapi()["paths"])
    service = (site / "service.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in service for name in ServeSettings.model_fields)
    python = (site / "python.html").read_text(encoding="utf-8")
    assert all(f'id="melon.{name}"' in python for name in ("Melon", "Melon.fit", "Client", "evaluate", "load"))
    names = set(re.findall(r'id="melon\.(\w+)"', python))
    assert set(melon.__all__) - {"AsyncClient", "MelonError", "__version__"} <= names


def test_every_strategy_has_a_page(site: Path) -> None:
    assert all((site / "algorithms" / f"{entry.name}.html").exists() for entry in STRATEGIES)
