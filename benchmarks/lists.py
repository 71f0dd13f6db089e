"""Lists: milliseconds for ten of many items, and how many of the exact ten a two-stage list keeps.

    python benchmarks/lists.py                 # CPU milliseconds, one thread, 3 thousand and 100 thousand items
    python benchmarks/lists.py recall          # two stages beside exact, on the streams of $MELON_DATA

`recall` trains a blend on nine tenths of a stream, then learns the rest in batches of 16 and compares both kinds of
lists for users of each batch; bound .99. With `--inputs auto` the head has the further inputs of `auto`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from melon import Melon
from melon.data.files import load_stream
from melon.fitting.auto import SETTINGS
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.blend import catalogue
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES

DATA = Path(os.environ.get("MELON_DATA", "."))
STREAMS = ("news_globo", "amazon_grocery", "amazon_electronics", "amazon_book", "yelp")
K, BATCH = 10, 16


def live_model(kind: str, items: int, *, users: int = 2_000, past: int = 20_000, **settings: object) -> LiveModel:
    """A model that has met every item once, and some of them often; idle rows decay."""
    rng = np.random.default_rng(0)
    strategy = STRATEGIES["default"].load()({"half_life": 20_000.0})
    model = LiveModel(Updater(RECOMMENDERS[kind].load()({"dim": 64, **settings}), strategy))
    model.learn_events(np.resize(np.arange(users), items), np.arange(items), batch_size=10_000)
    model.learn_events(rng.integers(0, users, past), (items * rng.random(past) ** 3).astype(np.int64), batch_size=1_000)
    return model


def cpu_ms(work: Callable[[], object], prepare: Callable[[], object] = lambda: None, rounds: int = 30) -> float:
    """Median CPU milliseconds, after two rounds to warm up."""
    taken = []
    for _ in range(2 + rounds):
        prepare()
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return float(np.median(taken[2:]) * 1e3)


def speed(sizes: list[int]) -> None:
    """One user, eight at once, and one user right after an event was learned."""
    print("| recommender | items | one user, ms | each of eight, ms | one user right after an event, ms |")
    print("|---|---|---|---|---|")
    rng = np.random.default_rng(1)
    for items in sizes:
        for name, kind, settings in (
            ("bpr", "bpr", {}),
            ("blend, exact", "blend", {}),
            ("blend, two-stage", "blend", {"lists": "two_stage"}),
            ("auto, exact", "blend", SETTINGS),
            ("auto, two-stage", "blend", {"lists": "two_stage", **SETTINGS}),
        ):
            model = live_model(kind, items, **settings)
            one = cpu_ms(lambda model=model: model.recommend([5], K))
            eight = cpu_ms(lambda model=model: list(model.best(np.arange(8), K, filter_seen=True))) / 8

            def event(model: LiveModel = model, items: int = items) -> None:
                model.learn_events([int(rng.integers(2_000))], [int(rng.integers(items))])

            after = cpu_ms(lambda model=model: model.recommend([5], K), event)
            print(f"| {name} | {items:,} | {one:.2f} | {eight:.2f} | {after:.2f} |", flush=True)


def kept_shares(name: str, most: int, more: Mapping[str, object]) -> Iterator[float]:
    """For users of each batch of a stream's end: which share of the exact ten the two stages keep."""
    log = load_stream(DATA / f"{name}.parquet")
    start = max(len(log) - len(log) // 10, len(log) - most)
    melon = Melon(
        "blend",
        "default",
        budget=0,
        epochs=3,
        recommender_settings=dict(more),
        settings={"lr": 0.3, "half_life": 10_000.0},
        progress=False,
    )
    melon.fit(log.head(start))
    live = melon.live
    blend = live.updater.recommender
    for first in range(start, len(log), BATCH):
        some = slice(first, first + BATCH)
        live.learn_events(log.user_ids[log.users[some]], log.item_ids[log.items[some]], log.times[some])
        users = live.users.rows(log.user_ids[log.users[some][:2]])
        lists = []
        for kind in ("exact", "two_stage"):
            blend.settings = blend.settings.model_copy(update={"lists": kind})
            live.updater._kept = None
            lists.append(list(live.best(users, K, filter_seen=True)))
        for (exact, _), (quick, _) in zip(*lists, strict=True):
            yield len(np.intersect1d(exact, quick)) / max(len(exact), 1)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["speed", "recall"], default="speed")
    parser.add_argument("--items", default="3000,100000")
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--events", type=int, default=10_000, help="at most so many interactions are learned")
    parser.add_argument("--inputs", choices=["blend", "auto"], default="blend", help="of the head, for recall")
    sources = ("candidates", "offered", "met")
    for source in sources:
        parser.add_argument(
            f"--{source}", type=int, default=getattr(catalogue, source.upper()), help="two stages: items"
        )
    parser.add_argument("--from", dest="least", type=int, default=0, help="two stages from so many items on")
    options = parser.parse_args()
    for source in sources:
        setattr(catalogue, source.upper(), getattr(options, source))
    catalogue.FROM = options.least
    if options.what == "speed":
        speed([int(size) for size in options.items.split(",")])
        return
    print("| stream | lists compared | share of the exact ten | lists that are the same |\n|---|---|---|---|")
    for name in options.streams.split(","):
        shares = list(kept_shares(name, options.events, SETTINGS if options.inputs == "auto" else {}))
        print(
            f"| {name} | {len(shares):,} | {np.mean(shares):.4f} | {np.mean(np.array(shares) == 1):.3f} |", flush=True
        )


if __name__ == "__main__":
    main()
