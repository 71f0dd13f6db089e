"""Rates that go on learning on the stream, beside frozen ones, on selection windows; test parts are not read.

    python research/benchmarks/online.py amazon_grocery yelp
    python research/benchmarks/online.py news_globo --views 8 all --rates 0.003
    python research/benchmarks/online.py yelp --earlier --views all

MeLON on BPR is meta-trained as usual on the part of the window that is not judged. On the judged part rates are then frozen,
or after each batch they take a step of Adam by the gradient of the last batches' predictions through the steps of the
batches before: over one batch (a look-ahead as in the network form), over more, or over all (traces, which carry how
rows depend on the rates forward from where the window begins). Each is HR@5 + NDCG@10.
"""

from __future__ import annotations

import argparse
import os
import time
import tomllib
from copy import deepcopy
from itertools import pairwise

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from meta_training import CONFIGS, state_of

from accuracy import DATA
from melon.adam import Adam, Moments
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.selection import Selection
from melon.kernels import policy
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.loop import meta_training_candidates
from melon.learning.meta_training.record import record
from melon.learning.updater import Updater
from melon.strategies.melon.linear import MeLON
from melon.strategies.melon.rates import MOST_DECAY, LinearRates, Phi
from melon.strategies.stream_trained import LinearStrategy
from melon.stream.batch import Batch, batch_of
from melon.stream.split import DEFAULT_SPLIT, Parts, batches, split
from melon.types import Ints, Scores
from trials.traces import OnlineContinuationByTraces

#: Views: as many batches as a step is judged by.
ALL = "all"
_ADAM = Adam(0.9, 0.98, 1e-9)


class OnlineContinuation:
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
        candidates = meta_training_candidates(self._log.head(stop), self._live.seed, 99)
        recorded = record(again, [batch for batch, _ in self._between], candidates, 1)
        kernels = policy.load("meta_training")
        assert kernels is not None
        _, gradient = FactorMetaTraining(again.recommender, live, recorded, kernels).run(0)
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


def main(stream: str, asked: argparse.Namespace, seed: int = 0) -> None:
    torch.set_num_threads(1)
    config = tomllib.loads((CONFIGS / f"{stream}-bpr-default.toml").read_text(encoding="utf-8"))
    log = load_stream(DATA / f"{stream}.parquet")
    parts = split(log, tuple(config.get("split", DEFAULT_SPLIT)))
    if asked.earlier:
        parts = Parts(parts.window_start, parts.window_start, parts.window_start)
    plan = Plan("bpr", protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    name = f"bpr-{stream}-{seed}-{'earlier' if asked.earlier else 'window'}.safetensors"
    start = state_of(plan, selection.before_window, config["pretrain_settings"], name)
    updater = selection.at_window(MeLON, {"lr": config["settings"]["lr"]}, start)
    scores, seconds = [selection.judged(deepcopy(updater))], [0.0]
    for view, rate in asked.arms:
        began, live = time.process_time(), deepcopy(updater)
        arm: OnlineContinuation | OnlineContinuationByTraces
        if view == ALL:
            arm = OnlineContinuationByTraces(live, _coming(selection), selection.log, parts.judged_from, rate)
        else:
            arm = OnlineContinuation(live, selection.log, parts.judged_from, int(view), rate)
        scores.append(selection.judged(arm))
        seconds.append(time.process_time() - began)
        if isinstance(arm, OnlineContinuationByTraces):
            print(f"rows carried along are apart by {arm.apart():.1e}", flush=True)
    print(f"| {stream} | {' | '.join(f'{score:.4f}' for score in scores)} |", flush=True)
    print(f"| CPU s | {' | '.join(f'{each:.0f}' for each in seconds)} |", flush=True)


def _coming(selection: Selection) -> list[Batch]:
    """All batches of the window and of validation, as `Selection.through` cuts them."""
    parts, size = selection.parts, selection.protocol.batch_size
    bounds = pairwise((parts.window_start, parts.judged_from, parts.train_stop, parts.validation_stop))
    return [batch_of(selection.log, *each) for first, last in bounds for each in batches(first, last, size)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="+")
    parser.add_argument("--views", nargs="+", default=["1", "8", ALL], help="numbers of batches, or all")
    parser.add_argument("--rates", nargs="+", type=float, default=[0.003, 0.01], help="Adam's rates on φ")
    parser.add_argument("--earlier", action="store_true", help="on an earlier window")
    chosen = parser.parse_args()
    chosen.arms = [(view, rate) for view in chosen.views for rate in chosen.rates]
    print(f"| stream | frozen | {' | '.join(f'{view} batches, {rate:g}' for view, rate in chosen.arms)} |")
    print("|---" * (2 + len(chosen.arms)) + "|", flush=True)
    for each in chosen.streams:
        main(each, chosen, int(os.environ.get("SEED", "0")))
