"""Kernels do not check indices; compiled with checks, they stay within their arrays in the whole suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
OUTSIDE = """
import numpy as np
from melon.kernels import policy
rows, met = np.zeros((1, 50), np.int32), np.zeros(1, np.int64)
policy.load("stream").remember(rows, met, np.array([7]), np.array([0]))
"""


@pytest.mark.slow
def test_no_kernel_leaves_its_arrays() -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "OMP_NUM_THREADS": "1"}
    checked = subprocess.run(
        [sys.executable, "-c", OUTSIDE], env=environment, capture_output=True, text=True, check=False
    )
    assert "IndexError" in checked.stderr
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", str(TESTS)]
    done = subprocess.run(words, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5_000:]
