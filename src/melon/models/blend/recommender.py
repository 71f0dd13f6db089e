"""The blend (docs/methods.md 8.5): a personal score, recent popularity and item neighbours, combined by a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from melon.kernels import policy
from melon.kernels.blend_head import Rows
from melon.models.base import Context, RecommenderSettings
from melon.models.blend import catalogue
from melon.models.blend.catalogue import BlendCatalogue
from melon.models.blend.features import INPUTS, MORE, TRANSITIONS, StreamFeatures
from melon.models.blend.head import (
    TABLES,
    BlendHead,
    HeadExamples,
    HeadSettings,
    head_tables,
    silent,
)
from melon.models.catalogue import Catalogue
from melon.models.factorisation import FactorModel, FactorSettings
from melon.models.plain import TAUGHT
from melon.settings import Width
from melon.stream.history import History
from melon.stream.saved import part_of
from melon.tables import Moment, TableSpec
from melon.types import Flags, Ints, Scores, Singles

#: Pairs whose inputs are held at a time.
_PAIRS_AT_ONCE = 1 << 16


class BlendSettings(FactorSettings):
    """The personal part is trained as BPR's is, the head by itself."""

    negatives: int = Field(4, ge=1)
    head_units: int = Field(32, ge=0, le=4096)
    head_negatives: int = Field(30, ge=1)
    head_own_share: float = Field(0.0, ge=0, le=0.4)
    head_popular_share: float = Field(0.0, ge=0, le=0.4)
    head_rest: int = Field(256, ge=0)
    head_lr: float = Field(0.001, ge=0)
    head_decay: float = Field(0.01, ge=0)
    head_passes: int = Field(20, ge=0)
    head_training_lr: float = Field(0.005, gt=0)
    slots: Width = 256
    transitions: bool = False
    inputs: tuple[Literal["profiles", "preferences", "own"], ...] = ()


class Blend(FactorModel):
    """score(u, i) = p_u · q_i + b_i + h(x), where x is what rows and streaming state say of the pair."""

    name = "blend"
    kernels = ("factor", "neighbours", "blend", "lists", "ials", "profiles")
    settings_type: ClassVar[type[RecommenderSettings]] = BlendSettings
    settings: BlendSettings
    keeps_journal = True
    #: Whether streaming state follows what is learned; without it the rows can be judged by themselves, and quicker.
    observes: bool = True

    def __init__(self, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(settings, **options)
        chosen = self.settings
        self.head = BlendHead(
            len(self.inputs),
            HeadSettings(
                chosen.head_units,
                chosen.head_negatives,
                chosen.head_lr,
                chosen.head_decay,
                chosen.head_training_lr,
                chosen.head_passes,
                chosen.head_rest,
                int(chosen.head_own_share * chosen.head_negatives),
                int(chosen.head_popular_share * chosen.head_negatives),
            ),
        )
        self.stream = StreamFeatures(chosen.slots, transitions=chosen.transitions, more=chosen.inputs, seed=self.seed)

    def declare(self) -> tuple[TableSpec, ...]:
        dim = self.settings.dim
        return (
            TableSpec("user_factors", "user", "embedding", dim, 0.05),
            TableSpec("item_factors", "item", "embedding", dim, 0.05),
            TableSpec("item_bias", "item", "bias", 1),
            *head_tables(len(self.inputs), self.settings.head_units),
        )

    def learns(self, spec: TableSpec) -> bool:
        return super().learns(spec) and spec.name not in TABLES

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the head sees, by name."""
        usual = (*INPUTS, *TRANSITIONS) if self.settings.transitions else INPUTS
        return (*usual, *(name for group, names in MORE.items() if group in self.settings.inputs for name in names))

    def head_examples(self, users: Ints, items: Ints, allowed: Flags, context: Context) -> HeadExamples:
        """What interactions teach the head: users n, items n × (1 + negatives), from the stored model as it is now."""
        return HeadExamples(self.inputs_of(users, items, context), allowed, pairs=(users, items))

    def with_present_rows(self, head_examples: HeadExamples, context: Context) -> HeadExamples:
        """The same examples where nothing but rows has changed: what streaming state said of them still holds."""
        assert head_examples.pairs is not None
        inputs = head_examples.inputs.copy()
        self.stream.rows_again(self._rows(context), *head_examples.pairs, context.history, inputs)
        return replace(head_examples, inputs=inputs)

    def score(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        at = None if context is None else context.moment
        values = self.head_values(at)
        if silent(values):
            return self.row_scores(users, items, context)
        context = context or Context(time=0, history=History())
        scores: Singles = np.empty(items.shape, dtype=np.float32)
        (constant, head), at_once = self.head.folded(values), max(_PAIRS_AT_ONCE // max(items.shape[1], 1), 1)
        for start in range(0, len(users), at_once):
            some = slice(start, start + at_once)
            inputs = self.inputs_of(users[some], items[some], context)
            policy.load("blend").head_scores(inputs, constant, head, scores[some])
        return scores.astype(self.dtype, copy=False)

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        if self.dtype != np.float32:
            return super().catalogue(n_items, context)
        if silent(self.head_values(None if context is None else context.moment)):
            return self.row_catalogue(n_items, context)
        rows = self.row_catalogue(n_items, context, two_stage=n_items >= catalogue.FROM)
        return BlendCatalogue(self, rows, n_items, context or Context(time=0, history=History()))

    def similarities(self, items: Ints, context: Context | None = None) -> Scores:
        """By the users that items share, weighed as the neighbours are."""
        alike = self.stream.similarities(items)
        missing = max(self.rows_of("item") - alike.shape[1], 0)
        return np.pad(alike, ((0, 0), (0, missing))).astype(self.dtype)

    @property
    def observes_apart(self) -> bool:
        return type(self).observe is Blend.observe and type(self).pretrain is FactorModel.pretrain

    def fit_past(self, users: Ints, items: Ints) -> None:
        self.stream.fit(users, items)

    def forget_user(self, user: int) -> None:
        self.stream.forget_user(user)

    def observe(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        if self.observes:
            self.stream.observe(users, items, past)

    def streaming_state(self) -> dict[str, npt.NDArray[Any]]:
        return {**self.stream.state(), **{f"head.{name}": array for name, array in self.head.memory().items()}}

    def restore_streaming_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.stream.restore(state)
        self.head.recall(part_of(state, "head"))

    def head_values(self, at: Moment | None) -> dict[str, Singles]:
        """The head's tables at a moment."""
        return {name: _singles(self.tables[name].view(at).everything()) for name in TABLES}

    def inputs_of(self, users: Ints, items: Ints, context: Context) -> Singles:
        """The head's inputs of candidates."""
        lines = np.ascontiguousarray(users), np.ascontiguousarray(items)
        return self.stream.inputs(self._rows(context), *lines, context.history)

    def _rows(self, context: Context) -> list[Rows]:
        """Rows of users, of items and of items' biases, as kernels take them."""
        at = context.moment
        now = self.clock.now if at is None else at.now
        tables = (self.tables[name] for name in TAUGHT)
        rows = []
        for table in tables:
            values, touched, half_life = table.arrays(at)
            rows.append(Rows(_singles(values), touched, half_life, table.rows, now))
        return rows


def _singles(values: npt.NDArray[Any]) -> Singles:
    """As kernels take them: without a copy, unless tables hold other numbers."""
    return np.ascontiguousarray(values, dtype=np.float32)
