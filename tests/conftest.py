"""What all tests share: one thread for each process, and hypothesis without surprises."""

import copy
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from commands import Ended, Run

if TYPE_CHECKING:
    from melon.data.interactions import Interactions
    from melon.fitting.config import CellConfig

# Set before anything imports torch: results are the same on any number of cores, and side-by-side tests do not compete.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: tests that stop a command need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are tried in the test's own process: on small streams another one costs more than it saves."""
    for name in ("melon.evaluator", "melon.estimator"):
        if name in sys.modules:
            monkeypatch.setattr(f"{name}.cores", lambda: 1)


TIMINGS = ("update_ms", "score_ms", "pretrain_s", "peak_rss_mb")
MakeConfig = Callable[..., "CellConfig"]


@pytest.fixture(scope="session")
def flips() -> "Interactions":
    """A small stream whose likes flip."""
    from melon.data.synthetic import synthetic_stream

    return synthetic_stream("flip", n_users=30, n_items=40, n_events=1_000, seed=2)


@pytest.fixture(scope="session")
def small() -> MakeConfig:
    """A small cell."""
    from melon.fitting.config import CellConfig

    def config(**more: Any) -> "CellConfig":
        given: dict[str, Any] = {
            "split": (0.7, 0.05, 0.25),
            "epochs": 2,
            "budget": 2,
            "negatives": 15,
            "batch_size": 64,
            "recommender_settings": {"dim": 6},
        }
        return CellConfig(**{**given, **more})

    return config


@pytest.fixture(scope="session")
def timeless() -> Callable[[dict[str, Any]], str]:
    """A record as text, without what depends on the machine."""

    def strip(record: dict[str, Any]) -> str:
        kept = copy.deepcopy({key: value for key, value in record.items() if key not in TIMINGS})
        for batch in kept["batches"]:
            del batch["update_ms"]
        return json.dumps(kept, sort_keys=True, allow_nan=False)

    return strip
