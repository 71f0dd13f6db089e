"""Figures: what stretches an axis, and what does not."""

import re

import numpy as np
import pytest

from melon.lab.figures import trend

pytest.importorskip("matplotlib")


def ticks(picture: str) -> list[float]:
    """Numbers with a decimal point among the texts of a picture: those of the upright axis."""
    return [float(number) for number in re.findall(r">(\d\.\d+)</text>", picture)]


def test_a_baseline_far_below_does_not_stretch_the_axis() -> None:
    near = {"default": np.linspace(0.40, 0.42, 30), "melon": np.linspace(0.41, 0.44, 30)}
    labels = {"default": "Default", "melon": "MeLON", "frozen": "frozen"}
    alone = trend("near", near, labels, 5, "melon").svg
    both = trend("near", {**near, "frozen": np.full(30, 0.02)}, labels, 5, "melon").svg
    assert min(ticks(both)) == min(ticks(alone)) > 0.3
    assert re.search(r"frozen: below 0\.\d+<", both)
    assert "below" not in alone
    within = trend("near", {**near, "frozen": np.full(30, 0.41)}, labels, 5, "melon").svg
    assert "below" not in within


def test_a_legend_fits_into_its_figure() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = (
        "frozen",
        "popularity",
        "recent_popularity",
        "own_history",
        "item_knn",
        "default",
        "melon",
    )
    labels = {name: f"{name.replace('_', ' + ')} (not tuned) [2 of 3 seeds]" for name in names}
    curves = {name: np.linspace(0.4, 0.5, 12) for name in names}
    figure = trend("legend", curves, labels, 3, "melon").figure()
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
