"""Which implementation a test runs: compiled kernels, the same as plain Python, or the general path of PyTorch."""

from typing import Any

import pytest

from melon.kernels import policy
from melon.models.base import Recommender

_load, _plain_steps = policy.load, Recommender.plain_steps


def _only_without_numbers(name: str, *, dtype: Any = None) -> Any:
    return _load(name) if dtype is None else None


def choose_kernel(patch: pytest.MonkeyPatch, kernel: str) -> None:
    """numba, python or torch, from now on; a recommender that has learned keeps its steps."""
    patch.setattr(policy, "load", _only_without_numbers if kernel == "torch" else _load)
    patch.setattr(Recommender, "plain_steps", None if kernel == "torch" else _plain_steps)
    patch.setenv(policy.VARIABLE, "numba" if kernel == "torch" else kernel)
