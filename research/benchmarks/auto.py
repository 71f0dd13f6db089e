"""`auto` against every simple baseline on the streams in $MELON_DATA, as docs/methods.md 5.8 allows.

    python research/benchmarks/auto.py --seeds 5
    python research/benchmarks/auto.py --streams amazon_grocery,yelp --seeds 3 --baselines few
    python research/benchmarks/auto.py --seeds 1 --baselines few --candidates known
    python research/benchmarks/auto.py --seeds 5 --baselines none     # only `auto` with and without its further inputs

`melon bench` runs the cells, each kind in a folder of its own under --out, so a run that was stopped goes on where it
was: the blend with the further inputs of `auto` and without them, and bpr, with the tuned Default and time decay chosen on
the selection window; and, unless --baselines few, bpr with one and four negatives, in batches and one interaction after
another, with and without time decay. The baselines of every record stand beside them. The family for Holm's correction are a
stream's comparisons, both metrics together.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from accuracy import DATA, SPLITS, STREAMS, Cells, show_conclusions
from melon.evaluation.baselines import BASELINES as SIMPLE_BASELINES
from melon.evaluation.compare import Comparison, Sides, compare_mean
from melon.evaluation.ranking import gains, hits
from melon.fitting.auto import SETTINGS
from melon.lab.bench import bench_streams
from melon.lab.terminal import BenchProgress, show_bench

METRICS = {"HR@5": hits, "NDCG@10": gains}
BASELINES = ("frozen", "popularity", "recent_popularity", *SIMPLE_BASELINES)
#: What `auto` is compared with; the other baselines are no baselines.
COMPARED = ("recent_popularity", *SIMPLE_BASELINES)


@dataclass(frozen=True)
class Kind:
    """Cells that are told the same: the folder of their records, and what sets them apart."""

    folder: str
    recommenders: str = "bpr"
    half_life: str = "auto"
    negatives: int | None = None
    strategies: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)


AUTO = Kind("auto-further-inputs", "blend", settings=SETTINGS)
#: What `auto` was before it had further inputs, and bpr.
MAIN = Kind("auto", "blend,bpr")
#: Every other way to drive bpr by plain steps.
PLAIN = {
    "bpr, default": Kind("no-time decay", half_life="off"),
    "bpr, 4 negatives, default": Kind("negatives-no-time decay", half_life="off", negatives=4),
    "bpr, 4 negatives, default + time decay": Kind("negatives", negatives=4),
}


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--seeds", type=int, default=3, help="of auto, and of bpr with time decay")
    parser.add_argument("--baseline-seeds", type=int, default=None, help="of the other kinds of bpr (default: as many)")
    parser.add_argument("--baselines", choices=("none", "few", "all"), default="all")
    parser.add_argument("--rates", action="store_true", help="beside them, the blend with MeLON's learned rates")
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--candidates", default="catalogue", choices=("catalogue", "known"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/auto"))
    asked = parser.parse_args()
    names = asked.streams.split(",")
    missing = [name for name in names if not (DATA / f"{name}.parquet").exists()]
    if missing:
        sys.exit(f"no {', '.join(missing)} in {DATA}; set MELON_DATA to the folder that holds them.")
    out = asked.out / asked.candidates
    few, seeds = asked.baselines != "all", asked.baseline_seeds or asked.seeds
    run(asked, AUTO, names, out, asked.seeds)
    run(asked, replace(MAIN, recommenders="blend") if asked.baselines == "none" else MAIN, names, out, asked.seeds)
    if asked.rates:
        run(asked, replace(AUTO, strategies="default,melon"), names, out, asked.seeds)
    for kind in () if few else PLAIN.values():
        run(asked, kind, names, out, seeds)
    print(f"\n`python research/benchmarks/auto.py {' '.join(sys.argv[1:])}`")
    others = None if asked.baselines == "none" else {} if few else PLAIN
    found = {name: methods(out, name, asked.seeds, others, seeds, rates=asked.rates) for name in names}
    levels(found, "HR@5 / NDCG@10", lambda frame, column: frame[column])
    levels(found, "without repeats", lambda frame, column: frame.filter(~pl.col("repeat"))[column])
    levels(found, "cold users", lambda frame, column: frame.filter(pl.col("cold"))[column])
    if others is not None:
        whole_catalogue(out, names, asked.seeds)
    conclusions(found)


def run(asked: argparse.Namespace, kind: Kind, names: list[str], out: Path, seeds: int) -> None:
    """The cells of one kind, as far as they are missing."""
    options: dict[str, Any] = {"budget": asked.budget, "half_life": kind.half_life, "candidates": asked.candidates}
    negatives = {} if kind.negatives is None else {"negatives": kind.negatives}
    if kind.settings or negatives:
        options["recommender_settings"] = {**kind.settings, **negatives}
    result = bench_streams(
        [DATA / f"{name}.parquet" for name in names],
        options,
        recommenders=kind.recommenders,
        strategies=kind.strategies,
        seeds=seeds,
        splits=[split for split in SPLITS if "=" not in split or split.partition("=")[0] in names],
        jobs=asked.jobs,
        out=out / kind.folder,
        progress=BenchProgress(),
    )
    if show_bench(result):
        sys.exit(1)


@dataclass(frozen=True)
class Method:
    """The rank of every event under a method: one table for each seed, and the column to read."""

    frames: list[pl.DataFrame]
    column: str = "rank"

    def values(self, of: Callable[[Any], Any], seeds: int | None = None) -> list[Any]:
        """A metric of every event, seed by seed."""
        return [of(frame[self.column].to_numpy()) for frame in self.frames[:seeds]]


def methods(
    out: Path, name: str, seeds: int, kinds: Mapping[str, Kind] | None, baseline_seeds: int, *, rates: bool
) -> dict[str, Method]:
    """Everything that ranked the events of a stream; `auto` first. Without `kinds` bpr did not run."""
    blend, before = Cells(out / AUTO.folder, "blend", seeds), Cells(out / MAIN.folder, "blend", seeds)
    both = {
        "auto": Method(blend.ranks(name, "default")),
        **({"auto with MeLON's rates": Method(blend.ranks(name, "melon"))} if rates else {}),
        "auto without further inputs": Method(before.ranks(name, "default")),
    }
    if kinds is None:
        return both | {baseline: Method(before.ranks(name, "default"), f"rank_{baseline}") for baseline in BASELINES}
    beside = Cells(out / MAIN.folder, "bpr", seeds).ranks(name, "default")
    return {
        **both,
        **{baseline: Method(beside, f"rank_{baseline}") for baseline in BASELINES},
        "bpr, default + time decay": Method(beside),
        **{
            label: Method(Cells(out / kind.folder, "bpr", baseline_seeds).ranks(name, "default"))
            for label, kind in kinds.items()
        },
    }


def levels(
    found: Mapping[str, Mapping[str, Method]], title: str, part: Callable[[pl.DataFrame, str], pl.Series]
) -> None:
    """Both metrics of everything on a part of the events, mean over seeds."""
    print(f"\n| {title} | " + " | ".join(found) + " |\n|" + "---|" * (1 + len(found)))
    for method in next(iter(found.values())):
        cells = []
        for of_stream in found.values():
            ranks = [part(frame, of_stream[method].column).to_numpy() for frame in of_stream[method].frames]
            if all(len(rank) for rank in ranks):
                values = [np.mean([metric(rank).mean() for rank in ranks]) for metric in METRICS.values()]
                cells.append(" / ".join(f"{value:.3f}" for value in values))
            else:
                cells.append("–")
        print(f"| {method} | " + " | ".join(cells) + " |")


def whole_catalogue(out: Path, names: list[str], seeds: int) -> None:
    """The same where everything in the catalogue is ranked."""
    print("\n| full ranking | " + " | ".join(names) + " |\n|" + "---|" * (1 + len(names)))
    kinds = (AUTO.folder, "blend"), (MAIN.folder, "bpr")
    of = {name: (Cells(out / folder, kind, seeds) for folder, kind in kinds) for name in names}
    records = {name: [each.records(name, "default") for each in pair] for name, pair in of.items()}
    rows: dict[str, Callable[[list[Any]], list[Any]]] = {
        "auto": lambda pair: [record["lists"]["all"] for record in pair[0]],
        **{baseline: partial(_baseline, baseline) for baseline in BASELINES},
        "bpr, default + time decay": lambda pair: [record["lists"]["all"] for record in pair[1]],
    }
    for label, read in rows.items():
        cells = [
            " / ".join(f"{np.mean([told[metric] for told in read(pair)]):.3f}" for metric in METRICS)
            for pair in records.values()
        ]
        print(f"| {label} | " + " | ".join(cells) + " |")


def _baseline(baseline: str, pair: list[Any]) -> list[Any]:
    return [record["baselines"][baseline]["lists"]["all"] for record in pair[1]]


def conclusions(found: Mapping[str, Mapping[str, Method]]) -> None:
    """`auto` minus each baseline, on each stream, over the seeds that both have."""
    families: dict[str, dict[str, Comparison]] = {}
    for name, of_stream in found.items():
        auto = of_stream["auto"]
        users, items = (auto.frames[0][side].to_numpy() for side in ("user", "item"))
        baselines = [label for label in of_stream if label != "auto" and (label not in BASELINES or label in COMPARED)]
        families[name] = {}
        for baseline in baselines:
            seeds = min(len(auto.frames), len(of_stream[baseline].frames))
            for metric, of in METRICS.items():
                sides = (each.values(of, seeds) for each in (auto, of_stream[baseline]))
                families[name][f"{baseline}, {name} | {metric}"] = compare_mean([Sides(*sides, users, items)])
    show_conclusions("auto against | metric", families)


if __name__ == "__main__":
    main()
