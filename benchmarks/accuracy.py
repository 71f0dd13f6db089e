"""Accuracy of strategies on the streams in $MELON_DATA: settings chosen on the selection window, claims as allowed.

    python benchmarks/accuracy.py --streams amazon_grocery,yelp --strategies melon,melon_i,melon_p --seeds 3
    python benchmarks/accuracy.py --streams amazon_grocery --strategies melon --fading auto

One JSON record per cell goes to --out; cells that are there already are not run again. Pre-training, the tuned Default
and the baselines of a stream and seed are done once. The reference that everything is compared with is the tuned
Default, named here before any test part is read; the family for Holm's correction is the printed table.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import polars as pl

from melon.data.files import load_stream
from melon.evaluate.compare import Comparison, compare, hits, holm
from melon.experiments.cell import Cell
from melon.experiments.config import CellConfig
from melon.experiments.records import write_result
from melon.experiments.work import Work

DATA = Path(os.environ.get("MELON_DATA", Path(__file__).parents[1] / "../shared/data"))
SPLITS = {"amazon_grocery": (0.8, 0.02, 0.18), "amazon_electronics": (0.9, 0.01, 0.09)}
MARGINS = {"news_globo": 0.005}
BASELINES = ("frozen", "popularity", "recent_popularity", "default")


def run(name: str, strategies: list[str], seeds: int, arguments: argparse.Namespace) -> None:
    log = load_stream(DATA / f"{name}.parquet")
    for seed in range(seeds):
        work = Work(shared_work(arguments, name, seed))
        for strategy in strategies:
            target = record_path(arguments, name, strategy, seed)
            if target.exists():
                continue
            config = CellConfig(
                recommender=arguments.recommender,
                strategy=strategy,
                seed=seed,
                split=SPLITS.get(name, (0.95, 0.005, 0.045)),
                fading=arguments.fading,
                budget=arguments.budget,
                epochs=arguments.epochs,
            )
            result = Cell(log, config, work=work).run(name)
            record = write_result(result.record, result.ranks, target)
            print(f"{name} {strategy} seed {seed}: HR@5 {record['metrics']['HR@5']:.4f}", flush=True)


def shared_work(arguments: argparse.Namespace, name: str, seed: int) -> Path:
    """The folder of a stream and seed; its pre-training does not depend on fading and is taken over."""
    folder = arguments.out / "work" / f"{name}-{arguments.recommender}-{arguments.fading}-{seed}"
    other = folder.with_name(f"{name}-{arguments.recommender}-off-{seed}")
    if other.exists() and not folder.exists():
        folder.mkdir(parents=True)
        for kept in ("choice-pretrain.json", "window.safetensors", "refitted.safetensors"):
            shutil.copy(other / kept, folder / kept)
    return folder


def record_path(arguments: argparse.Namespace, name: str, strategy: str, seed: int) -> Path:
    return arguments.out / f"{name}-{arguments.recommender}-{strategy}-{arguments.fading}-{seed}.json"


def table(names: list[str], strategies: list[str], seeds: int, arguments: argparse.Namespace) -> None:
    """HR@5 of everything, and each strategy against the tuned Default."""
    print("\n| stream | " + " | ".join([*BASELINES, *strategies]) + " |")
    print("|" + "---|" * (1 + len(BASELINES) + len(strategies)))
    family: dict[str, Comparison] = {}
    for name in names:
        cells = {s: [record_path(arguments, name, s, seed) for seed in range(seeds)] for s in strategies}
        records = {s: [json.loads(p.read_text()) for p in paths] for s, paths in cells.items()}
        first = records[strategies[0]]
        row = [np.mean([r["baselines"][b]["HR@5"] for r in first]) for b in BASELINES]
        row += [np.mean([r["metrics"]["HR@5"] for r in records[s]]) for s in strategies]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in row) + " |")
        for strategy in strategies:
            frames = [pl.read_parquet(path.with_suffix(".ranks.parquet")) for path in cells[strategy]]
            ours = [hits(frame["rank"].to_numpy()) for frame in frames]
            theirs = [hits(frame["rank_default"].to_numpy()) for frame in frames]
            users, items = frames[0]["user"].to_numpy(), frames[0]["item"].to_numpy()
            family[f"{name} {strategy}"] = compare(ours, theirs, users, items)
    better = holm(family)
    print("\n| against tuned Default (HR@5) | difference | 95 % by user | by item | se over seeds | verdict |")
    print("|---|---|---|---|---|---|")
    for key, found in family.items():
        margin = MARGINS.get(key.split()[0], 0.015)
        verdict = "better" if better[key] else "not worse" if found.not_worse(margin) else "not shown"
        error = "–" if found.seed_error is None else f"{found.seed_error:.4f}"
        by_user, by_item = (f"{low:+.4f} … {high:+.4f}" for low, high in (found.by_user, found.by_item))
        print(f"| {key} | {found.difference:+.4f} | {by_user} | {by_item} | {error} | {verdict} |")
    print(
        "\n| chosen (seed 0) | settings | realised step of a row (all seeds) | against Default's |\n|---|---|---|---|"
    )
    for name in names:
        for strategy in strategies:
            records = [json.loads(record_path(arguments, name, strategy, s).read_text()) for s in range(seeds)]
            chosen = records[0]["config"]["chosen"]
            moved, plain = (np.mean([record["step"][which] for record in records]) for which in ("moved", "default"))
            if strategy == strategies[0]:
                print(f"| {name} pretrain | {words(chosen['pretrain']['settings'])} | | |")
                print(f"| {name} default | {words(chosen['default']['settings'])} | {plain:.4f} | 1 |")
            print(f"| {name} {strategy} | {words(chosen[strategy]['settings'])} | {moved:.4f} | {moved / plain:.2f} |")


def words(settings: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="amazon_grocery,amazon_electronics,amazon_book,yelp,news_globo")
    parser.add_argument("--strategies", default="eals,melon,melon_i,melon_p")
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--fading", default="off")
    parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
    arguments = parser.parse_args()
    names, strategies = arguments.streams.split(","), arguments.strategies.split(",")
    missing = [name for name in names if not (DATA / f"{name}.parquet").exists()]
    if missing:
        sys.exit(f"no {', '.join(missing)} in {DATA}; set MELON_DATA to the folder that holds them.")
    for name in names:
        run(name, strategies, arguments.seeds, arguments)
    print(f"\n`python benchmarks/accuracy.py {' '.join(sys.argv[1:])}`")
    table(names, strategies, arguments.seeds, arguments)


if __name__ == "__main__":
    main()
