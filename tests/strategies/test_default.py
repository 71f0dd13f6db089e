"""Default (docs/methods.md 3.1): its six tests, and its optimisers against torch's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.bpr import BPR
from melon.models.evidence import Examples
from melon.models.ncf import NCF
from melon.strategies.base import Situation
from melon.strategies.default import Default
from melon.stream.batch import Batch
from situations import equal, situation_of, tensors_of

KINDS = pytest.mark.parametrize("kind", ["bpr", "ncf"])
USERS, ITEMS = 6, 8


def model(kind: str, loss: str = "bpr") -> Recommender:
    settings: dict[str, Any] = {"loss": loss, "dim": 3}
    recommender = (
        BPR(settings, dtype=np.float64) if kind == "bpr" else NCF(settings | {"layers": (4, 3)}, dtype=np.float64)
    )
    recommender.grow(USERS, np.arange(USERS), ITEMS, np.arange(ITEMS))
    for table in recommender.tables.values():
        noise = torch.randn(table.rows, table.spec.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        table.scatter(np.arange(table.rows), table.everything() + 0.5 * noise.numpy())
    return recommender


def values_of(recommender: Recommender) -> dict[str, Tensor]:
    return tensors_of(recommender)


def situation(recommender: Recommender, users: list[int], items: list[list[int]], state: Any = None) -> Situation:
    """All rows are in the compact copy, so positions are rows."""
    values, examples = values_of(recommender), Examples(torch.tensor(users), torch.tensor(items))
    specs = {spec.name: spec for spec in recommender.specs}
    return Situation(specs, examples, values, state or {}, recommender.differentiable().evidence(values, examples))


def batch_of(first: int, users: Any, items: Any) -> Batch:
    columns = np.asarray(users), np.asarray(items)
    return Batch(first, *columns, np.arange(first, first + len(columns[0])), *columns)


# A repeated user, an item that is both taken and a negative, and the same pair twice.
BATCH_USERS = [0, 1, 0, 3, 0]
BATCH_ITEMS = [[1, 2], [2, 1], [4, 5], [1, 4], [1, 7]]


class TestSGD:
    @pytest.mark.parametrize(("reduction", "rate"), [("sum", 0.1), ("mean", 0.1 / 5)])
    def test_equals_the_closed_form_of_bpr(self, reduction: str, rate: float) -> None:
        """The closed form, with plain loops over docs/methods.md 2.1."""
        recommender = model("bpr")
        now = situation(recommender, BATCH_USERS, BATCH_ITEMS)
        proposed = Default({"lr": 0.1, "reduction": reduction}).propose(now).values
        old = values_of(recommender)
        new = {name: tensor.clone() for name, tensor in old.items()}
        for user, (taken, other) in zip(BATCH_USERS, BATCH_ITEMS, strict=True):
            p, q_i, q_j = old["user_factors"][user], old["item_factors"][taken], old["item_factors"][other]
            margin = p @ (q_i - q_j) + old["item_bias"][taken, 0] - old["item_bias"][other, 0]
            kappa = torch.sigmoid(-margin)
            new["user_factors"][user] += rate * kappa * (q_i - q_j)
            new["item_factors"][taken] += rate * kappa * p
            new["item_factors"][other] -= rate * kappa * p
            new["item_bias"][taken] += rate * kappa
            new["item_bias"][other] -= rate * kappa
        for name, values in proposed.items():
            assert torch.allclose(values, new[name], rtol=1e-12, atol=1e-14)
        assert set(proposed) == {"user_factors", "item_factors", "item_bias"}

    @KINDS
    @pytest.mark.parametrize("loss", ["bpr", "squared"])
    def test_a_batch_is_the_sum_of_its_interactions(self, kind: str, loss: str) -> None:
        """All single steps are computed at the same Θ."""
        recommender = model(kind, loss)
        strategy = Default({"lr": 0.05, "shared_reduction": "sum"})
        together = strategy.propose(situation(recommender, BATCH_USERS, BATCH_ITEMS)).values
        old = values_of(recommender)
        total = {name: torch.zeros_like(old[name]) for name in together}
        for user, line in zip(BATCH_USERS, BATCH_ITEMS, strict=True):
            for name, values in strategy.propose(situation(recommender, [user], [line])).values.items():
                total[name] += values - old[name]
        for name, values in together.items():
            assert torch.allclose(values - old[name], total[name], rtol=1e-10, atol=1e-14)

    @KINDS
    @pytest.mark.parametrize(
        ("reduction", "shared"), [("sum", "mean"), ("mean", "mean"), ("sum", "sum"), ("mean", "sum")]
    )
    def test_follows_autograd_of_the_loss(self, kind: str, reduction: str, shared: str) -> None:
        recommender = model(kind, "squared")
        now = situation(recommender, BATCH_USERS, BATCH_ITEMS)
        strategy = Default({"lr": 0.02, "reduction": reduction, "shared_reduction": shared})
        free = {name: tensor.clone().requires_grad_() for name, tensor in now.values.items()}
        recommender.differentiable().losses(free, now.examples).sum().backward()
        for name, values in strategy.propose(now).values.items():
            how = shared if recommender.tables[name].spec.role == "shared" else reduction
            gradient = free[name].grad / (5 if how == "mean" else 1)
            assert torch.allclose(values, now.values[name] - 0.02 * gradient, rtol=1e-10, atol=1e-13)

    @KINDS
    def test_the_user_bias_never_moves_without_decay(self, kind: str) -> None:
        """The user's bias never changes without decay."""
        recommender = model(kind)
        before = values_of(recommender)["user_bias"]
        updater = Updater(recommender, Default({"lr": 0.3}))
        rng = np.random.default_rng(0)
        for number in range(10):
            updater.learn(batch_of(8 * number, rng.integers(0, USERS, 8), rng.integers(0, ITEMS, 8)))
        assert equal(values_of(recommender)["user_bias"], before)

    def test_weight_decay_is_coupled_and_spares_biases(self) -> None:
        recommender = model("bpr", "squared")
        now = situation(recommender, BATCH_USERS, BATCH_ITEMS)
        plain, decayed = (Default({"lr": 0.1, "weight_decay": wd}).propose(now).values for wd in (0.0, 0.3))
        for name, values in decayed.items():
            decay = 0.0 if "bias" in name else 0.1 * 0.3
            assert torch.allclose(values, plain[name] - decay * now.values[name], rtol=1e-12, atol=1e-14)


