"""The base class of strategies: from the evidence of a batch to a proposal of new rows; a strategy writes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import Field

from melon.errors import SettingsError
from melon.registry import Space
from melon.settings import Settings
from melon.stream.history import History
from melon.tables import Table, TableSpec
from melon.types import AnyArray, Ints, Scores, Singles

if TYPE_CHECKING:
    from torch import Tensor

    from melon.kernels.melon.rates import RateModel
    from melon.models.evidence import Evidence, Examples
    from melon.models.plain import PlainSteps

RowState = dict[str, dict[str, "Tensor"]]
#: All state that is not per row, by name.
Memory = dict[str, AnyArray]
#: State of stored rows by table and name; to be read only.
StoredState = Mapping[str, Mapping[str, Table]]

#: How the steps of several interactions on one row become one (setting `reduction`; `shared_reduction` for weights
#: that every interaction touches). A strategy offers those that it can do.
Reduction = Literal[
    "sum",  # a whole step for each interaction
    "mean",  # the sum over the size of the batch
    "row_mean",  # the sum over the number of interactions that touch the row
]


class ReadableTable(Protocol):
    """A table as a strategy may see it: read, never written."""

    @property
    def rows(self) -> int:
        """How many rows there are."""

    @property
    def half_life(self) -> float | None:
        """The half-life of idle rows, if they decay."""

    def gather(self, rows: Ints) -> Scores:
        """A copy of rows as they are now."""

    def idle(self, rows: Ints) -> Ints:
        """How long ago rows were last touched, by the clock of time decay."""


@dataclass(frozen=True)
class Surroundings:
    """Read-only context of the compact copy: the history, and any row of any table.

    `users` and `items` say which stored rows the compact ones are; `now` is the moment of the decay clock.
    `idle` says how long ago each compact row was last touched, where rows decay.
    """

    history: History
    now: int
    users: Ints
    items: Ints
    tables: Mapping[str, ReadableTable]
    idle: Mapping[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True)
class Situation:
    """One batch as a strategy gets it: compact rows, their per-row state, and the gradients of the batch.

    Rows, state and gradients are tensors of PyTorch; what stands `around` them is numpy's.
    """

    specs: Mapping[str, TableSpec]
    examples: Examples
    values: Mapping[str, Tensor]
    row_state: Mapping[str, Mapping[str, Tensor]]
    evidence: Evidence
    around: Surroundings | None = None
    reach: Mapping[str, int] | None = None

    def reached(self, table: str) -> int:
        """How many leading compact rows of a table the next loss can see; the others need no provisional value."""
        rows = len(self.values[table])
        return rows if self.reach is None else min(rows, self.reach.get(self.specs[table].role, rows))

    def reachable(self) -> dict[str, Tensor]:
        """Those leading rows of every table."""
        return {table: values[: self.reached(table)] for table, values in self.values.items()}


@dataclass(frozen=True)
class RowStateSpec:
    """Declares state that a strategy keeps for each row of a table: its start value and its width.

    `learned` state is part of a meta-model: it goes along from the selection window to the stream, as φ does, while
    other state (moments of an optimiser) starts afresh there.
    """

    start: float = 0.0
    width: int | None = None  # as many numbers as the row has entries, unless said
    learned: bool = False


@dataclass(frozen=True)
class Proposal:
    """New values for compact rows and their state, and new memory of the strategy."""

    values: dict[str, Tensor]
    row_state: RowState = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)

    def within(self, most_step: float, before: Mapping[str, Tensor]) -> Proposal:
        """The same directions, with no row moved further than `most_step`."""

        import torch

        def shortened(old: Tensor, new: Tensor) -> Tensor:
            move = new - old
            length = torch.linalg.vector_norm(move, dim=1, keepdim=True)
            # Bounded below, so that a row that did not move has a derivative too.
            return torch.where(length > most_step, old + move * (most_step / length.clamp(min=most_step)), new)

        return replace(self, values={name: shortened(before[name], new) for name, new in self.values.items()})


@dataclass(frozen=True)
class PlainRates:
    """A step that is one rate for all gradients of a batch: new = old − rate · Σ g − decay · old.

    The decay is that of embeddings; `memory` is that of the strategy after the step.
    """

    rate: float
    decay: float
    memory: Memory


@dataclass(frozen=True)
class LineRates:
    """A step with a rate of the rate model for each gradient of a line, which compiled kernels make.

    `facts` (n × slots × facts) are of the user, the item taken and the items drawn. A touched row loses the share
    `decay`, by table. `row_state` holds new values of some stored rows.
    """

    facts: Singles
    model: RateModel
    decay: Mapping[str, float]
    row_state: Mapping[str, Mapping[str, tuple[Ints, Scores]]]


@dataclass(frozen=True)
class LearningRates:
    """The learning-rate matrix of a batch (docs/methods.md 1.3, 1.4).

    `rows` is slot-aligned, interactions × touched row entries, in the order of `slots`; `shared` holds interactions ×
    entries for each table that every interaction touches.
    """

    rows: Tensor
    slots: tuple[tuple[str, int], ...]  # (table, slot within the interaction) for each column
    shared: dict[str, Tensor]
    raw: Tensor | None = None  # `rows` before a row's several touches are averaged, where that differs
    raw_shared: dict[str, Tensor] | None = None  # and `shared` likewise


class StrategySettings(Settings):
    """Settings of every strategy: the half-life of idle items, and a bound on the step of a row.

    See docs/methods.md 8.3.
    """

    half_life: float | None = Field(None, gt=0)
    most_step: float | None = Field(None, gt=0)


class Strategy(ABC):
    """Evidence in, proposal out. State per row is declared and handed back; everything else lives in `memory`."""

    name: ClassVar[str]
    settings_type: ClassVar[type[StrategySettings]] = StrategySettings
    #: What a search may try; a strategy with a registry entry may have it there instead.
    space: ClassVar[Space] = Space()
    #: Every row of every table is read and written at each step, touched or not: slow, and there for comparison.
    dense: bool = False
    #: Whether a meta-model learns by a look-ahead before each batch; such a strategy is a `LearnedStrategy`.
    looks_ahead: ClassVar[bool] = False
    #: Whether it is meta-trained through the whole selection window and then frozen.
    stream_trained: ClassVar[bool] = False
    #: Whether it samples from all partners of a row; their number grows with the stream.
    whole_history: bool = False
    #: Whether pre-training by the strategy itself reads the whole log as the past of each batch (4.2, 4.9 row 15).
    static_history: bool = False
    #: Whether the evidence of a user's row comes apart for the positive and each negative (docs/methods.md 4.9, row 1).
    per_branch: bool = False

    def __init_subclass__(cls, **more: Any) -> None:
        """A class that changes what its parent proposes has not the parent's compiled step."""
        super().__init_subclass__(**more)
        if {"propose", "weights"} & vars(cls).keys():
            for name in {"plain_rates", "line_rates"} - vars(cls).keys():
                setattr(cls, name, getattr(Strategy, name))

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        if not issubclass(self.settings_type, StrategySettings):
            raise SettingsError(
                f"strategy {self.name!r}: settings_type is {self.settings_type.__name__}; derive it from "
                "melon.strategies.base.StrategySettings, which has the settings of every strategy."
            )
        self.settings: StrategySettings = self.settings_type.parse(settings or {}, f"strategy {self.name!r}")
        self.seed = seed

    def bind(self, specs: Mapping[str, TableSpec], dtype: np.dtype[np.floating]) -> None:
        """Prepare for the tables that will be updated; a strategy that cannot drive them raises `SettingsError`."""

    def require_tables(self, specs: Mapping[str, TableSpec]) -> None:
        """Refuse to be bound again, unless to the same tables: meta-parameters belong to them."""
        tables = {name: (spec.role, spec.kind, spec.dim, spec.rows) for name, spec in specs.items()}
        before = self.__dict__.setdefault("_tables", tables)
        if before != tables:
            raise SettingsError(
                f"strategy {self.name!r} was bound to the tables {sorted(before)} and cannot update {sorted(tables)} "
                "of other names, roles or widths; make a new one for this recommender."
            )

    def half_lives(self, specs: Mapping[str, TableSpec]) -> dict[str, float]:
        """The half-life of each table whose idle rows decay: the items', where the settings name one."""
        half_life = self.settings.half_life
        return {} if half_life is None else {name: half_life for name, spec in specs.items() if spec.role == "item"}

    def row_state(self, spec: TableSpec) -> dict[str, RowStateSpec]:
        """The state that is kept for each row of a table, by name."""
        return {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """The compiled kernels that it uses (`melon.kernels`)."""
        return ()

    @abstractmethod
    def propose(self, situation: Situation) -> Proposal:
        """New rows for the batch; pure."""

    def plain_rates(self, interactions: int) -> PlainRates | None:
        """Optional: what `propose` does to a batch of that many interactions, where that is a plain step; else None.

        Kernels then make the step. A class that changes `propose` has it only if it says so itself.
        """
        return None

    def line_rates(
        self, kernels: PlainSteps, users: Ints, items: Ints, history: History, now: int, state: StoredState
    ) -> LineRates | None:
        """Optional: what `propose` does to interactions of a factorised score, users n and items n × (1 + negatives) as
        stored rows, where that is a step with a rate for each gradient; else None. `state` is the strategy's own.
        """
        return None

    def learning_rates(self, situation: Situation) -> LearningRates:
        """Optional: the learning-rate matrix W of the step −Σ_x W_x ⊙ g_x that `propose` makes.

        A strategy whose step is no such sum does not have it.
        """
        raise SettingsError(
            f"strategy {self.name!r} has no learning-rate matrix: its step is not a sum of gradients times rates."
        )

    @property
    def explains_rates(self) -> bool:
        """Whether the strategy has a learning-rate matrix."""
        return type(self).learning_rates is not Strategy.learning_rates

    def keep(self, memory: Mapping[str, AnyArray]) -> None:
        """Take over the memory of a proposal, after its rows have been written."""

    def memory(self) -> Memory:
        """All state that is not per row, for checkpoints; copies."""
        return {}

    def recall(self, memory: Mapping[str, AnyArray]) -> None:
        """Become what `memory` described."""

    def start_afresh(self) -> None:
        """Begin a stream after meta-training: row state that is not learned starts anew, and so do its counters."""
