"""The result of an evaluation: records as frames, as a plot, and as tables for papers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from melon.atomic import write_text
from melon.errors import require_plots, unknown_name
from melon.evaluation.compare import Comparison, compare
from melon.evaluation.ranking import LIST_METRICS, METRICS
from melon.evaluation.record import lists_sentence, result_lines
from melon.evaluation.table import ResultTable, metric_table
from melon.types import Floats, Plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Parts of a record that hold metrics.
SECTIONS = ("lists.all", "lists.first_time", "metrics", "without_repeats")
#: What a table of lists shows.
LIST_COLUMNS = (*LIST_METRICS, "coverage", "gini", "similarity")
RecordedRun = tuple[Plain, dict[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of an evaluation: for each seed a record, and the rank of each evaluated event.

    `record`, `metrics` and `chosen` are about the strategy; `table`, `batches` and `ranks` hold the baselines too.
    """

    runs: tuple[RecordedRun, ...]

    @property
    def record(self) -> Plain:
        """The full record of the first seed, JSON-ready."""
        return self.runs[0][0]

    @property
    def records(self) -> list[Plain]:
        """The record of each seed."""
        return [record for record, _ in self.runs]

    @property
    def name(self) -> str:
        """The name of the method: `auto` if you named neither recommender nor strategy."""
        return str(self.record.get("label", self.record["strategy"]))

    @property
    def metrics(self) -> dict[str, float]:
        """HR and NDCG of the strategy, averaged over seeds."""
        return self._mean([record["metrics"] for record in self.records])

    @property
    def chosen(self) -> Plain:
        """The chosen settings of the strategy, first seed."""
        settings: Plain = self.record["config"]["chosen"][self.record["strategy"]]["settings"]
        return settings

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how settings were chosen."""
        return tuple(dict.fromkeys(note for record in self.records for note in record.get("notes", ())))

    def table(self, section: str = "metrics") -> pl.DataFrame:
        """One row for each method with its metrics, averaged over seeds; the strategy is last.

        `section` is "lists.all" or "lists.first_time" (lists of the whole catalogue), "metrics" (among 99 sampled
        items) or "without_repeats" (the same on first-time events).
        """
        if section not in SECTIONS:
            raise unknown_name("section", section, SECTIONS)
        by_seed = [result_lines([record], section) for record in self.records]
        lines = [
            {"method": line.method, **self._mean([lines[at].metrics for lines in by_seed])}
            for at, line in enumerate(by_seed[0])
        ]
        return pl.DataFrame(lines)

    @property
    def batches(self) -> pl.DataFrame:
        """HR@5 of each method in each batch: seed, batch, events, method, HR@5."""
        lines = [
            {"seed": record["seed"], "batch": batch["t"], "events": batch["n"], "method": line.method, "HR@5": hit_rate}
            for record in self.records
            for line in result_lines([record])
            for batch, hit_rate in zip(record["batches"], line.curve, strict=True)
        ]
        return pl.DataFrame(lines)

    @property
    def ranks(self) -> pl.DataFrame:
        """The rank of each evaluated event: `rank` of the strategy, `rank_NAME` of a baseline."""
        frames = [
            pl.DataFrame(columns).fill_nan(None).with_columns(pl.lit(record["seed"]).alias("seed"))
            for record, columns in self.runs
        ]
        return pl.concat(frames).select("seed", pl.exclude("seed"))

    def compare(self, baseline: str = "default", metric: str = "HR@5") -> Comparison:
        """The strategy minus a baseline: difference, intervals by user and by item, spread over seeds, p-value.

        `metric` is one of `melon.evaluation.ranking.METRICS`.
        """
        column = f"rank_{baseline}"
        if column not in self.runs[0][1]:
            names = [name.removeprefix("rank_") for name in self.runs[0][1] if name.startswith("rank_")]
            raise unknown_name("baseline", baseline, names)
        if metric not in METRICS:
            raise unknown_name("metric", metric, METRICS)
        ours, theirs = ([METRICS[metric](ranks[name]) for _, ranks in self.runs] for name in ("rank", column))
        return compare(ours, theirs, self.runs[0][1]["user"], self.runs[0][1]["item"])

    def plot(self, ax: Axes | None = None) -> Axes:
        """HR@5 over the test part, smoothed over a few batches; needs matplotlib."""
        require_plots("a plot")
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.subplots(layout="constrained")[1]
        by_seed = [result_lines([record]) for record in self.records]
        for at, line in enumerate(by_seed[0]):
            curves = [np.array([np.nan if v is None else v for v in lines[at].curve]) for lines in by_seed]
            own = at == len(by_seed[0]) - 1
            ax.plot(_smoothed(np.nanmean(curves, axis=0)), label=line.method, lw=2.2 if own else 1.0, zorder=3 - own)
        ax.set_xlabel("batch of the test part")
        ax.set_ylabel("HR@5")
        ax.legend(frameon=False, fontsize="small")
        return ax

    def to_latex(self, section: str = "metrics") -> str:
        """The table in LaTeX (booktabs), the best value of each column in bold."""
        return self._rendered(section).to_latex()

    def to_csv(self, path: str | os.PathLike[str] | None = None, section: str = "metrics") -> str:
        """The table as CSV; with a path, it is also written there."""
        text = self._rendered(section).to_csv()
        if path is not None:
            write_text(Path(path), text)
        return text

    def __repr__(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([*self._first_sentence, str(self._rendered()), *notes])

    def _repr_html_(self) -> str:
        """The same, for notebooks."""
        first, notes = (
            "".join(f"<p>{escape(text)}</p>" for text in some) for some in (self._first_sentence, self.notes)
        )
        return first + self._rendered().to_html() + notes

    @property
    def _first_sentence(self) -> list[str]:
        return [lists_sentence(self.record)] if self.record["lists"] else []

    def _rendered(self, section: str = "metrics") -> ResultTable:
        frame = self.table(section)
        lines = [
            (row["method"], row["method"], {name: row[name] for name in frame.columns[1:]}) for row in frame.to_dicts()
        ]
        return replace(metric_table(lines, frame.columns[1:]), head=frame.columns, title=self._title())

    def _title(self) -> str:
        record, dataset = self.record, self.record["dataset"]
        seeds = f", {len(self.runs)} seeds" if len(self.runs) > 1 else ""
        return (
            f"{record['recommender']} with {record['strategy']}{' (auto)' if self.name == 'auto' else ''} on "
            f"{dataset['interactions']:,} interactions, {record['interactions_evaluated']:,} of them evaluated{seeds}"
        )

    @staticmethod
    def _mean(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
        names = [name for name in LIST_COLUMNS if any(name in values for values in metrics)]
        return {name: float(np.mean([values[name] for values in metrics if name in values])) for name in names}


def _smoothed(curve: Floats, width: int = 9) -> Floats:
    """A centred mean over a few batches, shorter at the ends."""
    half = min(width, len(curve)) // 2
    return np.array([np.nanmean(curve[max(at - half, 0) : at + half + 1]) for at in range(len(curve))])
