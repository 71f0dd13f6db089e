"""Figures: small, so that they can be read on a phone, in colours that a page can turn dark; and the rate matrix."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from melon.atomic import replacing, require_writable
from melon.data.files import load_stream
from melon.errors import SettingsError, require_plots
from melon.evaluation.labels import INK, LINE, SOFT, color
from melon.lab.comparisons import Compared, trailing_mean
from melon.learning.model import LiveModel
from melon.learning.rate_matrix import BatchRates, explain_batch
from melon.stream.split import BATCH_SIZE
from melon.types import Floats

Labels = Mapping[str, str]

WIDTH = 4.8
_STYLE: Any = {
    "font.size": 8.5,
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "axes.edgecolor": SOFT.light,
    "axes.labelcolor": SOFT.light,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK.light,
    "xtick.color": SOFT.light,
    "ytick.color": SOFT.light,
    "grid.color": LINE.light,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "figure.constrained_layout.use": True,
}
#: Baselines that are drawn dashed.
_DASHES = {"frozen": (1, 1.5), "popularity": (4, 1.5, 1, 1.5), "recent_popularity": (4, 1.5)}


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


def drawn(name: str, height: float, draw: Any, width: float = WIDTH) -> Drawing:
    """A figure that `draw` fills when it is needed."""

    @cache
    def figure() -> Any:
        from matplotlib.figure import Figure

        empty = Figure(figsize=(width, height))
        draw(empty)
        return empty

    def save(form: Literal["svg", "png"]) -> bytes:
        from matplotlib import rc_context

        content = io.BytesIO()
        nameless = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        more = {} if form == "svg" else {"dpi": 160}
        with rc_context({**_STYLE, "svg.hashsalt": name}):
            figure().savefig(content, format=form, facecolor="white", metadata=nameless, **more)
        return content.getvalue()

    return Drawing(save, figure)


def forest(name: str, compared: Mapping[str, Compared], labels: Labels, reference: str) -> Drawing:
    """Differences to the reference with their intervals: by users as a line, by items as a faint one."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        names = list(compared)
        margin = next(iter(compared.values())).margin
        axes.axvspan(-margin, 0, color=LINE.light, alpha=0.7, linewidth=0, zorder=0)
        axes.axvline(0, color=SOFT.light, linewidth=0.9, zorder=1)
        for place, method in enumerate(names):
            each, own = compared[method].difference, color(method).light
            axes.plot(each.by_item, (place - 0.22, place - 0.22), color=own, linewidth=1, alpha=0.45)
            axes.plot(each.by_user, (place, place), color=own, linewidth=2.6, solid_capstyle="round")
            axes.plot([each.difference], [place], "o", color=own, markersize=5.5)
        axes.set_yticks(range(len(names)), [labels[method] for method in names])
        axes.tick_params(axis="y", length=0, labelcolor=INK.light)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(f"HR@5, difference to {reference}")
        axes.locator_params(axis="x", nbins=6)
        axes.grid(axis="x", linewidth=0.6)
        axes.spines["left"].set_visible(False)

    return drawn(name, 0.75 + 0.3 * len(compared), draw)


Weight = Literal["bold", "plain", "thin"]


@dataclass(frozen=True)
class StoryLine:
    """A line of the story: bold, plain, or thin and without a label of its own."""

    method: str
    label: str
    values: Floats
    weight: Weight = "plain"


def story(
    name: str, lines: Sequence[StoryLine], width: int, thin_label: str, metric: str = "HR@5", *, from_zero: bool = True
) -> Drawing:
    """A metric over time with labels at the lines' ends; thin lines share one label.

    Without `from_zero` the axis fits the methods that learn; a baseline that lies below them all leaves it.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.tick_params(labelsize=9)
        ends: list[tuple[float, str, str, bool]] = []
        thin = [trailing_mean(line.values, width) for line in lines if line.weight == "thin"]
        batches = np.arange(1, len(lines[0].values) + 1)
        for line in lines:
            values = trailing_mean(line.values, width)
            own = SOFT.light if line.weight == "thin" else color(line.method).light
            style = {"bold": (2.8, 1.0, 30), "plain": (1.8, 1.0, 20), "thin": (0.9, 0.55, 10)}[line.weight]
            (drawn_line,) = axes.plot(batches, values, color=own, lw=style[0], alpha=style[1], zorder=style[2])
            if line.method in _DASHES:
                drawn_line.set_dashes(_DASHES[line.method])
            if line.weight != "thin":
                ends.append((_last(values), line.label, own, line.weight == "bold"))
        if thin:
            ends.append((float(np.mean([_last(values) for values in thin])), thin_label, SOFT.light, False))
        axes.set_xlim(1, max(batches[-1], 2))
        solid = [trailing_mean(line.values, width) for line in lines if line.method not in _DASHES]
        least, most = (float(end(solid)) for end in (np.nanmin, np.nanmax)) if solid else (0.0, 1.0)
        axes.set_ylim(bottom=0 if from_zero else max(least - 0.12 * max(most - least, 0.02), 0.0))
        low, high = axes.get_ylim()
        shares = [max((value - low) / (high - low), 0.0) for value, *_ in ends]
        for share, place, (value, text, own, bold) in zip(shares, _spread(shares, 0.068), ends, strict=True):
            axes.annotate(
                text if value >= low else f"{text} (below)",
                (1, share),
                (1.025, place),
                xycoords="axes fraction",
                textcoords="axes fraction",
                color=own,
                va="center",
                weight="bold" if bold else "normal",
                fontsize=9,
                annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": own, "lw": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
            )
        axes.set_xlabel("online batch")
        axes.set_ylabel(metric)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", linewidth=0.6)

    return drawn(name, 2.9, draw, width=4.2)


def _last(values: Floats) -> float:
    numbers = values[~np.isnan(values)]
    return float(numbers[-1]) if len(numbers) else 0.0


def _spread(places: Sequence[float], apart: float) -> list[float]:
    """Places moved up as little as it takes to stand `apart`, in the same order, none below 0."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places, dtype=np.float64)
    for _ in range(200):
        for one, other in itertools.pairwise(order):
            overlap = apart - (moved[other] - moved[one])
            if overlap > 1e-9:
                moved[one] -= overlap / 2
                moved[other] += overlap / 2
        moved = np.maximum(moved, 0.0)
    return [float(place) for place in moved]


