"""Marks that the generator looks for in kernels: loops to be written out, and locals to be kept in registers."""

from __future__ import annotations

from typing import Any


def unrolled(count: int) -> range:
    """`for i in unrolled(n)`: the body is written out n times, with i as a number."""
    return range(count)


def registers() -> Any:
    """`x = registers()`: x[i, j] becomes a local variable of its own, x_i_j."""
    return {}
