"""One step of the published code on a toy: preset `code` reproduces it, number by number, by the production step."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from melon.learning.step import Offered
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.models.ncf import NCF
from melon.strategies.melon import published as pair_function
from melon.strategies.melon.published import PublishedMeLON
from melon.strategies.registry import MELON_PRESETS
from melon.stream.batch import Batch
from melon.stream.history import History
from situations import assert_close

FIXTURES = Path(__file__).parents[1] / "fixtures"
TABLES = {
    "bpr": {
        "user_factors": "u_embeddings.weight",
        "item_factors": "i_embeddings.weight",
        "user_bias": "u_bias.weight",
        "item_bias": "i_bias.weight",
    },
    "ncf": {
        "user_gmf": "mf_u_embeddings.weight",
        "item_gmf": "mf_i_embeddings.weight",
        "user_mlp": "mlp_u_embeddings.weight",
        "item_mlp": "mlp_i_embeddings.weight",
        "user_bias": "u_bias.weight",
        "item_bias": "i_bias.weight",
        "layer_1": "mlp.0.weight",
        "layer_2": "mlp.1.weight",
    },
}
SIDES = {"user": "u", "item": "i"}


class Golden:
    def __init__(self, name: str) -> None:
        self.name = name
        self.numbers = json.loads((FIXTURES / f"golden_{name}.json").read_text())

    def tensor(self, group: str, key: str) -> torch.Tensor:
        return torch.tensor(self.numbers[group][key], dtype=torch.float32)

    def table(self, group: str, table: str) -> torch.Tensor:
        """A table of ours as the published code has it; its prediction vector is [product ; output]."""
        if table in ("product", "output"):
            whole = self.tensor(group, "prediction.weight")
            dim = self.numbers["emb"]
            return whole[:, :dim] if table == "product" else whole[:, dim:]
        return self.tensor(group, TABLES[self.name][table])

    def phi(self, group: str) -> dict[str, torch.Tensor]:
        """Meta-parameters (or their gradients) under our names and in our layouts."""
        found: dict[str, torch.Tensor] = {}
        for role, side in SIDES.items():
            attention = self.tensor(group, f"gnn.attn_fc_{side}.weight")
            half = attention.shape[1] // 2
            # Theirs is on [neighbour ; target], ours on [target ; neighbour].
            found[f"{role}.attention"] = torch.cat([attention[:, half:], attention[:, :half]], dim=1)
            found[f"{role}.fuse"] = self.tensor(group, f"gnn.fc_{side}.weight")
            for ours, theirs in (("self", "self"), ("neighbour", "neighbor")):
                found[f"{role}.{ours}"] = self.tensor(group, f"gnn.{theirs}_{side}.weight")
                found[f"{role}.{ours}.bias"] = self.tensor(group, f"gnn.{theirs}_{side}.bias")
        for layer in (1, 2):
            found[f"interaction.{layer}"] = self.tensor(group, f"linear{layer}.weight")
            found[f"interaction.{layer}.bias"] = self.tensor(group, f"linear{layer}.bias")
            found[f"interaction.{layer}.scale"] = self.tensor(group, f"bn{layer}.weight")
            found[f"interaction.{layer}.shift"] = self.tensor(group, f"bn{layer}.bias")
        found["role.1"] = self.tensor(group, "metaOpt.linear.weight")
        found["role.1.bias"] = self.tensor(group, "metaOpt.linear.bias")
        heads = [self.tensor(group, f"metaOpt.metalstm.W{gate}")[:, 0] for gate in "IF"]
        width = found["role.1"].shape[0]
        found["head.role"] = torch.stack([head[:width] for head in heads])
        found["head.interaction"] = torch.stack([head[width:] for head in heads])
        found["head.bias"] = torch.cat([self.tensor(group, f"metaOpt.metalstm.b{gate}") for gate in "IF"])
        return found

    def offered(self, key: str) -> Offered:
        given = self.numbers[key]
        return Offered(np.array(given["user_id"]), np.array(given["item_id"]))

    def updater(self) -> Updater:
        numbers = self.numbers
        settings = {"dim": numbers["emb"]} | ({"layers": (4, 4)} if self.name == "ncf" else {})
        recommender = (BPR if self.name == "bpr" else NCF)(settings)
        users, items = numbers["users"], numbers["items"]
        recommender.grow(users, np.arange(users), items, np.arange(items))
        for name, table in recommender.tables.items():
            table.scatter(torch.arange(table.rows), self.table("recommender_before", name))
        sizes = {"interaction_width": numbers["meta_emb"], "extended_width": numbers["emb"]}
        strategy = PublishedMeLON({**MELON_PRESETS["code"], **sizes})
        history = History()
        edges = np.array(numbers["edges"])
        history.append(edges[:, 0], edges[:, 1])
        history.keep_everything(edges[:, 0], edges[:, 1])
        updater = Updater(recommender, strategy, history)
        before = self.phi("meta_before")
        assert before.keys() == strategy.parameters().keys()
        with torch.no_grad():
            for name, value in strategy.parameters().items():
                value.copy_(before[name])
        return updater


@pytest.fixture(params=["bpr", "ncf"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@pytest.mark.parametrize("pairs", [1 << 30, 64], ids=["in one go", "in chunks"])
def test_one_step_of_the_published_code(golden: Golden, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_function, "PAIRS_AT_ONCE", pairs)
    updater = golden.updater()
    strategy = updater.strategy
    assert isinstance(strategy, PublishedMeLON)
    seen: dict[str, object] = {}
    plain, look = strategy.meta_gradient, strategy.look_ahead

    def spy(situation, meta_loss):
        gradients, loss = plain(situation, meta_loss)
        seen.update(gradients=gradients, meta_loss=float(loss))
        return gradients, loss

    strategy.meta_gradient = spy  # type: ignore[method-assign]
    assert look is not None
    current = golden.offered("current")
    empty = np.empty(0, dtype=np.int64)
    batch = Batch(0, current.users, current.items[:, 0], np.zeros(4, dtype=np.int64), empty, empty)
    loss = updater.step(current, golden.offered("last"), batch)

    assert loss == pytest.approx(golden.numbers["loss"], abs=1e-5)
    assert seen["meta_loss"] == pytest.approx(golden.numbers["meta_loss"], abs=1e-5)
    before_norm = {"interaction.1.bias", "interaction.2.bias"}  # true gradient 0: Adam turns rounding into a step
    for name, gradient in golden.phi("meta_grad").items():
        assert_close(seen["gradients"][name], gradient, atol=1e-5, rtol=0, msg=name)
    for name, value in golden.phi("meta_after").items():
        if name not in before_norm:
            assert_close(strategy.parameters()[name].detach(), value, atol=1e-5, rtol=0, msg=name)
    for name, table in updater.recommender.tables.items():
        assert_close(table.everything(), golden.table("recommender_after", name), atol=1e-5, rtol=0, msg=name)
