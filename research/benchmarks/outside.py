"""`auto` beside simple recommenders in whole lists, through the public interface alone.

    python research/benchmarks/outside.py clicks.tsv --columns SessionId,ItemId,Time [--separator tab] [--live 256]

Nothing of `melon.evaluation` is used: `Melon.fit` on the first 95 % of a file, then for each live batch of the rest
lists of 20 by `recommend` for its users, the rank of each item taken in its user's list, and `partial_fit`. Two tracks:
all events with unfiltered lists, first-time pairs with lists of items that the user has not had. An item that nobody
has had is a miss. Beside it stand recent popularity, own history, Markov, sequential rules, item-kNN and session kNN
(VSKNN), written anew below, each with a share of recent popularity; shares and half-lives are chosen on the 5 % before
the test part, by the mean NDCG@10 of both tracks. Differences are paired by event, intervals by resampling users.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import polars as pl

import melon

K, LAST, PASTS = 20, 20, 500
HALF_LIVES, SHARES = (300, 1_000, 3_000, 10_000, 100_000), (0.03, 0.1, 0.3, 1.0, 3.0)
Ranks = dict[str, list[float]]


class World:
    """What simple recommenders know of the past: counts, transitions, who had what."""

    def __init__(self, items: int) -> None:
        self.recent = {half_life: np.zeros(items) for half_life in HALF_LIVES}
        self.seen = np.zeros(items, dtype=bool)
        self.pasts: dict[int, list[int]] = defaultdict(list)
        self.next: dict[int, Counter[int]] = defaultdict(Counter)
        self.rules: dict[int, Counter[int]] = defaultdict(Counter)
        self.together: dict[int, Counter[int]] = defaultdict(Counter)
        self.takers: dict[int, list[int]] = defaultdict(list)
        self.counts = np.zeros(items)

    def learn(self, user: int, item: int) -> None:
        for half_life in self.recent:
            self.recent[half_life] *= 0.5 ** (1 / half_life)
            self.recent[half_life][item] += 1
        past = self.pasts[user]
        if past:
            self.next[past[-1]][item] += 1
        for gap, other in enumerate(reversed(past[-10:]), start=1):
            self.rules[other][item] += 1 / gap
        if item not in past:
            for other in set(past[-50:]):
                self.together[other][item] += 1
                self.together[item][other] += 1
            self.takers[item].append(user)
        self.counts[item] += 1
        self.seen[item] = True
        past.append(item)


def own_history(_: World, past: list[int], into: np.ndarray) -> None:
    for age, item in enumerate(reversed(past[-200:])):
        into[item] += 0.5 ** (age / 50)


def markov(world: World, past: list[int], into: np.ndarray) -> None:
    for item, count in world.next[past[-1]].items() if past else ():
        into[item] += count


def sequential_rules(world: World, past: list[int], into: np.ndarray) -> None:
    for gap, other in enumerate(reversed(past[-10:]), start=1):
        for item, weight in world.rules[other].items():
            into[item] += weight / gap


def item_knn(world: World, past: list[int], into: np.ndarray) -> None:
    for other in set(past[-50:]):
        for item, count in world.together[other].items():
            into[item] += count / np.sqrt((world.counts[other] + 1) * (world.counts[item] + 1))


def session_knn(world: World, past: list[int], into: np.ndarray) -> None:
    weights = {item: (place + 1) / len(past[-LAST:]) for place, item in enumerate(past[-LAST:])}
    alike: Counter[int] = Counter()
    for item, weight in weights.items():
        for user in world.takers[item][-PASTS:]:
            alike[user] += weight
    for user, likeness in alike.most_common(100):
        other = world.pasts[user][-50:]
        for item in set(other):
            into[item] += likeness / np.sqrt(len(other))


SOURCES: dict[str, Callable[[World, list[int], np.ndarray], None]] = {
    each.__name__: each for each in (own_history, markov, sequential_rules, item_knn, session_knn)
}


def rank(scores: np.ndarray, world: World, target: int, had: set[int], filtered: bool) -> float:
    """The place of the target in the list, in the middle of ties; infinite where nobody has had it."""
    if not world.seen[target]:
        return np.inf
    open_ = world.seen.copy()
    if filtered:
        open_[list(had)] = False
    rivals = scores[open_]
    own = scores[target]
    return 1 + (rivals > own).sum() + ((rivals == own).sum() - 1) / 2


def simple(world: World, users: np.ndarray, items: np.ndarray, live: int, chosen: dict | None) -> dict[object, Ranks]:
    """Ranks by every recommender (with all settings, or the chosen ones), learning batch by batch."""
    ranks: dict[object, Ranks] = defaultdict(lambda: {"all": [], "first": []})
    for start in range(0, len(users), live):
        some = list(zip(users[start : start + live].tolist(), items[start : start + live].tolist(), strict=True))
        sources: dict[tuple[str, int], np.ndarray] = {}
        for user, item in some:
            past = world.pasts.get(user, [])
            had = set(past)
            recent = {half_life: counts / (counts.max() or 1) for half_life, counts in world.recent.items()}
            for name, settings in settings_of(chosen):
                half_life, share = settings
                scores = share * recent[half_life]
                if name in SOURCES:
                    if (name, user) not in sources:
                        into = np.zeros(len(world.seen))
                        SOURCES[name](world, past, into)
                        sources[name, user] = into / (into.max() or 1)
                    scores = scores + sources[name, user]
                both = ranks[name if chosen else (name, settings)]
                both["all"].append(rank(scores, world, item, had, False))
                both["first"].append(np.nan if item in had else rank(scores, world, item, had, True))
        for user, item in some:
            world.learn(user, item)
    return ranks


def settings_of(chosen: dict | None) -> Iterator[tuple[str, tuple[int, float]]]:
    if chosen:
        yield from chosen.items()
        return
    yield from (("recent_popularity", (half_life, 1.0)) for half_life in HALF_LIVES)
    yield from ((name, each) for name in SOURCES for each in product(HALF_LIVES, SHARES))


def auto(log: pl.DataFrame, cut: int, live: int, seed: int) -> Ranks:
    """Ranks by `melon.Melon` with its defaults."""
    model = melon.Melon(seed=seed).fit(log[:cut])
    ranks: Ranks = {"all": [], "first": []}
    had: dict[object, set[object]] = defaultdict(set)
    for user, item in log[:cut].select("user", "item").iter_rows():
        had[user].add(item)
    for start in range(cut, len(log), live):
        some = log[start : start + live]
        names = some["user"].unique(maintain_order=True).to_list()
        for track, filtered in (("all", False), ("first", True)):
            lists = model.recommend(names, k=K, filter_seen=filtered, as_frame=True)
            listed = {
                user: {item: place for place, item in enumerate(frame["item"].to_list(), start=1)}
                for (user,), frame in lists.group_by("user")
            }
            for user, item in some.select("user", "item").iter_rows():
                left_out = filtered and item in had[user]
                ranks[track].append(np.nan if left_out else listed.get(user, {}).get(item, np.inf))
        model.partial_fit(some)
        for user, item in some.select("user", "item").iter_rows():
            had[user].add(item)
    return ranks


def hit(ranks: list[float]) -> np.ndarray:
    return (np.asarray(ranks) <= 10).astype(float)


def gain(ranks: list[float]) -> np.ndarray:
    places = np.asarray(ranks)
    return np.where(places <= 10, 1 / np.log2(1 + np.minimum(places, 1e9)), 0.0)


def interval(difference: np.ndarray, users: np.ndarray) -> tuple[float, float]:
    """95 % of means over resampled users."""
    _, place = np.unique(users, return_inverse=True)
    sums, sizes = np.bincount(place, difference), np.bincount(place)
    draws = np.random.default_rng(0).integers(0, len(sums), (2_000, len(sums)))
    low, high = np.quantile(sums[draws].sum(1) / sizes[draws].sum(1), (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--columns", default="user,item,time")
    parser.add_argument("--separator", default="tab")
    parser.add_argument("--live", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.file.endswith(".parquet"):
        raw = pl.read_parquet(given.file)
    else:
        raw = pl.read_csv(given.file, separator="\t" if given.separator == "tab" else given.separator)
    log = raw.select(pl.col(given.columns.split(",")[n]).alias(name) for n, name in enumerate(("user", "item", "time")))
    log = log.with_columns(pl.col("time").cast(pl.Float64).floor().cast(pl.Int64)).sort("time", maintain_order=True)
    cut, window = round(0.95 * len(log)), round(0.9 * len(log))
    users = log["user"].rank("dense").to_numpy().astype(np.int64) - 1
    items = log["item"].rank("dense").to_numpy().astype(np.int64) - 1
    known = set(users[:cut].tolist())
    print(
        f"{given.file}: {len(log):,} events, {users.max() + 1:,} users, {items.max() + 1:,} items; live batches of "
        f"{given.live}; {np.mean([user not in known for user in users[cut:].tolist()]):.0%} of the {len(log) - cut:,} "
        "test events are of users who are not in the first 95 %"
    )
    world = World(int(items.max()) + 1)
    for user, item in zip(users[:window].tolist(), items[:window].tolist(), strict=True):
        world.learn(user, item)
    tried = simple(world, users[window:cut], items[window:cut], given.live, None)
    chosen: dict[str, tuple[int, float]] = {}
    score = {key: sum(np.mean(gain(each)[~np.isnan(each)]) for each in both.values()) for key, both in tried.items()}
    for name, settings in sorted(score, key=score.__getitem__):
        chosen[name] = settings
    nearest = max(chosen, key=lambda name: score[name, chosen[name]])
    ranks = simple(world, users[cut:], items[cut:], given.live, chosen)
    ranks["auto"] = auto(log, cut, given.live, given.seed)
    print(f"best of the simple ones on the window: {nearest}")
    for track in ("all", "first"):
        judged = ~np.isnan(np.asarray(ranks["auto"][track]))
        print(
            f"\n{track} ({judged.sum():,} events) | HR@10 | NDCG@10 | auto minus it: HR@10 | NDCG@10\n--- | --- | --- | --- | ---"
        )
        ours = {of: of(ranks["auto"][track])[judged] for of in (hit, gain)}
        print(f"auto | {ours[hit].mean():.4f} | {ours[gain].mean():.4f} | |")
        for name, settings in chosen.items():
            theirs = {of: of(ranks[name][track])[judged] for of in (hit, gain)}
            apart = [ours[of] - theirs[of] for of in (hit, gain)]
            cells = " | ".join(
                "{:+.4f} [{:+.4f}, {:+.4f}]".format(d.mean(), *interval(d, users[cut:][judged])) for d in apart
            )
            print(f"{name} {settings} | {theirs[hit].mean():.4f} | {theirs[gain].mean():.4f} | {cells}")


if __name__ == "__main__":
    main()