def gradients_of(recommender: Recommender, values: dict[str, Tensor], examples: Examples) -> dict[str, Tensor]:
    evidence = recommender.differentiable().evidence(values, examples)
    n = len(examples)
    return {g.table: g.summed(len(values[g.table])) / n for g in evidence.gradients}


def run(recommender: Recommender, strategy: Default, batches: list[Batch], each: Callable[[Examples], None]) -> None:
    """Learn batches; before each, hand over the examples in stored rows."""
    updater = Updater(recommender, strategy)
    for batch in batches:
        compact, now = situation_of(updater, batch)
        each(Examples(torch.tensor(compact.users)[now.examples.users], torch.tensor(compact.items)[now.examples.items]))
        updater.learn(batch)


def some_batches(n: int = 25, users: int = USERS - 2, items: int = ITEMS) -> list[Batch]:
    rng = np.random.default_rng(4)
    return [batch_of(8 * at, rng.integers(0, users, 8), rng.integers(0, items, 8)) for at in range(n)]


@KINDS
class TestAdam:
    @pytest.mark.parametrize("weight_decay", [pytest.param(0.0, marks=pytest.mark.slow), 0.01])
    def test_dense_is_torchs_adam_with_biases_exempt_from_decay(self, kind: str, weight_decay: float) -> None:
        recommender = model(kind, "squared")
        free = {name: tensor.requires_grad_() for name, tensor in values_of(recommender).items()}
        groups = [
            {"params": [p for name, p in free.items() if "bias" in name], "weight_decay": 0.0},
            {"params": [p for name, p in free.items() if "bias" not in name], "weight_decay": weight_decay},
        ]
        twin = torch.optim.Adam(groups, lr=0.01, betas=(0.8, 0.95), eps=1e-6)

        def step(examples: Examples) -> None:
            twin.zero_grad()
            recommender.differentiable().losses(free, examples).mean().backward()
            twin.step()

        settings = {"optimizer": "adam_dense", "reduction": "mean", "lr": 0.01, "weight_decay": weight_decay}
        run(recommender, Default({**settings, "beta_1": 0.8, "beta_2": 0.95, "eps": 1e-6}), some_batches(), step)
        for name, values in values_of(recommender).items():
            assert torch.allclose(values, free[name].detach(), rtol=1e-8, atol=1e-10), name

    def test_lazy_is_torchs_sparse_adam_on_the_same_gradients(self, kind: str) -> None:
        recommender = model(kind)
        rows = [name for name, table in recommender.tables.items() if table.spec.role != "shared"]
        free = {name: values_of(recommender)[name].requires_grad_() for name in rows if name != "user_bias"}
        # Where eps stands differs between the two; so small, it plays no part.
        twin = torch.optim.SparseAdam(list(free.values()), lr=0.02, betas=(0.9, 0.99), eps=1e-30)

        def step(examples: Examples) -> None:
            gradients = gradients_of(recommender, values_of(recommender), examples)
            for name, parameter in free.items():
                side = examples.users if recommender.tables[name].spec.role == "user" else examples.items
                touched = side.reshape(-1).unique()
                parameter.grad = torch.sparse_coo_tensor(
                    touched[None], gradients[name][touched], parameter.shape, check_invariants=False
                )
            twin.step()

        settings = {"optimizer": "adam_lazy", "reduction": "mean", "lr": 0.02, "beta_2": 0.99, "eps": 1e-30}
        run(recommender, Default(settings), some_batches(), step)
        for name, parameter in free.items():
            assert torch.allclose(values_of(recommender)[name], parameter.detach(), rtol=1e-8, atol=1e-10), name

    def test_lazy_and_dense_are_one_where_every_row_is_touched(self, kind: str) -> None:
        models = [model(kind), model(kind)]
        for recommender, optimizer in zip(models, ("adam_lazy", "adam_dense"), strict=True):
            updater = Updater(recommender, Default({"optimizer": optimizer, "lr": 0.01, "weight_decay": 0.1}))
            for number in range(6):
                updater.learn(batch_of(48 * number, np.arange(48) % USERS, np.arange(48) % ITEMS))
        for name, values in values_of(models[0]).items():
            assert torch.allclose(values, values_of(models[1])[name], rtol=1e-9, atol=1e-12), name


