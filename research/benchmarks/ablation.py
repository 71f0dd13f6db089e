"""What each part of `auto` contributes: the blend without it, everything else as `auto` has it, on test parts.

    python research/benchmarks/auto.py --seeds 3 --baselines none         # first: which settings auto chose
    python research/benchmarks/ablation.py --seeds 3

Pre-training and the update are set as `auto` chose them on the selection window of the same stream and seed (read from
its records); nothing is chosen here. Ranks are kept under --out, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from melon.kernels.threads import use_threads
from melon.types import Plain

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import polars as pl

from accuracy import DATA, STREAMS
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.compare import Sides, compare_mean
from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.ranking import gains, hits
from melon.fitting.auto import SETTINGS
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.strategies.default import Default
from melon.stream.candidates import Candidates
from melon.stream.split import split


@dataclass(frozen=True)
class Variant:
    """What is told otherwise than `auto` has it."""

    recommender: Mapping[str, Any] = field(default_factory=dict)
    update: Mapping[str, Any] = field(default_factory=dict)
    pretrain: Mapping[str, Any] = field(default_factory=dict)


VARIANTS = {
    "auto": Variant(),
    "without profiles": Variant({"inputs": ("preferences",)}),
    "without preferences": Variant({"inputs": ("profiles",)}),
    "without transitions": Variant({"transitions": False}),
    "without the personal score": Variant({"without": ("personal",)}),
    "without popularity": Variant({"without": ("popularity",)}),
    "without neighbours": Variant({"without": ("neighbours",)}),
    "without activity": Variant({"without": ("activity",)}),
    "head: linear": Variant({"head_units": 0}),
    "head: does not learn online": Variant({"head_lr": 0.0}),
    "head: no meta-training": Variant({"head_passes": 0}),
    "rows: not updated": Variant(update={"lr": 1e-12}),
    "rows: no time decay": Variant(update={"half_life": None}),
    "rows: one negative": Variant({"negatives": 1}),
    "rows: no L2": Variant(pretrain={"l2": 0.0}),
}


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--auto", type=Path, default=Path("runs/auto/catalogue/auto-further-inputs"))
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    asked = parser.parse_args()
    use_threads(1)
    names, found = asked.streams.split(","), {}
    for name in names:
        records = [asked.auto / f"{name}-blend-{seed}-default.json" for seed in range(asked.seeds)]
        missing = next((path for path in records if not path.exists()), None)
        if missing:
            sys.exit(f"no {missing}: run research/benchmarks/auto.py first, or say with --auto where its records are.")
        found[name] = [ranks(name, json.loads(path.read_text()), asked.out) for path in records]
    print(f"\n`python research/benchmarks/ablation.py {' '.join(sys.argv[1:])}`")
    show(found)


def ranks(name: str, record: Plain, out: Path) -> dict[str, pl.DataFrame]:
    """The rank of every event under each variant, for one seed."""
    bench, made = None, {}
    for label, variant in VARIANTS.items():
        kept = out / f"{name}-{record['seed']}-{label.replace(': ', '-').replace(' ', '-')}.parquet"
        if not kept.exists():
            bench = bench or Bench(load_stream(DATA / f"{name}.parquet"), record)
            kept.parent.mkdir(parents=True, exist_ok=True)
            bench.run(variant).write_parquet(kept)
            print(f"{name}, seed {record['seed']}: {label}", file=sys.stderr, flush=True)
        made[label] = pl.read_parquet(kept)
    return made


class Bench:
    """One stream and seed: trained rows are shared by the variants that train them alike."""

    def __init__(self, log: Interactions, record: Plain) -> None:
        chosen, told = record["config"]["chosen"], record["protocol"]
        self._log, self._seed = log, record["seed"]
        self._pretrain, self._update = chosen["pretrain"]["settings"], chosen["default"]["settings"]
        self._parts = split(log, tuple(record["dataset"]["split"]))
        protocol = EvaluationProtocol(self._seed, told["batch_size"], told["candidates"], told["negatives"])
        self._plan = Plan("blend", recommender_settings=SETTINGS, protocol=protocol)
        self._selection = Selection(log.head(self._parts.validation_stop), self._parts, self._plan)
        self._candidates = Candidates(log, mode=told["candidates"], seed=self._seed, count=told["negatives"])
        self._rows: dict[str, tuple[PretrainedState, PretrainedState]] = {}

    def run(self, variant: Variant) -> pl.DataFrame:
        """Meta-train on the window, then stream through validation into test."""
        before, whole = self._trained(variant)
        strategy = Default({**self._update, **variant.update}, seed=self._seed)
        pretraining = {**self._pretrain, **variant.pretrain}
        meta_training = self._selection.train_meta_model(strategy, before, self._parts.train_stop, pretraining)
        past = self._log.head(self._parts.train_stop)
        updater, tally = deploy(strategy, whole, past, meta_training), Tally()
        for point in self._points(updater):
            if point.start >= self._parts.validation_stop:
                tally.add(point)
        events = tally.events
        return pl.DataFrame(
            {"user": self._log.users[events], "item": self._log.items[events], "rank": tally.rank, "event": events}
        )

    def _points(self, updater: Any) -> Iterator[Any]:
        parts = self._parts
        for first, last in ((parts.train_stop, parts.validation_stop), (parts.validation_stop, parts.stop)):
            yield from prequential(updater, self._log, self._candidates, first, last)

    def _trained(self, variant: Variant) -> tuple[PretrainedState, PretrainedState]:
        """Rows trained on what precedes the window, and on the whole training part."""
        plan = replace(self._plan, recommender_settings={**SETTINGS, **variant.recommender})
        key = str((variant.recommender.get("negatives"), variant.pretrain))
        if key not in self._rows:
            settings = {**self._pretrain, **variant.pretrain}
            logs = self._selection.before_window, self._log.head(self._parts.train_stop)
            one, other = (refit(plan, log, settings) for log in logs)
            self._rows[key] = one, other
        fresh = {name: table.state() for name, table in plan.build().tables.items()}
        rows = ({n: t for n, t in state.tables.items() if not n.startswith("head_")} for state in self._rows[key])
        one, other = (PretrainedState(plan, {**fresh, **tables}) for tables in rows)
        return one, other


def show(found: Mapping[str, list[dict[str, pl.DataFrame]]]) -> None:
    """Both metrics of each variant, mean over seeds, and what is lost against `auto` in HR@5."""
    print("\n| HR@5 / NDCG@10 | " + " | ".join(found) + " |\n|" + "---|" * (1 + len(found)))
    for label in VARIANTS:
        cells = [" / ".join(f"{level(seeds, label, of):.3f}" for of in (hits, gains)) for seeds in found.values()]
        print(f"| {label} | " + " | ".join(cells) + " |")
    print("\n| HR@5 against auto, 95 % by user | " + " | ".join(found) + " |\n|" + "---|" * (1 + len(found)))
    for label in [each for each in VARIANTS if each != "auto"]:
        cells = []
        for seeds in found.values():
            frame = seeds[0]["auto"]
            sides = ([hits(seed[side]["rank"].to_numpy()) for seed in seeds] for side in (label, "auto"))
            each = compare_mean([Sides(*sides, frame["user"].to_numpy(), frame["item"].to_numpy())])
            cells.append(f"{each.difference:+.3f} ({each.by_user[0]:+.3f} … {each.by_user[1]:+.3f})")
        print(f"| {label} | " + " | ".join(cells) + " |")


def level(seeds: list[dict[str, pl.DataFrame]], label: str, of: Callable[[Any], Any]) -> float:
    """A metric of a variant, mean over seeds."""
    return float(np.mean([of(seed[label]["rank"].to_numpy()).mean() for seed in seeds]))


if __name__ == "__main__":
    main()
