"""Learned rates of the blend's rows, meta-trained with the head in the loss; windows only, test parts are not read.

    python research/benchmarks/head_practice.py yelp --configs research/configs/auto --seeds 2
    python research/benchmarks/head_practice.py yelp --configs research/configs/blend --earlier --arms default head:practice_l2=0.01

Arms: `default` takes plain steps; `melon` is meta-trained rates by what rows say alone, as the product does; `head` is meta-trained
them by the softmax of the head's scores. That head has meta-trained beside plain steps and stays as it is while rates
meta-train; `head2` goes on from there: a head that meta-trained beside those rates, then rates anew, from the plain step.
Last, in every arm, the head that is judged is meta-trained beside the arm's own steps and goes on learning online.

What the head sees besides dot product and bias comes from streaming state, which no rate moves. So it is recorded once,
and the gradient through the head is exact while the head stays as it is.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import namedtuple
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from trials.kernels import compiled

from accuracy import DATA, show_conclusions
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.compare import Sides, compare_mean
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import gains, hits, metrics
from melon.fitting.config import CellConfig, parse_assignments, read_config
from melon.fitting.pretrained import MetaTraining, PretrainedState, refit
from melon.fitting.selection import Selection
from melon.kernels.meta_training import backward, forms, forward
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.loop import meta_train, meta_training_candidates
from melon.learning.meta_training.record import RecordedStream, record
from melon.learning.updater import Updater
from melon.models.base import Context
from melon.models.blend.features import INPUTS
from melon.models.blend.recommender import Blend
from melon.strategies.base import Strategy
from melon.strategies.stream_trained import LinearStrategy
from melon.stream.batch import Batch, batch_of
from melon.stream.candidates import Candidates
from melon.stream.split import Parts, batches, split
from melon.types import Singles
from trials import head_loops

#: Inputs that are made of rows.
OF_ROWS = [INPUTS.index(name) for name in ("dot", "active_dot", "bias")]
#: A meta-training stream with the head beside it (`head_loops`).
HeadStream = namedtuple("HeadStream", (*forms.MetaTrainingStream._fields, "lines", "active", "weights", "output"))
CANDIDATES = int(os.environ.get("CANDIDATES", "99"))


class Window:
    """The meta-training stream of a window: its batches, what rates see of them, and what the head sees."""

    def __init__(self, selection: Selection, start: PretrainedState) -> None:
        self.selection, self.start = selection, start
        self._inputs: Singles | None = None
        self._active: Singles | None = None

    def meta_train(self, strategy: LinearStrategy, head: MetaTraining, kernels: ModuleType) -> MetaTraining:
        """Rates from the plain step, by a softmax through a head that has meta-trained."""
        updater = self._before(strategy)
        if self._inputs is None or self._active is None:
            self._inputs, self._active = self._seen_by_head(deepcopy(updater))
        recorded, recommender = record(updater, self._coming(), self._candidates(), 2), updater.recommender
        assert isinstance(recommender, Blend)
        updater.take_over(head)
        meta_training = HeadTraining(recommender, strategy, recorded, kernels, self._inputs, self._active)
        losses = meta_train(strategy, meta_training.run).losses
        print(f"  loss of meta-training {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        return updater.meta_training()

    def head_beside(self, strategy: Strategy, meta_training: MetaTraining) -> MetaTraining:
        """What the head learns beside a strategy's steps."""
        parts = self.selection.parts
        return self.selection._meta_training.of_head(strategy, self.start, parts.judged_from, meta_training)

    def _before(self, strategy: Strategy) -> Updater:
        return self.selection._meta_training._before_window(strategy, self.start, {})

    def _coming(self) -> list[Batch]:
        selection = self.selection
        log, size = selection.log.head(selection.parts.judged_from), selection.protocol.batch_size
        return [batch_of(log, *bounds) for bounds in batches(selection.parts.window_start, len(log), size)]

    def _candidates(self) -> Candidates:
        log = self.selection.log.head(self.selection.parts.judged_from)
        return meta_training_candidates(log, self.selection.protocol.seed, CANDIDATES)

    def _seen_by_head(self, updater: Updater) -> tuple[Singles, Singles]:
        """What the head sees of every candidate, 0 in place of what rows say, and how active users are."""
        seen, active, candidates = [], [], self._candidates()
        recommender = updater.recommender
        assert isinstance(recommender, Blend)
        for batch in self._coming():
            items = candidates.draw(batch.first_event, batch.first_event + len(batch)).items
            now = int(batch.times[0])
            context = Context(time=now, history=updater.history, moment=updater.moment(now))
            lines = torch.from_numpy(items)
            allowed = torch.ones_like(lines, dtype=torch.bool)
            seen.append(
                recommender.head_examples(torch.from_numpy(batch.users), lines, allowed, context).inputs.numpy()
            )
            active.append(np.log1p(updater.history.of_users.met(batch.users)) / 4 - 1)
            updater.learn(batch, teach_head=False)
        inputs: Singles = np.concatenate(seen)
        inputs[..., OF_ROWS] = 0
        return inputs, np.concatenate(active).astype(np.float32)


