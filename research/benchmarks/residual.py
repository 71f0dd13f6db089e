"""Does a network on top of MeLON's linear rates pay? On selection windows and on earlier ones; test parts are not read.

    python research/benchmarks/residual.py A amazon_grocery yelp     # the selection window
    python research/benchmarks/residual.py E amazon_grocery yelp     # the same rule applied to the log before that window
    ARMS=linear,attention python research/benchmarks/residual.py A amazon_book

BPR, seed 0. `roles`: 20 hidden units that see the inputs of all three rows of an interaction; `interactions`: they also
see the pre-trained vectors of the user and of the item taken; `attention`: they see these through MeLON's own
interaction representation, with attention over the last ten partners of both (docs/melon.md, "The meta-model"). All add
to the logarithms of linear rates, start at 0, and meta-train together with these by the same exact gradient. Each is
HR@5 + NDCG@10.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from melon.kernels.meta_training.forms import MOST_LOG_RATE, MetaTrainingRates, Slopes
from meta_training import CONFIGS, recorded_meta_training
from torch import Tensor

from accuracy import DATA
from melon.data.files import load_stream
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.kernels import policy
from melon.learning.meta_training.factor import FactorMetaTraining
from melon.learning.meta_training.loop import meta_train
from melon.strategies.base import Situation
from melon.strategies.melon.linear import MeLON
from melon.strategies.melon.rates import Phi
from melon.stream.history import History
from melon.stream.split import DEFAULT_SPLIT, Parts, split
from melon.types import Floats, Ints

ARMS = {
    "linear": (),
    "roles": ("inputs",),
    "interactions": ("inputs", "vectors"),
    "attention": ("inputs", "representation"),
}
#: Partners of each side that attention weighs, and the widths of MeLON's extended embedding and representation.
PARTNERS, EXTENDED, REPRESENTED = 10, 64, 20
#: Columns of rates: the user's vector, vectors of the items taken and drawn, their biases.
COLUMNS = {"user_factors": slice(0, 1), "item_factors": slice(1, 3), "item_bias": slice(3, 5)}


CHOSEN = os.environ.get("ARMS", ",".join(ARMS)).split(",")


class Representation(torch.nn.Module):
    """h of interactions from the pre-trained vectors of user, item and their last partners."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attend = torch.nn.ModuleList([torch.nn.Linear(2 * dim, 1, bias=False) for _ in range(2)])
        self.extend = torch.nn.ModuleList([torch.nn.Linear(2 * dim, EXTENDED) for _ in range(2)])
        self.join = torch.nn.Linear(2 * EXTENDED, REPRESENTED)

    def forward(self, nodes: Sequence[Tensor], partners: Sequence[Tensor], there: Sequence[Tensor]) -> Tensor:
        """nodes: n × dim of users and of items; partners: n × PARTNERS × dim of each; `there` says which exist."""
        extended = []
        for side, (node, met, exists) in enumerate(zip(nodes, partners, there, strict=True)):
            pairs = torch.cat([node[:, None].expand_as(met), met], 2)
            scores = torch.nn.functional.leaky_relu(self.attend[side](pairs)[..., 0], 0.01)
            shares = torch.softmax(scores.masked_fill(~exists, -1e9), 1) * exists
            extended.append(torch.relu(self.extend[side](torch.cat([node, (shares[..., None] * met).sum(1)], 1))))
        joined = self.join(torch.cat(extended, 1))
        return torch.relu(torch.nn.functional.layer_norm(joined, (REPRESENTED,)))


class Network:
    """Logarithms that are added to those of the linear rates: n × 5."""

    def __init__(self, sees: tuple[str, ...], start: PretrainedState) -> None:
        self._sees = sees
        self._vectors = [_standard(start.tables[name]["values"]) for name in ("user_factors", "item_factors")]
        dim = self._vectors[0].shape[1]
        width = 21 + 2 * dim * ("vectors" in sees) + REPRESENTED * ("representation" in sees)
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 20), torch.nn.Tanh(), torch.nn.Linear(20, 5))
        torch.nn.init.zeros_(self.layers[2].weight)
        torch.nn.init.zeros_(self.layers[2].bias)
        self.representation = Representation(dim)

    def parameters(self) -> list[Tensor]:
        return [*self.layers.parameters(), *self.representation.parameters()]

    def __call__(self, inputs: Floats, users: Ints, items: Ints, partners: tuple[Ints, Ints]) -> Tensor:
        seen = [torch.from_numpy(inputs.reshape(len(inputs), -1)).float()]
        nodes = [_rows(held, rows) for held, rows in zip(self._vectors, (users, items), strict=True)]
        if "vectors" in self._sees:
            seen += nodes
        if "representation" in self._sees:
            met = [
                _rows(held, rows.reshape(-1)).view(*rows.shape, -1)
                for held, rows in zip(reversed(self._vectors), partners, strict=True)
            ]
            seen.append(self.representation(nodes, met, [torch.from_numpy(rows >= 0) for rows in partners]))
        logs: Tensor = self.layers(torch.cat(seen, 1))
        return logs


def partners_of(history: History, users: Ints, items: Ints) -> tuple[Ints, Ints]:
    """The last partners of users and of items as far as a history knows them; -1 where there are fewer."""
    return history.of_users.recent(users, PARTNERS).partners, history.of_items.recent(items, PARTNERS).partners


