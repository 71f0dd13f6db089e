"""`auto` by lists of the whole catalogue on the test parts of the streams in $MELON_DATA, as docs/methods.md 5.8 allows.

    python research/benchmarks/lists.py --seeds 3
    python research/benchmarks/lists.py --streams yelp,shop_journey --seeds 1 --out runs/lists

It is compared with the single baseline that was best on the selection window and with the mix of all of them: HR@10 and
NDCG@10 of all events and of first-time pairs. Holm's family are the comparisons of one stream. A run that was stopped
goes on where it was. Baselines are lists of seed 0: nothing in them is random.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import polars as pl

from accuracy import DATA, MARGINS, SHARES, STREAMS, show_conclusions
from melon.atomic import write_text
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.baselines import SOURCES, make_baseline
from melon.evaluation.cell import Cell
from melon.evaluation.compare import Comparison, compare
from melon.evaluation.lists import TRACKS
from melon.evaluation.predictors import Popularity, Predictor
from melon.evaluation.ranking import gains, hits
from melon.fitting.auto import settle_auto
from melon.fitting.config import CellConfig
from melon.kernels.threads import use_threads
from melon.stream.candidates import Candidates
from melon.stream.split import DEFAULT_SPLIT
from melon.types import Floats

SINGLE = ("recent_popularity", *SOURCES)
METRICS = {"HR@10": partial(hits, cut=10), "NDCG@10": gains}
MARGINS["shop_journey"] = 0.005


def lists_of(cell: Cell, name: str, predictor: Predictor, log: Interactions) -> dict[str, Floats]:
    """The rank by lists of every event of the test part, in both tracks."""
    candidates = Candidates(log, seed=cell.config.seed, count=1)  # sampled ranks are not what is measured here
    tally = cell._stream(name, predictor, log, candidates)
    return {track: rank for track in TRACKS if (rank := tally.list_rank(track)) is not None}


def run(name: str, seed: int, folder: Path, budget: int) -> None:
    """`auto` under one seed; with seed 0 the baselines, too, in which nothing is random."""
    log = load_stream(DATA / f"{name}.parquet")
    config = CellConfig(**settle_auto({"seed": seed, "budget": budget}), split=SHARES.get(name, DEFAULT_SPLIT))
    began = time.process_time()
    cell = Cell(log, config)
    choices = cell.choose() if not seed else cell.fitting.choose()
    chosen_s = time.process_time() - began
    strategy, state = config.strategy, cell.fitting.pretrained(choices)
    updater = cell._updater(strategy, choices[strategy]["settings"], state, cell.fitting.meta_train(strategy, choices))
    fit_s = time.process_time() - began
    log = cell._sealed.open(choices)
    found = {"auto": lists_of(cell, "auto", updater, log)}
    if not seed:
        best = max(SINGLE, key=lambda each: choices[each]["score"] or 0.0)
        write_text(folder / f"{name}.json", json.dumps({"best": best, "chosen": choices}, indent=1))
        for baseline in dict.fromkeys((best, "mix", "own_history", "recent_popularity")):
            settings = choices[baseline]["settings"]
            past = log.head(cell.parts.train_stop)
            predictor = Popularity(settings["half_life"], past.items) if baseline == SINGLE[0] else None
            found[baseline] = lists_of(cell, baseline, predictor or make_baseline(baseline, settings, past), log)
    test = slice(cell.parts.validation_stop, cell.parts.stop)
    columns = {f"{track}/{method}": rank for method, tracks in found.items() for track, rank in tracks.items()}
    frame = pl.DataFrame({"user": log.users[test], "item": log.items[test], **columns}).fill_nan(None)
    frame.write_parquet(folder / f"{name}-{seed}.parquet")
    all_s = time.process_time() - began
    print(
        f"{name}, seed {seed}: {choices[strategy]['settings']}, {choices['pretrain']['settings']}; CPU seconds: "
        f"{chosen_s:.0f} for choices, {fit_s - chosen_s:.0f} to fit, {all_s - fit_s:.0f} for the test part",
        flush=True,
    )


def table(name: str, folder: Path, seeds: int) -> dict[str, Comparison]:
    """Levels as lines of a table, and comparisons of `auto` with the best single baseline and the mix."""
    best, frames = json.loads((folder / f"{name}.json").read_text())["best"], list[pl.DataFrame]()
    for seed in range(seeds):
        if (path := folder / f"{name}-{seed}.parquet").exists():
            frames.append(pl.read_parquet(path))
    family = dict[str, Comparison]()
    for track in TRACKS:
        events = [frame.filter(pl.col(f"{track}/auto").is_not_null()) for frame in frames]
        users, items = (events[0][side].to_numpy() for side in ("user", "item"))
        levels: dict[str, dict[str, list[Floats]]] = {}
        for method in dict.fromkeys(("auto", best, "mix", "own_history", "recent_popularity")):
            ranks = [(each if method == "auto" else events[0])[f"{track}/{method}"].to_numpy() for each in events]
            levels[method] = {metric: [of(rank) for rank in ranks] for metric, of in METRICS.items()}
            cells = " / ".join(f"{np.mean(levels[method][metric]):.4f}" for metric in METRICS)
            label = f"{method} ({len(frames)} seeds)" if method == "auto" else method
            print(f"| {name} | {track} ({len(users):,}) | {label}{' (best)' if method == best else ''} | {cells} |")
        for baseline in (best, "mix"):
            for metric in METRICS:
                sides = levels["auto"][metric], levels[baseline][metric]
                family[f"{name} | {track} | {baseline} | {metric}"] = compare(*sides, users, items)
    return family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join((*STREAMS, "shop_journey")))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/lists"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    names = asked.streams.split(",")
    use_threads(1)
    for seed in range(asked.seeds):
        for name in names:
            if not (asked.out / f"{name}-{seed}.parquet").exists():
                run(name, seed, asked.out, asked.budget)
    print("\n| stream | track (events) | method | HR@10 / NDCG@10 |\n|---|---|---|---|")
    families: Mapping[str, Mapping[str, Comparison]] = {name: table(name, asked.out, asked.seeds) for name in names}
    show_conclusions("stream | track | auto against | metric", families)


if __name__ == "__main__":
    main()
