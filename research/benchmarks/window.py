"""Settings and strategies on the selection window of a stream in $MELON_DATA; the test part is not read.

    python research/benchmarks/window.py yelp default:lr=0.3 melon:lr=0.3 melon:form=paper
    python research/benchmarks/window.py amazon_grocery --later --recommender ncf default:lr=1.0 melon:lr=1.0
    python research/benchmarks/window.py amazon_grocery --duel --recommender ncf melon default --seeds 3
    python research/benchmarks/window.py yelp --duel --recommender blend --configs research/configs/auto melon default --earlier

Each line is one configuration, scored by HR@5 + NDCG@10 on what settings are judged by (docs/evaluation.md): one
pre-trained recommender (L2 0.03, all epochs), which learned strategies meta-train on before they are judged.

--later: does what is chosen on the window hold later? The stream is cut off where its test part begins, and what is
left is taken for a whole stream of its own. For each configuration: the score on the window on the recommender from
before it and on one that was trained again before the judged part; then HR@5 and NDCG@10 on the last part, when the
recommender is trained again on everything before it (as `melon evaluate` does), and when the one from before the window
goes on instead (L2 0.1, 24 epochs).

--duel: two strategies with the settings in `research/configs/` (`paper/melon` means research/configs/paper), compared as claims are.
Each seed trains its own recommenders and draws its own candidates; what is compared are the events by which settings
are judged: paired, averaged over seeds, with 95 % intervals from resampling users and items. With --earlier this is
done on an earlier window: the same rule applied to the log before the selection window.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from accuracy import DATA, show_conclusions
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import LearningError
from melon.evaluation.compare import Sides, compare_mean
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.ranking import gains, hits, metrics
from melon.fitting.config import CellConfig, parse_assignments, read_config
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.learning.pretrain import most_epochs
from melon.learning.updater import Updater
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import Candidates
from melon.stream.split import DEFAULT_SPLIT, Parts, split
from melon.types import Plain

SPLITS = {"amazon_grocery": (0.8, 0.02, 0.18), "amazon_electronics": (0.9, 0.01, 0.09)}
#: Of a stream without its test part; yelp's own validation and test parts would be too short.
INNER = {"yelp": (0.85, 0.02, 0.13), "amazon_book": (0.85, 0.02, 0.13)}
USUAL_INNER = (0.8, 0.02, 0.18)
Measure = Callable[[str, Plain], list[str]]


def window(log: Interactions, stream: str, recommender: str, seed: int) -> tuple[Sequence[str], Measure]:
    """Scores on the window, and the seconds that they took."""
    parts = split(log, SPLITS.get(stream, DEFAULT_SPLIT))
    plan = Plan(recommender, protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    epochs = most_epochs(len(selection.before_window))
    start = refit(plan, selection.before_window, {"l2": 0.03, "epochs": epochs}, observed={})

    def measure(name: str, settings: Plain) -> list[str]:
        began = time.perf_counter()
        score = unless_broken(lambda: f"{selection.judged(selection.at_window(name, settings, start)):.4f}")
        return [score, f"{time.perf_counter() - began:.0f}"]

    return ("score", "s"), measure


def later(whole: Interactions, stream: str, recommender: str, seed: int) -> tuple[Sequence[str], Measure]:
    """The window of a stream without its test part, and what comes after that window."""
    log = whole.head(split(whole, SPLITS.get(stream, DEFAULT_SPLIT)).validation_stop)
    parts = split(log, INNER.get(stream, USUAL_INNER))
    plan = Plan(recommender, protocol=EvaluationProtocol(seed))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    early, between, late = (
        refit(plan, known, {"l2": 0.1, "epochs": 24})
        for known in (selection.before_window, selection.before_judged, log.head(parts.train_stop))
    )
    candidates = Candidates(log, mode="catalogue", seed=seed, count=99)

    def through(updater: Updater, first: int, last: int) -> Tally:
        tally = Tally()
        for point in prequential(updater, log, candidates, first, last):
            tally.add(point)
        return tally

    def on_window(name: str, settings: Plain, again: PretrainedState | None) -> str:
        return f"{selection.judged(selection.at_window(name, settings, early, again)):.4f}"

    def on_last_part(name: str, settings: Plain, start: PretrainedState) -> str:
        strategy = STRATEGIES[name].make(settings, seed=seed)
        meta_training = selection.train_meta_model(strategy, early, parts.train_stop)
        known = log.head(parts.train_stop) if start is late else selection.before_window
        updater = deploy(strategy, start, known, meta_training)
        through(updater, len(known), parts.train_stop)
        through(updater, parts.train_stop, parts.validation_stop)
        scores = metrics(through(updater, parts.validation_stop, len(log)).rank)
        return f"{scores['HR@5']:.4f} {scores['NDCG@10']:.4f}"

    def measure(name: str, settings: Plain) -> list[str]:
        return [
            unless_broken(lambda: on_window(name, settings, None)),
            unless_broken(lambda: on_window(name, settings, between)),
            unless_broken(lambda: on_last_part(name, settings, late)),
            unless_broken(lambda: on_last_part(name, settings, early)),
        ]

    return ("window", "trained again", "last part, trained again", "going on"), measure


def duel(log: Interactions, asked: argparse.Namespace) -> None:
    """Two tuned strategies on the judged part of the window, or of an earlier one."""
    names = asked.configurations
    tallies: dict[str, list[Tally]] = {name: [] for name in names}
    for seed in range(asked.seeds):
        states: dict[str, PretrainedState] = {}  # both strategies of a seed start from the same recommenders
        for name in names:
            folder, _, strategy = name.rpartition("/")
            options = read_config(asked.configs / folder / f"{asked.stream}-{asked.recommender}-{strategy}.toml")
            tally = _judged(log, CellConfig(**{**options, "seed": seed}), states, earlier=asked.earlier)
            tallies[name].append(tally)
            level = metrics(tally.rank)
            print(f"seed {seed}, {name}: HR@5 {level['HR@5']:.4f}, NDCG@10 {level['NDCG@10']:.4f}", flush=True)
    events = tallies[names[0]][0].events
    family = {}
    for metric, value in (("HR@5", hits), ("NDCG@10", gains)):
        sides = [[value(np.asarray(tally.rank)) for tally in tallies[name]] for name in names]
        family[metric] = compare_mean([Sides(sides[0], sides[1], log.users[events], log.items[events])])
    where = "earlier window" if asked.earlier else "window"
    show_conclusions(f"{asked.stream}, {where}, {asked.recommender}: {' − '.join(names)}", {asked.stream: family})


def _judged(log: Interactions, config: CellConfig, states: dict[str, PretrainedState], *, earlier: bool) -> Tally:
    """Every event by which settings are judged, under one strategy."""
    parts, plan = split(log, config.split), config.plan
    if earlier:
        parts = Parts(parts.window_start, parts.window_start, parts.window_start)
    selection = Selection(log.head(parts.validation_stop), parts, plan)

    def trained(known: Interactions) -> PretrainedState:
        name = f"{len(known)} {plan.pretrain_settings} {plan.recommender_settings}"
        if name not in states:
            states[name] = refit(plan, known, plan.pretrain_settings, observed={})
        return states[name]

    again = trained(selection.before_judged) if selection.judges_again else None
    updater = selection.at_window(config.strategy, config.fixed, trained(selection.before_window), again)
    tally = Tally()
    for point in selection.through(updater):
        if point.start >= parts.judged_from:
            tally.add(point)
    return tally


def unless_broken(measured: Callable[[], str]) -> str:
    """What is measured, or where the model left the finite numbers."""
    try:
        return measured()
    except LearningError as problem:
        return f"broke: {problem}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("configurations", nargs="+", help="STRATEGY or STRATEGY:NAME=VALUE,…; with --duel two names")
    parser.add_argument("--later", action="store_true")
    parser.add_argument("--duel", action="store_true")
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3, help="of --duel")
    parser.add_argument("--earlier", action="store_true", help="of --duel")
    parser.add_argument("--configs", type=Path, default=Path(__file__).parents[1] / "configs", help="of --duel")
    asked = parser.parse_args()
    use_threads(1)
    log = load_stream(DATA / f"{asked.stream}.parquet")
    if asked.duel:
        duel(log, asked)
        return
    columns, measure = (later if asked.later else window)(log, asked.stream, asked.recommender, asked.seed)
    print(f"| {asked.stream}, {asked.recommender}, seed {asked.seed} | {' | '.join(columns)} |")
    print("|---" * (1 + len(columns)) + "|", flush=True)
    for text in asked.configurations:
        name, _, assigned = text.partition(":")
        # A comma within a value is followed by no `name=`.
        settings = parse_assignments([one for one in re.split(r",(?=\w+=)", assigned) if one])["strategy"]
        print(f"| {name} {assigned or 'as it is'} | {' | '.join(measure(name, settings))} |", flush=True)


if __name__ == "__main__":
    main()
