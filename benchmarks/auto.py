"""`auto` against every simple rival on the streams in $MELON_DATA, as METHODS.md 5.8 allows.

    python benchmarks/auto.py --seeds 3
    python benchmarks/auto.py --streams amazon_grocery,yelp --seeds 5 --out runs/auto

`melon bench` runs the cells (blend and bpr, each with the tuned Default and fading chosen on the selection window), so
a run that was stopped goes on where it was. The rivals are those of every record, and bpr with fading beside them; the
family for Holm's correction is the printed table, both metrics together.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import polars as pl

from accuracy import DATA, MARGINS, SPLITS, STREAMS, Cells
from melon.evaluate.compare import Comparison, Sides, compare_mean, gains, hits, holm
from melon.evaluate.rivals import RIVALS
from melon.experiments.bench import bench_streams

METRICS = {"HR@5": hits, "NDCG@10": gains}
WITH_FADING = "bpr, default + fading"


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/auto"))
    asked = parser.parse_args()
    names = asked.streams.split(",")
    missing = [name for name in names if not (DATA / f"{name}.parquet").exists()]
    if missing:
        sys.exit(f"no {', '.join(missing)} in {DATA}; set MELON_DATA to the folder that holds them.")
    failed = bench_streams(
        [DATA / f"{name}.parquet" for name in names],
        {"budget": asked.budget, "fading": "auto"},
        recommenders="blend,bpr",
        strategies="default",
        seeds=asked.seeds,
        splits=[split for split in SPLITS if "=" not in split or split.partition("=")[0] in names],
        configs=[],
        jobs=asked.jobs,
        ray=None,
        rates=False,
        out=asked.out,
    )
    if failed:
        sys.exit(failed)
    ours, plain = (Cells(asked.out, recommender, asked.seeds) for recommender in ("blend", "bpr"))
    print(f"\n`python benchmarks/auto.py {' '.join(sys.argv[1:])}`")
    levels(names, ours, plain)
    verdicts(names, ours, plain)


def methods(ours: Cells, plain: Cells, name: str) -> dict[str, list[pl.Series]]:
    """The rank of every event under each method, one series for each seed; `auto` first."""
    cells, beside = ours.ranks(name, "default"), plain.ranks(name, "default")
    rivals = ("frozen", "popularity", "recent_popularity", *RIVALS)
    return {
        "auto": [frame["rank"] for frame in cells],
        **{rival: [frame[f"rank_{rival}"] for frame in beside] for rival in rivals},
        WITH_FADING: [frame["rank"] for frame in beside],
    }


def levels(names: list[str], ours: Cells, plain: Cells) -> None:
    """Both metrics of everything, mean over seeds."""
    found = {name: methods(ours, plain, name) for name in names}
    print("\n| HR@5 / NDCG@10 | " + " | ".join(names) + " |\n|" + "---|" * (1 + len(names)))
    for method in found[names[0]]:
        cells = []
        for name in names:
            values = [np.mean([m(rank.to_numpy()).mean() for rank in found[name][method]]) for m in METRICS.values()]
            cells.append(" / ".join(f"{value:.3f}" for value in values))
        print(f"| {method} | " + " | ".join(cells) + " |")


def verdicts(names: list[str], ours: Cells, plain: Cells) -> None:
    """`auto` minus each rival, on each stream."""
    family: dict[tuple[str, str, str], Comparison] = {}
    for name in names:
        frame, found = ours.ranks(name, "default")[0], methods(ours, plain, name)
        users, items = frame["user"].to_numpy(), frame["item"].to_numpy()
        for rival in [method for method in found if method not in ("auto", "frozen", "popularity")]:
            for metric, of in METRICS.items():
                sides = ([of(rank.to_numpy()) for rank in found[side]] for side in ("auto", rival))
                family[name, rival, metric] = compare_mean([Sides(*sides, users, items)])
    better = holm({" ".join(key): each for key, each in family.items()})
    print("\n| auto against | metric | difference | 95 % by user | by item | se over seeds | verdict |")
    print("|---|---|---|---|---|---|---|")
    for (name, rival, metric), each in family.items():
        margin = MARGINS.get(name, 0.015)
        good = better[f"{name} {rival} {metric}"]
        verdict = "better" if good else "not worse" if each.not_worse(margin) else "not shown"
        error = "–" if each.seed_error is None else f"{each.seed_error:.4f}"
        by_user, by_item = (f"{low:+.4f} … {high:+.4f}" for low, high in (each.by_user, each.by_item))
        print(f"| {rival}, {name} | {metric} | {each.difference:+.4f} | {by_user} | {by_item} | {error} | {verdict} |")


if __name__ == "__main__":
    main()
