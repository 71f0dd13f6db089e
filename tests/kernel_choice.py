"""Which implementation a test runs: compiled kernels, the same as plain Python, or the general path of PyTorch."""

from typing import Any

import pytest

from melon.kernels import policy

_load = policy.load


def _only_without_numbers(name: str, width: int = 0, *, like: Any = None) -> Any:
    return _load(name, width) if like is None else None


def choose_kernel(patch: pytest.MonkeyPatch, kernel: str) -> None:
    """numba, python or torch, from now on."""
    patch.setattr(policy, "load", _only_without_numbers if kernel == "torch" else _load)
    patch.setenv(policy.VARIABLE, "numba" if kernel == "torch" else kernel)
