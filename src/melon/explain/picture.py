"""The learning-rate matrix of a batch as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from melon.atomic import replacing, require_writable
from melon.data.files import load_stream
from melon.errors import SettingsError, require_plots
from melon.explain.matrix import BatchRates, explain_batch
from melon.learning.model import LiveModel
from melon.stream.split import BATCH_SIZE
from melon.types import Floats

FORMATS = (".png", ".svg", ".pdf")
#: A group of parameters is drawn at least this high, as a share of the picture: one bias beside 64 factors is seen.
_LEAST_HEIGHT = 0.035
_INK, _BAR, _LOSS, _EDGE = "#1c2430", "#1f7a4d", "#b4541a", "#ffffff"


def explain_model(
    checkpoint: Path, stream: Path, *, out: Path, at: int | None, batch: int, batch_size: int | None
) -> BatchRates:
    """Draw the learning rates of one batch of a stream under a saved model, and return them."""
    if out.suffix not in FORMATS:
        raise SettingsError(f"--out {out} must end in one of: {', '.join(FORMATS)}.")
    require_plots("melon explain")
    require_writable(out)
    model, extra = LiveModel.load(checkpoint)
    own_size = extra.get("estimator", {}).get("batch_size", BATCH_SIZE)
    matrix = explain_batch(model, load_stream(stream), at=at, batch=batch, batch_size=batch_size or own_size)
    draw(matrix, out)
    return matrix


def draw(matrix: BatchRates, out: Path) -> None:
    """The heat map of parameters × interactions with its means as bars, and losses and gradients of the same cells."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rates, gradients, groups = stacked(matrix)
    edges = parameter_edges(groups)
    facts = matrix.facts()["rows"]
    with rc_context({"svg.hashsalt": "melon", "font.size": 9, "axes.edgecolor": _INK}):
        figure = Figure(figsize=(14, 7.6), layout="constrained")
        grid = figure.add_gridspec(2, 4, height_ratios=(1, 5.2), width_ratios=(5, 1, 5, 1), wspace=0.03, hspace=0.03)
        about = matrix.about
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
        _panel(figure, grid, 2, magnitude, edges, groups, "log₁₀ |gradient|", _LOSS, matrix.rows.losses, "loss")
        with replacing(out) as unfinished:
            metadata = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}.get(out.suffix)
            figure.savefig(unfinished, format=out.suffix[1:], dpi=160, metadata=metadata)


def stacked(matrix: BatchRates) -> tuple[Floats, Floats, list[tuple[str, int]]]:
    """Rates and gradients of all parts as parameters × interactions, and whose parameters they are."""
    parts = list(matrix.parts().values())
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
