"""The report's figures: small, so that they can be read on a phone, in colours that the page can turn dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from melon.explain.explained import Explained, parameter_edges, stacked
from melon.report.comparing import Compared
from melon.report.document import Drawing
from melon.report.naming import COLOURS, INK, LINE, SOFT, colour, css_name, label
from melon.report.page import trailing_mean
from melon.types import Floats

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
_DASHES = {"frozen": (1, 1.5), "popularity": (4, 1.5, 1, 1.5), "recent_popularity": (4, 1.5)}


def drawn(name: str, height: float, draw: Any, width: float = WIDTH) -> Drawing:
    """Make a figure, let `draw` fill it, and give it as SVG and PNG; the same input is the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height))
        draw(figure)
        vector, pixels = io.StringIO(), io.BytesIO()
        figure.savefig(vector, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
        figure.savefig(pixels, format="png", dpi=160, facecolor="white", metadata={"Software": None})
    text = vector.getvalue()
    return Drawing(text[text.index("<svg") :], pixels.getvalue())


def trend(name: str, curves: Mapping[str, Floats], width: int) -> Drawing:
    """NDCG@10 batch by batch: the raw line faint, its trailing mean on top, MeLON boldest."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        batches = np.arange(1, len(next(iter(curves.values()))) + 1)
        for place, (method, values) in enumerate(curves.items()):
            strong = method == "melon"
            own, dashes = colour(method).light, _DASHES.get(method)
            axes.plot(batches, values, color=own, alpha=0.22, linewidth=0.7, zorder=1)
            (line,) = axes.plot(
                batches,
                trailing_mean(values, width),
                color=own,
                linewidth=2.4 if strong else 1.3,
                label=label(method),
                zorder=50 if strong else 10 + place,
            )
            if dashes:
                line.set_dashes(dashes)
        axes.set_xlabel("online batch")
        axes.set_ylabel("NDCG@10")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", linewidth=0.6)
        axes.margins(x=0.01)
        figure.legend(loc="outside lower center", ncols=3, handlelength=1.8, columnspacing=1.4)

    return drawn(name, 2.7 + 0.16 * -(-len(curves) // 3), draw)


def forest(name: str, found: Mapping[str, Compared], reference: str) -> Drawing:
    """Differences to the reference with their intervals: by users as a line, by items as a faint one."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        names = list(found)
        margin = next(iter(found.values())).margin
        axes.axvspan(-margin, 0, color=LINE.light, alpha=0.7, linewidth=0, zorder=0)
        axes.axvline(0, color=SOFT.light, linewidth=0.9, zorder=1)
        for place, method in enumerate(names):
            each, own = found[method].difference, colour(method).light
            axes.plot(each.by_item, (place - 0.22, place - 0.22), color=own, linewidth=1, alpha=0.45)
            axes.plot(each.by_user, (place, place), color=own, linewidth=2.6, solid_capstyle="round")
            axes.plot([each.difference], [place], "o", color=own, markersize=5.5)
        axes.set_yticks(range(len(names)), [label(method) for method in names])
        axes.tick_params(axis="y", length=0, labelcolor=INK.light)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlabel(f"HR@5, difference to {label(reference)}")
        axes.locator_params(axis="x", nbins=6)
        axes.grid(axis="x", linewidth=0.6)
        axes.spines["left"].set_visible(False)

    return drawn(name, 0.75 + 0.3 * len(found), draw)


def cost(
    name: str, points: Mapping[str, tuple[float, float]], edge: Sequence[str], flat: Mapping[str, float]
) -> Drawing:
    """Accuracy against time per update; the frontier as steps, what costs next to nothing as lines where it is near."""

    def draw(figure: Any) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes = figure.subplots()
        axes.set_xscale("log")
        times, heights = (np.array(each) for each in zip(*points.values(), strict=True))
        span = max(float(np.ptp(heights)), 0.02)
        near = {m: v for m, v in flat.items() if heights.min() - span <= v <= heights.max() + span}
        low, high = min([*heights, *near.values()]), max([*heights, *near.values()])
        axes.set_xlim(times.min() / 1.9, times.max() * 1.9)
        axes.set_ylim(low - 0.1 * max(high - low, 0.02), high + 0.28 * max(high - low, 0.02))
        steps = np.array([points[method] for method in edge])
        axes.step(
            [*steps[:, 0], axes.get_xlim()[1]], [*steps[:, 1], steps[-1, 1]], where="post", color=SOFT.light, lw=1.1
        )
        for method, value in near.items():
            axes.axhline(value, color=colour(method).light, linewidth=1.1, zorder=0).set_dashes(_DASHES[method])
            place = (axes.get_xlim()[0] * 1.04, value)
            axes.text(*place, label(method), color=colour(method).light, fontsize=7.5, va="bottom")
        for method, (taken, value) in points.items():
            axes.plot([taken], [value], "o", color=colour(method).light, markersize=8 if method in edge else 5.5)
        for method, lines in _stacked_labels(points, axes).items():
            offset = {"xytext": (0, 6 + 9.5 * lines), "textcoords": "offset points"}
            axes.annotate(label(method), points[method], ha="center", fontsize=8, **offset)
        axes.set_xlabel("ms per online batch (median)")
        axes.set_ylabel("HR@5")
        axes.grid(linewidth=0.6)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())

    return drawn(name, 2.9, draw)


