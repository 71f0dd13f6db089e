"""Kernels do not check indices; compiled with checks, they stay within their arrays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Tests that call every kernel between them.
EVERY_KERNEL = (
    "kernels/test_factor.py",
    "kernels/test_heap_layout.py",
    "kernels/test_pair_kernel.py",
    "kernels/test_stream.py",
    "kernels/test_unit_kernel.py",
    "learning/test_model.py",
    "learning/test_plain_step.py",
    "learning/test_meta_training.py",
    "learning/test_pretrain.py",
    "recommenders",
    "stream",
)
OUTSIDE = """
import numpy as np
from melon.kernels import policy
rows, stamps, block = np.array([7]), np.zeros(1, np.int64), np.zeros((1, 2), np.float32)
policy.load("factor").exchange(rows, block, stamps, np.zeros((8, 2), np.float32), np.zeros(3, np.int64))
"""


@pytest.mark.slow
def test_no_kernel_leaves_its_arrays() -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "OMP_NUM_THREADS": "1"}
    checked = subprocess.run(
        [sys.executable, "-c", OUTSIDE], env=environment, capture_output=True, text=True, check=False
    )
    assert "IndexError" in checked.stderr
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *(str(TESTS / name) for name in EVERY_KERNEL)]
    done = subprocess.run(words, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]
