"""BPR and NCF by hand, as stored models, and a recommender that a user might write."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from melon.errors import SettingsError
from melon.learning.updater import Updater
from melon.models.autograd import TorchRecommender
from melon.models.base import Recommender
from melon.models.bpr import BPR
from melon.models.evidence import Examples, Values
from melon.models.ncf import NCF
from melon.strategies.default import Default
from melon.stream.batch import Batch
from melon.tables import TableSpec


def make(kind: str, **extra: object) -> Recommender:
    chosen = {"bpr": (BPR, {"dim": 5}), "ncf": (NCF, {"dim": 3, "layers": (4, 3)})}[kind]
    made = chosen[0](chosen[1], dtype=np.float64, **extra)
    made.grow(6, np.arange(6), 9, np.arange(9))
    for table in made.tables.values():
        # Biases start at 0 by default; give every entry a value of its own.
        rows = np.arange(table.rows)
        noise = np.random.default_rng(1).normal(size=(table.rows, table.spec.dim))
        table.scatter(rows, table.gather(rows) + noise)
    return made


KINDS = pytest.mark.parametrize("kind", ["bpr", "ncf"])


class TestByHand:
    def test_bpr(self) -> None:
        """docs/methods.md 2.1 on two dimensions."""
        values = {
            "user_factors": torch.tensor([[1.0, 2.0]], dtype=torch.float64),
            "item_factors": torch.tensor([[0.5, -1.0], [0.25, 0.5]], dtype=torch.float64),
            "user_bias": torch.tensor([[7.0]], dtype=torch.float64),
            "item_bias": torch.tensor([[0.1], [-0.2]], dtype=torch.float64),
        }
        recommender = BPR({"dim": 2}, dtype=np.float64).differentiable()
        scores = recommender.scores(values, torch.tensor([0, 0]), torch.tensor([0, 1]))
        assert scores.tolist() == pytest.approx([0.5 - 2 + 7 + 0.1, 0.25 + 1 + 7 - 0.2])
        evidence = recommender.evidence(values, Examples(torch.tensor([0]), torch.tensor([[0, 1]])))
        margin = -1.4 - 1.05
        kappa = 1 / (1 + math.exp(margin))
        assert evidence.losses.tolist() == pytest.approx([math.log1p(math.exp(-margin))])
        found = {gradient.table: gradient.summed(len(values[gradient.table])) for gradient in evidence.gradients}
        assert found["user_factors"].tolist()[0] == pytest.approx([-kappa * 0.25, -kappa * -1.5])
        assert found["item_factors"].tolist()[0] == pytest.approx([-kappa * 1, -kappa * 2])
        assert found["item_factors"].tolist()[1] == pytest.approx([kappa * 1, kappa * 2])
        assert found["item_bias"].reshape(-1).tolist() == pytest.approx([-kappa, kappa])
        assert "user_bias" not in found

    def test_ncf(self) -> None:
        """docs/methods.md 2.2 with one dimension and two layers of one unit; every number can be followed."""
        recommender = NCF({"dim": 1, "layers": (1, 1)}, dtype=np.float64)
        plain = {
            "user_gmf": [[2.0]],
            "item_gmf": [[3.0], [-1.0]],
            "user_mlp": [[1.0]],
            "item_mlp": [[0.5], [-4.0]],
            "user_bias": [[0.3]],
            "item_bias": [[0.1], [0.2]],
            "layer_1": [[2.0, 1.0]],
            "layer_2": [[0.5]],
            "product": [[0.25]],
            "output": [[3.0]],
        }
        values = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in plain.items()}
        taken = 0.25 * 6 + 3 * (0.5 * 2.5) + 0.3 + 0.1
        other = 0.25 * -2 + 0 + 0.3 + 0.2  # the first layer is 2 − 4 < 0: the network is silent
        scores = recommender.scores(values, torch.tensor([0, 0]), torch.tensor([0, 1]))
        assert scores.tolist() == pytest.approx([taken, other])
        kappa = 1 / (1 + math.exp(taken - other))
        evidence = recommender.evidence(values, Examples(torch.tensor([0]), torch.tensor([[0, 1]])))
        found = {g.table: g.summed(len(values[g.table])).reshape(-1).tolist() for g in evidence.gradients}
        assert found["layer_2"] == pytest.approx([-kappa * 3 * 2.5])
        assert found["layer_1"] == pytest.approx([-kappa * 1.5 * 1, -kappa * 1.5 * 0.5])
        assert found["product"] == pytest.approx([-kappa * 6 + kappa * -2])
        assert found["output"] == pytest.approx([-kappa * 1.25])
        assert found["user_gmf"] == pytest.approx([-kappa * 0.25 * 3 + kappa * 0.25 * -1])
        assert found["item_gmf"] == pytest.approx([-kappa * 0.5, kappa * 0.5])
        assert found["user_mlp"] == pytest.approx([-kappa * 1.5 * 2])
        assert found["item_mlp"] == pytest.approx([-kappa * 1.5 * 1, 0.0])
        assert found["item_bias"] == pytest.approx([-kappa, kappa])
        assert "user_bias" not in found


@KINDS
class TestStoredModel:
    @given(data=st.data())
    @settings(max_examples=15)
    def test_score_is_scores_of_the_rows(self, kind: str, data: st.DataObject) -> None:
        recommender = make(kind)
        n, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
        users = data.draw(st.lists(st.integers(0, 7), min_size=n, max_size=n))
        line = st.lists(st.integers(0, 11), min_size=width, max_size=width)
        items = data.draw(st.lists(line, min_size=n, max_size=n))
        got = recommender.score(np.array(users), np.array(items))
        assert got.shape == (n, width)
        # Absent users and items (from 6 and 9 on) are rows of zeros, by definition.
        sizes = {"user": 8, "item": 12}
        values = {
            name: torch.from_numpy(
                np.concatenate([table.everything(), np.zeros((12 * (table.spec.role in sizes), table.spec.dim))])
            )
            for name, table in recommender.tables.items()
        }
        for line, user in enumerate(users):
            for column, item in enumerate(items[line]):
                alone = recommender.differentiable().scores(values, torch.tensor([user]), torch.tensor([item]))[0]
                assert got[line, column].item() == pytest.approx(alone.item(), rel=1e-9, abs=1e-12)

    @pytest.mark.parametrize("n_items", [1, 4, 9, 15])
    @pytest.mark.parametrize("half_life", [None, 3.0])
    def test_the_catalogue_is_every_score(self, kind: str, n_items: int, half_life: float | None) -> None:
        recommender = make(kind)
        for table in recommender.tables.values():
            if table.spec.role != "shared":
                table.half_life = half_life
                table.stamp(np.arange(table.rows), np.arange(table.rows))
        recommender.clock.now = 20
        users = np.array([5, 0, 77])
        everything = np.tile(np.arange(n_items), (3, 1))
        catalogue = recommender.score_catalogue(users, n_items)
        assert catalogue.shape == (3, n_items)
        assert np.allclose(catalogue, recommender.score(users, everything), rtol=1e-10, atol=1e-12)
        assert np.allclose(catalogue, Recommender.score_catalogue(recommender, users, n_items), rtol=1e-10, atol=1e-12)

    def test_a_catalogue_larger_than_one_block(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        recommender = make(kind)
        users = np.array([0, 3])
        expected = recommender.score(users, np.tile(np.arange(9), (2, 1)))
        monkeypatch.setattr("melon.models.base._SCORED_AT_ONCE", 4)
        monkeypatch.setattr("melon.tables._BLOCK", 2)
        for n_items in (3, 4, 9):
            got = recommender.score_catalogue(users, n_items)
            assert np.allclose(got, expected[:, :n_items], rtol=1e-10, atol=1e-12)

    def test_an_empty_model_scores_zero(self, kind: str) -> None:
        recommender = {"bpr": BPR, "ncf": NCF}[kind]({"dim": 4})
        assert recommender.score(np.array([0, 3]), np.array([[1], [2]])).tolist() == [[0.0], [0.0]]
        assert recommender.score_catalogue(np.array([0]), 3).tolist() == [[0.0] * 3]
        assert recommender.rows_of("user") == recommender.rows_of("item") == 0
        assert len(recommender.item_vectors()) == 0

    def test_tables_grow_without_moving_what_is_there(self, kind: str) -> None:
        recommender = make(kind)
        users, items = np.array([0, 5]), np.array([[0, 8], [3, 3]])
        before = recommender.score(users, items)
        recommender.grow(6, np.arange(0), 40, np.arange(9, 40))
        recommender.grow(300, np.arange(6, 300), 40, np.arange(0))
        assert recommender.rows_of("user") == 300
        assert recommender.rows_of("item") == 40
        assert np.array_equal(recommender.score(users, items), before)
        assert {t.rows for t in recommender.tables.values() if t.spec.role == "user"} == {300}

    def test_paper_init_draws_everything_with_deviation_one_hundredth(self, kind: str) -> None:
        recommender = {"bpr": BPR, "ncf": NCF}[kind]({"init": "paper"})
        recommender.grow(3_000, np.arange(3_000), 3_000, np.arange(3_000))
        for table in recommender.tables.values():
            values = table.everything()
            slack = 5 / math.sqrt(2 * values.size)
            assert float(values.std()) == pytest.approx(0.01, rel=max(slack, 0.03))
            assert abs(float(values.mean())) < 5 * 0.01 / math.sqrt(values.size)

    def test_the_paper_sizes_are_the_defaults(self, kind: str) -> None:
        recommender = {"bpr": BPR, "ncf": NCF}[kind]()
        touched = sum(
            spec.dim * (2 if spec.role == "item" else 1)
            for spec in recommender.specs
            if spec.role != "shared" and recommender.learns(spec)
        )
        shared = sum(spec.rows * spec.dim for spec in recommender.specs if spec.role == "shared")
        assert (touched, shared) == {"bpr": (194, 0), "ncf": (386, 20_608)}[kind]  # docs/methods.md 1.4

    def test_the_user_bias_is_taught_only_by_a_loss_that_sees_it(self, kind: str) -> None:
        pairwise, pointwise = make(kind), make(kind)
        pointwise.loss = type(pointwise)({"loss": "squared"}).loss
        spec = next(spec for spec in pairwise.specs if spec.name == "user_bias")
        assert not pairwise.learns(spec)
        assert pointwise.learns(spec)

    @pytest.mark.parametrize(
        "settings",
        [{"dim": 0}, {"negatives": 0}, {"loss": "nothing"}, {"init": "zeros"}, {"depth": 3}, {"dim": "many"}],
    )
    def test_settings_that_will_not_do_are_refused(self, kind: str, settings: dict) -> None:
        with pytest.raises(SettingsError):
            {"bpr": BPR, "ncf": NCF}[kind](settings)


@pytest.mark.parametrize("layers", [(), (0,), (4, -1)])
def test_ncf_needs_layers_with_units(layers: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="layers"):
        NCF({"layers": layers})


def test_the_default_ncf_network_is_not_silent() -> None:
    """docs/methods.md 2.2: with deviation 0.01 the network contributes next to nothing; the default must not."""
    parts = {}
    for init in ("he", "paper"):
        recommender = NCF({"init": init})
        recommender.grow(50, np.arange(50), 50, np.arange(50))
        recommender.tables["product"].scatter(np.array([0]), np.zeros((1, 64)))
        for side in ("user_bias", "item_bias"):
            recommender.tables[side].scatter(np.arange(50), np.zeros((50, 1)))
        parts[init] = float(recommender.score_catalogue(np.arange(50), 50).std())
    assert parts["paper"] < 1e-6
    assert parts["he"] > 1e-3


class Metric(TorchRecommender):
    """A user's own: minus a weighted squared distance, and a shared bend. Only `declare` and `scores` are written."""

    name = "metric"

    def declare(self) -> tuple[TableSpec, ...]:
        return (
            TableSpec("places", "user", "embedding", 3, 0.3),
            TableSpec("spots", "item", "embedding", 3, 0.3),
            TableSpec("stretch", "shared", "weight", 3, 0.1, 1.0, rows=1),
            TableSpec("bend", "shared", "weight", 2, 0.5, rows=3),
        )

    def scores(self, values: Values, users: Tensor, items: Tensor) -> Tensor:
        apart = (values["places"][users] - values["spots"][items]) ** 2 * values["stretch"][0]
        return -apart.sum(-1) + torch.tanh(apart @ values["bend"]).sum(-1)


