"""What all tests share: one thread for each process, and hypothesis without surprises."""

import os
import sys

import pytest

from commands import Ended, Run

# Set before anything imports torch: results are the same on any number of cores, and side-by-side tests do not compete.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

# A fixed choice of examples keeps `make check` from failing today and passing tomorrow; HYPOTHESIS_PROFILE=explore
# looks for new ones. Deadlines measure the machine rather than the code.
settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, max_examples=1_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`melon …` inside this process, which is quick. A traceback would be an exception other than SystemExit."""
    from melon import cli

    def main(*words: object) -> Ended:
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.setattr(sys, "argv", ["melon", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        shown = capsys.readouterr()
        code = stop.value.code
        assert code is None or isinstance(code, int)
        assert "Traceback" not in shown.out + shown.err
        return Ended(code or 0, shown.out, shown.err)

    return main
