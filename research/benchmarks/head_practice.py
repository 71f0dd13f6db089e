"""Learned rates of the blend's rows, practised with the head in the loss; windows only, test parts are not read.

    python research/benchmarks/head_practice.py yelp --configs research/configs/auto --seeds 2
    python research/benchmarks/head_practice.py yelp --configs research/configs/blend --earlier --arms default head:practice_l2=0.01

Arms: `default` takes plain steps; `melon` practises rates by what rows say alone, as the product does; `head` practises
them by the softmax of the head's scores. That head has practised beside plain steps and stays as it is while rates
practise; `head2` goes on from there: a head that practised beside those rates, then rates anew, from the plain step.
Last, in every arm, the head that is judged practises beside the arm's own steps and goes on learning online.

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

from accuracy import DATA, show_conclusions
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.compare import Sides, compare_mean
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import gains, hits, metrics
from melon.fitting.config import CellConfig, parse_assignments, read_config
from melon.fitting.pretrained import Practice, PretrainedState, refit
from melon.fitting.selection import Selection
from melon.kernels.practice import backward, forms, forward
from melon.learning.practice.factor import FactorPractice
from melon.learning.practice.loop import practice_candidates, practise
from melon.learning.practice.record import RecordedStream, record
from melon.learning.updater import Updater
from melon.recommenders.base import Context
from melon.recommenders.blend.features import INPUTS
from melon.recommenders.blend.recommender import Blend
from melon.strategies.base import Strategy
from melon.strategies.practised import LinearStrategy
from melon.stream.batch import Batch, batch_of
from melon.stream.candidates import Candidates
from melon.stream.split import Parts, batches, split
from melon.types import Singles
from trials import head_loops
from trials.loops import compiled

#: Inputs that are made of rows.
OF_ROWS = [INPUTS.index(name) for name in ("dot", "active_dot", "bias")]
#: A practice stream with the head beside it (`head_loops`).
HeadStream = namedtuple("HeadStream", (*forms.PracticeStream._fields, "lines", "active", "weights", "output"))
CANDIDATES = int(os.environ.get("CANDIDATES", "99"))


class Window:
    """The practice stream of a window: its batches, what rates see of them, and what the head sees."""

    def __init__(self, selection: Selection, start: PretrainedState) -> None:
        self.selection, self.start = selection, start
        self._inputs: Singles | None = None
        self._active: Singles | None = None

    def practise(self, strategy: LinearStrategy, head: Practice, loops: ModuleType) -> Practice:
        """Rates from the plain step, by a softmax through a head that has practised."""
        updater = self._before(strategy)
        if self._inputs is None or self._active is None:
            self._inputs, self._active = self._seen_by_head(deepcopy(updater))
        recorded, recommender = record(updater, self._coming(), self._candidates(), 2), updater.recommender
        assert isinstance(recommender, Blend)
        updater.take_over(head)
        practice = HeadPractice(recommender, strategy, recorded, loops, self._inputs, self._active)
        losses = practise(strategy, practice.run).losses
        print(f"  loss of practice {losses[0]:.4f} to {losses[-1]:.4f}", flush=True)
        return updater.practice()

    def head_beside(self, strategy: Strategy, practice: Practice) -> Practice:
        """What the head learns beside a strategy's steps."""
        parts = self.selection.parts
        return self.selection._practice.of_head(strategy, self.start, parts.judged_from, practice)

    def _before(self, strategy: Strategy) -> Updater:
        return self.selection._practice._before_window(strategy, self.start, {})

    def _coming(self) -> list[Batch]:
        selection = self.selection
        log, size = selection.log.head(selection.parts.judged_from), selection.protocol.batch_size
        return [batch_of(log, *bounds) for bounds in batches(selection.parts.window_start, len(log), size)]

    def _candidates(self) -> Candidates:
        log = self.selection.log.head(self.selection.parts.judged_from)
        return practice_candidates(log, self.selection.protocol.seed, CANDIDATES)

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
            seen.append(recommender.lesson(torch.from_numpy(batch.users), lines, allowed, context).inputs.numpy())
            active.append(np.log1p(updater.history.of_users.met(batch.users)) / 4 - 1)
            updater.learn(batch, teach_head=False)
        inputs: Singles = np.concatenate(seen)
        inputs[..., OF_ROWS] = 0
        return inputs, np.concatenate(active).astype(np.float32)


class HeadPractice(FactorPractice):
    """Passes whose predictions go through the head as it is."""

    def __init__(
        self,
        recommender: Blend,
        strategy: LinearStrategy,
        recorded: RecordedStream,
        loops: ModuleType,
        inputs: Singles,
        active: Singles,
    ) -> None:
        super().__init__(recommender, strategy, recorded, loops)
        head, dtype = recommender.head, self._start.users.dtype
        _, (linear, hidden, shift, output) = head.folded(recommender.head_values(None))
        both = np.concatenate([linear, hidden])
        weights = both[:, OF_ROWS].T.copy()
        weights[[0, 2], 0] += 1.0
        lines = inputs @ both.T + np.append(np.zeros(1, dtype), shift[:, 0])
        parts = (np.ascontiguousarray(part, dtype) for part in (lines, active, weights, output[0]))
        lines, active, weights, output = parts
        self._courses = [HeadStream(*course, lines, active, weights, output) for course in self._courses]


def judged(window: Window, strategy: Strategy, practice: Practice) -> Tally:
    """Every judged event, with a head that practised beside the strategy's own steps (`Selection.at_window`)."""
    selection = window.selection
    updater, lessons = selection._practice.recorded(strategy, window.start, selection.parts.judged_from, practice)
    updater.take_over(updater.practise_head(lessons))
    for lesson in lessons:
        updater.teach_head(lesson)
    tally = Tally()
    for point in selection.through(updater):
        tally.add(point)
    return tally


def run(log: Interactions, configs: dict[str, CellConfig], arms: list[str], loops: ModuleType, earlier: bool) -> dict:
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
        practice: Practice = {}
        if kind == "melon":
            practice = selection._practice.of_strategy(make(), start, parts.judged_from)
        elif kind.startswith("head"):
            for number in range(int(kind[4:] or 1)):
                beside = make() if number else plan.make_strategy(configs["default"].fixed, "default")
                practice = window.practise(make(), window.head_beside(beside, practice), loops)
        tallies[arm] = judged(window, make(), practice)
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
    loops = compiled("practice through a head", (forms, forward, backward, head_loops), ("forward", "backward"))
    found = []
    for seed in range(asked.seeds):
        print(f"seed {seed}", flush=True)
        configs = {
            name: CellConfig(**{**read_config(asked.configs / f"{asked.stream}-blend-{name}.toml"), "seed": seed})
            for name in ("default", "melon")
        }
        found.append(run(log, configs, asked.arms, loops, asked.earlier))
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
