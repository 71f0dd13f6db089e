"""A report as Markdown, for repositories and pull requests; its figures are files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from melon.report.document import (
    Block,
    Bullets,
    Cards,
    Code,
    Document,
    Figures,
    Fold,
    Part,
    Prose,
    Section,
    TextCell,
    TextTable,
)

_SPECIAL = re.compile(r"([\\*_{}\[\]#|~])")


def markdown_page(document: Document) -> str:
    """The whole page."""
    head = [f"# {escaped(document.title)}", escaped(document.lead), escaped(" · ".join(document.facts))]
    blocks = [*head, *(text for section in document.sections for text in _section(section))]
    return "\n\n".join(block for block in blocks if block) + "\n"


def escaped(text: str) -> str:
    """Plain text that Markdown leaves alone, on one line; what stands between backticks is code.

    Angle brackets and ampersands become entities, in code as well where it holds any: raw HTML gets in nowhere.
    """
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a lonely backtick is no code
        return _plain("'".join(parts))
    return "".join(_plain(part) if at % 2 == 0 else _code(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", escape(text, quote=False))


def _code(text: str) -> str:
    return f"`{text}`" if escape(text, quote=False) == text else f"<code>{_plain(text)}</code>"


def _section(section: Section) -> Iterator[str]:
    yield f"## {escaped(section.title)}" if section.title else ""
    yield escaped(section.lead)
    yield from _blocks(section.blocks, 3)


def _blocks(blocks: Sequence[Block], level: int) -> Iterator[str]:
    for block in blocks:
        yield from _block(block, level)


def _block(block: Block, level: int) -> Iterator[str]:
    match block:
        case Prose(text):
            yield escaped(text)
        case Bullets(items):
            yield "\n".join(f"- {escaped(item)}" for item in items)
        case Code(text):
            fenced = escape(text, quote=False) == text and "```" not in text
            yield f"```\n{text}\n```" if fenced else f"<pre>{escape(text, quote=False)}</pre>"
        case TextTable():
            yield _table(block)
            yield f"*{escaped(block.caption)}*" if block.caption else ""
        case Figures(figures):
            for figure in figures:
                yield f"![{escaped(figure.caption)}](figures/{figure.name}.svg)"
        case Cards(cards):
            for card in cards:
                yield f"- **{card.status}**: {escaped(card.title)}: {escaped(card.number)}" + "".join(
                    f"\n  - {escaped(line)}" for line in card.lines
                )
        case Part(title, note, inner):
            yield f"{'#' * level} {escaped(title)}"
            yield escaped(note)
            yield from _blocks(inner, level + 1)
        case Fold(title, inner):
            yield f"{'#' * level} {escaped(title)}"
            yield from _blocks(inner, level + 1)


def _table(table: TextTable) -> str:
    aligned = ["---" if at < table.left else "---:" for at in range(len(table.head))]
    lines = [_line(map(escaped, table.head)), _line(aligned)]
    before = None
    for row in table.rows:
        cells = [_cell(cell) for cell in row]
        if table.grouped and cells[0] == before:
            lines.append(_line(["", *cells[1:]]))
        else:
            lines.append(_line(cells))
        before = cells[0]
    return "\n".join(lines)


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: TextCell) -> str:
    text = escaped(cell.text)
    if cell.mark in ("best", "second", "theirs") and text:
        before, after = {"best": ("**", "**"), "second": ("<ins>", "</ins>"), "theirs": ("*", "*")}[cell.mark]
        text = f"{before}{text}{after}"
    return f"{text} ±{escaped(cell.error)}" if cell.error else text
