"""Kernels give the same bits wherever their arrays lie in memory.

A compiler that cannot prove that two arrays are apart checks it at run time, and takes a loop without vector
instructions if they might overlap. A sum that runs in such a loop has other last digits there. So the arrays of every
real call are laid side by side in one buffer, in random orders, and the call is repeated.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from melon.evaluation.baselines import make_baseline
from melon.evaluation.lists import better_and_equal
from melon.fitting.baselines import choose_baselines
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.selection import Selection
from melon.journal import undoable
from melon.kernels import policy
from melon.kernels.modules import MODULES
from melon.learning.meta_training.loop import meta_train_through, meta_training_candidates
from melon.learning.pretrain import Pretraining, PretrainSettings
from melon.learning.updater import Updater
from melon.models.blend import catalogue as blend_catalogue
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.catalogue import Within, best
from melon.strategies.default import Default
from melon.strategies.melon.published import PublishedMeLON
from melon.strategies.melon.stream import MeLON as RateMeLON
from melon.stream.candidates import Candidates
from melon.stream.history import PartnerRings
from melon.stream.split import split
from melon.testing import SMALL_RECOMMENDERS, Pairing, toy_batches, toy_log

_ORDERS, _CALLS = 6, 12


class Recheck:
    """A compiled function that repeats every call on arrays that lie side by side."""

    def __init__(self, name: str, function: Any, seen: dict[str, int]) -> None:
        self._name, self._function, self._seen = name, function, seen
        self._random = np.random.default_rng(len(name))

    def __call__(self, *arguments: Any) -> Any:
        before = [_copied(each) for each in arguments]
        answer = self._function(*arguments)
        self._seen[self._name] = self._seen.get(self._name, 0) + 1
        if self._seen[self._name] > _CALLS:
            return answer
        for _ in range(_ORDERS):
            again = self._side_by_side(before)
            other = self._function(*again)
            assert _bytes((answer, *arguments)) == _bytes((other, *again)), f"{self._name} depends on the heap"
        return answer

    def _side_by_side(self, arguments: list[Any]) -> list[Any]:
        arrays = [each for argument in arguments for each in _arrays(argument)]
        buffer = np.empty(sum(each.nbytes + 64 for each in arrays) + 256, np.uint8)
        place, moved = 0, {}
        for n in self._random.permutation(len(arrays)):
            place += 16 * int(self._random.integers(0, 3))
            place += -(buffer.ctypes.data + place) % 8
            stop = place + arrays[n].nbytes
            order = "C" if arrays[n].flags.c_contiguous else "F"
            moved[id(arrays[n])] = buffer[place:stop].view(arrays[n].dtype).reshape(arrays[n].shape, order=order)
            moved[id(arrays[n])][...] = arrays[n]
            place = stop
        return [_replaced(each, moved) for each in arguments]


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _arrays(each)


def _replaced(value: Any, moved: dict[int, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        return moved[id(value)]
    if isinstance(value, tuple):
        parts = [_replaced(each, moved) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _copied(value: Any) -> Any:
    return _replaced(value, {id(each): each.copy(order="K") for each in _arrays(value)})


def _bytes(values: tuple[Any, ...]) -> list[bytes]:
    return [each.tobytes() for each in _arrays(values)]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Every compiled function rechecks itself; counts the calls of each."""
    counts: dict[str, int] = {}
    for name, module in MODULES.items():
        kernels = policy.load(name)
        assert name in policy._compiled, f"{name} runs as plain Python: {policy._failed.get(name)}"
        for function in module.signatures:
            monkeypatch.setattr(kernels, function, Recheck(f"{name}.{function}", getattr(kernels, function), counts))
    return counts


def test_no_loop_depends_on_where_its_arrays_lie(seen: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blend_catalogue, "FROM", 0)
    log = toy_log()
    Candidates(log, seed=0, count=5).draw(100, 160)
    for make, strategy in (
        (SMALL_RECOMMENDERS["bpr"], partial(PublishedMeLON, {})),
        (partial(BPR, {"dim": 64}), partial(PublishedMeLON, {})),
        (SMALL_RECOMMENDERS["ncf"], partial(PublishedMeLON, {})),
        (SMALL_RECOMMENDERS["blend"], partial(Default, {"half_life": 40.0})),
        (
            partial(
                Blend,
                {
                    "dim": 6,
                    "slots": 16,
                    "head_rest": 20,
                    "inputs": ("profiles", "preferences", "own"),
                    "head_own_share": 0.2,
                    "head_popular_share": 0.2,
                },
            ),
            partial(Default, {}),
        ),
    ):
        updater = Pairing(make, strategy).updater()
        for batch in toy_batches(log)[:12]:
            updater.score(batch.users, np.stack([batch.items, batch.items[::-1]], axis=1), int(batch.times[0]))
            with undoable(always=True):
                updater.learn(batch)
            updater.learn(batch)
        for lists in ("exact", "two_stage") if isinstance(updater.recommender, Blend) else ("exact",):
            updater.recommender.settings.__dict__["lists"] = lists
            catalogue = updater.recommender.catalogue(20, updater._context(10**6))
            best(catalogue.scores(np.arange(3)), 4)
            better_and_equal(catalogue.scores(np.arange(3)), np.arange(3), np.arange(3), updater.history.seen, "a test")
            catalogue.best(np.arange(3), 4, Within(updater.history.seen))
        if isinstance(updater.recommender, Blend):
            pairs, context = (np.arange(2), np.arange(6).reshape(2, 3)), updater._context(10**6)
            inputs, rows = updater.recommender.inputs_of(*pairs, context), updater.recommender._rows(context)
            again = inputs.copy()
            updater.recommender.stream.rows_again(rows, *pairs, context.history, again)
            assert np.array_equal(again, inputs)
            updater.recommender.stream.own_items(0, context.history, 20)
            updater.recommender.fit_past(log.users, log.items)
    updater, first, *rest = Updater(BPR({"dim": 7}), RateMeLON({"passes": 2})), *toy_batches(log)[:4]
    updater.learn(first)
    meta_train_through(updater, rest, meta_training_candidates(log, 0, 5))
    updater.learning_rates(first)
    PartnerRings().append(log.users, log.items)
    parts, plan = split(log, (0.6, 0.1, 0.3)), Plan("bpr", protocol=EvaluationProtocol(batch_size=16, negatives=5))
    chosen = choose_baselines(Selection(log.head(parts.validation_stop), parts, plan))["mix"]
    baseline = make_baseline("mix", chosen.settings, log.head(100))
    baseline.score(log.users[:3], log.items[:6].reshape(3, 2), 0)
    baseline.catalogue(20, 0).scores(log.users[:3])
    for name in ("bpr", "ncf"):
        Pretraining(SMALL_RECOMMENDERS[name](), log, PretrainSettings(batch_size=50), seed=0).epoch()
    every = {f"{name}.{function}" for name, kernels in MODULES.items() for function in kernels.signatures}
    assert seen.keys() == every, every - seen.keys()
