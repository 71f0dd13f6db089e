"""One strategy's records against those of others, from any folders: events paired, all seeds that both have.

    melon bench STREAM.parquet --strategies melon --config configs --seeds 5 --out runs/melon
    melon bench STREAM.parquet --strategies default,mwnet --config configs --seeds 5 --out runs/published
    python research/benchmarks/versus.py runs/melon:melon runs/published:default,mwnet

HR@5 and NDCG@10, intervals by resampling users and items, conclusions as docs/methods.md 5.8 allows, with Holm's
correction over what is printed for one stream and metric. `--without-repeats`: only events whose user had not the item.
`--lists`: ranks by lists of the whole catalogue, all events.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl

from accuracy import show_conclusions
from melon.evaluation.compare import Comparison, Sides, compare_mean
from melon.evaluation.ranking import gains, hits

METRICS = {"HR@5": hits, "NDCG@10": gains}


def main() -> None:
    """Print a table of levels and one of paired differences for each metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", help="FOLDER:STRATEGY")
    parser.add_argument("theirs", nargs="+", help="FOLDER:STRATEGY,STRATEGY,…")
    parser.add_argument("--recommender", default="bpr")
    parser.add_argument("--seeds", type=int, default=None, help="at most so many")
    parser.add_argument("--without-repeats", action="store_true")
    parser.add_argument("--lists", action="store_true")
    args = parser.parse_args()
    ours = sides_of(args.ours)[0]
    others = [side for text in args.theirs for side in sides_of(text)]
    streams = sorted(
        {path.name.split(f"-{args.recommender}-")[0] for path in ours[0].glob(f"*-{args.recommender}-*.json")}
    )
    if not streams:
        sys.exit(f"no records of {args.recommender} in {ours[0]}.")
    print(f"`python research/benchmarks/versus.py {' '.join(sys.argv[1:])}`")
    rank = "list_all" if args.lists else "rank"
    for metric, value in METRICS.items():
        levels: dict[str, dict[str, str]] = {}
        families: dict[str, dict[str, Comparison]] = {}
        for stream in streams:
            for folder, strategy in others:
                pairs = paired(ours, (folder, strategy), stream, args.recommender, args.seeds)
                if not pairs:
                    continue
                pairs = [(a.filter(keep), b.filter(keep)) for a, b in pairs for keep in [kept(a, args.without_repeats)]]
                mine = [value(a[rank].to_numpy()) for a, _ in pairs]
                their = [value(b[rank].to_numpy()) for _, b in pairs]
                first = pairs[0][0]
                comparison = compare_mean([Sides(mine, their, first["user"].to_numpy(), first["item"].to_numpy())])
                label = f"{strategy} ({folder.name}), {len(pairs)} seeds"
                families.setdefault(stream, {})[f"{stream} − {label}"] = comparison
                row = levels.setdefault(stream, {})
                row[f"{ours[1]} ({ours[0].name})"] = f"{np.mean(mine):.4f}"
                row[f"{strategy} ({folder.name})"] = f"{np.mean(their):.4f}"
        print(f"\n## {metric}\n")
        for stream, row in levels.items():
            print(f"{stream}: " + ", ".join(f"{name} {level}" for name, level in row.items()))
        show_conclusions(f"{metric}: {ours[1]} ({ours[0].name}) − …", families)


def sides_of(text: str) -> list[tuple[Path, str]]:
    """The folder and each strategy of an argument FOLDER:STRATEGY,STRATEGY."""
    folder, _, names = text.rpartition(":")
    if not folder or not Path(folder).is_dir():
        sys.exit(f"{text!r} is not FOLDER:STRATEGY with a folder of records.")
    return [(Path(folder), name) for name in names.split(",")]


def paired(
    ours: tuple[Path, str], theirs: tuple[Path, str], stream: str, recommender: str, most: int | None
) -> list[tuple[pl.DataFrame, pl.DataFrame]]:
    """The ranks of both sides for every seed that both have; other events or another protocol are an error."""
    found = []
    for seed in range(most or 100):
        paths = [folder / f"{stream}-{recommender}-{seed}-{strategy}.json" for folder, strategy in (ours, theirs)]
        if not all(path.exists() for path in paths):
            continue
        one, other = (json.loads(path.read_text())["protocol"] for path in paths)
        a, b = (pl.read_parquet(path.with_suffix(".ranks.parquet")) for path in paths)
        if one != other or not a["user"].equals(b["user"]) or not a["item"].equals(b["item"]):
            sys.exit(f"{paths[0]} and {paths[1]} were not measured on the same events in the same way.")
        found.append((a, b))
    return found


def kept(frame: pl.DataFrame, without_repeats: bool) -> pl.Series:
    """Which events count."""
    return ~frame["repeat"] if without_repeats else pl.Series([True] * len(frame))


if __name__ == "__main__":
    main()
