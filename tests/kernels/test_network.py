"""NCF's compiled pre-training: the plain functions and the vectors of the CPU are the same, at any width."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from melon.kernels import network, policy
from melon.kernels.lanes import LANES, lowest, masked, open_lanes, room
from melon.kernels.products import _bits_turned
from melon.recommenders.base import SummedSteps
from melon.recommenders.ncf import NCF

KEYS = np.arange(20, dtype=np.int64)


def trained(loops: SimpleNamespace | None, monkeypatch: pytest.MonkeyPatch) -> tuple[float, NCF]:
    """Two batches and a short one, with rows that repeat; two layers, one of them wider than a mask."""
    ncf = NCF({"dim": 66, "layers": (5, 70), "negatives": 2}, seed=1)
    ncf.grow(6, KEYS[:6], 9, KEYS[:9])
    generator = np.random.default_rng(0)
    users, items = generator.integers(0, 6, 11), generator.integers(0, 9, (11, 3))
    with monkeypatch.context() as patch:
        if loops is not None:
            patch.setattr(policy, "load", lambda *_, **__: loops)
        loss = ncf.pretrain(users, items, SummedSteps(4, 0.1, 0.03, 0.01))
    assert loss is not None
    return loss, ncf


def test_plain_functions_and_vectors_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SimpleNamespace(network_batches=network.network_batches, network_help=network.network_help)
    monkeypatch.setenv("MELON_KERNEL", "numba")
    (loss, slow), (again, quick) = trained(plain, monkeypatch), trained(None, monkeypatch)
    assert again == pytest.approx(loss, rel=1e-6)
    for name, table in slow.tables.items():
        torch.testing.assert_close(quick.tables[name].everything(), table.everything(), rtol=1e-5, atol=1e-6)


def test_more_negatives_than_a_mask_has_bits_take_the_general_path() -> None:
    ncf = NCF({"dim": 4, "layers": (4,), "negatives": LANES}, seed=1)
    ncf.grow(2, KEYS[:2], 9, KEYS[:9])
    items = np.zeros((2, 1 + LANES), dtype=np.int64)
    assert ncf.pretrain(KEYS[:2], items, SummedSteps(2, 0.1, 0.03, 0.01)) is None


def test_a_relu_lets_numbers_above_zero_and_nan_through() -> None:
    line = np.zeros(LANES, np.float32)
    line[[3, 7, 63]] = 1.0, np.nan, 2.0
    line[5] = -1.0
    mask = open_lanes(line)
    assert mask == (1 << 3) + (1 << 7) + (1 << 63)
    assert lowest(mask) == 3
    np.testing.assert_array_equal(np.flatnonzero(masked(line, mask)), [3, 7, 63])


def test_bits_are_turned() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 63, LANES).astype(np.uint64)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little").reshape(LANES, LANES)
    _bits_turned(words)
    np.testing.assert_array_equal(np.unpackbits(words.view(np.uint8), bitorder="little").reshape(LANES, LANES), bits.T)


def test_rooms_begin_at_a_line_of_the_cache() -> None:
    assert [room(3, size).ctypes.data % 64 for size in (1, 7, 64)] == [0, 0, 0]
