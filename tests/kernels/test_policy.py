"""Which loops compute: the variable decides, and neither a missing numba nor a compiler at work changes a result."""

import logging
import subprocess
import sys
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from melon.checks.toys import toy_batches
from melon.errors import SettingsError
from melon.kernels import build, policy
from melon.kernels.melon.forms import RateNetwork
from melon.kernels.s2meta.functions import CompiledCell
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.recommenders.blend.recommender import Blend
from melon.recommenders.bpr import BPR
from melon.recommenders.ncf import NCF
from melon.strategies.default import Default
from melon.strategies.melon import kernel as pairs
from melon.strategies.melon import reference
from melon.strategies.melon.strategy import NetworkMeLON
from melon.strategies.s2meta.cell import TorchCell, cell_kernel
from melon.strategies.s2meta.strategy import S2Meta

LIKE = torch.ones(1)
NETWORK = RateNetwork(1.0, torch.ones(20, 3), torch.ones(20, 20), torch.ones(20), torch.ones(2, 20))


@pytest.fixture(autouse=True)
def _as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MELON_KERNEL", raising=False)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just started."""
    for name, empty in {"_ready": {}, "_failed": {}, "_reported": set(), "_coming": set(), "_requests": 0}.items():
        monkeypatch.setattr(policy, name, empty)
    monkeypatch.setattr(policy, "_locks", defaultdict(threading.Lock))


@pytest.mark.parametrize(("choice", "is_compiled"), [("torch", False), ("numba", True), ("auto", True), ("", True)])
def test_the_variable_decides(choice: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELON_KERNEL", choice)
    assert (policy.load("factor") is not None) is is_compiled
    assert (policy.load("stream") is not None) is is_compiled
    assert isinstance(pairs.pair_kernel(NETWORK, LIKE), pairs.CompiledKernel) is is_compiled
    assert isinstance(cell_kernel(LIKE), CompiledCell) is is_compiled


def test_other_numbers_are_for_pytorch() -> None:
    other = LIKE.double()
    assert policy.load("factor", like=other) is None
    assert pairs.pair_kernel(NETWORK, other) is reference
    assert isinstance(cell_kernel(other), TorchCell)


def test_an_unknown_choice_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    updater = Updater(BPR({"dim": 4}), NetworkMeLON(), seed=1)
    monkeypatch.setenv("MELON_KERNEL", "fortran")
    with pytest.raises(SettingsError, match=r"MELON_KERNEL='fortran' is unknown; choose one of: auto, torch, numba"):
        updater.learn(toy_batches()[0])


def test_a_process_that_asks_little_does_not_load_numba() -> None:
    code = """
import sys
from melon.kernels import policy
for _ in range(policy.PATIENCE - 1):
    assert policy.load("stream") is None
print("numba" in sys.modules)
print(policy.load("stream") is not None, "numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "True", "True"]


def learned(make: Any) -> dict[str, Any]:
    """Tables after some steps, with a recommender and a strategy that use every kind of loop between them."""
    updater = Updater(Blend({"dim": 4, "head_units": 3, "slots": 16}, seed=1), make(), seed=1)
    for batch in toy_batches()[:4]:
        updater.learn(batch)
    return {name: table.state()["values"].numpy() for name, table in updater.recommender.tables.items()}


#: What either strategy uses on the blend.
SUITES_OF_BOTH = ("stream", "factor", "neighbours", "lessons", ("melon", 20), "s2meta")


@pytest.mark.parametrize("strategy", [NetworkMeLON, pytest.param(S2Meta, marks=pytest.mark.slow)])
def test_a_compiler_at_work_in_the_background_changes_no_bit(
    strategy: Any, monkeypatch: pytest.MonkeyPatch, nothing_loaded: None
) -> None:
    """Loops that round differently are waited for; numpy serves for those of a stream, which give the same integers."""
    wanted, original = learned(strategy), build.compiled
    policy._ready.clear()
    built, begun, go_on = [], threading.Event(), threading.Event()

    def slowly(name: str, width: int = 0) -> SimpleNamespace:
        begun.set()
        assert go_on.wait(60)
        built.append(name)
        return original(name, width)

    monkeypatch.setattr(build, "compiled", slowly)
    thread = policy.warm_up(*SUITES_OF_BOTH, in_background=True)
    assert thread is not None
    assert begun.wait(60)
    assert policy.load("stream") is None
    threading.Timer(0.2, go_on.set).start()
    got = learned(strategy)
    for name, table in wanted.items():
        assert np.array_equal(table, got[name]), name
    thread.join(120)
    assert sorted(built) == sorted(name if isinstance(name, str) else name[0] for name in SUITES_OF_BOTH)  # none twice
    assert not policy._coming
    assert policy.load("stream") is not None


@pytest.mark.parametrize(("recommender", "strategy"), [(BPR, NetworkMeLON), (NCF, S2Meta), (Blend, Default)])
def test_a_model_is_warmed_up_with_what_it_uses(recommender: Any, strategy: Any, nothing_loaded: None) -> None:
    updater = Updater(recommender({"dim": 4}), strategy(), seed=1)
    updater.warm_up()
    warm = set(policy._ready)
    for batch in toy_batches()[:3]:
        updater.score(batch.users, batch.items[:, None], int(batch.times[0]))
        updater.learn(batch)
    assert set(policy._ready) == warm


def test_a_model_in_use_is_warmed_up_for_learning_and_lists(nothing_loaded: None) -> None:
    model = LiveModel(Updater(BPR({"dim": 4}), Default(), seed=1))
    model.warm_up()
    warm = set(policy._ready)
    for _ in range(3):
        model.learn_events([1, 2, 3, 1], [4, 5, 6, 5])
    model.recommend([1, 2, 9], 2)
    assert set(policy._ready) == warm


class TestWhereNumbaDoesNotWork:
    @pytest.fixture(autouse=True)
    def _fails(self, nothing_loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(name: str, width: int = 0) -> SimpleNamespace:
            raise RuntimeError("no such processor")

        monkeypatch.setattr(build, "compiled", fails)

    def test_numpy_and_pytorch_compute_and_one_line_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, logger="melon"):
            got = learned(NetworkMeLON)
            assert pairs.pair_kernel(NETWORK, LIKE) is reference
            assert isinstance(cell_kernel(LIKE), TorchCell)
        assert [record.getMessage().count("no such processor") for record in caplog.records] == [1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MELON_KERNEL", "torch")
            wanted = learned(NetworkMeLON)
        assert all(np.array_equal(table, got[name]) for name, table in wanted.items())

    def test_asked_for_by_name_it_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MELON_KERNEL", "numba")
        with pytest.raises(SettingsError, match=r"MELON_KERNEL=numba.*no such processor.*choose auto or torch"):
            policy.load("factor")


@pytest.mark.parametrize(("choice", "works"), [("auto", True), ("torch", True), ("numba", False)])
def test_without_numba(choice: str, works: bool) -> None:
    """One line on stderr where numba is missing, an error where it was asked for by name."""
    code = """
import sys
sys.modules["numba"] = None
from melon.kernels import policy
for name in ("factor", "neighbours"):
    print(policy.load(name))
"""
    environment = {"MELON_KERNEL": choice, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    if works:
        assert done.stdout.split() == ["None"] * 2, done.stderr
        assert done.stderr.count("numba cannot compile here") == (choice == "auto")
    else:
        assert "MELON_KERNEL=numba" in done.stderr
        assert done.returncode
