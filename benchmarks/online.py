"""Rates that go on learning on the stream, beside frozen ones, on selection windows; test parts are not read.

    python benchmarks/online.py amazon_grocery yelp

MeLON on BPR practises as usual on the part of the window that is not judged. On the judged part rates are then frozen,
or after each batch they take a step of Adam by the gradient of the last batches' predictions through the steps of the
batches before: over one batch (a look-ahead as in the network form) or over more. Each is HR@5 + NDCG@10.
"""

from __future__ import annotations

import os
import sys
import tomllib
from copy import deepcopy

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from accuracy import DATA
from melon.adam import Adam, Moments
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.selection import Selection
from melon.kernels import policy
from melon.learning.practice.factor import FactorPractice
from melon.learning.practice.loop import practice_candidates
from melon.learning.practice.record import record
from melon.learning.updater import Updater
from melon.strategies.melon.linear import MeLON
from melon.strategies.melon.rates import MOST_DECAY, LinearRates, Phi
from melon.strategies.practised import LinearStrategy
from melon.stream.batch import Batch
from melon.stream.split import DEFAULT_SPLIT, split
from melon.types import Ints, Scores
from practice import CONFIGS, state_of

#: Batches that a step is judged by, and Adam's rate on φ.
ARMS = ((1, 0.003), (1, 0.01), (8, 0.003), (8, 0.01))
_ADAM = Adam(0.9, 0.98, 1e-9)


class GoingOn:
    """An updater whose rates learn from what the last `horizon` steps were worth.

    A second updater stays so many batches behind: from its rows the last steps are made again with the present rates.
    """

    def __init__(self, updater: Updater, log: Interactions, judged_from: int, horizon: int, rate: float) -> None:
        self._live, self._behind, self._log = updater, deepcopy(updater), log
        self._from, self._horizon, self._rate = judged_from, horizon, rate
        self._between: list[tuple[Batch, Phi]] = []
        self._moments: dict[str, Moments] | None = None
        self._steps = 0

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        return self._live.score(users, items, time)

    def score_catalogue(self, users: Ints, n_items: int, time: int) -> Scores:
        return self._live.score_catalogue(users, n_items, time)

    @property
    def moved(self) -> float:
        return self._live.moved

    def learn(self, batch: Batch) -> float:
        self._between.append((batch, rates_of(self._live).phi))
        loss = self._live.learn(batch)
        if len(self._between) > self._horizon + 1:
            oldest, phi = self._between.pop(0)
            rates_of(self._behind).phi = phi
            self._behind.learn(oldest)
        if batch.first_event >= self._from:
            self._improve(batch.first_event + len(batch))
        return loss

    def _improve(self, stop: int) -> None:
        live, again = self._live.strategy, deepcopy(self._behind)
        assert isinstance(live, LinearStrategy)
        candidates = practice_candidates(self._log.head(stop), self._live.seed, 99)
        recorded = record(again, [batch for batch, _ in self._between], candidates, 1)
        loops = policy.load("practice")
        assert loops is not None
        _, gradient = FactorPractice(again.recommender, live, recorded, loops).run(0)
        phi, masks = live.rates.phi, live.trainable()
        moments = self._moments or {name: Moments.zeros_like(value) for name, value in phi.items()}
        self._moments = {name: _ADAM.moments(moments[name], gradient[name] * masks[name]) for name in phi}
        self._steps += 1
        improved = {name: _ADAM.step(phi[name], self._moments[name], self._steps, self._rate) for name in phi}
        improved["decay"] = improved["decay"].clamp(0, MOST_DECAY)
        live.rates.phi = improved


def rates_of(updater: Updater) -> LinearRates:
    assert isinstance(updater.strategy, LinearStrategy)
    return updater.strategy.rates


def main(stream: str, seed: int = 0) -> None:
    torch.set_num_threads(1)
    config = tomllib.loads((CONFIGS / f"{stream}-bpr-default.toml").read_text(encoding="utf-8"))
    log = load_stream(DATA / f"{stream}.parquet")
    parts = split(log, tuple(config.get("split", DEFAULT_SPLIT)))
    plan = Plan("bpr", protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    start = state_of(
        plan, selection.before_window, config["pretrain_settings"], f"bpr-{stream}-{seed}-window.safetensors"
    )
    updater = selection.at_window(MeLON, {"lr": config["settings"]["lr"]}, start)
    scores = [selection.judged(deepcopy(updater))]
    for horizon, rate in ARMS:
        scores.append(
            selection.judged(GoingOn(deepcopy(updater), selection.log, selection.parts.judged_from, horizon, rate))
        )
    print(f"| {stream} | {' | '.join(f'{score:.4f}' for score in scores)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"| stream | frozen | {' | '.join(f'{horizon} batches, {rate:g}' for horizon, rate in ARMS)} |")
    print("|---" * (2 + len(ARMS)) + "|", flush=True)
    for each in sys.argv[1:]:
        main(each, int(os.environ.get("SEED", "0")))
