"""`melon explain`: the learning-rate matrix of a batch as a picture and in numbers (METHODS.md 5.6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from melon.atomic import replacing, require_writable
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import SettingsError
from melon.explain.matrix import RateCells, RateFacts, describe_rates, row_cells, shared_cells
from melon.extras import require_plots
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.stream.batch import Batch
from melon.stream.split import BATCH_SIZE
from melon.types import Floats

FORMATS = (".png", ".svg", ".pdf")
#: A group of parameters is drawn at least this high, as a share of the picture: one bias beside 64 factors is seen.
_LEAST_HEIGHT = 0.035
_INK, _BAR, _LOSS, _EDGE = "#1c2430", "#1f7a4d", "#b4541a", "#ffffff"


@dataclass(frozen=True)
class Explained:
    """One batch and what its learning-rate matrix says, for rows of users and items and for shared weights."""

    about: Mapping[str, Any]
    rows: RateCells
    shared: RateCells | None

    def parts(self) -> dict[str, RateCells]:
        """Rows of users and items, and shared weights where there are any."""
        parts = {"rows": self.rows, "shared": self.shared}
        return {name: cells for name, cells in parts.items() if cells is not None}

    def facts(self) -> dict[str, RateFacts]:
        """The numbers of each part that there is."""
        return {name: describe_rates(cells) for name, cells in self.parts().items()}


def explain_model(
    checkpoint: Path,
    stream: Path,
    *,
    out: Path,
    at: int | None,
    batch: int,
    batch_size: int | None,
    as_json: bool,
) -> None:
    """`melon explain`."""
    if out.suffix not in FORMATS:
        raise SettingsError(f"--out {out} must end in one of: {', '.join(FORMATS)}.")
    require_plots()
    require_writable(out)
    model, extra = LiveModel.load(checkpoint)
    usual = extra.get("estimator", {}).get("batch_size", BATCH_SIZE)
    found = explained(model, load_stream(stream), at=at, batch=batch, batch_size=batch_size or usual)
    draw(found, out)
    facts = found.facts()
    if as_json:
        told = {name: part.as_dict() for name, part in facts.items()}
        Console().print_json(json.dumps({**found.about, "picture": str(out), **told}, allow_nan=False))
    else:
        show(found.about, facts, out)


def explained(model: LiveModel, log: Interactions, *, at: int | None, batch: int, batch_size: int) -> Explained:
    """The batch that starts at event `at` of a log, or so many batches after it, as if it were learned now."""
    start, why = _start(model, log, at, batch_size)
    start += batch * batch_size
    if batch_size < 1 or batch < 0 or not 0 <= start < len(log):
        raise SettingsError(
            f"there is no batch of {batch_size} interactions from event {start} on in a stream of {len(log):,}; "
            "choose another --at, --batch or --batch-size."
        )
    return look(model.updater, model.foresee(log, start, min(start + batch_size, len(log))), start, why)


def look(updater: Updater, batch: Batch, start: int, why: str) -> Explained:
    """The learning rates of a batch that starts at an event of its stream, as if it were learned now."""
    situation = updater.situation(batch)
    rates = updater.strategy.learning_rates(situation)
    about = {
        "recommender": updater.recommender.name,
        "strategy": updater.strategy.name,
        "learned": updater.history.events,
        "event": start,
        "interactions": len(batch),
        "note": why,
    }
    return Explained(about, row_cells(rates, situation.evidence), shared_cells(rates, situation.evidence))


def _start(model: LiveModel, log: Interactions, at: int | None, batch_size: int) -> tuple[int, str]:
    if at is not None:
        return at, "as asked"
    later = int(np.searchsorted(log.times, model.last_time, side="right"))
    if later < len(log):
        return later, "the first events after those that the model has learned"
    return max(len(log) - batch_size, 0), "the model has learned all of this stream: these are its last events"


def show(about: Mapping[str, Any], facts: Mapping[str, RateFacts], out: Path) -> None:
    """The numbers in the terminal."""
    console = Console(soft_wrap=True)
    console.print(
        f"[bold]{escape(about['strategy'])}[/bold] on {escape(about['recommender'])}, {about['learned']:,} interactions"
        f" learned; {about['interactions']:,} from event {about['event']:,} on ({about['note']})"
    )
    table = RichTable()
    table.add_column("learning rates")
    for name in facts:
        table.add_column({"rows": "rows of users and items", "shared": "shared weights"}[name], justify="right")
    lines = [_lines(part) for part in facts.values()]
    for name in lines[0]:
        table.add_row(name, *(line[name] for line in lines))
    console.print(table)
    console.print(f"wrote {out}", markup=False, highlight=False)


def _lines(facts: RateFacts) -> dict[str, str]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.1%}"

    def signed(value: float | None) -> str:
        return "–" if value is None else f"{value:+.3f}"

    by_interaction, by_parameter = facts.from_one_rate_per_interaction, facts.from_one_rate_per_parameter
    return {
        "interactions × parameters": f"{facts.interactions:,} × {facts.parameters:,}",
        "least, mean, most": f"{facts.least:.4g}, {facts.mean:.4g}, {facts.most:.4g}",
        "numerical rank": f"{facts.rank}",
        "σ₂/σ₁": f"{facts.sigma_ratio:.4f}",
        "rank correlation with the loss": signed(facts.with_loss),
        "rank correlation with |gradient|": signed(facts.with_gradient),
        "rank correlation with the gradient": signed(facts.with_signed_gradient),
        "variance by interaction": share(facts.by_interaction),
        "variance by parameter": share(facts.by_parameter),
        "variance by neither": share(facts.neither),
        "distance from one rate per interaction": f"{by_interaction.spectral:.4f}, {by_interaction.frobenius:.4f}",
        "distance from one rate per parameter": f"{by_parameter.spectral:.4f}, {by_parameter.frobenius:.4f}",
    }


def draw(found: Explained, out: Path) -> None:
    """The heat map of parameters × interactions with its means as bars, and losses and gradients of the same cells."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rates, gradients, groups = stacked(found)
    edges = parameter_edges(groups)
    facts = found.facts()["rows"]
    with rc_context({"svg.hashsalt": "melon", "font.size": 9, "axes.edgecolor": _INK}):
        figure = Figure(figsize=(14, 7.6), layout="constrained")
        grid = figure.add_gridspec(2, 4, height_ratios=(1, 5.2), width_ratios=(5, 1, 5, 1), wspace=0.03, hspace=0.03)
        about = found.about
        figure.suptitle(
            f"{about['strategy']} on {about['recommender']}: the learning rates of {about['interactions']:,} "
            f"interactions (rank {facts.rank} of {min(facts.interactions, facts.parameters)}, "
            f"σ₂/σ₁ = {facts.sigma_ratio:.2g})",
            fontsize=12,
            color=_INK,
        )
        _panel(
            figure, grid, 0, rates, edges, groups, "learning rate", _BAR, rates.mean(0), "mean rate of the interaction"
        )
        magnitude = np.log10(np.maximum(np.abs(gradients), _floor(gradients)))
        _panel(figure, grid, 2, magnitude, edges, groups, "log₁₀ |gradient|", _LOSS, found.rows.losses, "loss")
        with replacing(out) as unfinished:
            metadata = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}.get(out.suffix)
            figure.savefig(unfinished, format=out.suffix[1:], dpi=160, metadata=metadata)