def batch_of(first: int, users: list[int], items: list[int]) -> Batch:
    columns = np.array(users), np.array(items)
    return Batch(first, *columns, np.arange(first, first + len(users)), *columns)


class TestAUsersOwn:
    def test_learns_through_the_updater(self) -> None:
        recommender = Metric(dtype=np.float64)
        updater = Updater(recommender, Default({"lr": 0.1}))
        rng = np.random.default_rng(0)
        losses = []
        for number in range(150):
            users = rng.integers(0, 8, 16)
            items = 2 * rng.integers(0, 6, 16) + users % 2
            losses.append(updater.learn(batch_of(16 * number, users.tolist(), items.tolist())))
        assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[5:15])
        assert float(recommender.tables["stretch"].everything().std()) > 0
        scores = updater.score_catalogue(np.arange(8), 12, 0)
        own = scores[np.arange(8)[:, None], 2 * np.arange(6)[None, :] + np.arange(8)[:, None] % 2]
        other = scores[np.arange(8)[:, None], 2 * np.arange(6)[None, :] + 1 - np.arange(8)[:, None] % 2]
        assert own.mean() > other.mean() + 1

    def test_has_its_step_from_autograd(self) -> None:
        """One SGD step follows the summed loss on rows and the mean loss on shared weights."""
        recommender = Metric(dtype=np.float64)
        updater = Updater(recommender, Default({"lr": 0.1}))
        batch = batch_of(0, [0, 1, 0, 2], [0, 1, 2, 0])
        situation = updater.situation(batch)
        rows = {"user": situation.around.users, "item": situation.around.items}
        free = {name: tensor.clone().requires_grad_() for name, tensor in situation.values.items()}
        recommender.losses(free, situation.examples).sum().backward()
        updater.learn(batch)
        for name, table in recommender.tables.items():
            gradient = free[name].grad / (4 if table.spec.role == "shared" else 1)
            expected = situation.values[name] - 0.1 * gradient
            found = table.gather(rows.get(table.spec.role, np.arange(table.rows)))
            assert np.allclose(found, expected, rtol=1e-10, atol=1e-12)
