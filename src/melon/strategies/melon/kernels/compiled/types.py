"""Arrays as kernels see them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
FloatTables = npt.NDArray[np.float32]  # two or three axes
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FlagTables = npt.NDArray[np.bool_]  # two axes
