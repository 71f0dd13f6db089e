"""Names for the types of arrays and plain values that every room uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Row numbers, event numbers, times, counts.
Ints = npt.NDArray[np.int64]
#: The same in 32 bits, where there are many.
SmallInts = npt.NDArray[np.int32]
#: Bits: random ones, and masks.
Words = npt.NDArray[np.uint64]
#: The same in 8 bits: quantised rows.
TinyInts = npt.NDArray[np.int8]
#: One truth value for each interaction or row.
Flags = npt.NDArray[np.bool_]
#: Double precision: ranks, metrics, counts that decay.
Floats = npt.NDArray[np.float64]
#: Single precision: what compiled kernels read and write.
Singles = npt.NDArray[np.float32]
#: Scores of candidates, in the number type of the model.
Scores = npt.NDArray[np.floating]
#: Numbers of any type.
AnyArray = npt.NDArray[Any]
#: Named arrays, as they are saved.
Arrays = dict[str, npt.NDArray[np.generic]]
#: What JSON can hold.
Plain = dict[str, Any]
