"""Talk to a running service: record what people do, ask for lists, read your own write.

Start one first: melon serve --data shop.live
"""

import os

import melon

with melon.Client(os.environ.get("MELON_URL", "http://127.0.0.1:8000")) as client:
    client.put_item("tea", categories=["drinks"], attributes={"price": 4.5})

    # Many events: a buffer sends them together, each with an id of its own, so that a retry stores none twice.
    with client.buffer(every=0.2, size=500) as events:
        for n in range(200):
            events.record(f"visitor {n % 20}", f"film {n * n % 37}")

    # One event, and a list that knows it.
    seen = client.record("ann", "tea")
    listed = client.recommend("ann", k=5, after=seen.offset, wait_ms=5000)
    print(f"for ann, by {listed.model['strategy']} on {listed.model['recommender']}, batch {listed.model['batch']}:")
    for one in listed:
        print(f"  {one.item}  {one.score:.3f}  ({one.why})")

    # What she takes is sent with the id of the list: the service tells recommended from organic clicks.
    if listed:
        client.record("ann", listed[0].item, type="click", recommendation=listed.recommendation)

    # Rules: only some items, at most one of a category, not what was shown within the hour.
    rules = {"exclude": ["tea"], "at_most": {"category": 1}, "rotate_s": 3600}
    for one in client.recommend_many(["visitor 1", "visitor 2"], k=3, rules=rules):
        print(one.user, [item.item for item in one], dict(one.filtered))

    print("HR@10 of the last hour:", client.status()["quality"]["HR@10"])
