"""SASRec, GRU4Rec, EASE and implicit ALS as peers of `auto` on the streams in $MELON_DATA, on the same candidates.

    python research/benchmarks/strong_peers.py --windows                      # only choose; test parts are not read
    python research/benchmarks/strong_peers.py --seeds 3                      # choose what is not chosen, then the test parts
    python research/benchmarks/strong_peers.py --seeds 3 --against runs/auto  # and the records of research/benchmarks/auto.py beside them

Every peer predicts a batch before it learns it: 1 + 99 candidates from the catalogue, mid-rank ties, nothing from the
future. Settings are chosen on the judged part of the selection window with the candidates of seed 0, for the peer alone
and for its mixture with recent popularity, each by itself; a peer is trained on everything before that part there, and
on the whole training part for the test part. Items that a peer knows nothing of come last. One thread; needs the extra
`bench`. Records of choices and ranks stand under --out: what is there is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import polars as pl

from accuracy import DATA, SPLITS, STREAMS, show_conclusions
from auto import AUTO
from melon.atomic import write_text
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.compare import Comparison, Sides, compare_mean
from melon.evaluation.ranking import gains, hits, metrics, selection_score
from melon.evaluation.record import write_result
from melon.kernels.threads import use_threads
from melon.stream.split import Parts, parse_split, split
from strong.kinds import KINDS, Closed, Kind
from strong.mixture import Stretch

METRICS = {"HR@5": hits, "NDCG@10": gains}
#: Peers by the names of their records; each also mixed with popularity.
LABELS = {
    ("sasrec", "frozen"): "SASRec, frozen weights, history grows",
    ("sasrec", "online"): "SASRec, updated online",
    ("gru4rec", "frozen"): "GRU4Rec, frozen weights, history grows",
    ("gru4rec", "online"): "GRU4Rec, updated online",
    ("ease", "refitted"): "EASE, refitted",
    ("als", "refitted"): "ALS (implicit), refitted",
    ("ials", "streaming"): "ALS, streaming rows (`ials`)",
}
MIXED = "_popularity"


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--peers", default=",".join(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", action="store_true", help="stop before the test parts")
    parser.add_argument("--wider", action="store_true", help="only points beyond the grids of EASE and ALS, on windows")
    parser.add_argument("--against", type=Path, help="the folder that research/benchmarks/auto.py had as --out")
    parser.add_argument("--out", type=Path, default=Path("runs/strong"))
    asked = parser.parse_args()
    use_threads(1)
    names, peers = asked.streams.split(","), asked.peers.split(",")
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        log = load_stream(DATA / f"{name}.parquet")
        shares = dict(each.split("=") for each in SPLITS if "=" in each).get(name, SPLITS[0])
        parts = split(log, parse_split(shares))
        if asked.wider:
            for kind in (KINDS[peer] for peer in peers):
                if isinstance(kind, Closed):
                    print(name)
                    choose(kind.wider(), log.head(parts.validation_stop), parts.judged_from, Stretch.window(log, parts))
            continue
        chosen = {peer: chosen_on_window(asked.out / f"{name}-{peer}.choice.json", log, parts, peer) for peer in peers}
        for peer in () if asked.windows else peers:
            stream(asked.out, name, log, parts, peer, chosen[peer], range(asked.seeds))
    if not asked.windows and not asked.wider:
        print(f"\n`python research/benchmarks/strong_peers.py {' '.join(sys.argv[1:])}`")
        tables(asked.out, names, peers, asked.seeds, asked.against)


def chosen_on_window(path: Path, log: Interactions, parts: Parts, peer: str) -> Any:
    """The best settings of each variant, alone and mixed with popularity; from the file where it is there."""
    if path.exists():
        return json.loads(path.read_text())
    began = time.process_time()
    print(f"{path.name.removesuffix('.choice.json')}", flush=True)
    kind, before_test = KINDS[peer], log.head(parts.validation_stop)
    choices = choose(kind, before_test, parts.judged_from, Stretch.window(log, parts))
    choices["cpu_s"] = time.process_time() - began
    write_text(path, json.dumps(choices, indent=1) + "\n")
    return choices


def choose(kind: Kind, log: Interactions, start: int, window: Stretch) -> Any:
    """The best of a kind's trials for each variant, alone and mixed with popularity."""
    best: dict[str, Any] = {}
    for variant, settings, peer in kind.trials(log, start, window):
        scores = window.follow(peer)
        alone = selection_score(window.ranks(scores))
        mixed, mixture = window.best_mixture(scores, kind.shapes)
        print(f"  {variant} {settings}: {alone:.4f}, mixed {mixed:.4f} {mixture}", flush=True)
        found = {variant: (alone, None), variant + MIXED: (mixed, mixture)}
        for name, (score, added) in found.items():
            trials = [*best.get(name, {}).get("trials", ()), {"settings": settings, "score": score}]
            if name not in best or score > best[name]["score"]:
                best[name] = {"settings": settings, "mixture": added, "score": score}
            best[name]["trials"] = trials
    return best


