"""A first model: fit a log, recommend, learn new interactions, save and load."""

import tempfile

import melon

# user, item, time: there are three groups of users, and each group likes ten films of its own.
log = [(f"user {n % 60}", f"film {n % 3 * 10 + n * 7 // 60 % 10}", n) for n in range(1_200)]

# One named pairing with few epochs is quick; melon.Melon() alone chooses everything by itself and takes longer.
model = melon.Melon("bpr", "default", epochs=10, budget=0).fit(log)
print(model)

(films,) = model.recommend("user 1", k=3, filter_seen=False)
for film, score in films:
    print(f"user 1 may like {film} ({score:.2f})")

# New interactions are learned at once; users and items that were never seen before are welcome.
model.partial_fit([("a newcomer", "film 12", 1_200), ("a newcomer", "film 15", 1_201)])
(films,) = model.recommend("a newcomer", k=3)
print("the newcomer may like", ", ".join(film for film, _ in films))

with tempfile.TemporaryDirectory() as folder:
    model.save(folder)
    same = melon.load(folder)
assert same.recommend("user 1") == model.recommend("user 1")
print("saved and loaded: the same recommendations")
