"""Keeping up: tastes change, one model goes on learning, and its twin stays as it was trained."""

import random

import melon

random.seed(1)
USERS, ITEMS, EVENTS = 50, 40, 6_000


def liked(user: int, moment: int) -> int:
    """An item of the user's group; in the middle of the stream the two groups swap their tastes."""
    group = (user + (moment >= EVENTS // 2)) % 2
    return group * ITEMS // 2 + random.randrange(ITEMS // 2)


users = [random.randrange(USERS) for _ in range(EVENTS)]
log = [(user, liked(user, moment), moment) for moment, user in enumerate(users)]
start, size = EVENTS // 3, 250

past, settings = log[:start], {"lr": 0.3, "reduction": "sum"}
model = melon.Melon("bpr", "default", epochs=5, budget=0, settings=settings, batch_size=size).fit(past)
frozen = melon.Melon("bpr", "default", epochs=5, budget=0, settings=settings, batch_size=size).fit(past)


def hit_rate(one: melon.Melon, batch: list[tuple[int, int, int]]) -> float:
    """How often the item that is taken next is among the ten that were recommended before."""
    lists = one.recommend([user for user, _, _ in batch], k=10, filter_seen=False)
    hits = [item in [best for best, _ in recommended] for recommended, (_, item, _) in zip(lists, batch, strict=True)]
    return sum(hits) / len(hits)


print("events       learning  frozen")
for at in range(start, EVENTS, size):
    batch = log[at : at + size]
    first, second = hit_rate(model, batch), hit_rate(frozen, batch)  # predicted first …
    model.partial_fit(batch)  # … then learned, by one of the two
    print(f"{at:5}-{at + size - 1:<5}  {first:8.0%}  {second:6.0%}{'   <- tastes swap' if at == EVENTS // 2 else ''}")

assert first > 2 * second, "the model that goes on learning has recovered"
