"""Counter-based random numbers: a draw is a pure function of (seed, purpose, key, counter); nothing is saved."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from melon.types import Ints, Words

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STRIDE = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_HALF = np.uint64(32)


def mix(words: Words) -> Words:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    out = words ^ (words >> _SHIFTS[0])
    out *= _MIX_1
    out ^= out >> _SHIFTS[1]
    out *= _MIX_2
    out ^= out >> _SHIFTS[2]
    return out


def child_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose, independent of those of other purposes and of other root seeds."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Draws:
    """The random numbers of one purpose under one root seed."""

    seed: int
    purpose: str

    @cached_property
    def root(self) -> np.uint64:
        """Where the draws of this purpose begin."""
        return np.uint64(child_seed(self.seed, self.purpose))

    def words(self, keys: npt.NDArray[np.integer], count: int, start: int = 0) -> Words:
        """64 random bits for each key and each counter from `start`; shape keys × count."""
        rooted = mix(keys.astype(np.uint64) * _GOLDEN + self.root)
        counters = (np.arange(start, start + count, dtype=np.uint64) + np.uint64(1)) * _STRIDE
        return mix(rooted[:, None] + counters[None, :])

    def integers(self, keys: npt.NDArray[np.integer], count: int, below: int | Ints, start: int = 0) -> Ints:
        """Uniform integers in [0, below), where `below` is one number or one per key (under 2³², bias below 2⁻³²)."""
        bound = np.asarray(below, dtype=np.uint64)
        if bound.ndim:
            bound = bound[:, None]
        return ((self.words(keys, count, start) >> _HALF) * bound >> _HALF).astype(np.int64)

    def uniforms(self, keys: npt.NDArray[np.integer], count: int, start: int = 0) -> npt.NDArray[np.float64]:
        """Uniform numbers in (0, 1)."""
        return ((self.words(keys, count, start) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normals(self, keys: npt.NDArray[np.integer], count: int) -> npt.NDArray[np.float64]:
        """Standard normal numbers (Box–Muller, two uniforms for each pair)."""
        pairs = (count + 1) // 2
        uniform = self.uniforms(keys, 2 * pairs)
        radius = np.sqrt(-2.0 * np.log(uniform[:, :pairs]))
        angle = 2.0 * np.pi * uniform[:, pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]

    def generator(self, key: int = 0) -> np.random.Generator:
        """An ordinary generator for bulk work such as shuffling, one for each key."""
        return np.random.default_rng([int(self.root), key])
