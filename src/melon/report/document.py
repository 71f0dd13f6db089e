"""A report as blocks: written once, rendered as HTML and as Markdown; and how numbers are written in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Mark = Literal["", "best", "second", "soft", "theirs", "good", "fair", "bad", "open"]


@dataclass(frozen=True)
class TextCell:
    """A cell of a table; `error` stands behind ±, `method` gives it the method's colour."""

    text: str
    mark: Mark = ""
    error: str = ""
    method: str = ""


@dataclass(frozen=True)
class TextTable:
    """Rows of cells; the first `left` columns are words, the rest numbers.

    Where it is grouped, neighbouring rows with the same first cell belong together, and that cell is shown once.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[TextCell]]
    caption: str = ""
    left: int = 1
    grouped: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when a form of it is first needed; the same input is the same bytes."""

    save: Callable[[Literal["svg", "png"]], bytes]

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
    """A claim and its verdict."""

    status: Literal["held", "not held", "not decided"]
    title: str
    number: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Cards:
    """Verdicts side by side."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Part:
    """A part of a section with a heading of its own."""

    title: str
    note: str
    blocks: Sequence[Block]


Block = TextTable | Figures | Prose | Bullets | Code | Fold | Cards | Part


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


def number(value: float | None, digits: int = 3) -> str:
    """A share without its leading zero, as tables of metrics have it."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign, a true minus, and without the leading zero; what rounds to zero has no sign."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        return text[1:].replace("0.", ".", 1)
    return (text.replace("0.", ".", 1) if abs(value) < 1 else text).replace("-", "−")


def interval(bounds: tuple[float, float], digits: int = 3) -> str:
    """Both ends of an interval."""
    return f"[{signed(bounds[0], digits)}, {signed(bounds[1], digits)}]"
