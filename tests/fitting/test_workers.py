"""Work in forked processes: results, errors, and a process that is killed."""

import os
import signal
import sys

import pytest

from melon.errors import LearningError, MelonError
from melon.fitting.search import Workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")


def test_results_and_errors_come_back() -> None:
    def breaks() -> int:
        raise LearningError("left the finite numbers")

    workers = Workers(2)
    good, bad = workers.begin(os.getpid), workers.begin(breaks)
    assert good.result() != os.getpid()
    with pytest.raises(LearningError, match="left the finite numbers"):
        bad.result()


def test_work_whose_process_is_killed_is_reported_and_never_run_again_here() -> None:
    parent = os.getpid()

    def dies() -> None:
        assert os.getpid() != parent, "it was run again in the parent"
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(MelonError, match=r"signal 9.*memory.*--threads 2"):
        Workers(2).begin(dies).result()
