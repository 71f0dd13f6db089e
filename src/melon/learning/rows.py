"""Rows that have been computed and not yet written: the one thing that a step hands to the updater."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from melon.tables import Table
from melon.types import AnyArray, Ints, Scores

#: A table, distinct rows of it, and their new values.
Write = tuple[Table, Ints, Scores]


@dataclass(frozen=True)
class NewRows:
    """New values of rows, and how far a touched row moves on average: ‖Δ‖ of users' and items' vectors."""

    writes: list[Write]
    moved: float = 0.0

    def write(self, undo: ExitStack | None = None) -> None:
        """Put them into the tables; closing `undo` puts back what was there before."""
        for table, rows, values in self.writes:
            if undo is not None:
                undo.callback(table.undo_point(rows))
            table.scatter(rows, values)


@dataclass(frozen=True)
class ComputedStep:
    """A step that has been computed and not yet written."""

    loss: float
    rows: NewRows
    memory: Mapping[str, AnyArray]
