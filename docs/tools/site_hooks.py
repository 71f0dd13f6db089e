"""What mkdocs does beyond rendering pages: generated parts, and links to files outside docs/.

A page holds `<!-- generated: NAME -->` where a part is generated from the code when the site is built. Sections of
strategies.md about one strategy become pages of their own. A link that leaves docs/ (`../CONTRIBUTING.md`) leads to a
copy of that file in the site.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import command_line
import http_api
import serve_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"commands": command_line.reference, "routes": http_api.reference, "settings": serve_settings.reference}
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(\[[^\]]*\])\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
#: Files outside docs/ that are in the site whether a page links to them or not.
PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "THIRD_PARTY.md")
_STRATEGIES = DOCS / "strategies.md"


def sections() -> dict[str, str]:
    """The sections of strategies.md that are about one strategy, by its name."""
    from melon.strategies.registry import STRATEGIES

    parts = re.split(r"^## (.+)\n", _STRATEGIES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    return {name: text for name, text in texts.items() if name in STRATEGIES.names()}


def expanded(text: str) -> str:
    """A page with its generated parts."""
    return _MARK.sub(lambda mark: GENERATED[mark[1]](), text)


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/ to which pages link."""
    from mkdocs.structure.files import File, InclusionLevel

    outside = {ROOT / name for name in PROJECT}
    for page in DOCS.rglob("*.md"):
        outside |= {goal for goal in _goals(page) if goal.is_file() and not goal.is_relative_to(DOCS)}
    for path in sorted(outside):
        name = f"project/{path.relative_to(ROOT).as_posix()}"
        files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    for name, text in sections().items():
        files.append(File.generated(config, f"algorithms/{name}.md", content=f"# {name}\n{text}"))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Fill in generated parts, and turn links that leave docs/ into links within the site."""
    name = page.file.src_uri
    source = ROOT / name.removeprefix("project/") if name.startswith("project/") else DOCS / name
    known, strategies = {file.src_uri for file in files}, sections()
    if name.startswith("algorithms/"):
        source = _STRATEGIES
    elif source == _STRATEGIES:
        for one, text in strategies.items():
            markdown = markdown.replace(f"## {one}\n{text}", "")

    def link(found: re.Match[str]) -> str:
        path, mark, anchor = found[2].partition("#")
        if re.match(r"[a-z]+:", path) or (not path and source != _STRATEGIES):
            return found[0]
        goal = Path(os.path.normpath(source.parent / path)) if path else source
        inside = goal.is_relative_to(DOCS)
        uri = goal.relative_to(DOCS).as_posix() if inside else f"project/{goal.relative_to(ROOT).as_posix()}"
        if goal == _STRATEGIES and anchor in strategies:
            uri, mark, anchor = f"algorithms/{anchor}.md", "", ""
        if uri not in known:
            return found[0] if inside else found[1][1:-1]  # only the words; mkdocs refuses a page that is not there
        here = os.path.relpath(uri, os.path.dirname(name) or ".")
        return f"{found[1]}({here}{mark}{anchor})"

    parts = re.split(f"({_FENCE.pattern})", expanded(markdown), flags=_FENCE.flags)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def _goals(page: Path) -> set[Path]:
    """The files to which a page links."""
    targets = [target for _, target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))]
    paths = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]
    return {Path(os.path.normpath(page.parent / path)) for path in paths if path}