@KINDS
class TestUntouchedRows:
    """Untouched rows keep their bytes, but for dense Adam with decay."""

    def untouched(self, kind: str, settings: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """All rows of users and items that no batch touches, before and after."""
        recommender = model(kind)
        before = values_of(recommender)
        updater = Updater(recommender, Default(settings))
        for batch in some_batches(items=ITEMS - 3):
            updater.learn(batch)
        idle = {"user": torch.tensor([USERS - 2, USERS - 1]), "item": torch.tensor([ITEMS - 1])}
        tables = {n: t for n, t in recommender.tables.items() if t.spec.role != "shared" and n != "user_bias"}
        after = values_of(recommender)
        sides = {name: idle[table.spec.role] for name, table in tables.items()}
        return {n: before[n][r] for n, r in sides.items()}, {n: after[n][r] for n, r in sides.items()}

    @pytest.mark.parametrize("optimizer", ["sgd", "adam_lazy"])
    @pytest.mark.parametrize("weight_decay", [0.0, 0.1])
    def test_stay_with_sparse_optimisers(self, kind: str, optimizer: str, weight_decay: float) -> None:
        before, after = self.untouched(kind, {"optimizer": optimizer, "lr": 0.05, "weight_decay": weight_decay})
        assert all(equal(before[name], after[name]) for name in before)

    def test_move_under_dense_adam_with_decay(self, kind: str) -> None:
        before, after = self.untouched(kind, {"optimizer": "adam_dense", "lr": 0.01, "weight_decay": 0.001})
        for name in before:
            moved = (before[name] != after[name]).all()
            assert moved == ("bias" not in name), name
            if moved:
                # 3.0.7: almost a whole step of lr each time, however small the decay.
                assert (before[name].abs() - after[name].abs()).max() > 10 * 0.01

    def test_stay_under_dense_adam_without_decay(self, kind: str) -> None:
        before, after = self.untouched(kind, {"optimizer": "adam_dense", "lr": 0.01})
        assert all(equal(before[name], after[name]) for name in before)


def test_rarely_touched_rows_decay_as_the_facts_say() -> None:
    """3.0.7: fresh state, lr = wd = 1e-3, 0.1 → 0.054 after 50 untouched steps, 0.023 after 100, 0.002 after 200."""
    recommender = BPR({"dim": 1}, dtype=np.float64)
    recommender.grow(3, np.arange(3), 4, np.arange(4))
    recommender.tables["user_factors"].scatter(np.array([2]), np.array([[0.1]]))
    updater = Updater(
        recommender, Default({"optimizer": "adam_dense", "reduction": "mean", "lr": 1e-3, "weight_decay": 1e-3})
    )
    seen = {}
    for step in range(1, 201):
        updater.learn(batch_of(2 * step, [0, 1], [step % 4, (step + 1) % 4]))
        seen[step] = float(recommender.tables["user_factors"].gather(np.array([2]))[0, 0])
    assert seen[50] == pytest.approx(0.054, abs=0.001)
    assert seen[100] == pytest.approx(0.023, abs=0.001)
    assert seen[200] == pytest.approx(0.002, abs=0.001)


@KINDS
@pytest.mark.parametrize("optimizer", ["sgd", "adam_lazy"])
def test_the_learning_rate_matrix_is_constant(kind: str, optimizer: str) -> None:
    """η/n (mean) or η (sum), n × slots."""
    recommender = model(kind)
    now = situation(recommender, BATCH_USERS, BATCH_ITEMS)
    slots = {"bpr": 3 + 2 * 3 + 2, "ncf": 2 * (3 + 2 * 3) + 2}[kind]
    for reduction, rate in (("mean", 0.1 / 5), ("sum", 0.1)):
        settings = {"lr": 0.1, "reduction": reduction, "shared_reduction": reduction, "optimizer": optimizer}
        rates = Default(settings).learning_rates(now)
        assert rates.rows.shape == (5, slots)
        assert len(rates.slots) == slots
        assert torch.allclose(rates.rows, torch.full_like(rates.rows, rate))
        shared = {name: t.rows * t.spec.dim for name, t in recommender.tables.items() if t.spec.role == "shared"}
        assert {name: block.shape for name, block in rates.shared.items()} == {
            n: (5, size) for n, size in shared.items()
        }
        assert all(torch.allclose(block, torch.full_like(block, rate)) for block in rates.shared.values())


def test_slots_name_table_and_place() -> None:
    rates = Default().learning_rates(situation(model("bpr"), [0], [[1, 2]]))
    expected = [("user_factors", 0)] * 3 + [("item_factors", 0)] * 3 + [("item_factors", 1)] * 3
    assert list(rates.slots) == [*expected, ("item_bias", 0), ("item_bias", 1)]


def test_proposing_counts_no_step_until_it_is_kept() -> None:
    recommender = model("bpr")
    strategy = Default({"optimizer": "adam_lazy"})
    state = {
        spec.name: {key: torch.zeros_like(values_of(recommender)[spec.name]) for key in strategy.row_state(spec)}
        for spec in recommender.specs
    }
    now = situation(recommender, BATCH_USERS, BATCH_ITEMS, state)
    first, second = strategy.propose(now), strategy.propose(now)
    assert equal(first.values["user_factors"], second.values["user_factors"])
    assert int(strategy.memory()["steps"]) == 0
    strategy.keep(first.memory)
    assert int(strategy.memory()["steps"]) == 1
    other = Default({"optimizer": "adam_lazy"})
    other.recall(strategy.memory())
    assert int(other.memory()["steps"]) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0},
        {"lr": -1},
        {"optimizer": "adam"},
        {"reduction": "max"},
        {"beta_1": 1.0},
        {"weight_decay": -1},
        {"w": 1},
    ],
)
def test_settings_that_will_not_do_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="strategy 'default'"):
        Default(settings)
