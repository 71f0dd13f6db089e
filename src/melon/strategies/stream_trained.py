"""Strategies with the rate model (docs/methods.md 4.12): meta-trained through a whole stream and then frozen.

Before meta-training they are the plain step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from melon.errors import SettingsError
from melon.models.plain import TAUGHT, PlainSteps
from melon.strategies.base import (
    LearningRates,
    LineRates,
    Memory,
    Proposal,
    RowStateSpec,
    Situation,
    StoredState,
    Strategy,
    StrategySettings,
)
from melon.strategies.melon.rates import (
    HALF_LIVES,
    INPUTS,
    MOST_DECAY,
    RECENT_WIDTH,
    Phi,
    RateInput,
    RateParameters,
    RecentCounts,
    Roles,
    batch_facts,
)
from melon.stream.history import History
from melon.tables import TableSpec
from melon.types import AnyArray, Floats, Ints, Scores

if TYPE_CHECKING:
    from torch import Tensor

    from melon.strategies.melon.touch_rates import TableRates, TouchRates

_RECENT = "recent"
#: Passes with and without the role of a parameter, which has more to learn.
_PASSES, _PASSES_WITHOUT_ROLE = 120, 60


class StreamTrainedSettings(StrategySettings):
    """`lr` (and `half_life`, the half-life of idle items) is the plain step from which meta-training starts."""

    form: Literal["stream"] = "stream"
    lr: float = Field(0.3, gt=0, le=20)  # no rate is larger than e³
    inputs: tuple[RateInput, ...] = INPUTS
    decay: bool = True  # whether touched rows may learn to shrink
    passes: int | None = Field(None, ge=0)  # 120 with the role of a parameter, else 60
    meta_training_lr: float = Field(0.1, gt=0)
    meta_training_l2: float = Field(1e-3, ge=0)

    @field_validator("inputs", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """`age,loss` is a list too, and naming an input twice is naming it once."""
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        return tuple(dict.fromkeys(names)) if isinstance(names, list | tuple) else names


class StreamTrainedStrategy(Strategy):
    """row ← (1 − decay) · row − Σ_x w_{x,m} g_{x,m}, with w from the rate model.

    w is a rate for every (interaction, parameter) pair; where gradients are not in closed form, for every (interaction,
    row) pair, and one for each table of shared weights.
    """

    settings_type = StreamTrainedSettings
    settings: StreamTrainedSettings
    stream_trained: ClassVar[bool] = True
    #: Inputs that are never seen.
    unseen: ClassVar[tuple[RateInput, ...]] = ()
    decays: ClassVar[bool] = True

    def bind(self, specs: Mapping[str, TableSpec], dtype: np.dtype[np.floating]) -> None:
        """Start at the plain step; a strategy that has meta-trained on another recommender of the kind keeps that."""
        self.require_tables(specs)
        if hasattr(self, "rates"):
            return
        if not any(spec.role == "item" for spec in specs.values()):
            raise SettingsError(f"strategy {self.name!r} needs rows of items, and this recommender has none.")
        inputs = tuple(name for name in self.settings.inputs if name not in self.unseen)
        self.rates = RateParameters(specs, self.roles(specs), inputs, self.settings.lr, self.seed)
        self.rates.free["decay"][:] = self.settings.decay and self.decays
        self.rates.free["half_lives"][:] = self.settings.half_life is not None
        if self.settings.half_life is not None:
            self.rates.phi["half_lives"][:] = np.log(self.settings.half_life)

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        """What has rates of its own."""
        return Roles.apart(specs)

    @property
    def passes(self) -> int:
        """How many passes meta-training makes."""
        by_model = _PASSES if self.rates.phi["out"].size else _PASSES_WITHOUT_ROLE
        return by_model if self.settings.passes is None else self.settings.passes

    @property
    def kernels(self) -> tuple[str, ...]:
        return ("rates",)

    def half_lives(self, specs: Mapping[str, TableSpec]) -> dict[str, float]:
        return {} if self.settings.half_life is None else self.rates.half_lives()

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        """Recent counts live with the rows of one table of items."""
        return {_RECENT: RowStateSpec(width=RECENT_WIDTH)} if spec.name == self.rates.item_tables[0] else {}

    def propose(self, situation: Situation) -> Proposal:
        import torch

        weights = self._weights(situation)
        values = {
            gradient.table: weights[gradient.table].moved(
                gradient,
                situation.values[gradient.table],
                self.rates.kept(gradient.table) if gradient.table in self.rates.row_tables else 1.0,
            )
            for gradient in situation.evidence.gradients
        }
        counted = self._recent(situation).after(situation.examples.items[:, 0].cpu().numpy())
        stored = situation.row_state[self.rates.item_tables[0]][_RECENT]
        return Proposal(values, {self.rates.item_tables[0]: {_RECENT: torch.from_numpy(counted).to(stored)}})

    def line_rates(
        self, kernels: PlainSteps, users: Ints, items: Ints, history: History, now: int, state: StoredState
    ) -> LineRates | None:
        if self.settings.most_step is not None:
            return None
        counted, slots = self.rates.item_tables[0], items.shape[1]
        counts = state[counted][_RECENT].gather(items.reshape(-1)).astype(np.float32, copy=False)
        met = history.of_users.met(users), history.of_items.met(items)
        facts = kernels.line_facts(users, items, met, now, counts, np.array(HALF_LIVES), history.events)
        decay = {name: 1 - self.rates.kept(name) for name in TAUGHT}
        taken, first, times = np.unique(items[:, 0], return_index=True, return_counts=True)
        before = RecentCounts(counts[first * slots], history.events)
        after = before.after(np.repeat(np.arange(len(taken)), times))
        seen = np.ascontiguousarray(self.seen(facts), dtype=np.float32)
        return LineRates(seen, self.rates.model(slots), decay, {counted: {_RECENT: (taken, after)}})

    def learning_rates(self, situation: Situation) -> LearningRates:
        import torch

        from melon.models.evidence import RowGradient

        weights, slots, shared = self._weights(situation), list[tuple[str, int]](), {}
        rows: list[Tensor] = []
        for gradient in situation.evidence.gradients:
            old, rates = situation.values[gradient.table], weights[gradient.table]
            if isinstance(gradient, RowGradient):
                width, dim = gradient.gradient.shape[1:]
                rows.append(rates.touches.to(old).expand(-1, -1, dim).flatten(1))
                slots += [(gradient.table, slot) for slot in range(width) for _ in range(dim)]
            else:
                each = rates.expanded().to(old)
                shared[gradient.table] = each.expand(-1, *old.shape).flatten(1) / len(each)
        return LearningRates(torch.cat(rows, dim=1), tuple(slots), shared)

    def memory(self) -> Memory:
        return {f"phi/{name}": value.copy() for name, value in self.rates.phi.items() if value.size}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        self.rates.take({name.removeprefix("phi/"): value for name, value in memory.items()}, self.name)

    @property
    def phi(self) -> Phi:
        """What meta-training has learned."""
        return self.rates.phi

    def take(self, phi: Phi) -> None:
        """Become another φ, within its bounds."""
        self.rates.phi = {**phi, "decay": phi["decay"].clip(0, MOST_DECAY)}

    def free(self, name: str) -> Floats:
        """1 for each number of a part of φ that meta-training may move, and 0 for the others."""
        return self.rates.free[name].astype(np.float64)

    def speed(self, name: str) -> float:
        """How fast meta-training moves a part of φ, relative to its rate."""
        return self.rates.speed(name)

    def anchor(self, name: str, start: Floats) -> Floats | None:
        """Where the penalty of meta-training draws a part of φ to; None without one."""
        return self.rates.anchor(name, start)

    def seen(self, facts: Scores) -> Scores:
        """What rates see of the facts of an interaction's touches: n × (user, item taken, items drawn) × facts."""
        return facts

    def columns(self, spec: TableSpec, facts: Floats) -> Scores:
        """What rates see of a table's touches, from the facts of all touches."""
        seen = self.seen(facts)
        if spec.role == "item":
            return seen[:, 1:]
        if spec.role == "shared":  # such weights have no age, are never idle, and are touched by all
            seen = np.concatenate([np.zeros_like(seen[..., :4]), seen[..., 4:]], axis=-1)
        return seen[:, :1]

    def touch_rates(
        self, phi: Mapping[str, Tensor], losses: Tensor, specs: Mapping[str, TableSpec], facts: Floats
    ) -> TouchRates:
        """The rate model in PyTorch on a batch with these losses and facts."""
        from melon.strategies.melon.touch_rates import TouchRates

        columns = {name: self.columns(spec, facts) for name, spec in specs.items()}
        return TouchRates(self.rates, phi, losses, columns)

    def _weights(self, situation: Situation) -> dict[str, TableRates]:
        """Rates of every table's touches."""
        import torch

        phi, evidence = {name: torch.from_numpy(value) for name, value in self.rates.phi.items()}, situation.evidence
        rates = self.touch_rates(phi, evidence.losses.detach(), situation.specs, self._facts(situation))
        return rates.of(evidence, situation.values, situation.specs)

    def _facts(self, situation: Situation) -> Floats:
        """Facts of the rows that each interaction touches, as they are before the batch: n × (1 + slots) × facts."""
        around = situation.around
        assert around is not None
        users, items = situation.examples.users.cpu().numpy(), situation.examples.items.cpu().numpy()
        user_table = next((name for name, spec in situation.specs.items() if spec.role == "user"), None)
        of_users = around.history.of_users.met(around.users)[users]
        of_items = around.history.of_items.met(around.items)[items]
        idle_items = around.tables[self.rates.item_tables[0]].idle(around.items)[items]
        idle_users = np.zeros_like(of_users)
        if user_table is not None:
            idle_users = around.tables[user_table].idle(around.users)[users]
        recent = self._recent(situation).now()[items]
        return batch_facts(users, items, (of_users, of_items), (idle_users, idle_items), recent)

    def _recent(self, situation: Situation) -> RecentCounts:
        assert situation.around is not None
        stored = situation.row_state[self.rates.item_tables[0]][_RECENT].detach().cpu().numpy()
        return RecentCounts(stored, situation.around.history.events)


class StreamTrainedMWNet(StreamTrainedStrategy):
    """One rate for each interaction, from its loss alone."""

    name = "mwnet"
    unseen = tuple(name for name in INPUTS if name != "loss")
    decays = False

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)


class StreamTrainedMetaSGD(StreamTrainedStrategy):
    """One rate for each table, whatever the interaction."""

    name = "metasgd"
    unseen = INPUTS
    decays = False

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)
