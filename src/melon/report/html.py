"""A report as one HTML file that fetches nothing: styles and figures are inside, light and dark, phone and desk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from melon.display import INK, LINE, SOFT, color, css_variable
from melon.report.document import (
    Block,
    Bullets,
    Card,
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

_STATUS = {"held": "good", "not held": "bad", "not decided": "open"}


def html_page(document: Document) -> str:
    """The whole page; up to three sections need no list of links."""
    links = "".join(f'<a href="#{escape(s.key)}">{escape(s.title)}</a>' for s in document.sections)
    nav = f'<nav aria-label="Sections">{links}</nav>' if len(document.sections) > 3 else ""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in document.facts)
    body = "".join(_section(section, document.methods) for section in document.sections)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(document.title)}</title>
<style>{_palette(document.methods)}{STYLE}</style></head>
<body><header><h1>{escape(document.title)}</h1><p class="headline">{inline(document.lead)}</p>
<ul class="facts">{facts}</ul></header>{nav}<main>{body}</main></body></html>
"""


def _palette(methods: Sequence[str]) -> str:
    """The colours of methods and page as variables, for light and for dark."""
    named = {"--ink": INK, "--soft": SOFT, "--line": LINE} | {css_variable(method): color(method) for method in methods}
    light = "".join(f"{name}:{each.light};" for name, each in named.items())
    dark = "".join(f"{name}:{each.dark};" for name, each in named.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def themed(svg: str, name: str, methods: Sequence[str]) -> str:
    """For a page: colours become the page's variables, and ids inside the drawing are unique on the page."""
    for method in methods:
        svg = svg.replace(color(method).light, f"var({css_variable(method)})")
    for variable, each in (("--ink", INK), ("--soft", SOFT), ("--line", LINE)):
        svg = svg.replace(each.light, f"var({variable})")
    svg = re.sub(r'(<g id="patch_1">\s*<path [^>]*?)style="fill: #ffffff"', r'\1style="fill: none"', svg, count=1)
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    return re.sub(r"url\(#", f"url(#{name}-", svg)


def _section(section: Section, methods: Sequence[str]) -> str:
    title = f"<h2>{escape(section.title)}</h2>" if section.title else ""
    lead = f'<p class="lead">{inline(section.lead)}</p>' if section.lead else ""
    return f'<section id="{escape(section.key)}">{title}{lead}{_blocks(section.blocks, methods)}</section>\n'


def _blocks(blocks: Sequence[Block], methods: Sequence[str]) -> str:
    return "".join(_block(block, methods) for block in blocks)


def _block(block: Block, methods: Sequence[str]) -> str:
    match block:
        case Prose(text, soft):
            return f'<p class="{"soft" if soft else "text"}">{inline(text)}</p>'
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in items)}</ul>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case TextTable():
            return _table(block)
        case Figures(figures, wide):
            drawn = "".join(
                f'<figure role="img" aria-label="{escape(each.caption)}">{themed(each.drawing.svg, each.name, methods)}'
                f"<figcaption>{inline(each.caption)}</figcaption></figure>"
                for each in figures
            )
            return f'<div class="figures{" wide" if wide else ""}">{drawn}</div>'
        case Cards(cards):
            return f'<div class="cards">{"".join(_card(card) for card in cards)}</div>'
        case Part(title, note, inner):
            about = f'<p class="note">{inline(note)}</p>' if note else ""
            return f'<article class="part"><h3>{inline(title)}</h3>{about}{_blocks(inner, methods)}</article>'
        case Fold(title, inner):
            return f"<details><summary>{inline(title)}</summary>{_blocks(inner, methods)}</details>"


def _card(card: Card) -> str:
    lines = "".join(f"<li>{inline(line)}</li>" for line in card.lines)
    why = f"<details><summary>The numbers</summary><ul>{lines}</ul></details>" if lines else ""
    status = f'<span class="status">{escape(card.status)}</span>'
    title = f"<h4>{inline(card.title)}</h4><p>{inline(card.number)}</p>"
    return f'<div class="card {_STATUS[card.status]}">{status}{title}{why}</div>'


