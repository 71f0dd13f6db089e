"""One table of methods and numbers, rendered for terminals, notebooks, pages, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from melon.evaluation.labels import css_variable

Mark = Literal["", "best", "second", "soft", "theirs", "good", "fair", "bad", "open"]
_TEX = re.compile(r"([&%$#_{}])")


@dataclass(frozen=True)
class TableCell:
    """A cell; `error` stands behind ±, `method` gives it the method's colour, `value` is what a CSV file holds."""

    text: str
    mark: Mark = ""
    error: str = ""
    method: str = ""
    value: float | None = None


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells; the first `left` columns are words, the rest numbers.

    In a grouped table neighbouring rows with the same first cell stand under it as a heading.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    caption: str = ""
    left: int = 1
    grouped: bool = False
    title: str = field(default="", kw_only=True)

    def to_html(self) -> str:
        """An element for a page."""
        skip = int(self.grouped)
        head = "".join(_html_head(name, at < self.left - skip) for at, name in enumerate(self.head[skip:]))
        body, before = "", None
        for row in self.rows:
            if self.grouped and row[0].text != before:
                body += f'<tr class="group"><th colspan="{len(row) - 1}"><span>{inline(row[0].text)}</span></th></tr>'
                before = row[0].text
            cells = (_html_cell(cell, at < self.left - skip) for at, cell in enumerate(row[skip:]))
            body += f"<tr>{''.join(cells)}</tr>"
        caption = f'<p class="caption">{inline(self.caption)}</p>' if self.caption else ""
        title = f"<caption>{inline(self.title)}</caption>" if self.title else ""
        inner = f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="scroll" tabindex="0">{inner}</div>{caption}'

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_latex(self) -> str:
        """A LaTeX tabular (booktabs), the best of each column in bold."""
        skip, width = int(self.grouped), len(self.head) - int(self.grouped)
        words = self.left - skip
        lines = [rf"\begin{{tabular}}{{{'l' * words}{'r' * (width - words)}}}", r"\toprule"]
        lines += [" & ".join(map(_tex, self.head[skip:])) + r" \\", *([] if self.grouped else [r"\midrule"])]
        before = None
        for row in self.rows:
            if self.grouped and row[0].text != before:
                lines += [r"\midrule", rf"\multicolumn{{{width}}}{{l}}{{{_tex(row[0].text)}}} \\"]
                before = row[0].text
            cells = (rf"\textbf{{{_tex(c.text)}}}" if c.mark == "best" else _tex(c.text) for c in row[skip:])
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def to_csv(self) -> str:
        """Numbers in full."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.head)
        writer.writerows(
            [cell.text if cell.value is None else f"{cell.value:.6f}" for cell in row] for row in self.rows
        )
        return text.getvalue()

    def text(self, *, bold: bool = False) -> str:
        """For a terminal; `bold` marks the best of each column."""
        lines = [[TableCell(name) for name in self.head], *self.rows]
        widths = [max(len(line[at].text) for line in lines) for at in range(len(self.head))]

        def aligned(at: int, cell: TableCell) -> str:
            text = f"{cell.text:<{widths[at]}}" if at < self.left else f"{cell.text:>{max(widths[at], 7)}}"
            return f"\x1b[1m{text}\x1b[0m" if bold and cell.mark == "best" else text

        texts = (" ".join(aligned(at, cell) for at, cell in enumerate(line)).rstrip() for line in lines)
        return "\n".join([*([self.title] if self.title else []), *texts])

    def __str__(self) -> str:
        return self.text()


def metric_table(
    lines: Sequence[tuple[str, str, Mapping[str, float]]],
    columns: Sequence[str],
    title: str = "",
    errors: Mapping[tuple[str, str], float] | None = None,
) -> ResultTable:
    """Methods down, metrics across: (label, method, metrics) for each line; the best and the second are marked."""
    marked = {name: marks({method: scores[name] for _, method, scores in lines if name in scores}) for name in columns}
    rows = [
        [
            TableCell(label, method=method),
            *(
                TableCell(
                    number(scores.get(name)),
                    marked[name].get(method, "soft"),
                    number(error) if (error := (errors or {}).get((method, name))) is not None else "",
                    value=scores.get(name),
                )
                for name in columns
            ),
        ]
        for label, method, scores in lines
    ]
    return ResultTable(["", *columns], rows, title=title)


def podium(values: Mapping[str, float]) -> tuple[set[str], set[str]]:
    """Who is best and who is second; equal values share a place."""
    levels = sorted({round(value, 12) for value in values.values()}, reverse=True)[:2]
    first, second = (
        {name for name, value in values.items() if round(value, 12) in levels[at : at + 1]} for at in (0, 1)
    )
    return first, second


def marks(values: Mapping[str, float]) -> dict[str, Mark]:
    """How each value is marked in a table: best, second, or not at all."""
    first, second = podium(values)
    return {name: "best" if name in first else "second" if name in second else "" for name in values}


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


def inline(text: str) -> str:
    """Escaped HTML; what stands between backticks is code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(part if at % 2 == 0 else f"<code>{part}</code>" for at, part in enumerate(parts))


def _html_head(name: str, words: bool) -> str:
    return f'<th class="words">{inline(name)}</th>' if words else f"<th>{inline(name)}</th>"


def _html_cell(cell: TableCell, words: bool) -> str:
    classes = " ".join(name for name in ("words" if words else "", cell.mark) if name)
    text = inline(cell.text)
    if cell.mark in ("good", "fair", "bad", "open") and cell.text:
        text = f'<span class="pill">{text}</span>'
    if cell.mark in ("best", "second"):
        text = f"<b>{text}</b>" if cell.mark == "best" else f"<u>{text}</u>"
    if cell.method:
        text = f'<i class="dot" style="background:var({css_variable(cell.method)})"></i>{text}'
    error = f'<small class="error">±{escape(cell.error)}</small>' if cell.error else ""
    return f'<td class="{classes}">{text}{error}</td>' if classes else f"<td>{text}{error}</td>"


def _tex(text: str) -> str:
    plain = text.replace("\\", "/").replace("~", "-").replace("^", " ").replace("·", "--").replace("–", "--")
    return _TEX.sub(r"\\\1", plain).replace("<", "$<$").replace(">", "$>$")
