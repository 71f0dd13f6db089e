"""Implicit ALS against a slow twin that solves systems from lists, and as a recommender that no strategy drives."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from melon.errors import CheckpointError, SettingsError
from melon.estimator import Melon, load
from melon.journal import undoable
from melon.kernels.ials import STEPS
from melon.learning.pretrain import live_through
from melon.learning.updater import Updater
from melon.models.ials import IALS
from melon.models.streaming.ials import ImplicitALS, partners_after
from melon.strategies.default import Default
from melon.strategies.melon.published import PublishedMeLON
from melon.stream.history import RING, History
from melon.testing import check_pairing, toy_batches, toy_log
from melon.types import Ints

DIM, MISSING, REG = 4, 0.02, 0.05


class Twin:
    """Lists of partners, Gram matrices from scratch, and the best row within reach for each that a batch touches."""

    def __init__(self, first_items: np.ndarray) -> None:
        self.users: dict[int, np.ndarray] = {}
        self.items = {number: row.astype(float) for number, row in enumerate(first_items)}
        self.taken: dict[int, list[int]] = {}
        self.takers: dict[int, list[int]] = {}

    def fit(self, users: Ints, items: Ints, sweeps: int) -> None:
        pairs = sorted(set(zip(users.tolist(), items.tolist(), strict=True)))
        taken = {user: [i for u, i in pairs if u == user] for user, _ in pairs}
        takers = {item: [u for u, i in pairs if i == item] for _, item in pairs}
        self.users = {user: np.zeros(DIM) for user in range(max(taken) + 1)}
        for number in range(sweeps + 1):
            for user, partners in taken.items():
                self.users[user] = self.solved(partners, self.items)
            for item, partners in takers.items() if number < sweeps else ():
                self.items[item] = self.solved(partners, self.users)
        self.remember(users, items)

    def observe(self, users: Ints, items: Ints) -> None:
        self.remember(users, items)
        for user in range(int(users.max()) + 1):
            self.users.setdefault(user, np.zeros(DIM))
        for item in sorted(set(items.tolist())):
            self.items[item] = self.nearer(self.items[item], self.takers[item][-RING:], self.users)
        for user in sorted(set(users.tolist())):
            self.users[user] = self.nearer(self.users[user], self.taken[user][-RING:], self.items)

    def remember(self, users: Ints, items: Ints) -> None:
        for user, item in zip(users.tolist(), items.tolist(), strict=True):
            self.taken.setdefault(user, []).append(item)
            self.takers.setdefault(item, []).append(user)

    def solved(self, partners: list[int], others: dict[int, np.ndarray]) -> np.ndarray:
        return np.linalg.solve(*self.system(partners, others))

    def nearer(self, row: np.ndarray, partners: list[int], others: dict[int, np.ndarray]) -> np.ndarray:
        """The least energy within reach of STEPS conjugate gradients: in the span of rest, matrix · rest, …"""
        matrix, right = self.system(partners, others)
        rest = right - matrix @ row
        if not right.any() or not rest.any():
            return row
        reach = np.stack([np.linalg.matrix_power(matrix, power) @ rest for power in range(STEPS)], axis=1)
        basis, _ = np.linalg.qr(reach / np.linalg.norm(reach, axis=0))
        return row + basis @ np.linalg.solve(basis.T @ matrix @ basis, basis.T @ rest)

    def system(self, partners: list[int], others: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        vectors, everything = np.array([others[one] for one in partners]), np.array(list(others.values()))
        ridge = REG * (len(partners) + MISSING * len(others))
        matrix = MISSING * everything.T @ everything + vectors.T @ vectors + ridge * np.eye(DIM)
        return matrix, vectors.sum(0)


def made() -> ImplicitALS:
    return ImplicitALS(DIM, missing=MISSING, reg=REG, seed=3)


def log_of(events: int = 900) -> tuple[Ints, Ints]:
    """Few users, so that rings overflow; every user and item occurs early."""
    random = np.random.default_rng(4)
    users, items = random.integers(0, 9, events), random.integers(0, 30, events)
    users[:9], items[:30] = np.arange(9), np.arange(30)
    return users, items


def streamed(model: ImplicitALS, past: History, users: Ints, items: Ints, cut: int = 40) -> None:
    for start in range(0, len(users), cut):
        batch = users[start : start + cut], items[start : start + cut]
        model.observe(*batch, past)
        past.append(*batch)


@pytest.mark.parametrize("fitted", [0, 300])
def test_rows_are_those_of_the_slow_twin(fitted: int) -> None:
    users, items = log_of()
    model, past, near = made(), History(), 1e-5
    model.items.grow(30)  # as the log has them from its first batch on
    twin = Twin(model.items.rows)
    if fitted:
        model.fit(users[:fitted], items[:fitted], sweeps=3)
        twin.fit(users[:fitted], items[:fitted], sweeps=3)
        streamed(model, past, users[:fitted], items[:fitted])  # it has been fitted: only the history grows
    streamed(model, past, users[fitted:], items[fitted:])
    for start in range(fitted, len(users), 40):
        twin.observe(users[start : start + 40], items[start : start + 40])
    assert model.users.rows == pytest.approx(np.array([twin.users[n] for n in range(9)]), rel=near, abs=near)
    assert model.items.rows == pytest.approx(np.array([twin.items[n] for n in range(30)]), rel=near, abs=near)
    gram = model.users.rows.astype(float)
    assert model.users.gram == pytest.approx(gram.T @ gram, rel=1e-6, abs=1e-6)


def test_partners_after_a_batch_are_those_that_the_rings_have_then() -> None:
    users, items = log_of(400)
    past = History()
    past.append(users[:150], items[:150])
    rows, starts, partners = partners_after(users[150:], items[150:], past.of_users)
    past.append(users[150:], items[150:])
    recent = past.of_users.recent(rows)
    for number in range(len(rows)):
        expected = recent.partners[number, : recent.counts[number]]
        assert partners[starts[number] : starts[number + 1]].tolist() == expected.tolist()


def test_it_tells_two_groups_apart_from_a_cold_start() -> None:
    random = np.random.default_rng(0)
    users, places = random.integers(0, 20, 2_000), random.integers(0, 10, 2_000)
    items = 2 * places + users % 2
    model = ImplicitALS(8)
    streamed(model, History(), users, items, cut=64)
    scores = model.scores(np.arange(20), np.tile(np.arange(20), (20, 1)))
    own = (np.arange(20)[:, None] % 2) == (np.arange(20)[None, :] % 2)
    assert scores[own].min() > 2 * scores[~own].max()


def test_rows_stay_finite_where_hardly_anything_pulls_them_to_zero() -> None:
    model, past = ImplicitALS(16, missing=1e-9, reg=1e-3), History()
    same = np.zeros(60, dtype=np.int64)
    streamed(model, past, same, same)  # one user, one item: systems that are all but singular
    assert np.isfinite(model.users.rows).all()
    assert np.isfinite(model.items.rows).all()


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("users", np.zeros((9, DIM + 1), np.float32)),
        ("items", np.full((30, DIM), np.nan, np.float32)),
        ("items", np.full((30, DIM), 1e9, np.float32)),
        ("items_gram", np.eye(DIM) * 1e4),
        ("fitted", np.array([-1])),
        ("users_gram", None),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(name: str, broken: np.ndarray | None) -> None:
    users, items = log_of()
    model, other = made(), made()
    streamed(model, History(), users, items)
    state = model.state()
    other.restore(state)
    bad = {key: array for key, array in state.items() if key != name} | ({} if broken is None else {name: broken})
    with pytest.raises(CheckpointError):
        other.restore(bad)
    assert all(state[key].tobytes() == array.tobytes() for key, array in other.state().items())


def updater_after(batches: int) -> Updater:
    recommender, history, log = IALS({"dim": 6, "sweeps": 2}, seed=1), History(), toy_log()
    live_through(recommender, history, log.head(100))
    updater = Updater(recommender, Default(), history)
    for batch in [each for each in toy_batches(log) if each.first_event >= 100][:batches]:
        updater.learn(batch)
    return updater


def test_as_a_recommender_it_learns_by_observing_and_a_failed_batch_leaves_no_trace() -> None:
    updater, log = updater_after(2), toy_log()
    users, items = np.arange(4), np.tile(np.arange(6), (4, 1))
    before, state = updater.score(users, items, 10**6), updater.recommender.streaming_state()
    batch = next(each for each in toy_batches(log) if each.first_event >= updater.history.events)
    with undoable(always=True):
        updater.learn(batch)
        assert not np.array_equal(updater.score(users, items, 10**6), before)
    assert updater.score(users, items, 10**6).tolist() == before.tolist()
    assert all(state[name].tobytes() == x.tobytes() for name, x in updater.recommender.streaming_state().items())
    close = updater.score_catalogue(users, 6, 10**6)
    assert np.allclose(close, (before), atol=1e-6)


def test_a_strategy_that_would_learn_or_solve_is_refused() -> None:
    with pytest.raises(SettingsError, match="'melon' has nothing to update: the recommender 'ials'"):
        Updater(IALS(), PublishedMeLON())
    report = check_pairing(partial(IALS, {"dim": 6}), Default)
    assert not report.applicable


def test_a_saved_model_goes_on_to_the_bit(tmp_path: Path) -> None:
    log = toy_log()
    events = [(f"u{u}", f"i{i}", int(t)) for u, i, t in zip(log.users, log.items, log.times, strict=True)]
    model = Melon("ials", "default", progress=False, recommender_settings={"dim": 6}).fit(events[:150])
    model.partial_fit(events[150:200])
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    for one in (model, again):
        one.partial_fit(events[200:])
    assert model.recommend(["u1", "u3"], k=4) == again.recommend(["u1", "u3"], k=4)
    assert len(model.similar_items(["i1"], k=3)[0]) == 3