def inline(text: str) -> str:
    """Escaped text; what stands between backticks is code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(part if at % 2 == 0 else f"<code>{part}</code>" for at, part in enumerate(parts))


def _table(table: TextTable) -> str:
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


def _cell(cell: TextCell, at: int, left: int) -> str:
    classes = " ".join(name for name in ("words" if at < left else "", cell.mark) if name)
    text = inline(cell.text)
    if cell.mark in ("good", "fair", "bad", "open") and cell.text:
        text = f'<span class="pill">{text}</span>'
    if cell.mark in ("best", "second"):
        text = f"<b>{text}</b>" if cell.mark == "best" else f"<u>{text}</u>"
    if cell.method:
        text = f'<i class="dot" style="background:var({css_variable(cell.method)})"></i>{text}'
    error = f'<small class="error">±{escape(cell.error)}</small>' if cell.error else ""
    return f'<td class="{classes}">{text}{error}</td>' if classes else f"<td>{text}{error}</td>"


STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f8fafb; --mark: #17603c; --good: #17603c;
  --good-bg: #dff3e7; --fair: #3d6b52; --fair-bg: #eef6f0; --bad: #a02a1c; --bad-bg: #fde7e3; --open: #5b6472;
  --open-bg: #eceff3; }
@media (prefers-color-scheme: dark) { :root { --page: #11151b; --card: #181d25; --mark: #6fdba6; --good: #8fe6ba;
  --good-bg: #143526; --fair: #a9cdb9; --fair-bg: #1b2a22; --bad: #ffb0a3; --bad-bg: #43201b; --open: #b6c0cd;
  --open-bg: #262d37; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 3.4rem; }
body { margin: 0; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; color: var(--ink);
  background: var(--page); }
header, main { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.015em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.45rem; margin: 3.2rem 0 .3rem; letter-spacing: -.01em; }
h3 { font-size: 1.08rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .5rem 0 1rem; max-width: 46rem; }
p.headline { font-size: 1.12rem; line-height: 1.5; max-width: 50rem; margin: .5rem 0 1rem; }
p.lead { color: var(--soft); }
p.note, p.soft { color: var(--soft); font-size: .88rem; margin: .15rem 0 .8rem; }
p.caption { color: var(--soft); font-size: .8rem; line-height: 1.45; margin: .4rem 0 1.1rem; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem; list-style: none; margin: 0 0 1.2rem; padding: 0; }
.facts li { background: var(--open-bg); color: var(--open); border-radius: 1rem; padding: .12rem .7rem;
  font-size: .85rem; }
nav { position: sticky; top: 0; z-index: 5; display: flex; background: var(--page); gap: 1.15rem;
  border-block: 1px solid var(--line); overflow-x: auto; white-space: nowrap; scrollbar-width: none;
  padding: .6rem max(1.25rem, calc((100vw - 68rem) / 2 + 1.25rem)); }
nav a { color: var(--soft); text-decoration: none; font-size: .88rem; }
nav a:hover, nav a:focus { color: var(--ink); text-decoration: underline; text-underline-offset: .3em; }
main { padding-bottom: 5rem; }
.part { margin: 1.6rem 0 2rem; }
.part > h3 + .cards, .part > h3 + .scroll { margin-top: .7rem; }
.scroll { overflow-x: auto; margin: 0 -.25rem; }
table { border-collapse: separate; border-spacing: 0; min-width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .36rem .65rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th.words, td.words { text-align: left; }
td.words { white-space: normal; }
td.words:nth-child(n+2) { min-width: 8rem; max-width: 34rem; overflow-wrap: anywhere; }
td.words:first-child { white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; font-size: .8rem; vertical-align: bottom; white-space: normal; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); z-index: 1; }
tr.group th { text-align: left; font-size: .88rem; padding-top: 1rem; background: none; }
tr.group span { position: sticky; left: .65rem; }
td b { color: var(--mark); font-weight: 700; }
td u { text-underline-offset: .22em; text-decoration-thickness: 1px; }
td.soft { color: var(--soft); }
td.theirs { color: var(--soft); font-style: italic; }
.error { color: var(--soft); font-size: .78em; margin-left: .3em; font-weight: 400; }
.dot { display: inline-block; width: .62em; height: .62em; border-radius: 50%; margin-right: .5em; }
.pill, .card .status { border-radius: 1rem; padding: .08rem .6rem; font-size: .82em; font-weight: 600;
  white-space: nowrap; }
.good .pill, .card.good .status { background: var(--good-bg); color: var(--good); }
.fair .pill { background: var(--fair-bg); color: var(--fair); }
.bad .pill, .card.bad .status { background: var(--bad-bg); color: var(--bad); }
.open .pill, .card.open .status { background: var(--open-bg); color: var(--open); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: .9rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: 1rem 1.1rem .8rem; }
.card h4 { font-size: 1rem; line-height: 1.35; margin: .55rem 0 .4rem; }
.card p { font-size: .9rem; margin: 0 0 .5rem; }
.card ul { margin: .4rem 0 .3rem; padding-left: 1.1rem; font-size: .82rem; line-height: 1.45; color: var(--soft); }
.card li { margin-bottom: .35rem; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 1rem;
  margin: .9rem 0 1.2rem; }
figure { margin: 0; border: 1px solid var(--line); border-radius: .7rem; padding: .7rem .7rem .5rem; max-width: 34rem; }
.figures.wide figure { max-width: 37rem; }
.figures.wide { grid-template-columns: 1fr; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .8rem; line-height: 1.4; margin-top: .4rem; }
details { border: 1px solid var(--line); border-radius: .6rem; margin: .6rem 0; padding: .1rem .9rem; }
.card details { border: 0; padding: 0; margin: 0; }
summary { cursor: pointer; padding: .4rem 0; font-size: .88rem; color: var(--soft); }
details[open] > summary { color: var(--ink); }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; font-size: .8rem; line-height: 1.5; white-space: pre-wrap; overflow-wrap: anywhere; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .92em; }
@media (max-width: 40rem) {
  header, main { padding-left: 1rem; padding-right: 1rem; }
  nav { padding-left: 1rem; padding-right: 1rem; }
  th, td { padding: .34rem .45rem; }
  table { font-size: .82rem; }
  .error { display: block; margin: -.15rem 0 0; }
  td:first-child, td.words:first-child { min-width: 7.6rem; max-width: 8.6rem; white-space: normal;
    line-height: 1.25; overflow-wrap: anywhere; }
  main > section > ul { padding-left: 1.1rem; font-size: .9rem; }
}
@media print { nav { display: none; } body { font-size: 11px; } .part, figure { break-inside: avoid; } }
"""