class NetworkMeLON(MeLON):
    """Linear rates, and what a network adds to their logarithms."""

    network: Network

    def line_rates(self, *_: Any) -> None:
        return None

    def _weights(self, situation: Situation, table: str, columns: Floats) -> Tensor:
        linear, around, examples = super()._weights(situation, table, columns), situation.around, situation.examples
        assert around is not None
        users, items = around.users[examples.users].numpy(), around.items[examples.items[:, 0]].numpy()
        added = self.network(columns, users, items, partners_of(around.history, users, items))[:, COLUMNS[table]]
        return torch.exp((torch.log(linear) + added).clamp(max=MOST_LOG_RATE))


class NetworkMetaTraining(FactorMetaTraining):
    """Compiled passes, whose gradient by log rates goes on into the network."""

    def __init__(self, strategy: NetworkMeLON, selection: Selection, start: PretrainedState) -> None:
        recommender = deploy(MeLON(strategy.settings.plain()), start, selection.before_window).recommender
        recorded = recorded_meta_training(selection, strategy, start)
        kernels = policy.load("meta_training")
        assert kernels is not None
        self._network, self._draw = strategy.network, 0
        users, items = recorded.user_rows[recorded.users], recorded.item_rows[recorded.draws[0].items[:, 0]]
        history, first, met = deploy(MeLON(strategy.settings.plain()), start, selection.before_window).history, 0, []
        for last in recorded.ends.tolist():
            met.append(partners_of(history, users[first:last], items[first:last]))
            history.append(users[first:last], items[first:last])
            first = last
        partners = np.concatenate([of_users for of_users, _ in met]), np.concatenate([of_items for _, of_items in met])
        self._seen = [(draw.inputs, users, items, partners) for draw in recorded.draws]
        grown = _grown(recommender, recorded.user_rows, recorded.item_rows)
        super().__init__(grown, strategy, recorded, kernels)
        self._adam = torch.optim.Adam(self._network.parameters(), lr=0.01, weight_decay=1e-4)

    def run(self, number: int) -> tuple[float, Phi]:
        self._draw = number % len(self._seen)
        found = super().run(number)
        if np.isfinite(found[0]):
            self._adam.step()
        return found

    def _rates(self, inputs: Floats) -> MetaTrainingRates:
        self._logs = self._network(*self._seen[self._draw])
        rates = super()._rates(inputs)
        return rates._replace(base=rates.base + self._logs.detach().numpy().astype(rates.base.dtype))

    def _by_phi(self, inputs: Floats, slopes: Slopes) -> dict[str, Floats]:
        self._adam.zero_grad()
        self._logs.backward(torch.from_numpy(slopes.logs / self._recorded.predicted).to(self._logs))
        return super()._by_phi(inputs, slopes)


def _grown(recommender: Any, users: Ints, items: Ints) -> Any:
    """The recommender with rows for newcomers of the stream."""
    sizes = recommender.rows_of("user"), recommender.rows_of("item")
    rows = max(int(users[-1]) + 1, sizes[0]), max(int(items[-1]) + 1, sizes[1])
    recommender.grow(rows[0], np.arange(sizes[0], rows[0]), rows[1], np.arange(sizes[1], rows[1]))
    return recommender


def _standard(values: Tensor) -> Tensor:
    return (values / values.std()).float()


def _rows(held: Tensor, rows: Ints) -> Tensor:
    """Rows as they were pre-trained; newcomers are zeros."""
    known = torch.from_numpy((rows >= 0) & (rows < len(held)))
    return held[torch.from_numpy(rows).clamp(0, len(held) - 1)] * known[:, None]


def main(window: str, stream: str) -> None:
    torch.set_num_threads(1)
    config = tomllib.loads((CONFIGS / f"{stream}-bpr-default.toml").read_text(encoding="utf-8"))
    log = load_stream(DATA / f"{stream}.parquet")
    parts = split(log, tuple(config.get("split", DEFAULT_SPLIT)))
    if window == "E":
        parts = Parts(parts.window_start, parts.window_start, parts.window_start)
    plan = Plan("bpr", protocol=EvaluationProtocol(0))
    selection = Selection(log.head(parts.validation_stop), parts, plan)
    start = refit(plan, selection.before_window, config["pretrain_settings"], observed={})
    scores = []
    for sees in (ARMS[arm] for arm in CHOSEN):
        settings = {"lr": config["settings"]["lr"]}
        if not sees:
            scores.append(selection.judged(selection.at_window(MeLON, settings, start)))
            continue
        strategy = NetworkMeLON(settings)
        strategy.network = Network(sees, start)
        meta_train(strategy, NetworkMetaTraining(strategy, selection, start).run)
        with torch.no_grad():
            scores.append(selection.judged(deploy(strategy, start, selection.before_window)))
    print(f"| {stream} {window} | {' | '.join(f'{score:.4f}' for score in scores)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(f"| stream, window | {' | '.join(CHOSEN)} |\n{'|---' * (1 + len(CHOSEN))}|", flush=True)
    for each in sys.argv[2:]:
        main(sys.argv[1], each)
