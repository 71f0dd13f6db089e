"""Accuracy of strategies on the streams in $MELON_DATA: settings chosen on the selection window, claims as allowed.

    python research/benchmarks/accuracy.py --streams amazon_grocery,yelp --strategies melon,melon_i,melon_p --seeds 3
    python research/benchmarks/accuracy.py --streams amazon_grocery --strategies melon --half-life auto

`melon bench` runs the cells, so a run that was stopped goes on where it was; each way to decay has a folder of its own
under --out. The reference that everything is compared with is the tuned Default, named here before any test part is
read (`frozen` with --against frozen); a family for Holm's correction is what the printed table says of one stream.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import polars as pl

from melon.evaluation.compare import Comparison, Sides, compare_mean, conclusions
from melon.evaluation.ranking import hits
from melon.lab.bench import bench_streams
from melon.lab.terminal import BenchProgress, show_bench

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[2] / "../shared/data"))
STREAMS = ("news_globo", "amazon_grocery", "amazon_electronics", "amazon_book", "yelp")
SPLITS = ("0.95,0.005,0.045", "amazon_grocery=0.8,0.02,0.18", "amazon_electronics=0.9,0.01,0.09")
SHARES = {"amazon_grocery": (0.8, 0.02, 0.18), "amazon_electronics": (0.9, 0.01, 0.09)}
BASELINES = ("frozen", "popularity", "recent_popularity", "default")

#: The loss that "no significant loss" rules out, by stream.
MARGINS = {"news_globo": 0.005}
USUAL_MARGIN = 0.015


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--strategies", default="eals,melon,melon_i,melon_p")
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--half-life", default="off")
    parser.add_argument("--against", default="default", choices=("default", "frozen"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    asked = parser.parse_args()
    names, strategies = asked.streams.split(","), asked.strategies.split(",")
    missing = [name for name in names if not (DATA / f"{name}.parquet").exists()]
    if missing:
        sys.exit(f"no {', '.join(missing)} in {DATA}; set MELON_DATA to the folder that holds them.")
    folder = asked.out / f"time decay-{asked.half_life}"
    options: dict[str, Any] = {"budget": asked.budget, "half_life": asked.half_life, "epochs": asked.epochs}
    result = bench_streams(
        [DATA / f"{name}.parquet" for name in names],
        {name: value for name, value in options.items() if value is not None},
        recommenders=asked.recommender,
        strategies=asked.strategies,
        seeds=asked.seeds,
        splits=[split for split in SPLITS if "=" not in split or split.partition("=")[0] in names],
        configs=[],
        jobs=asked.jobs,
        out=folder,
        progress=BenchProgress(),
    )
    if show_bench(result):
        sys.exit(1)
    cells = Cells(folder, asked.recommender, asked.seeds)
    print(f"\n`python research/benchmarks/accuracy.py {' '.join(sys.argv[1:])}`")
    levels(cells, names, strategies)
    claims(cells, names, strategies, asked.against)
    steps(cells, names, strategies)


class Cells:
    """The records of a bench by stream and strategy, all seeds of each."""

    def __init__(self, folder: Path, recommender: str, seeds: int) -> None:
        self._folder, self._recommender, self._seeds = folder, recommender, seeds

    def records(self, stream: str, strategy: str) -> list[dict[str, Any]]:
        """One record for each seed."""
        return [json.loads(path.read_text()) for path in self._paths(stream, strategy)]

    def ranks(self, stream: str, strategy: str) -> list[pl.DataFrame]:
        """Every event's rank, one table for each seed."""
        return [pl.read_parquet(path.with_suffix(".ranks.parquet")) for path in self._paths(stream, strategy)]

    def _paths(self, stream: str, strategy: str) -> list[Path]:
        return [self._folder / f"{stream}-{self._recommender}-{seed}-{strategy}.json" for seed in range(self._seeds)]


