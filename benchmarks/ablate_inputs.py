"""What each input of the blend's head brings, on the selection window and on an earlier one; no test part is read.

    python benchmarks/ablate_inputs.py A amazon_grocery yelp     # the selection window
    python benchmarks/ablate_inputs.py E amazon_grocery yelp     # the same rule applied to the log before that window
    python benchmarks/ablate_inputs.py --seed 1 A yelp

The rows stream through the window once with every input on (L2 .03, rate .3, no fading); each arm is a head of its own
that practises and learns on the same lessons, some inputs left out. Differences are paired with the head that has
everything: negative means that the input pays. ± is one standard error over interactions.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

from blend import DATA, SPLITS
from melon.data.files import load_stream
from melon.evaluation.ranking import metrics, rank_first
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, refit
from melon.fitting.selection import Selection
from melon.learning.pretrain import most_epochs
from melon.learning.updater import Updater
from melon.recommenders.base import Context
from melon.recommenders.blend.head import HIDDEN, TABLES, BlendHead
from melon.recommenders.blend.inputs import Named
from melon.recommenders.blend.recommender import Blend
from melon.recommenders.heads import Lesson
from melon.stream.batch import Batch
from melon.stream.split import DEFAULT_SPLIT, Parts, split
from melon.types import Floats, Ints, Scores

EVERYTHING = {"inputs": ["profiles", "tastes"], "transitions": True}
#: What is left out in each arm: names of inputs, or how they begin.
ARMS = {
    "everything": (),
    "transitions": ("transitions", "transitions_recent"),
    "transitions_recent": ("transitions_recent",),
    "profiles": ("takers", "profile", "profile_takers"),
    "takers": ("takers",),
    "profile": ("profile",),
    "profile_takers": ("profile_takers",),
    "tastes": ("taste_*", "suits_*", "days", "events", "known"),
    "taste_*": ("taste_*",),
    "suits_*": ("suits_*",),
    "taste_* and suits_*": ("taste_*", "suits_*"),
    "counts of tastes": ("taste_count*", "suits_count*"),
    "idle of tastes": ("taste_idle", "suits_idle"),
    "age of tastes": ("taste_age", "suits_age"),
    "days": ("days",),
    "events": ("events",),
    "known": ("known",),
    "days, events, known": ("days", "events", "known"),
    "profiles, tastes": ("takers", "profile", "profile_takers", "taste_*", "suits_*", "days", "events", "known"),
    "all of these": (
        "transitions", "transitions_recent", "takers", "profile", "profile_takers", "taste_*", "suits_*", "days",
        "events", "known",
    ),
}  # fmt: skip


def left_out(inputs: tuple[str, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of inputs by name, or by how their names begin."""

    def meant(each: str) -> bool:
        return any(each == name or (name[-1] == "*" and each.startswith(name[:-1])) for name in names)

    return tuple(number for number, each in enumerate(inputs) if meant(each))


class Arm:
    """One head beside rows that all arms share, which learns online from `lessons` after it has practised.

    It practises on these, or on `practice`, from first weights that all arms share, or from its own of the `hidden`
    layer.
    """

    def __init__(
        self,
        blend: Blend,
        without: tuple[str, ...],
        lessons: list[Lesson],
        practice: list[Lesson] | None = None,
        hidden: Tensor | None = None,
    ) -> None:
        settings = replace(blend.head.settings, left_out=left_out(blend.inputs, without))
        self._head = BlendHead(len(blend.inputs), settings, blend.dtype, blend.device)
        self._values = {name: blend.tables[name].everything().clone() for name in TABLES}
        if hidden is not None:
            self._values[HIDDEN] = hidden
        self._values = self._head.take_over(self._head.practise(self._values, practice or lessons))
        self.ranks: list[Floats] = []
        for lesson in lessons:
            self.learn(lesson)

    def scores(self, inputs: Tensor) -> Scores:
        scores: Scores = (self._head.personal(inputs) + self._head(self._values, inputs)).numpy()
        return scores

    def learn(self, lesson: Lesson) -> None:
        step = self._head.step(self._values, lesson)
        self._values = step.values
        self._head.keep(step.memory)


class SideBySide:
    """All arms as one predictor; the scores that it gives are those of the first."""

    def __init__(self, updater: Updater, arms: list[Arm]) -> None:
        self._updater, self._arms, self.moved = updater, arms, 0.0

    def score(self, users: Ints, items: Ints, time: int) -> Scores:
        blend, moment = self._updater.recommender, self._updater.moment(time)
        assert isinstance(blend, Blend)
        context = Context(time=time, history=self._updater.history, moment=moment)
        inputs = blend._stored_inputs(torch.from_numpy(np.ascontiguousarray(users)), Named.of(items), context)
        self.given = [arm.scores(inputs) for arm in self._arms]
        return self.given[0]

    def learn(self, batch: Batch) -> float:
        lesson = self._updater.lesson(batch)
        if lesson is not None:
            for arm in self._arms:
                arm.learn(lesson)
        return self._updater.learn(batch, teach_head=False)


def main() -> None:
    """Run the benchmark."""
    torch.set_num_threads(1)
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("window", choices=["A", "E"])
    words.add_argument("streams", nargs="*", default=["amazon_grocery", "amazon_electronics", "yelp", "amazon_book"])
    words.add_argument("--arms", default=";".join(ARMS))
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    for name in asked.streams:
        log, began = load_stream(DATA / f"{name}.parquet"), time.process_time()
        parts = split(log, SPLITS.get(name, DEFAULT_SPLIT))
        if asked.window == "E":
            parts = Parts(parts.window_start, parts.window_start, parts.window_start)
        log = log.head(parts.validation_stop)
        plan = Plan("blend", recommender_settings=EVERYTHING, protocol=EvaluationProtocol(seed=asked.seed))
        selection = Selection(log, parts, plan)
        epochs = most_epochs(len(selection.before_window))
        start: PretrainedState = refit(plan, selection.before_window, {"l2": 0.03, "epochs": epochs})
        learner = plan.make_strategy({"lr": 0.3}, "default")
        with torch.no_grad():
            updater, lessons = selection._practice.recorded(learner, start, parts.judged_from, {})
            blend = updater.recommender
            assert isinstance(blend, Blend)
            arms = {arm: Arm(blend, ARMS[arm], list(lessons)) for arm in asked.arms.split(";")}
            both = SideBySide(updater, list(arms.values()))
            for first, last in ((parts.judged_from, parts.train_stop), (parts.train_stop, parts.validation_stop)):
                for point in selection._points(both, first, last):  # type: ignore[arg-type]
                    for arm, scores in zip(arms.values(), both.given, strict=True):
                        arm.ranks.append(rank_first(scores[point.usable], "a batch").rank)
        ranks = {arm: np.concatenate(held.ranks) for arm, held in arms.items()}
        whole = ranks["everything"]
        print(
            f"{name} {asked.window}{asked.seed}: {len(whole):,} interactions, {time.process_time() - began:.0f} s CPU"
        )
        for arm, held in ranks.items():
            measured, moved = metrics(held), (held <= 5).astype(float) - (whole <= 5)
            gain = measured["NDCG@10"] - metrics(whole)["NDCG@10"]
            print(
                f"  {'without ' if ARMS[arm] else ''}{arm:24} HR@5 {measured['HR@5']:.4f} NDCG@10 "
                f"{measured['NDCG@10']:.4f}, ΔHR@5 {moved.mean():+.4f} ± {moved.std() / len(moved) ** 0.5:.4f}, "
                f"ΔNDCG@10 {gain:+.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