def stacked(found: Explained) -> tuple[Floats, Floats, list[tuple[str, int]]]:
    """Rates and gradients of all parts as parameters × interactions, and whose parameters they are."""
    parts = list(found.parts().values())
    rates, gradients = (np.concatenate([getattr(p, what) for p in parts], axis=1).T for what in ("rates", "gradients"))
    return rates, gradients, [group for part in parts for group in part.groups]


def _panel(
    figure: Any,
    grid: Any,
    column: int,
    cells: Floats,
    edges: Floats,
    groups: list[tuple[str, int]],
    name: str,
    color: str,
    along: Floats,
    along_name: str,
) -> None:
    """One heat map with bars above it (one for each interaction) and beside it (the mean of each parameter)."""
    heat = figure.add_subplot(grid[1, column])
    above = figure.add_subplot(grid[0, column], sharex=heat)
    beside = figure.add_subplot(grid[1, column + 1], sharey=heat)
    n = cells.shape[1]
    low, high = float(cells.min()), float(cells.max())
    if high - low <= 1e-6 * abs(high):  # one rate for everything has one colour
        low, high = min(0.0, 2 * low), max(0.0, 2 * high) or 1.0
    mesh = heat.pcolormesh(
        np.arange(n + 1),
        edges,
        cells,
        cmap="viridis" if column == 0 else "magma",
        vmin=low,
        vmax=high,
        rasterized=True,
    )
    heat.set_xlim(0, n)
    heat.set_ylim(edges[-1], 0)
    heat.set_xlabel("interaction, in the order of the batch")
    starts = np.cumsum([0, *(size for _, size in groups)])
    bounds = edges[starts]
    for bound in bounds[1:-1]:
        heat.axhline(bound, color=_EDGE, linewidth=0.8)
        beside.axhline(bound, color="#d0d5dd", linewidth=0.6)
    middles = (bounds[:-1] + bounds[1:]) / 2
    if column == 0:
        heat.set_yticks(middles, [label for label, _ in groups])
    else:
        heat.set_yticks(middles, [])
    heat.tick_params(axis="y", length=0)
    bar = figure.colorbar(mesh, ax=beside, location="right", aspect=40, pad=0.08)
    bar.set_label(name)
    bar.outline.set_visible(False)
    above.bar(np.arange(n) + 0.5, along, width=1.0, color=color, linewidth=0)
    above.set_ylabel(along_name.replace(" of the", "\nof the") + _limits(above.set_ylim, along))
    above.tick_params(axis="x", labelbottom=False)
    above.locator_params(axis="y", nbins=3)
    means = cells.mean(1)
    centres, heights = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    base = 0.0 if column == 0 else low  # a logarithm has no zero to start from
    beside.barh(centres, means - base, left=base, height=heights, color=color, linewidth=0)
    beside.tick_params(axis="y", left=False, labelleft=False)
    beside.set_xlabel("mean of the\nparameter" + _limits(beside.set_xlim, means))
    ends = sorted({float(f"{end:.3g}") for end in (means.min(), means.max())})
    beside.set_xticks(ends, [f"{end:g}" for end in ends], rotation=30, ha="right")
    for axes in (above, beside):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.tick_params(labelsize=8)


def _limits(set_limits: Any, values: Floats) -> str:
    """Bars start at zero, unless they are so alike that nothing could be told apart; the label then says so."""
    low, high = float(values.min()), float(values.max())
    room = 0.15 * (high - low) or 0.1 * abs(high) or 1.0
    cut = low < 0 or 0.9 * high < low < (1 - 1e-6) * high
    set_limits(low - room if cut else 0.0, high + room)
    return "\n(not from 0)" if cut else ""


def parameter_edges(groups: list[tuple[str, int]], least: float = _LEAST_HEIGHT) -> Floats:
    """Where each parameter starts on the vertical axis; groups of few are stretched so that they are seen."""
    total = sum(size for _, size in groups)
    heights = [np.full(size, max(1.0, least * total / size)) for _, size in groups]
    edges: Floats = np.concatenate([np.zeros(1), np.cumsum(np.concatenate(heights))])
    return edges


def _floor(gradients: Floats) -> float:
    """The smallest gradient that is drawn: seven orders below the largest, so that exact zeros have a colour."""
    return max(float(np.abs(gradients).max(initial=0.0)), 1e-30) * 1e-7
