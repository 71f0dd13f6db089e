"""A page as blocks, rendered by a Jinja2 template as one HTML file that fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from melon.evaluation.labels import INK, LINE, SOFT, color, css_variable
from melon.evaluation.table import ResultTable, inline


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when a form of it is first needed; the same input is the same bytes."""

    save: Callable[[Literal["svg", "png"]], bytes]
    figure: Callable[[], Any]

    @cached_property
    def svg(self) -> str:
        """As an element that can stand in a page."""
        text = self.save("svg").decode()
        return text[text.index("<svg") :]

    @cached_property
    def png(self) -> bytes:
        """As pixels."""
        return self.save("png")


@dataclass(frozen=True)
class Figure:
    """A drawing under the name of its files, with words for those who cannot see it."""

    name: str
    drawing: Drawing
    caption: str


@dataclass(frozen=True)
class Figures:
    """Figures side by side where there is room; a `wide` one has the line to itself."""

    figures: Sequence[Figure]
    wide: bool = False


@dataclass(frozen=True)
class Prose:
    """A paragraph; what stands between backticks is code."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Commands and settings, as they are."""

    text: str


@dataclass(frozen=True)
class Fold:
    """Details that are folded away."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Card:
    """A claim and whether it held."""

    status: Literal["held", "not held", "not decided"]
    title: str
    number: str
    lines: Sequence[str]

    @property
    def mark(self) -> str:
        """The class of its colours."""
        return {"held": "good", "not held": "bad"}.get(self.status, "open")


@dataclass(frozen=True)
class Cards:
    """Claims side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Part:
    """A part of a section with a heading of its own."""

    title: str
    note: str
    blocks: Sequence[Block]


Block = ResultTable | Figures | Prose | Bullets | Code | Fold | Cards | Part


@dataclass(frozen=True)
class Section:
    """A section; its key is its address on the page."""

    key: str
    title: str
    lead: str
    blocks: Sequence[Block] = field(default_factory=tuple)


@dataclass(frozen=True)
class Document:
    """The whole report; `methods` are those that have a colour in it."""

    title: str
    lead: str
    facts: Sequence[str]
    sections: Sequence[Section]
    methods: Sequence[str] = ()

    def figures(self) -> list[Figure]:
        """Every figure, wherever it stands."""
        figures: list[Figure] = []
        waiting: list[Block] = [block for section in self.sections for block in section.blocks]
        while waiting:
            block = waiting.pop(0)
            if isinstance(block, Figures):
                figures += block.figures
            elif isinstance(block, Fold | Part):
                waiting = [*block.blocks, *waiting]
        return figures

    def inserted(self, section: Section | None, *, before: str) -> Document:
        """With one more section in front of the one of this key; None adds nothing."""
        if section is None:
            return self
        at = [each.key for each in self.sections].index(before)
        return replace(self, sections=[*self.sections[:at], section, *self.sections[at:]])


def html_page(document: Document) -> str:
    """The whole page: styles and figures are inside, light and dark, phone and desk."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    def themed(figure: Figure) -> Markup:
        return Markup(themed_svg(figure.drawing.svg, figure.name, document.methods))

    pages = Environment(loader=PackageLoader("melon.lab"), autoescape=True)
    pages.filters |= {"inline": lambda text: Markup(inline(text)), "themed": themed}
    return pages.get_template("page.html").render(page=document, palette=_palette(document.methods))


def _palette(methods: Sequence[str]) -> str:
    """The colours of methods and page as variables, for light and for dark."""
    named = {"--ink": INK, "--soft": SOFT, "--line": LINE} | {css_variable(method): color(method) for method in methods}
    light = "".join(f"{name}:{each.light};" for name, each in named.items())
    dark = "".join(f"{name}:{each.dark};" for name, each in named.items())
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"


def themed_svg(svg: str, name: str, methods: Sequence[str]) -> str:
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
