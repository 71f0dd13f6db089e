"""The report as one HTML file that fetches nothing: styles and figures are inside, light and dark, phone and desk."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from melon.report.document import (
    Block,
    Bullets,
    Card,
    Cards,
    Cell,
    Code,
    Document,
    Figures,
    Fold,
    Part,
    Prose,
    Section,
    Table,
)
from melon.report.drawing import themed
from melon.report.naming import COLOURS, INK, LINE, SOFT, css_name
from melon.report.style import STYLE

_STATUS = {"held": "good", "not held": "bad", "not decided": "open"}


def html_page(document: Document) -> str:
    """The whole page."""
    links = "".join(f'<a href="#{section.key}">{escape(section.title)}</a>' for section in document.sections)
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in document.facts)
    body = "".join(_section(section) for section in document.sections)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(document.title)}</title>
<style>{_palette()}{STYLE}</style></head>
<body><header><h1>{escape(document.title)}</h1><p class="lead">{escape(document.lead)}</p><ul class="facts">{facts}</ul>
</header><nav aria-label="Sections">{links}</nav><main>{body}</main></body></html>
"""


def _palette() -> str:
    """The colours of methods and page as variables, for light and for dark."""
    named = {css_name(method): each for method, each in COLOURS.items()}
    named |= {"--ink": INK, "--soft": SOFT, "--line": LINE}
    light = "".join(f"{name}:{each.light};" for name, each in named.items())
    dark = "".join(f"{name}:{each.dark};" for name, each in named.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def _section(section: Section) -> str:
    lead = f'<p class="lead">{inline(section.lead)}</p>' if section.lead else ""
    blocks = _blocks(section.blocks)
    return f'<section id="{section.key}"><h2>{escape(section.title)}</h2>{lead}{blocks}</section>\n'


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    match block:
        case Prose(text, soft):
            return f'<p class="{"soft" if soft else "text"}">{inline(text)}</p>'
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in items)}</ul>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Table():
            return _table(block)
        case Figures(figures):
            drawn = "".join(
                f'<figure role="img" aria-label="{escape(each.caption)}">{themed(each.drawing.svg, each.name)}'
                f"<figcaption>{inline(each.caption)}</figcaption></figure>"
                for each in figures
            )
            return f'<div class="figures">{drawn}</div>'
        case Cards(cards):
            return f'<div class="cards">{"".join(_card(card) for card in cards)}</div>'
        case Part(title, note, inner):
            told = f'<p class="note">{inline(note)}</p>' if note else ""
            return f'<article class="part"><h3>{inline(title)}</h3>{told}{_blocks(inner)}</article>'
        case Fold(title, inner):
            return f"<details><summary>{inline(title)}</summary>{_blocks(inner)}</details>"


def _card(card: Card) -> str:
    lines = "".join(f"<li>{inline(line)}</li>" for line in card.lines)
    why = f"<details><summary>The numbers</summary><ul>{lines}</ul></details>" if lines else ""
    status = f'<span class="status">{escape(card.status)}</span>'
    told = f"<h4>{inline(card.title)}</h4><p>{inline(card.number)}</p>"
    return f'<div class="card {_STATUS[card.status]}">{status}{told}{why}</div>'


def inline(text: str) -> str:
    """Escaped text; what stands between backticks is code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(part if at % 2 == 0 else f"<code>{part}</code>" for at, part in enumerate(parts))


def _table(table: Table) -> str:
    left, skip = table.left - table.grouped, 1 if table.grouped else 0
    head = "".join(f"<th{_aligned(at, left)}>{inline(name)}</th>" for at, name in enumerate(table.head[skip:]))
    body, before = "", None
    for row in table.rows:
        if table.grouped and row[0].text != before:
            body += f'<tr class="group"><th colspan="{len(row) - 1}"><span>{inline(row[0].text)}</span></th></tr>'
            before = row[0].text
        body += f"<tr>{''.join(_cell(cell, at, left) for at, cell in enumerate(row[skip:]))}</tr>"
    caption = f'<p class="caption">{inline(table.caption)}</p>' if table.caption else ""
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{inner}</div>{caption}'


def _aligned(at: int, left: int) -> str:
    return ' class="words"' if at < left else ""


def _cell(cell: Cell, at: int, left: int) -> str:
    classes = " ".join(name for name in ("words" if at < left else "", cell.mark) if name)
    text = inline(cell.text)
    if cell.mark in ("good", "fair", "bad", "open") and cell.text:
        text = f'<span class="pill">{text}</span>'
    if cell.mark in ("best", "second"):
        text = f"<b>{text}</b>" if cell.mark == "best" else f"<u>{text}</u>"
    if cell.method:
        text = f'<i class="dot" style="background:var({css_name(cell.method)})"></i>{text}'
    error = f'<small class="error">±{escape(cell.error)}</small>' if cell.error else ""
    return f'<td class="{classes}">{text}{error}</td>' if classes else f"<td>{text}{error}</td>"
