"""EASE, implicit ALS and SASRec as peers of `auto` by lists of the whole catalogue, on the streams in $MELON_DATA.

    python research/benchmarks/list_peers.py --windows            # only choose; test parts are not read
    python research/benchmarks/list_peers.py --peers ease,ials,sasrec

As in `research/benchmarks/lists.py`, the item taken is ranked among all items that may be listed before its batch is
learned, in both tracks. Settings are searched (BUDGET points of AXES, each with every mixture with recent popularity) by
the mean NDCG@10 of both tracks on the judged part of the selection window (about 1,000 events); the test part is read
once, for the best. EASE takes catalogues of up to 20,000 items. What is under --out is not computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import polars as pl

from accuracy import DATA, SHARES
from lists import METRICS
from melon.atomic import write_text
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.evaluation.lists import TRACKS, Lister
from melon.evaluation.ranking import gains
from melon.fitting.search import Trial, edges, search
from melon.kernels.threads import use_threads
from melon.models.catalogue import Catalogue
from melon.models.streaming.counts import ItemCounts
from melon.registry import Space
from melon.stream.batch import batch_of
from melon.stream.split import DEFAULT_SPLIT, Parts, batches, split
from melon.types import Floats, Ints, Scores
from strong.kinds import KINDS, batches_between_refits
from strong.mixture import SHAPES, Peer

HALF_LIVES = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
WEIGHTS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
JUDGED, AT_ONCE, MOST_ITEMS, BUDGET = 1_000, 16, {"ease": 20_000}, 14
L2, RATES = (3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0), (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
#: What is searched for each peer, from where. SASRec: epochs before the window, dropout, and the step of online updates.
AXES = {
    "ease": Space({"l2": L2, "last": (20, None)}, ({"l2": 300.0, "last": 20},)),
    "ials": Space(
        {"missing": RATES, "reg": RATES, "dim": (16, 32, 64, 128)}, ({"missing": 0.01, "reg": 0.03, "dim": 64},)
    ),
    "sasrec": Space(
        {"epochs": (2, 4, 8, 16, 32, 64), "online": (None, 1e-3, 3e-3, 1e-2, 3e-2), "dropout": (0.1, 0.2, 0.5)},
        ({"epochs": 16, "online": 3e-3, "dropout": 0.2}, {"epochs": 16, "online": None, "dropout": 0.2}),
    ),
}
Ranks = dict[str, Floats]


@dataclass(frozen=True)
class Mixture:
    """What is done to a peer's scores: their shape, and so much of log popularity at a half-life."""

    shape: str = "as it is"
    half_life: int = HALF_LIVES[0]
    weight: float = 0.0


class Whole(Catalogue):
    """Scores of all items: a table for the users of one batch."""

    def __init__(self, users: Ints, scores: Scores) -> None:
        self._lines, self._scores = {user: line for line, user in enumerate(users.tolist())}, scores

    def scores(self, users: Ints, *, unseen: bool = False) -> Scores:
        return self._scores[[self._lines[user] for user in users.tolist()]]


def all_scores(peer: Peer, users: Ints, known: int) -> Floats:
    """A peer's scores of items 0 … known-1; those it knows nothing of are level with the last of the others."""
    scores, items = np.zeros((len(users), known)), np.arange(min(known, peer.known))
    for start in range(0, len(users), AT_ONCE):
        some = users[start : start + AT_ONCE]
        scores[start : start + AT_ONCE, : len(items)] = peer.score(some, np.tile(items, (len(some), 1)))
    scores[:, len(items) :] = scores[:, : len(items)].min(1, keepdims=True)
    return scores


def follow(
    peer: Peer, log: Interactions, start: int, judged: Sequence[tuple[int, int]], share: float, tried: Sequence[Mixture]
) -> list[Ranks]:
    """Ranks by lists under each mixture; the peer has seen what precedes `start` and learns every batch."""
    counts = ItemCounts(HALF_LIVES)
    counts.observe(log.items[: judged[0][0]])
    for first, last in batches(start, judged[0][0]):
        peer.learn(log.users[first:last], log.items[first:last])
    listers = [Lister(log, judged[0][0], share) for _ in tried]
    found: list[dict[str, list[Floats]]] = [{track: [] for track in TRACKS} for _ in tried]
    for first, last in (bounds for part in judged for bounds in batches(*part)):
        batch, known = batch_of(log, first, last), int(log.known_items[first])
        users = np.unique(batch.users)
        own, popular = all_scores(peer, users, known), np.log1p(counts.read(np.arange(known)))
        for mixture, lister, ranks in zip(tried, listers, found, strict=True):
            scores = SHAPES[mixture.shape](own)
            scores = scores + mixture.weight * popular[:, HALF_LIVES.index(mixture.half_life)]
            whole = Whole(users, scores.astype(np.float32))
            lists = lister.rank(lambda _n, _t, whole=whole: whole, batch, known, "a stretch of the stream")  # type: ignore[misc]
            for track in TRACKS:
                ranks[track].append(lists.tracks[track].rank)
        peer.learn(batch.users, batch.items)
        counts.observe(batch.items)
    return [{track: np.concatenate(parts) for track, parts in ranks.items()} for ranks in found]


