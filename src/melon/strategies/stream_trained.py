"""Strategies with log-linear rates, meta-trained through a whole stream and then frozen (docs/methods.md 4.12).

Before meta-training they are exactly the plain step. Online they weigh each touch of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from melon.errors import SettingsError
from melon.kernels.meta_training.forms import MOST_LOG_RATE
from melon.models.evidence import RowGradient
from melon.models.plain import TAUGHT, PlainSteps
from melon.strategies.base import (
    LearningRates,
    LineRates,
    Proposal,
    RowStateSpec,
    Situation,
    StoredState,
    Strategy,
    StrategySettings,
)
from melon.strategies.melon.inputs import HALF_LIVES, RECENT_WIDTH, RecentCounts
from melon.strategies.melon.rates import INPUTS, MOST_DECAY, LinearInput, LinearRates, Phi, Roles, row_inputs
from melon.strategies.online_continuation import OnlineContinuation
from melon.stream.history import History
from melon.tables import TableSpec
from melon.types import Floats, Ints

_RECENT = "recent"
_UNCAPPED = 50.0


class StreamTrainedSettings(StrategySettings):
    """`lr` (and `half_life`, the half-life of idle items) is the plain step from which meta-training starts."""

    form: Literal["linear"] = "linear"
    lr: float = Field(0.3, gt=0, le=20)  # no rate is larger than e³
    inputs: tuple[LinearInput, ...] = INPUTS
    decay: bool = True  # whether touched rows may learn to shrink
    passes: int = Field(60, ge=0)
    meta_training_lr: float = Field(0.1, gt=0)
    meta_training_l2: float = Field(1e-3, ge=0)
    online: Literal["frozen", "next_batch"] = "frozen"  # whether rates go on learning on the stream, by a look-ahead
    online_lr: float = Field(0.003, gt=0)

    @field_validator("inputs", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """`age,loss` is a list too, and naming an input twice is naming it once."""
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        return tuple(dict.fromkeys(names)) if isinstance(names, list | tuple) else names


class LinearStrategy(Strategy):
    """row ← (1 − decay) · row − Σ_x w_{x,r} g_x, with w from what is known of the interaction and of the row."""

    settings_type = StreamTrainedSettings
    settings: StreamTrainedSettings
    #: Inputs that are never seen.
    unseen: ClassVar[tuple[LinearInput, ...]] = ()
    decays: ClassVar[bool] = True

    def bind(self, specs: Mapping[str, TableSpec], dtype: torch.dtype, device: torch.device) -> None:
        """Start at the plain step; one meta-trained on another recommender of the kind keeps its parameters."""
        self.require_tables(specs)
        if hasattr(self, "rates"):
            return
        if not any(spec.role == "item" for spec in specs.values()):
            raise SettingsError(f"strategy {self.name!r} needs rows of items, and this recommender has none.")
        inputs = tuple(name for name in self.settings.inputs if name not in self.unseen)
        self.rates = LinearRates(specs, self.roles(specs), inputs, self.settings.lr)
        if self.settings.half_life is not None:
            self.rates.phi["half_lives"][:] = float(np.log(self.settings.half_life))
        self.online_continuation = OnlineContinuation()

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        """What has rates of its own."""
        return Roles.apart(specs)

    def half_lives(self, specs: Mapping[str, TableSpec]) -> dict[str, float]:
        return {} if self.settings.half_life is None else self.rates.half_lives()

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        """Recent counts live with the rows of one table of items."""
        return {_RECENT: RowStateSpec(width=RECENT_WIDTH)} if spec.name == self.rates.item_tables[0] else {}

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        columns, values = self.inputs(situation), dict[str, Tensor]()
        for gradient in situation.evidence.gradients:
            old = situation.values[gradient.table]
            weights = self._weights(situation, gradient.table, columns).to(old)
            if isinstance(gradient, RowGradient):
                weighted = RowGradient(gradient.table, gradient.positions, gradient.gradient * weights[..., None])
                values[gradient.table] = old * self.rates.kept(gradient.table).to(old) - weighted.summed(len(old))
            else:
                values[gradient.table] = old - gradient.summed(len(old), weights[:, 0]) / len(weights)
        counted = self._recent(situation).after(situation.examples.items[:, 0])
        return Proposal(values, {self.rates.item_tables[0]: {_RECENT: counted}})

    def line_rates(
        self, kernels: PlainSteps, users: Ints, items: Ints, history: History, now: int, state: StoredState
    ) -> LineRates | None:
        if self.settings.most_step is not None or type(self).columns is not LinearStrategy.columns:
            return None
        counted = self.rates.item_tables[0]
        counts = state[counted][_RECENT].gather(torch.from_numpy(items.reshape(-1)))
        met = history.of_users.met(users), history.of_items.met(items)
        weights, splines, decay = self.rates.in_columns(TAUGHT, items.shape[1])
        half_lives = np.array(HALF_LIVES)
        logs = kernels.line_logs(users, items, met, now, counts.numpy(), half_lives, history.events, weights)
        if logs is None:
            return None
        # With splines the cap comes after them.
        rates = np.exp(np.minimum(logs, _UNCAPPED if self.rates.sees_loss else MOST_LOG_RATE)).astype(np.float32)
        taken, first, times = np.unique(items[:, 0], return_index=True, return_counts=True)
        before = RecentCounts(counts[torch.from_numpy(first) * items.shape[1]], history.events)
        after = before.after(torch.from_numpy(np.repeat(np.arange(len(taken)), times)))
        return LineRates(rates, splines, decay, {counted: {_RECENT: (torch.from_numpy(taken), after)}})

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        columns, rows, slots, shared = self.inputs(situation), [], [], {}
        for gradient in situation.evidence.gradients:
            old = situation.values[gradient.table]
            weights = self._weights(situation, gradient.table, columns).to(old)
            if isinstance(gradient, RowGradient):
                width, dim = gradient.gradient.shape[1:]
                rows.append(weights.repeat_interleave(dim, dim=1))
                slots += [(gradient.table, slot) for slot in range(width) for _ in range(dim)]
            else:
                shared[gradient.table] = weights.expand(-1, old.numel()) / len(weights)
        return LearningRates(torch.cat(rows, dim=1), tuple(slots), shared)

    def memory(self) -> dict[str, Tensor]:
        phi = {f"phi/{name}": value.clone() for name, value in self.rates.phi.items()}
        return phi if self.settings.online == "frozen" else {**phi, **self.online_continuation.memory()}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        online_continuation = OnlineContinuation.from_memory(memory, self.rates.phi, f"strategy {self.name!r}")
        phi = {name.removeprefix("phi/"): value.cpu() for name, value in memory.items()}
        self.rates.take(phi, self.name)
        self.online_continuation = online_continuation

    def start_afresh(self) -> None:
        self.online_continuation = OnlineContinuation()

    def trainable(self) -> dict[str, Tensor]:
        """1 for each number of φ that meta-training may move, and 0 for the others."""
        masks = {name: torch.ones_like(value) for name, value in self.rates.phi.items()}
        masks["rates"][:, 1:] *= torch.from_numpy(self.rates.seen(np.ones(masks["rates"].shape[1] - 1)))
        masks["splines"] *= self.rates.sees_loss
        masks["decay"] *= self.settings.decay and self.decays
        masks["half_lives"] *= self.settings.half_life is not None
        return masks

    @property
    def phi(self) -> Phi:
        """What meta-training has learned."""
        return self.rates.phi

    def take(self, phi: Phi) -> None:
        """Become another φ, within its bounds."""
        self.rates.phi = {**phi, "decay": phi["decay"].clamp(0, MOST_DECAY)}

    def pulled(self, name: str) -> bool:
        """Whether a penalty draws a part of φ back to the plain step."""
        return name in ("rates", "splines")

    def columns(self, spec: TableSpec, touches: Floats) -> Floats:
        """What rates see of a table's touches, from the inputs of all touches (n × slots × columns: the user, the item
        taken, items drawn).
        """
        seen = self.rates.seen(touches)
        if spec.role == "item":
            return seen[:, 1:]
        if spec.role == "shared":  # such weights have no age, are never idle, and are touched by all
            seen = np.concatenate([np.zeros_like(seen[..., :4]), seen[..., 4:]], axis=-1)
        return seen[:, :1]

    def weights(self, spec: TableSpec, touches: Floats, losses: Tensor, phi: Phi | None = None) -> Tensor:
        """Rates of a table's touches: n × slots."""
        columns = self.columns(spec, touches)
        return self.rates.rates(columns, losses, self.rates.roles.of(spec.name, columns.shape[1]), phi)

    def _weights(self, situation: Situation, table: str, columns: Floats) -> Tensor:
        return self.weights(situation.specs[table], columns, situation.evidence.losses.detach().cpu())

    def inputs(self, situation: Situation) -> Floats:
        """Inputs of the rows that each interaction touches, as they are before the batch: n × (1 + slots) × columns."""
        around = situation.around
        assert around is not None
        users, items = situation.examples.users.cpu().numpy(), situation.examples.items.cpu().numpy()
        user_table = next((name for name, spec in situation.specs.items() if spec.role == "user"), None)
        item_table = self.rates.item_tables[0]
        of_users = around.history.of_users.met(around.users.cpu().numpy())[users]
        of_items = around.history.of_items.met(around.items.cpu().numpy())[items]
        idle_items = around.tables[item_table].idle(around.items).cpu().numpy()[items]
        idle_users = np.zeros_like(of_users)
        if user_table is not None:
            idle_users = around.tables[user_table].idle(around.users).cpu().numpy()[users]
        recent = self._recent(situation).now()[items]
        return batch_inputs(users, items, (of_users, of_items), (idle_users, idle_items), recent)

    def _recent(self, situation: Situation) -> RecentCounts:
        assert situation.around is not None
        stored = situation.row_state[self.rates.item_tables[0]][_RECENT]
        return RecentCounts(stored, situation.around.history.events)


def batch_inputs(users: Ints, items: Ints, met: tuple[Ints, Ints], idle: tuple[Ints, Ints], recent: Floats) -> Floats:
    """Inputs of a batch's touches: n × (user, item taken, items drawn) × columns.

    `met` and `idle` are of users (n) and of items (n × slots), `recent` (n × slots × 2) counts of items.
    """
    touches = _times(users), _times(items)
    of_user = row_inputs(met[0], idle[0], touches[0], recent[:, 0], met[1][:, 0])
    of_items = row_inputs(met[1], idle[1], touches[1], recent, np.broadcast_to(met[0][:, None], items.shape))
    return np.concatenate([of_user[:, None], of_items], axis=1)


def _times(rows: Ints) -> Ints:
    """How often each row stands among them."""
    _, place, counts = np.unique(rows, return_inverse=True, return_counts=True)
    times: Ints = counts[place].reshape(rows.shape)
    return times
