"""What meta-models are made of: named parameters, drawn by seed and name, and how they see a gradient or a loss."""

from __future__ import annotations

import math
import zlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from melon.stream.draws import Draws

P = 10.0
SMALL = math.exp(-P)
_EPSILON = 1e-8
Numbers = float | np.ndarray[tuple[int, ...], np.dtype[np.floating]]


class Parameters:
    """A flat dictionary of leaves; the parts of a meta-model register theirs under their own names."""

    def __init__(self, seed: int, dtype: torch.dtype, init: Literal["normal", "xavier"]) -> None:
        self._draws = Draws(seed, "meta-model")
        self._dtype, self._init = dtype, init
        self.tensors: dict[str, Tensor] = {}

    def weight(self, name: str, rows: int, columns: int) -> None:
        """A matrix: Normal(0, 0.01²), or Xavier's spread."""
        std = 0.01 if self._init == "normal" else (2.0 / (rows + columns)) ** 0.5
        self._put(name, self._normals(name, rows, columns) * std)

    def normal(self, name: str, size: int, std: float) -> None:
        """A vector drawn from Normal(0, std²)."""
        self._put(name, self._normals(name, 1, size)[0] * std)

    def zeros(self, name: str, size: int) -> None:
        """A vector of zeros, or of small draws where everything is drawn."""
        drawn = self._normals(name, 1, size)[0] * 0.01 if self._init == "normal" else np.zeros(size)
        self._put(name, drawn)

    def zeros_exactly(self, name: str, *shape: int) -> None:
        """Zeros, whatever the other draws are."""
        self._put(name, np.zeros(shape))

    def ones(self, name: str, size: int) -> None:
        """A vector of ones."""
        self._put(name, np.ones(size))

    def uniform(self, name: str, rows: int, columns: int, half_width: Numbers, centre: Numbers = 0.0) -> None:
        """A matrix drawn around `centre`."""
        drawn = self._draws.uniforms(self._keys(name, rows), columns)
        self._put(name, centre + half_width * (2 * drawn - 1))

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def _normals(self, name: str, rows: int, columns: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        return self._draws.normals(self._keys(name, rows), columns)

    @staticmethod
    def _keys(name: str, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.arange(rows, dtype=np.int64) + (zlib.crc32(name.encode()) << 20)

    def _put(self, name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        self.tensors[name] = torch.from_numpy(values).to(self._dtype).requires_grad_()


def preprocess(values: Tensor, epsilon: float = _EPSILON) -> tuple[Tensor, Tensor]:
    """pre() of docs/methods.md 4.5: scale and sign as two numbers of order one.

    (log(|v| + ε)/p, sign v) where |v| ≥ e^-p, else (-1, e^p v). Never differentiated: its slope reaches e^p.
    """
    values = values.detach()
    size = values.abs()
    large = size >= SMALL
    scale = torch.where(large, (size + epsilon).log() / P, -1.0)
    direction = torch.where(large, values.sign(), values * math.exp(P))
    return scale, direction
