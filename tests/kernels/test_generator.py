"""The kernel generator: what it writes out is the function that it was given."""

from typing import Any

import numpy as np

from melon.kernels import generator
from melon.kernels.melon import layout, tiles
from melon.kernels.modules import MODULES


def test_kernels_mean_what_they_say_as_plain_python() -> None:
    """The marked loops run as they stand; what is written out of them is the same function."""
    sizes = generator.numbers(generator.sized(layout, layout.WIDTH))
    scratch = np.random.default_rng(0).normal(size=sizes["SCRATCH"]).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=sizes["WEIGHTS"]).astype(np.float32)
    plain, written = scratch.copy(), scratch.copy()
    tiles.first_layer(plain, weights)
    names: dict[str, Any] = {"entry": lambda function: function, "part": lambda function: function}
    text = MODULES["melon"].text(layout.WIDTH).replace("from melon.kernels.build import entry, part", "")
    exec(compile(text, "<written out>", "exec"), names)
    names["first_layer"](written, weights)
    np.testing.assert_allclose(plain, written, rtol=1e-6)
    assert "unrolled(" not in text
    assert "registers(" not in text


def test_widths_are_rounded_up() -> None:
    assert [generator.padded(width) for width in (1, 20, 21)] == [20, 20, 40]
