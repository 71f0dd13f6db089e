"""Does what is chosen on the selection window hold later?

A stream in $MELON_DATA is cut off where its test part begins, and what is left is taken for a whole stream of its own,
with a window, a validation part and a last part.

    python benchmarks/transfer.py amazon_grocery default:lr=1.0 melon:most_rate=2,meta_lr=0.01

For each configuration: the score on the window (HR@5 + NDCG@10 of what is judged) on the recommender from before it and
on one that was trained again before the judged part; then HR@5 and NDCG@10 on the last part, when the recommender is
trained again on everything before it (as `melon evaluate` does), and when the one from before the window goes on
instead. RECOMMENDER and SEED (ncf and 0) choose another recommender and seed; L2 and EPOCHS (0.1 and 24) are its
pre-training.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from accuracy import DATA
from melon.bench.config import parse_assignments
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.ranking import metrics
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.learning.updater import Updater
from melon.strategies.base import Strategy
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import Candidates
from melon.stream.split import Parts, split
from window import SPLITS

#: Of what is left; yelp's own validation and test parts would be too short.
INNER = {"yelp": (0.85, 0.02, 0.13), "amazon_book": (0.85, 0.02, 0.13)}
USUAL = (0.8, 0.02, 0.18)


class Transfer:
    """A cut-off stream with a recommender trained on what precedes its window, and one trained up to its last part."""

    def __init__(self, log: Interactions, parts: Parts, plan: Plan) -> None:
        self.log, self.parts, self.seed = log, parts, plan.seed
        self.selection = Selection(log.head(parts.validation_stop), parts, plan)
        self.early = refit(plan, self.selection.before_window, dict(plan.pretrain_settings))
        self.between = refit(plan, self.selection.before_judged, dict(plan.pretrain_settings))
        self.late = refit(plan, log.head(parts.train_stop), dict(plan.pretrain_settings))
        self.candidates = Candidates(log, mode="catalogue", seed=plan.seed, count=99)

    def window(self, name: str, settings: dict[str, object], again: PretrainedState | None = None) -> str:
        """The score by which settings are chosen: without shared weights, and with a recommender trained `again`."""
        updater = self.selection.at_window(name, settings, self.early, again)
        return f"{self.selection.judged(updater):.4f}"

    def later(self, name: str, settings: dict[str, object], start: PretrainedState) -> str:
        """HR@5 and NDCG@10 of the last part, after practice on the whole window."""
        strategy: Strategy = STRATEGIES[name].load()(settings, seed=self.seed)
        practice = self.selection.train_meta_model(strategy, self.early, self.parts.train_stop)
        again = start is self.late
        known = self.log.head(self.parts.train_stop) if again else self.selection.before_window
        updater = deploy(strategy, start, known, practice)
        self._through(updater, len(known), self.parts.train_stop)
        self._through(updater, self.parts.train_stop, self.parts.validation_stop)
        found = metrics(self._through(updater, self.parts.validation_stop, len(self.log)).rank)
        return f"{found['HR@5']:.4f} {found['NDCG@10']:.4f}"

    def _through(self, updater: Updater, first: int, last: int) -> Tally:
        tally = Tally()
        for point in prequential(updater, self.log, self.candidates, first, last):
            tally.add(point)
        return tally


def main(stream: str, configurations: list[str]) -> None:
    torch.set_num_threads(1)
    recommender, seed = os.environ.get("RECOMMENDER", "ncf"), int(os.environ.get("SEED", "0"))
    pretrain = {"l2": float(os.environ.get("L2", "0.1")), "epochs": int(os.environ.get("EPOCHS", "24"))}
    whole = load_stream(DATA / f"{stream}.parquet")
    log = whole.head(split(whole, SPLITS.get(stream, (0.95, 0.005, 0.045))).validation_stop)
    plan = Plan(recommender, pretrain_settings=pretrain, protocol=EvaluationProtocol(seed))
    transfer = Transfer(log, split(log, INNER.get(stream, USUAL)), plan)
    print(
        f"| {stream}, {recommender}, seed {seed} | window | trained again | last part, trained again | going on |"
        "\n|---|---|---|---|---|",
        flush=True,
    )
    for text in configurations:
        name, _, assigned = text.partition(":")
        settings = parse_assignments([each for each in re.split(r",(?=\w+=)", assigned) if each])["strategy"]
        cells = [
            unless_broken(transfer.window, name, settings),
            unless_broken(transfer.window, name, settings, transfer.between),
            unless_broken(transfer.later, name, settings, transfer.late),
            unless_broken(transfer.later, name, settings, transfer.early),
        ]
        print(f"| {name} {assigned or 'as it is'} | {' | '.join(cells)} |", flush=True)


def unless_broken(measure: Callable[..., str], *told: object) -> str:
    """What is measured, or where the model left the finite numbers."""
    try:
        return measure(*told)
    except LearningError as problem:
        return f"broke: {problem}"


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