def levels(cells: Cells, names: list[str], strategies: list[str]) -> None:
    """HR@5 of everything, mean over seeds, and the mean over streams."""
    print("\n| HR@5 | " + " | ".join([*BASELINES, *strategies]) + " |")
    print("|" + "---|" * (1 + len(BASELINES) + len(strategies)))
    lines = []
    for name in names:
        first = cells.records(name, "default")
        line = [float(np.mean([r["baselines"][b]["HR@5"] for r in first])) for b in BASELINES]
        line += [float(np.mean([r["metrics"]["HR@5"] for r in cells.records(name, s)])) for s in strategies]
        lines.append(line)
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in line) + " |")
    if len(lines) > 1:
        print("| mean | " + " | ".join(f"{value:.4f}" for value in np.mean(lines, axis=0)) + " |")


def claims(cells: Cells, names: list[str], strategies: list[str], against: str) -> None:
    """Each strategy against the reference, as docs/methods.md 5.8 allows; and MeLON against its ablations."""
    pairs: dict[str, tuple[str, str | None]] = {strategy: (strategy, None) for strategy in strategies}
    if "melon" in strategies:
        pairs |= {f"melon − {other}": ("melon", other) for other in ("melon_i", "melon_p") if other in strategies}
    families: dict[str, dict[str, Comparison]] = {name: {} for name in names}
    for label, (strategy, other) in pairs.items():
        found = {name: sides(cells, name, strategy, other, against) for name in names}
        for name, each in found.items():
            families[name][f"{name} {label}"] = compare_mean([each])
        if len(names) > 1:
            families.setdefault("mean", {})[f"mean {label}"] = compare_mean(list(found.values()))
    show_conclusions(f"HR@5 against {against}, unless said", families)


def sides(cells: Cells, name: str, strategy: str, other: str | None, against: str) -> Sides:
    """Hits per event of a strategy and of another, or of a baseline, on the same candidates."""
    ours = cells.ranks(name, strategy)
    theirs = cells.ranks(name, other or "default")
    column = "rank_frozen" if other is None and against == "frozen" else "rank"
    return Sides(
        [hits(frame["rank"].to_numpy()) for frame in ours],
        [hits(frame[column].to_numpy()) for frame in theirs],
        ours[0]["user"].to_numpy(),
        ours[0]["item"].to_numpy(),
    )


def steps(cells: Cells, names: list[str], strategies: list[str]) -> None:
    """What was chosen, and how far a row was moved by it."""
    print(
        "\n| chosen (seed 0) | settings | realised step of a row (all seeds) | against Default's |\n|---|---|---|---|"
    )
    for name in names:
        plain = cells.records(name, "default")
        print(f"| {name} pretrain | {words(plain[0]['config']['chosen']['pretrain']['settings'])} | | |")
        for strategy in ["default", *strategies]:
            records = cells.records(name, strategy)
            moved = np.mean([record["step"]["moved"] for record in records])
            usual = np.mean([record["step"]["moved"] for record in plain])
            chosen = words(records[0]["config"]["chosen"][strategy]["settings"])
            print(f"| {name} {strategy} | {chosen} | {moved:.4f} | {moved / usual:.2f} |")


def words(settings: dict[str, object]) -> str:
    """Settings in a line."""
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def show_conclusions(title: str, families: Mapping[str, Mapping[str, Comparison]]) -> None:
    """A row for each comparison, its label under the title; Holm's correction is within each stream's family."""
    print(f"\n| {title} | difference | 95 % by user | by item | se over seeds | conclusion |")
    print("|---" * (title.count("|") + 6) + "|")
    for stream, family in families.items():
        conclusion = conclusions(family, MARGINS.get(stream, USUAL_MARGIN))
        for label, each in family.items():
            error = "–" if each.seed_error is None else f"{each.seed_error:.4f}"
            by_user, by_item = (f"{low:+.4f} … {high:+.4f}" for low, high in (each.by_user, each.by_item))
            print(f"| {label} | {each.difference:+.4f} | {by_user} | {by_item} | {error} | {conclusion[label]} |")


if __name__ == "__main__":
    main()
