"""Which kernels compute: the variable decides, and neither a missing numba nor a compiler at work changes a result."""

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

from melon.errors import SettingsError
from melon.kernels import build, policy
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.default import Default
from melon.strategies.melon.published import PublishedMeLON
from melon.testing import toy_batches


@pytest.fixture(autouse=True)
def _as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MELON_KERNEL", raising=False)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has just started."""
    for name, empty in {"_compiled": {}, "_plain": {}, "_failed": {}, "_reported": set()}.items():
        monkeypatch.setattr(policy, name, empty)
    monkeypatch.setattr(policy, "_locks", defaultdict(threading.Lock))


@pytest.mark.parametrize(("choice", "is_compiled"), [("python", False), ("numba", True), ("", True)])
def test_the_variable_decides(choice: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELON_KERNEL", choice)
    assert hasattr(policy.load("factor").scores, "signatures") is is_compiled
    assert hasattr(policy.load("stream").append, "signatures") is is_compiled


def test_other_numbers_are_for_pytorch() -> None:
    assert policy.load("factor", dtype=torch.float64) is None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("fortran", "MELON_KERNEL='fortran' is unknown; choose one of: numba, python"),
        ("torch", "'torch' is now called 'python'"),
        ("auto", "'auto' is now called 'numba'"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(
    choice: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updater = Updater(BPR({"dim": 4}), PublishedMeLON(), seed=1)
    monkeypatch.setenv("MELON_KERNEL", choice)
    with pytest.raises(SettingsError, match=message):
        updater.learn(toy_batches()[0])


def learned(make: Any = PublishedMeLON) -> dict[str, Any]:
    """Tables after some steps, with a recommender and a strategy that use every kind of loop between them."""
    updater = Updater(Blend({"dim": 4, "head_units": 3, "slots": 16}, seed=1), make(), seed=1)
    for batch in toy_batches()[:4]:
        updater.learn(batch)
    return {name: table.state()["values"] for name, table in updater.recommender.tables.items()}


#: What MeLON uses on the blend.
MODULES = ("stream", "factor", "neighbours", "blend", "pairs")


def test_a_compiler_at_work_in_the_background_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, nothing_loaded: None
) -> None:
    """Kernels that are not ready are waited for."""
    wanted, original = learned(), build.compiled
    policy._compiled.clear()
    built, begun, go_on = [], threading.Event(), threading.Event()

    def slowly(name: str) -> SimpleNamespace:
        begun.set()
        assert go_on.wait(60)
        built.append(name)
        return original(name)

    monkeypatch.setattr(build, "compiled", slowly)
    thread = policy.warm_up(*MODULES, in_background=True)
    assert thread is not None
    assert begun.wait(60)
    threading.Timer(0.2, go_on.set).start()
    got = learned()
    for name, table in wanted.items():
        assert np.array_equal(table, got[name]), name
    thread.join(120)
    assert sorted(built) == sorted(MODULES)  # none twice


@pytest.mark.parametrize(("recommender", "strategy"), [(BPR, PublishedMeLON), (NCF, PublishedMeLON), (Blend, Default)])
def test_a_model_is_warmed_up_with_what_it_uses(recommender: Any, strategy: Any, nothing_loaded: None) -> None:
    updater = Updater(recommender({"dim": 4}), strategy(), seed=1)
    updater.warm_up()
    warm = set(policy._compiled)
    for batch in toy_batches()[:3]:
        updater.score(batch.users, batch.items[:, None], int(batch.times[0]))
        updater.learn(batch)
    assert set(policy._compiled) == warm


def test_a_model_in_use_is_warmed_up_for_learning_and_lists(nothing_loaded: None) -> None:
    model = LiveModel(Updater(BPR({"dim": 4}), Default(), seed=1))
    model.warm_up()
    warm = set(policy._compiled)
    for _ in range(3):
        model.learn_events([1, 2, 3, 1], [4, 5, 6, 5])
    model.recommend([1, 2, 9], 2)
    assert set(policy._compiled) == warm


class TestWhereNumbaDoesNotWork:
    @pytest.fixture(autouse=True)
    def _fails(self, nothing_loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(name: str) -> SimpleNamespace:
            raise RuntimeError("no such processor")

        monkeypatch.setattr(build, "compiled", fails)

    def test_the_same_kernels_run_as_python_and_one_line_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, logger="melon"):
            got = learned(Default)
        assert [record.getMessage().count("no such processor") for record in caplog.records] == [1]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MELON_KERNEL", "python")
            wanted = learned(Default)
        assert all(np.array_equal(table, got[name]) for name, table in wanted.items())

    def test_a_service_refuses_to_start(self) -> None:
        with pytest.raises(SettingsError, match=r"not compiled here \(RuntimeError: no such processor\).*replicas"):
            policy.require_compiled()


def test_a_service_refuses_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    policy.require_compiled()
    monkeypatch.setenv("MELON_KERNEL", "python")
    with pytest.raises(SettingsError, match=r"not compiled here \(MELON_KERNEL=python\).*unset MELON_KERNEL"):
        policy.require_compiled()


def test_compiled_and_plain_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = learned(Default)
    monkeypatch.setenv("MELON_KERNEL", "python")
    for name, table in learned(Default).items():
        np.testing.assert_allclose(table, compiled[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_without_numba() -> None:
    """One line on stderr, and the same numbers."""
    code = """
import sys
sys.modules["numba"] = None
import numpy as np
from melon.stream.history import History
history = History()
history.append(np.array([1, 2, 1]), np.array([0, 1, 2]))
print(history.of_users.last(np.array([1, 2, 3])).tolist())
"""
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "[2, 1, -1]\n"
    assert done.stderr.count("kernels run as plain Python") == 1