class HeadTraining(FactorMetaTraining):
    """Passes whose predictions go through the head as it is."""

    def __init__(
        self,
        recommender: Blend,
        strategy: LinearStrategy,
        recorded: RecordedStream,
        kernels: ModuleType,
        inputs: Singles,
        active: Singles,
    ) -> None:
        super().__init__(recommender, strategy, recorded, kernels)
        head, dtype = recommender.head, self._start.users.dtype
        _, (linear, hidden, shift, output) = head.folded(recommender.head_values(None))
        both = np.concatenate([linear, hidden])
        weights = both[:, OF_ROWS].T.copy()
        weights[[0, 2], 0] += 1.0
        lines = inputs @ both.T + np.append(np.zeros(1, dtype), shift[:, 0])
        parts = (np.ascontiguousarray(part, dtype) for part in (lines, active, weights, output[0]))
        lines, active, weights, output = parts
        self._replays = [HeadStream(*replay, lines, active, weights, output) for replay in self._replays]


def judged(window: Window, strategy: Strategy, meta_training: MetaTraining) -> Tally:
    """Every judged event, with a head that meta-trained beside the strategy's own steps (`Selection.at_window`)."""
    selection = window.selection
    updater, head_batches = selection._meta_training.recorded(
        strategy, window.start, selection.parts.judged_from, meta_training
    )
    updater.take_over(updater.train_head(head_batches))
    for head_examples in head_batches:
        updater.teach_head(head_examples)
    tally = Tally()
    for point in selection.through(updater):
        tally.add(point)
    return tally


def run(log: Interactions, configs: dict[str, CellConfig], arms: list[str], kernels: ModuleType, earlier: bool) -> dict:
    """Tallies of the arms for one seed."""
    config = configs["default"]
    parts, plan = split(log, config.split), config.plan
    if earlier:
        parts = Parts(parts.window_start, parts.window_start, parts.window_start)
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    start = refit(plan, selection.before_window, plan.pretrain_settings, observed={})
    window, tallies = Window(selection, start), {}
    for arm in arms:
        began, (kind, _, assigned) = time.process_time(), arm.partition(":")
        name = "default" if kind == "default" else "melon"
        given = parse_assignments([one for one in assigned.split(",") if one])["strategy"]
        make = partial(plan.make_strategy, {**configs[name].fixed, **given}, name)
        meta_training: MetaTraining = {}
        if kind == "melon":
            meta_training = selection._meta_training.of_strategy(make(), start, parts.judged_from)
        elif kind.startswith("head"):
            for number in range(int(kind[4:] or 1)):
                beside = make() if number else plan.make_strategy(configs["default"].fixed, "default")
                meta_training = window.meta_train(make(), window.head_beside(beside, meta_training), kernels)
        tallies[arm] = judged(window, make(), meta_training)
        level = metrics(tallies[arm].rank)
        took = time.process_time() - began
        print(f"{arm}: HR@5 {level['HR@5']:.4f}, NDCG@10 {level['NDCG@10']:.4f}, {took:.0f} CPU s", flush=True)
    return tallies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("--configs", type=Path, default=Path(__file__).parents[1] / "configs" / "blend")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--earlier", action="store_true")
    parser.add_argument("--arms", nargs="+", default=["default", "melon", "head"])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    log = load_stream(DATA / f"{asked.stream}.parquet")
    kernels = compiled("meta-training through a head", (forms, forward, backward, head_loops), ("forward", "backward"))
    found = []
    for seed in range(asked.seeds):
        print(f"seed {seed}", flush=True)
        configs = {
            name: CellConfig(**{**read_config(asked.configs / f"{asked.stream}-blend-{name}.toml"), "seed": seed})
            for name in ("default", "melon")
        }
        found.append(run(log, configs, asked.arms, kernels, asked.earlier))
    events = found[0][asked.arms[0]].events
    for one, other in [(one, other) for k, one in enumerate(asked.arms) for other in asked.arms[:k]]:
        family = {}
        for metric, value in (("HR@5", hits), ("NDCG@10", gains)):
            sides = [[value(np.asarray(tallies[arm].rank)) for tallies in found] for arm in (one, other)]
            family[metric] = compare_mean([Sides(sides[0], sides[1], log.users[events], log.items[events])])
        where = "earlier window" if asked.earlier else "window"
        show_conclusions(f"{asked.stream}, {where}, {asked.configs.name}: {one} − {other}", {asked.stream: family})


if __name__ == "__main__":
    main()
