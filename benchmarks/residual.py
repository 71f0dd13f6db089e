"""Does a network on top of MeLON's linear rates pay? On selection windows and on earlier ones; test parts are not read.

    python benchmarks/residual.py A amazon_grocery yelp     # the selection window
    python benchmarks/residual.py E amazon_grocery yelp     # the same rule applied to the log before that window

BPR, seed 0. `roles`: 20 hidden units that see the inputs of all three rows of an interaction; `interactions`: they also
see the pre-trained vectors of the user and of the item taken. Both add to the logarithms of linear rates, start at 0,
and practise together with these by the same exact gradient. Each is HR@5 + NDCG@10.
"""

from __future__ import annotations

import os
import sys
import tomllib
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from torch import Tensor

from accuracy import DATA
from melon.data.files import load_stream
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import PretrainedState, deploy, refit
from melon.fitting.selection import Selection
from melon.kernels import policy
from melon.kernels.practice.forms import MOST_LOG_RATE, PracticeRates, Slopes
from melon.learning.practice.factor import FactorPractice
from melon.learning.practice.loop import practise
from melon.strategies.base import Situation
from melon.strategies.melon.linear import MeLON
from melon.strategies.melon.rates import Phi
from melon.stream.split import DEFAULT_SPLIT, Parts, split
from melon.types import Floats, Ints
from practice import CONFIGS, recorded_practice

ARMS = {"linear": (), "roles": ("inputs",), "interactions": ("inputs", "vectors")}
#: Columns of rates: the user's vector, vectors of the items taken and drawn, their biases.
COLUMNS = {"user_factors": slice(0, 1), "item_factors": slice(1, 3), "item_bias": slice(3, 5)}


class Network:
    """Logarithms that are added to those of the linear rates: n × 5."""

    def __init__(self, sees: tuple[str, ...], start: PretrainedState) -> None:
        self._sees = sees
        self._vectors = [_standard(start.tables[name]["values"]) for name in ("user_factors", "item_factors")]
        width = 21 * ("inputs" in sees) + sum(each.shape[1] for each in self._vectors) * ("vectors" in sees)
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(width, 20), torch.nn.Tanh(), torch.nn.Linear(20, 5))
        torch.nn.init.zeros_(self.layers[2].weight)
        torch.nn.init.zeros_(self.layers[2].bias)

    def __call__(self, inputs: Floats, users: Ints, items: Ints) -> Tensor:
        seen = [torch.from_numpy(inputs.reshape(len(inputs), -1)).float()]
        if "vectors" in self._sees:
            seen += [_rows(held, rows) for held, rows in zip(self._vectors, (users, items), strict=True)]
        logs: Tensor = self.layers(torch.cat(seen, 1))
        return logs


class NetworkMeLON(MeLON):
    """Linear rates, and what a network adds to their logarithms."""

    network: Network

    def line_rates(self, *_: Any) -> None:
        return None

    def _weights(self, situation: Situation, table: str, columns: Floats) -> Tensor:
        linear, around, examples = super()._weights(situation, table, columns), situation.around, situation.examples
        assert around is not None
        users, items = around.users[examples.users].numpy(), around.items[examples.items[:, 0]].numpy()
        added = self.network(columns, users, items)[:, COLUMNS[table]]
        return torch.exp((torch.log(linear) + added).clamp(max=MOST_LOG_RATE))


class NetworkPractice(FactorPractice):
    """Compiled passes, whose gradient by log rates goes on into the network."""

    def __init__(self, strategy: NetworkMeLON, selection: Selection, start: PretrainedState) -> None:
        recommender = deploy(MeLON(strategy.settings.plain()), start, selection.before_window).recommender
        recorded = recorded_practice(selection, strategy, start)
        loops = policy.load("practice")
        assert loops is not None
        self._network, self._draw = strategy.network, 0
        self._seen = [
            (draw.inputs, recorded.user_rows[recorded.users], recorded.item_rows[draw.items[:, 0]])
            for draw in recorded.draws
        ]
        grown = _grown(recommender, recorded.user_rows, recorded.item_rows)
        super().__init__(grown, strategy, recorded, loops)
        self._adam = torch.optim.Adam(self._network.layers.parameters(), lr=0.01, weight_decay=1e-4)

    def run(self, number: int) -> tuple[float, Phi]:
        self._draw = number % len(self._seen)
        found = super().run(number)
        if np.isfinite(found[0]):
            self._adam.step()
        return found

    def _rates(self, inputs: Floats) -> PracticeRates:
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
    known = torch.from_numpy(rows < len(held))
    return held[torch.from_numpy(rows).clamp(max=len(held) - 1)] * known[:, None]


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
    for sees in ARMS.values():
        settings = {"lr": config["settings"]["lr"]}
        if not sees:
            scores.append(selection.judged(selection.at_window(MeLON, settings, start)))
            continue
        strategy = NetworkMeLON(settings)
        strategy.network = Network(sees, start)
        practise(strategy, NetworkPractice(strategy, selection, start).run)
        with torch.no_grad():
            scores.append(selection.judged(deploy(strategy, start, selection.before_window)))
    print(f"| {stream} {window} | {' | '.join(f'{score:.4f}' for score in scores)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(f"| stream, window | {' | '.join(ARMS)} |\n{'|---' * (1 + len(ARMS))}|", flush=True)
    for each in sys.argv[2:]:
        main(sys.argv[1], each)
