"""Two tuned strategies on the selection window of a stream in $MELON_DATA, compared as claims are.

The test part is not read.

    python benchmarks/duel.py amazon_grocery ncf melon default --seeds 3

Settings come from `configs/` (--configs for another folder). Each seed trains its own recommenders and draws its own
candidates; what is compared are the events by which settings are judged (docs/evaluation.md): paired, averaged over
seeds, with 95 % intervals from resampling users and items.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch

from accuracy import DATA
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.config_files import read_config
from melon.bench.work import Work
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.compare import Sides, compare_mean, gains, hits
from melon.evaluation.prequential import Tally
from melon.evaluation.ranking import metrics
from verdicts import show_verdicts


def judged(log: Interactions, config: CellConfig, work: Work) -> Tally:
    """Every event by which settings are judged, under one strategy."""
    cell = Cell(log, config, work=work)
    selection, (choice, start) = cell.selection, cell.window()
    again = cell.window_again(choice["settings"])
    updater = selection.at_window(config.strategy, config.fixed, start, config.seed, again)
    tally = Tally()
    for point in selection.through(updater):
        if point.start >= selection.parts.judged_from:
            tally.add(point)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream")
    parser.add_argument("recommender")
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--configs", type=Path, default=Path(__file__).parents[1] / "configs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    log = load_stream(DATA / f"{asked.stream}.parquet")
    tallies: dict[str, list[Tally]] = {asked.ours: [], asked.theirs: []}
    for seed in range(asked.seeds):
        work = Work()  # both of a seed start from the same recommenders
        for name, found in tallies.items():
            told = read_config(asked.configs / f"{asked.stream}-{asked.recommender}-{name}.toml")
            found.append(judged(log, CellConfig(**{**told, "seed": seed}), work))
            level = metrics(found[-1].rank)
            print(f"seed {seed}, {name}: HR@5 {level['HR@5']:.4f}, NDCG@10 {level['NDCG@10']:.4f}", flush=True)
    first = tallies[asked.ours][0]
    users, items = log.users[first.events], log.items[first.events]
    family = {}
    for metric, value in (("HR@5", hits), ("NDCG@10", gains)):
        ours, theirs = ([value(np.asarray(tally.rank)) for tally in tallies[name]] for name in tallies)
        family[metric] = compare_mean([Sides(ours, theirs, users, items)])
    show_verdicts(f"{asked.stream}, {asked.recommender}: {asked.ours} − {asked.theirs}", {asked.stream: family})


if __name__ == "__main__":
    main()
