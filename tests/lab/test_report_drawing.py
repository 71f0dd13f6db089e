"""Figures: what stretches an axis, what does not, and that labels stay inside."""

import numpy as np
import pytest

from melon.lab.figures import StoryLine, story

pytest.importorskip("matplotlib")

NEAR = [StoryLine("default", "Default", np.linspace(0.40, 0.42, 30)), StoryLine("melon", "MeLON", np.full(30, 0.43))]


@pytest.mark.parametrize(("frozen", "from_zero"), [(0.02, False), (0.02, True), (0.41, False)])
def test_a_baseline_far_below_does_not_stretch_the_axis(frozen: float, from_zero: bool) -> None:
    lines = [*NEAR, StoryLine("frozen", "frozen", np.full(30, frozen))]
    axes = story("near", lines, 5, "", from_zero=from_zero).figure().axes[0]
    assert axes.get_ylim()[0] == 0 if from_zero else 0.35 < axes.get_ylim()[0] < 0.4


def test_labels_fit_into_their_figure() -> None:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = ("frozen", "popularity", "recent_popularity", "own_history", "item_knn", "default", "melon")
    lines = [StoryLine(name, f"{name.replace('_', ' + ')} (tuned)", np.linspace(0.4, 0.5, 12)) for name in names]
    with rc_context({"figure.constrained_layout.use": True}):
        figure = story("labels", lines, 3, "").figure()
        FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == len(names)
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 + 1 for box in boxes)
    places = sorted(text.xyann[1] for text in figure.axes[0].texts)
    assert min(np.diff(places)) > 0.06  # none covers another