def rates(name: str, found: Explained) -> Drawing:
    """The learning-rate matrix of a batch with the means along both directions as bars."""

    def draw(figure: Any) -> None:
        cells, _, groups = stacked(found)
        edges = parameter_edges(groups, least=0.06)
        grid = figure.add_gridspec(2, 2, height_ratios=(1, 4), width_ratios=(5, 1))
        heat = figure.add_subplot(grid[1, 0])
        above = figure.add_subplot(grid[0, 0], sharex=heat)
        beside = figure.add_subplot(grid[1, 1], sharey=heat)
        n, bar = cells.shape[1], COLOURS["melon"].light
        mesh = heat.pcolormesh(np.arange(n + 1), edges, cells, cmap="viridis", rasterized=True)
        bounds = edges[np.cumsum([0, *(size for _, size in groups)])]
        for bound in bounds[1:-1]:
            heat.axhline(bound, color="#ffffff", linewidth=0.7)
        heat.set_ylim(edges[-1], 0)
        names = [each.replace("_", " ") for each, _ in groups]
        heat.set_yticks((bounds[:-1] + bounds[1:]) / 2, names, fontsize=7)
        heat.tick_params(axis="y", length=0)
        heat.set_xlabel("interaction, in the order of the batch")
        above.bar(np.arange(n) + 0.5, cells.mean(0), width=1.0, color=bar, linewidth=0)
        above.set_ylim(*_tight(cells.mean(0), above.yaxis))
        above.tick_params(axis="x", labelbottom=False, length=0)
        means = cells.mean(1)
        low, high = _tight(means, beside.xaxis)
        beside.barh((edges[:-1] + edges[1:]) / 2, means - low, left=low, height=np.diff(edges), color=bar, linewidth=0)
        beside.set_xlim(low, high)
        beside.tick_params(axis="y", labelleft=False, length=0)
        scale = figure.colorbar(mesh, ax=[heat, beside], location="bottom", aspect=45, pad=0.03, shrink=0.8)
        scale.set_label("learning rate; bars: its means, not from 0")
        scale.outline.set_visible(False)

    return drawn(name, 4.6, draw)


def _tight(values: Floats, axis: Any) -> tuple[float, float]:
    """Limits around values that are much alike, with a tick at both ends, so that bars show how they differ."""
    low, high = float(values.min()), float(values.max())
    ends = [low, high] if high - low > 1e-6 * abs(high) else [high]
    axis.set_ticks(ends, [f"{end:.2g}" if f"{low:.2g}" != f"{high:.2g}" else f"{end:.4g}" for end in ends], fontsize=7)
    room = 0.25 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room / 2


def themed(svg: str, name: str) -> str:
    """For a page: colours become the page's own, and names inside the drawing are its alone."""
    for method, each in COLOURS.items():
        svg = svg.replace(each.light, f"var({css_name(method)})")
    for variable, each in (("--ink", INK), ("--soft", SOFT), ("--line", LINE)):
        svg = svg.replace(each.light, f"var({variable})")
    svg = re.sub(r'(<g id="patch_1">\s*<path [^>]*?)style="fill: #ffffff"', r'\1style="fill: none"', svg, count=1)
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    return re.sub(r"url\(#", f"url(#{name}-", svg)


def _stacked_labels(points: Mapping[str, tuple[float, float]], axes: Any) -> dict[str, int]:
    """How many lines above its point each label stands, so that none stands on another."""
    (left, right), (low, high) = np.log(axes.get_xlim()), axes.get_ylim()
    placed: list[tuple[float, float, float]] = []
    found = {}
    for method, (taken, value) in sorted(points.items(), key=lambda each: each[1][0]):
        x, y, half = (np.log(taken) - left) / (right - left), (value - low) / (high - low), 0.011 * len(label(method))
        lines = 0
        while any(abs(x - px) < half + ph and abs(y + 0.075 * lines - py) < 0.07 for px, py, ph in placed):
            lines += 1
        placed.append((x, y + 0.075 * lines, half))
        found[method] = lines
    return found