def level(ranks: Ranks) -> float:
    """The mean NDCG@10 of both tracks."""
    return float(np.mean([gains(rank[~np.isnan(rank)]).mean() for rank in ranks.values()]))


def choose(name: str, log: Interactions, parts: Parts, peer: str) -> Any:
    """The best settings and mixture on the window, for the peer alone and mixed; and the axes on whose edge they lie."""
    kind, before = KINDS[peer], log.head(parts.validation_stop)
    judged = [(parts.judged_from, parts.train_stop), (parts.train_stop, parts.validation_stop)]
    share = JUDGED / (parts.validation_stop - parts.judged_from)
    mixing = {"shape": kind.shapes, "half_life": HALF_LIVES, "weight": WEIGHTS}
    tried = [Mixture(shape) for shape in kind.shapes] + [Mixture(*point) for point in product(*mixing.values())]
    best: dict[str, Any] = {}

    def judge(point: Any, _: Any) -> Trial:
        made = kind.make(before, parts.judged_from, "", settings_of(before, peer, point), 0)
        ranks, top = follow(made, before, parts.judged_from, judged, share, tried), 0.0
        for mixture, score in zip(tried, map(level, ranks), strict=True):
            part, top = "mixed" if mixture.weight else "alone", max(top, score)
            if part not in best or score > best[part]["score"]:
                edge = [*edges(AXES[peer].axes, point), *(edges(mixing, vars(mixture)) if mixture.weight else ())]
                settings = settings_of(before, peer, point)
                best[part] = {"settings": settings, "mixture": vars(mixture), "score": score, "at_edge": edge}
        print(f"  {name} {peer} {point}: {top:.4f}", flush=True)
        return Trial(point, top)

    search(AXES[peer], BUDGET, judge)
    print(f"  {name} {peer}: {best}", flush=True)
    return best


def settings_of(log: Interactions, peer: str, point: Any) -> Any:
    """A point of the search as the settings of a peer; how often a closed form is solved again goes by its cost."""
    if peer == "ease":
        return {**point, "every": 2 * batches_between_refits(log)}
    if peer == "sasrec":
        online = {"replays": 4, "reach": 5_000, "lr": point["online"]}
        return {"lr": 2e-3, **point, "online": online if point["online"] else None}
    return point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="amazon_grocery,amazon_electronics,yelp")
    parser.add_argument("--peers", default="ease,ials")
    parser.add_argument("--windows", action="store_true", help="stop before the test parts")
    parser.add_argument("--out", type=Path, default=Path("runs/list_peers"))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    use_threads(1)
    for name, peer in product(asked.streams.split(","), asked.peers.split(",")):
        log = load_stream(DATA / f"{name}.parquet")
        parts, began = split(log, SHARES.get(name, DEFAULT_SPLIT)), time.process_time()
        if log.n_items > MOST_ITEMS.get(peer, log.n_items):
            continue
        path = asked.out / f"{name}-{peer}.json"
        if not path.exists():
            write_text(path, json.dumps(choose(name, log, parts, peer), indent=1))
        for part, choice in json.loads(path.read_text()).items() if not asked.windows else ():
            ranks_path = asked.out / f"{name}-{peer}-{part}.parquet"
            if not ranks_path.exists():
                made = KINDS[peer].make(log, parts.train_stop, "", choice["settings"], 0)
                test = [(parts.validation_stop, parts.stop)]
                ranks = follow(made, log, parts.train_stop, test, 1.0, [Mixture(**choice["mixture"])])[0]
                pl.DataFrame(ranks).write_parquet(ranks_path)
            ranks = {track: pl.read_parquet(ranks_path)[track].to_numpy() for track in TRACKS}
            for track, rank in ranks.items():
                judged = rank[~np.isnan(rank)]
                levels = " / ".join(f"{of(judged).mean():.4f}" for of in METRICS.values())
                print(f"| {name} | {track} ({len(judged):,}) | {peer} {part} | {levels} |")
        print(f"{name}, {peer}: {time.process_time() - began:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
