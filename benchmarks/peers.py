"""Beside libraries that do one thing in compiled code: implicit (ALS, BPR) and river (BiasedMF), in one run.

    python benchmarks/peers.py                 # a made-up log of MovieLens-1M's size
    python benchmarks/peers.py --log FILE      # a prepared stream
    python benchmarks/peers.py --no-fit        # without Melon().fit, the longest line

CPU time, one thread, d = 64; medians of repetitions that take turns. The last columns are how many times as fast as
the peer melon is (above 1: ahead), and the same as recorded before. With --record the figures join
benchmarks/recorded.json. Needs the extra `bench`.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

try:
    import implicit.cpu.als
    import implicit.cpu.bpr
    from river import optim, reco
    from scipy.sparse import csr_matrix
except ImportError as problem:
    raise SystemExit(f"{problem}: install the extra with pip install 'melon-recommender[bench]'") from None

from lists import live_model
from melon import Melon
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.kernels.threads import use_threads
from melon.learning.model import LiveModel
from melon.learning.pretrain import Pretraining, PretrainSettings
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES

RECORDED = Path(__file__).parent / "recorded.json"
DIM, K, EVENTS, LISTS = 64, 10, 150, 60
#: A line of the table: what, whose, our seconds, the peer, its seconds.
Line = tuple[str, str, float, str, float]


def made_up(users: int = 6_022, items: int = 3_043, interactions: int = 950_000) -> Interactions:
    """A log of MovieLens-1M's size: tastes, and a heavy tail of popularity."""
    rng = np.random.default_rng(0)
    who = np.concatenate([np.arange(users), (users * rng.random(interactions - users) ** 1.3).astype(np.int64)])
    tail = (items * rng.random(interactions) ** 3).astype(np.int64)
    what = np.where(rng.random(interactions) < 0.5, tail, (tail // 8 + (who % 16) * (items // 16)) % items)
    what[:items] = np.arange(items)
    return Interactions(who, what, np.arange(interactions), np.arange(users), np.arange(items))


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def cpu_of_all(work: Callable[[], object]) -> float:
    """The same with the processes that it starts."""
    began = os.times()
    work()
    return sum(now - then for now, then in zip(os.times()[:4], began[:4], strict=True))


def in_turns(works: list[Callable[[], object]], rounds: int, each: int = 1) -> list[float]:
    """Median CPU seconds of each of some calls that take turns, after a round to warm up; `each` in a row."""
    taken = [[[cpu(work) for _ in range(each)] for work in works] for _ in range(rounds + 1)][1:]
    return [float(part) for part in np.median(np.array(taken), axis=(0, 2))]


def pretraining(log: Interactions, likes: Any) -> Iterator[Line]:
    """Seconds for each interaction of an epoch."""
    ours = Pretraining(BPR({"dim": DIM}), log, PretrainSettings(), seed=0)
    quiet = {"factors": DIM, "iterations": 1, "num_threads": 1, "random_state": 0}
    bpr = implicit.cpu.bpr.BayesianPersonalizedRanking(**quiet)
    als = implicit.cpu.als.AlternatingLeastSquares(**quiet)
    works = [ours.epoch, lambda: bpr.fit(likes, show_progress=False), lambda: als.fit(likes, show_progress=False)]
    own, by_bpr, by_als = (seconds / len(log) for seconds in in_turns(works, 3))
    yield "pre-training, one interaction of an epoch", "bpr", own, "implicit BPR", by_bpr
    yield "pre-training, one interaction of an epoch", "bpr", own, "implicit ALS", by_als


def models(log: Interactions) -> dict[str, LiveModel]:
    """Three models that have learned a part of the log in large batches."""
    live = {}
    for name, kind, strategy in (
        ("bpr", "bpr", "default"),
        ("blend", "blend", "default"),
        ("bpr + MeLON", "bpr", "melon"),
    ):
        settings = {"lr": 0.1, "optimizer": "sgd"} if strategy == "default" else {}
        updater = Updater(RECOMMENDERS[kind].load()({"dim": DIM}), STRATEGIES[strategy].make(settings))
        updater.warm_up()
        live[name] = LiveModel(updater)
        live[name].learn_events(log.users[:50_000], log.items[:50_000], batch_size=1_000)
    return live


def learning(log: Interactions, likes: Any) -> Iterator[Line]:
    """One event, and a batch of 256."""
    live, start = models(log), iter(range(50_000, len(log)))
    river = reco.BiasedMF(n_factors=DIM, latent_optimizer=optim.SGD(0.05))
    als = implicit.cpu.als.AlternatingLeastSquares(factors=DIM, iterations=1, num_threads=1, random_state=0)
    als.fit(likes, show_progress=False)

    def event(model: LiveModel) -> None:
        n = next(start)
        model.learn_events(log.users[n : n + 1], log.items[n : n + 1])

    def by_river() -> None:
        n = next(start)
        river.learn_one(user=int(log.users[n]), item=int(log.items[n]), y=1.0)

    def by_implicit() -> None:
        user = log.users[next(start)]
        als.partial_fit_users([user], likes[user])

    ours = [lambda model=model: event(model) for model in live.values()]
    *own, river_s, implicit_s = in_turns([*ours, by_river, by_implicit], EVENTS // 10, each=10)
    for name, seconds in zip(live, own, strict=True):
        yield "learning one event", name, seconds, "river BiasedMF", river_s
        yield "learning one event", name, seconds, "implicit partial_fit_users", implicit_s

    def batch(model: LiveModel) -> None:
        n = next(start)
        model.learn_events(log.users[n : n + 256], log.items[n : n + 256])

    own = in_turns([lambda model=model: batch(model) for model in live.values()], 15)
    for name, seconds in zip(live, own, strict=True):
        yield "learning a batch of 256", name, seconds, "river, 256 events", 256 * river_s


def listing(items: int) -> Iterator[Line]:
    """Ten items for one user."""
    rng = np.random.default_rng(0)
    live = {name: live_model(name, items) for name in ("bpr", "blend")}
    two_stage = live_model("blend", items, lists="two_stage")
    als = implicit.cpu.als.AlternatingLeastSquares(factors=DIM, num_threads=1)
    als.user_factors = rng.normal(size=(2_000, DIM)).astype(np.float32)
    als.item_factors = rng.normal(size=(items, DIM)).astype(np.float32)
    liked = csr_matrix((np.ones(20, np.float32), (np.zeros(20, np.int64), rng.integers(0, items, 20))), (1, items))
    works: list[Callable[[], object]] = [lambda model=model: model.recommend([5], K) for model in live.values()]
    *own, theirs = in_turns(
        [*works, lambda: als.recommend(5, liked, N=K, filter_already_liked_items=True)], LISTS // 10, each=10
    )
    what = f"top {K} of {items:,} items, one user"
    for name, seconds in zip(live, own, strict=True):
        yield what, name, seconds, "implicit", theirs
    after = [
        cpu(lambda: two_stage.recommend([5], K))
        for _ in range(LISTS)
        if two_stage.learn_events([7], [int(rng.integers(items))])
    ]
    yield f"{what}, right after an event", "blend, two-stage", float(np.median(after)), "implicit", theirs
    if items <= 10_000:
        river = reco.BiasedMF(n_factors=DIM)
        for n in range(items):
            river.learn_one(user=n % 2_000, item=n, y=1.0)
        everything = set(range(items))
        slow = float(np.median([cpu(lambda: river.rank(5, everything)[:K]) for _ in range(5)]))
        yield what, "bpr", own[0], "river", slow


def fitting() -> Iterator[Line]:
    """Everything default on 100 thousand interactions, beside ten iterations of the quickest peer."""
    log = made_up(2_000, 1_500, 100_000)
    likes = csr_matrix((np.ones(len(log), np.float32), (log.users, log.items)))
    als = implicit.cpu.als.AlternatingLeastSquares(factors=DIM, iterations=10, num_threads=1)
    rows = list(zip(log.users.tolist(), log.items.tolist(), log.times.tolist(), strict=True))
    ours = cpu_of_all(lambda: Melon(progress=False).fit(rows))
    yield (
        "Melon().fit, 100,000 interactions",
        "auto",
        ours,
        "implicit ALS",
        cpu(lambda: als.fit(likes, show_progress=False)),
    )
    ours = cpu_of_all(lambda: Melon(budget=0, progress=False).fit(rows))
    yield (
        "Melon(budget=0).fit, 100,000 interactions",
        "auto",
        ours,
        "implicit ALS",
        cpu(lambda: als.fit(likes, show_progress=False)),
    )


def shown(seconds: float) -> str:
    """Seconds in a fitting unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1 or (unit == "ms" and seconds * scale >= 0.01):
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def main() -> None:
    """Print the table, line by line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, help="a prepared stream instead of the made-up log")
    parser.add_argument("--fit", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--record", action="store_true", help="keep the figures for later runs to be compared with")
    options = parser.parse_args()
    use_threads(1)
    log = load_stream(options.log) if options.log else made_up()
    likes = csr_matrix((np.ones(len(log), np.float32), (log.users, log.items)))
    recorded: dict[str, dict[str, float]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    print(f"{len(log):,} interactions, {log.n_users:,} users, {log.n_items:,} items, d = {DIM}")
    print("| what | melon | time | peer | time | × the peer's speed | before → now |\n|---|---|---|---|---|---|---|")
    parts = [pretraining(log, likes), learning(log, likes), listing(3_000), listing(100_000)]
    for part in (*parts, fitting()) if options.fit else parts:
        for what, name, ours, peer, theirs in part:
            key = f"peers: {what}, {name}, {peer}"
            before = f"{recorded[key]['ratio']:.2g} → {theirs / ours:.2g}" if key in recorded else ""
            print(
                f"| {what} | {name} | {shown(ours)} | {peer} | {shown(theirs)} | {theirs / ours:.2g} | {before} |",
                flush=True,
            )
            recorded[key] = {"ms": ours * 1e3, "ratio": theirs / ours}
    if options.record:
        RECORDED.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