def stream(
    out: Path, name: str, log: Interactions, parts: Parts, peer: str, chosen: Mapping[str, Any], seeds: Sequence[int]
) -> None:
    """The test part under every variant of a peer, as far as records are missing."""
    kind = KINDS[peer]
    variants = {variant: choice for variant, choice in chosen.items() if isinstance(choice, dict)}
    missing = [
        seed
        for seed in seeds
        if not all((out / f"{name}-{peer}-{seed}-{variant}.json").exists() for variant in variants)
    ]
    for some in ([seed] for seed in missing) if kind.seeded else [missing] if missing else []:
        test, known = Stretch.test(log, parts, some), {}
        for variant, choice in variants.items():
            key = json.dumps(choice["settings"])
            if key not in known:  # mixtures often take the same settings as the peer alone
                known[key] = test.follow(kind.make(log, parts.train_stop, variant, choice["settings"], some[0]))
            for at, seed in enumerate(some):
                rank = test.ranks(known[key], at, choice["mixture"])
                path = out / f"{name}-{peer}-{seed}-{variant}.json"
                write(path, log, parts, test, rank, choice, known[key].learn_ms)


def write(
    path: Path, log: Interactions, parts: Parts, test: Stretch, rank: Any, choice: Mapping[str, Any], spent: list[float]
) -> None:
    """A record and the rank of every event, in the form of `melon bench`."""
    events = test.events
    repeat, cold = log.repeats[events], log.users[events] >= log.head(parts.train_stop).n_users
    record = {
        "dataset": {"sha256": log.sha256, "interactions": len(log)},
        "config": {"chosen": {name: choice[name] for name in ("settings", "mixture", "score")}},
        "protocol": {"candidates": "catalogue", "negatives": 99, "ties": "mid", "batch_size": 256, "threads": 1},
        "metrics": metrics(rank),
        "without_repeats": metrics(rank[~repeat]),
        "update_cpu_ms": float(np.mean(spent)),
    }
    columns = {"event": events, "user": log.users[events], "item": log.items[events], "repeat": repeat, "cold": cold}
    write_result(record, {**columns, "rank": rank}, path)
    print(f"{path.stem}: HR@5 {record['metrics']['HR@5']:.4f}, {record['update_cpu_ms']:.0f} ms", flush=True)


def tables(out: Path, names: list[str], peers: list[str], seeds: int, against: Path | None) -> None:
    """Levels of every peer, what an update costs, and `auto` minus each of them; from the records that are there."""
    print("\n| HR@5 / NDCG@10 | " + " | ".join(names) + " | update, CPU ms per batch |")
    print("|---" * (len(names) + 2) + "|")
    found: dict[str, dict[str, Records]] = {name: {} for name in names}
    if against is not None:
        for name in names:
            found[name]["auto"] = Records(against / "catalogue" / AUTO.folder, f"{name}-blend", "default", seeds)
        print("| **auto** | " + " | ".join(found[name]["auto"].level(seeds) for name in names) + " | |")
    for (peer, variant), label in LABELS.items():
        for suffix, text in (("", label), (MIXED, "– with recent popularity")) if peer in peers else ():
            of_peer = [Records(out, f"{name}-{peer}", variant + suffix, seeds) for name in names]
            for name, records in zip(names, of_peer, strict=True):
                found[name][label + (" + popularity" if suffix else "")] = records
            spent = [each["update_cpu_ms"] for records in of_peer for each in records.told]
            cost = f"{min(spent):.3g}–{max(spent):.3g}" if spent and not suffix else ""
            print(f"| {text} | " + " | ".join(records.level(seeds) for records in of_peer) + f" | {cost} |")
    if against is not None:
        show_conclusions(
            "auto against | metric", {name: compared(name, of_stream) for name, of_stream in found.items()}
        )


class Records:
    """What one method did on a stream: a table of ranks and a record for each seed that is there."""

    def __init__(self, folder: Path, start: str, strategy: str, seeds: int) -> None:
        paths = {seed: folder / f"{start}-{seed}-{strategy}.json" for seed in range(seeds)}
        paths = {seed: path for seed, path in paths.items() if path.exists()}
        self.told = [json.loads(path.read_text()) for path in paths.values()]
        self.ranks = {seed: pl.read_parquet(path.with_suffix(".ranks.parquet")) for seed, path in paths.items()}

    def level(self, seeds: int) -> str:
        """Both metrics, mean over seeds; the number of seeds where some are missing."""
        ranks = [frame["rank"].to_numpy() for frame in self.ranks.values()]
        if not ranks:
            return "–"
        both = " / ".join(f"{np.mean([of(rank).mean() for rank in ranks]):.3f}" for of in METRICS.values())
        return both if len(ranks) == seeds else f"{both} ({len(ranks)})"


def compared(name: str, found: Mapping[str, Records]) -> dict[str, Comparison]:
    """`auto` minus each peer, over the seeds that both have."""
    auto, family = found["auto"].ranks, {}
    for label, records in found.items():
        pairs = [(auto[seed], frame) for seed, frame in records.ranks.items() if seed in auto and label != "auto"]
        if not all(a[column].equals(b[column]) for a, b in pairs for column in ("event", "user", "item")):
            sys.exit(f"{label} and auto were not measured on the same events of {name}.")
        for metric, of in METRICS.items() if pairs else ():
            sides = [[of(pair[side]["rank"].to_numpy()) for pair in pairs] for side in (0, 1)]
            users, items = (pairs[0][0][side].to_numpy() for side in ("user", "item"))
            label_of_row = f"{label}, {name}, {len(pairs)} seed{'s' if len(pairs) > 1 else ''} | {metric}"
            family[label_of_row] = compare_mean([Sides(sides[0], sides[1], users, items)])
    return family


if __name__ == "__main__":
    main()