FORMATS = (".png", ".svg", ".pdf")
#: Percentiles between which colours differ, so that a few odd cells do not make all others look alike.
_COLOURED = (1, 99)
#: A group of parameters is drawn at least this high, as a share of the picture: one bias beside 64 factors is seen.
_LEAST_HEIGHT = 0.035
#: Gradients are drawn down to this share of the largest.
_SMALLEST = 1e-7
_BAR = "#1f7a4d"


def explain_model(checkpoint: Path, stream: Path, *, out: Path, at: int | None, batch_size: int | None) -> BatchRates:
    """Draw the learning rates of one batch of a stream under a saved model, and return them."""
    if out.suffix not in FORMATS:
        raise SettingsError(f"--out {out} must end in one of: {', '.join(FORMATS)}.")
    require_plots("melon explain")
    require_writable(out)
    model, extra = LiveModel.load(checkpoint)
    own_size = extra.get("estimator", {}).get("batch_size", BATCH_SIZE)
    matrix = explain_batch(model, load_stream(stream), at=at, batch_size=batch_size or own_size)
    draw_rates(matrix, out)
    return matrix


def draw_rates(matrix: BatchRates, out: Path) -> None:
    """Heat maps of rates and of gradients, parameters × interactions, with means and losses as bars beside them."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    parts, about = list(matrix.parts().values()), matrix.about
    rates, gradients = (np.concatenate([getattr(p, what) for p in parts], axis=1).T for what in ("rates", "gradients"))
    sizes = np.abs(gradients)
    sizes = np.maximum(sizes, _SMALLEST * max(float(sizes.max(initial=0.0)), 1e-30))  # zeros have a colour, too
    groups = [group for part in parts for group in part.groups]
    with rc_context({"svg.hashsalt": "melon", "font.size": 9, "axes.edgecolor": INK.light}):
        figure = Figure(figsize=(14, 7.6), layout="constrained")
        sides = figure.add_gridspec(1, 2)
        figure.suptitle(
            f"{about['strategy']} on {about['recommender']}: how far each of {about['interactions']:,} interactions "
            f"moves each parameter\n{matrix.facts()['rows'].sentence}"
        )
        _panel(figure, sides[0], rates, groups, "learning rate", rates.mean(0), "mean rate of\nthe interaction")
        _panel(figure, sides[1], sizes, groups, "|gradient|", matrix.rows.losses, "loss")
        with replacing(out) as unfinished:
            metadata = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}.get(out.suffix)
            figure.savefig(unfinished, format=out.suffix[1:], dpi=160, metadata=metadata)


def _panel(
    figure: Any, place: Any, cells: Floats, groups: list[tuple[str, int]], name: str, along: Floats, along_name: str
) -> None:
    """One heat map with bars above it (one for each interaction) and beside it (the mean of each parameter)."""
    from matplotlib.colors import LogNorm, Normalize

    grid = place.subgridspec(2, 2, height_ratios=(1, 5.2), width_ratios=(5, 1), wspace=0.03, hspace=0.03)
    heat = figure.add_subplot(grid[1, 0])
    above, beside = figure.add_subplot(grid[0, 0], sharex=heat), figure.add_subplot(grid[1, 1], sharey=heat)
    low, high = (float(end) for end in np.percentile(cells, _COLOURED))
    scale = LogNorm(low, high, clip=True) if 0 < low < high else Normalize(min(low, 0.0), max(high, 1e-30))
    n, edges = cells.shape[1], parameter_edges(groups)
    mesh = heat.pcolormesh(np.arange(n + 1), edges, cells, norm=scale, rasterized=True)
    bounds = edges[np.cumsum([0, *(size for _, size in groups)])]
    for bound in bounds[1:-1]:
        heat.axhline(bound, color="white", linewidth=0.8)
    heat.set_ylim(edges[-1], 0)
    heat.set_yticks((bounds[:-1] + bounds[1:]) / 2, [label for label, _ in groups])
    heat.set_xlabel("interaction, in the order of the batch")
    figure.colorbar(mesh, ax=beside, aspect=40, pad=0.08, extend="both", label=name)
    above.bar(np.arange(n) + 0.5, along, width=1.0, color=_BAR, linewidth=0)
    above.set_ylabel(along_name)
    above.tick_params(axis="x", labelbottom=False)
    beside.barh((edges[:-1] + edges[1:]) / 2, cells.mean(1), height=np.diff(edges), color=_BAR, linewidth=0)
    beside.set_xlabel("mean of the\nparameter")
    beside.tick_params(axis="y", left=False, labelleft=False)


def parameter_edges(groups: list[tuple[str, int]]) -> Floats:
    """Where each parameter starts on the vertical axis; groups of few are stretched so that they are seen."""
    total = sum(size for _, size in groups)
    heights = [np.full(size, max(1.0, _LEAST_HEIGHT * total / size)) for _, size in groups]
    edges: Floats = np.concatenate([np.zeros(1), np.cumsum(np.concatenate(heights))])
    return edges
