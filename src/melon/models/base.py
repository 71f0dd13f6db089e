"""What a recommender is: tables of rows, a score for (user, item), and the evidence of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from melon.errors import SettingsError
from melon.models.catalogue import Catalogue
from melon.models.evidence import Evidence, Examples, Values, evidence_by_autograd, losses_by_evidence
from melon.models.losses import Loss, make_loss
from melon.models.plain import PlainSteps
from melon.settings import Settings
from melon.stream.history import History
from melon.tables import Clock, Moment, Table, TableSpec, TableView, Undo
from melon.types import Ints

#: Pairs that are scored at a time where the whole catalogue is asked for.
_SCORED_AT_ONCE = 1 << 16


class RecommenderSettings(Settings):
    """What every recommender can be told."""

    loss: str = "bpr"
    negatives: int = Field(1, ge=1)


@dataclass(frozen=True)
class Context:
    """The moment of scoring: the time of the stream, the history so far, and the moment at which rows are read.

    Without a `moment` rows are read as learning reads them.
    """

    time: int
    history: History
    moment: Moment | None = None


class _PlainCatalogue(Catalogue):
    """One user at a time by `score_catalogue`: a matrix product may round by how many lines it has."""

    def __init__(self, recommender: Recommender, n_items: int, context: Context | None) -> None:
        self._recommender, self._n_items, self._context = recommender, n_items, context

    @torch.no_grad()
    def scores(self, users: Tensor, *, unseen: bool = False) -> Tensor:
        lines = [
            self._recommender.score_catalogue(user, self._n_items, self._context)
            for user in torch.split(users.to(self._recommender.device), 1)
        ]
        return torch.cat(lines) if lines else torch.empty((0, self._n_items), device=users.device)


class SummedSteps(NamedTuple):
    """Pre-training's step: `lr` and `l2` for each touch of a row, `shared_lr` for the mean on shared weights."""

    batch_size: int
    lr: float
    l2: float
    shared_lr: float


class Recommender(ABC):
    """Scores pairs from rows; the updater alone writes the rows, and scoring changes nothing.

    Required: `declare` and `scores`. Everything below them has a default that follows from these two; what is worth
    overriding stands under "optional", what needs no overriding under "provided".
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[RecommenderSettings]] = RecommenderSettings
    #: The compiled kernels that it uses (`melon.kernels`).
    kernels: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        loss: Loss | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings = self.settings_type.parse(settings or {}, f"recommender {self.name!r}")
        self.loss = loss or make_loss(self.settings.loss)
        self.seed, self.dtype, self.device = seed, dtype, usable_device(device)
        #: Numbers as the tables hold them, by which compiled kernels are asked for.
        self.like = torch.empty(0, dtype=dtype, device=device)
        self.clock = Clock()
        self.specs: tuple[TableSpec, ...] = self.declare()
        self.tables: dict[str, Table] = {
            spec.name: Table(spec, clock=self.clock, seed=seed, dtype=dtype, device=device) for spec in self.specs
        }

    # Required.

    @abstractmethod
    def declare(self) -> tuple[TableSpec, ...]:
        """The tables, from the settings."""

    @abstractmethod
    def scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        """Differentiable scores of (users, items): positions into the given rows, of one shape.

        `features` are those that `features` gives for these pairs; a recommender without any may leave the argument
        out.
        """

    @classmethod
    def declared(cls, settings: Mapping[str, Any]) -> tuple[TableSpec, ...]:
        """The tables that settings declare, without making them."""
        unmade = cls.__new__(cls)
        unmade.settings = cls.settings_type.parse(settings, f"recommender {cls.name!r}")
        return unmade.declare()

    # Optional: gradients in closed form, and quicker ways to score.

    @property
    def factorised(self) -> bool:
        """Whether rows are taught p_u · q_i + b_i by the pairwise loss: `user_factors`, `item_factors`, `item_bias`.

        Meta-training then uses compiled kernels. A bias of users, which cancels in the loss, may stand beside them.
        """
        return False

    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        """Losses and per-interaction gradients at the given values.

        `per_branch` keeps apart what reaches a user through each of the interaction's items, the positive and the
        negatives, instead of adding it up.
        """
        return evidence_by_autograd(self, values, examples, per_branch=per_branch)

    def loss_of(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        """The loss of each line of pairs n × (1 + negatives), the item taken first."""
        return self.loss(self._scores(values, users, items, features))

    def taught_scores(self, values: Values, users: Tensor, items: Tensor) -> Tensor:
        """Scores as far as the loss of rows teaches them, without what a head adds; meta-training predicts by them."""
        return self._scores(values, users, items, None)

    def line_scores(self, values: Values, items: Tensor) -> Tensor:
        """`taught_scores` of candidates n × c: line x is that of the x-th user's row, `items` are positions."""
        lines = torch.arange(len(items), device=items.device)[:, None].expand_as(items)
        return self.taught_scores(values, lines, items)

    @property
    def open_evidence(self) -> bool:
        """Whether `evidence` is differentiable, so that meta-training needs no second derivative of the loss."""
        return False

    def pretrain(self, users: Ints, items: Ints, steps: SummedSteps) -> float | None:
        """Learn rows n and n × (1 + negatives) in compiled kernels, batch after batch, and return the sum of losses.

        None where there are no such kernels: `melon.learning.pretrain` then takes the same steps by `evidence`.
        """
        return None

    def learns(self, spec: TableSpec) -> bool:
        """Whether the loss can teach this table anything: a user's bias cancels in a pairwise loss."""
        return not (self.loss.shift_invariant and spec.role == "user" and spec.kind == "bias")

    def score(self, users: Tensor, items: Tensor, context: Context | None = None) -> Tensor:
        """Scores of the stored model for candidates n × c, one line of items per user."""
        values = {
            name: view.gather(self._rows(self.tables[name], users, items)) for name, view in self.views(context).items()
        }
        positions = torch.arange(items.numel(), device=items.device).view(items.shape)
        lines = torch.arange(len(users), device=items.device)[:, None].expand_as(items)
        return self._scores(_flat(values, self.tables), lines, positions, self.features(users, items, context))

    def score_catalogue(self, users: Tensor, n_items: int, context: Context | None = None) -> Tensor:
        """Scores of all items 0 … n_items-1 for each user."""
        at_once = max(_SCORED_AT_ONCE // max(len(users), 1), 1)
        blocks = torch.split(torch.arange(n_items, device=users.device), at_once)
        return torch.cat([self.score(users, block.expand(len(users), -1), context) for block in blocks], dim=1)

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        """The scorer of items 0 … n_items-1 for lists: what depends on this version of the model alone is in it."""
        return _PlainCatalogue(self, n_items, context)

    def similarities(self, items: Tensor, context: Context | None = None) -> Tensor:
        """How similar each item of the catalogue is to each of the given ones; by default the cosine of vectors."""
        vectors = F.normalize(self.item_vectors(context), dim=1)
        return vectors[items] @ vectors.T

    @cached_property
    def plain_steps(self) -> PlainSteps | None:
        """Kernels for plain gradient steps; None where the loss or the score is not theirs."""
        return None

    # Optional: state beside the tables, such as counts that follow the stream.

    def features(self, users: Tensor, items: Tensor, context: Context | None = None) -> Tensor | None:
        """Features of candidates beside their rows: n × c × features, or none."""
        return None

    def fit_past(self, users: Ints, items: Ints) -> None:
        """Fit streaming state that takes a whole recorded log, just before the log is observed from its first event."""

    def observe(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        """Update the streaming state with a batch that has been learned; `past` is the history before it."""

    @property
    def observes_apart(self) -> bool:
        """Whether `observe` and pre-training have nothing in common, so that both may take a log at the same time."""
        return {type(self).observe, type(self).fit_past} == {Recommender.observe, Recommender.fit_past}

    def forget_user(self, user: int) -> None:
        """Take what the streaming state holds of a user out of it."""

    def streaming_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """State beyond the tables, saved with them; copies."""
        return {}

    def restore_streaming_state(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Become what `streaming_state` described."""

    def undo_point(self, users: Ints, items: Ints, past: History) -> Undo | None:
        """A function that takes back the next `observe` of these interactions; None where there is nothing to undo.

        By default it holds a copy of the whole streaming state. Override it where that is large.
        """
        if type(self).observe is Recommender.observe:
            return None
        state = self.streaming_state()
        return lambda: self.restore_streaming_state(state)

    # Provided.

    def views(self, context: Context | None = None) -> dict[str, TableView]:
        """Every table at the moment of scoring."""
        at = None if context is None else context.moment
        return {name: table.view(at) for name, table in self.tables.items()}

    def losses(self, values: Values, examples: Examples) -> Tensor:
        """The loss of each interaction, differentiable in the values."""
        users = examples.users[:, None].expand_as(examples.items)
        return self.loss_of(values, users, examples.items, examples.features)

    def losses_once(self, values: Values, examples: Examples) -> Tensor:
        """Losses with a closed-form backward where there is one; it can be differentiated only once."""
        if type(self).evidence is Recommender.evidence:
            return self.losses(values, examples)
        return losses_by_evidence(self, values, examples)

    def item_vectors(self, context: Context | None = None) -> Tensor:
        """One vector per item, for similarities: its embeddings side by side."""
        views = self.views(context)
        names = [spec.name for spec in self.specs if spec.role == "item" and spec.kind == "embedding"]
        if not names:
            raise SettingsError(f"the recommender {self.name!r} has no vectors of items to compare.")
        return torch.cat([views[name].everything() for name in names], dim=1)

    def grow(self, users: int, user_keys: Ints, items: int, item_keys: Ints) -> None:
        """Make rows up to the given counts; keys belong to the new rows only."""
        sizes = {"user": (users, user_keys), "item": (items, item_keys)}
        for table in self.tables.values():
            if table.spec.role != "shared":
                table.grow(*sizes[table.spec.role])

    def rows_of(self, role: str) -> int:
        """How many users or items have rows."""
        rows = 0
        for table in self.tables.values():
            if table.spec.role == role and table.rows > rows:
                rows = table.rows
        return rows

    def _scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None) -> Tensor:
        if features is None:
            return self.scores(values, users, items)
        return self.scores(values, users, items, features)

    @staticmethod
    def _rows(table: Table, users: Tensor, items: Tensor) -> Tensor:
        if table.spec.role == "shared":
            return torch.arange(table.rows, device=items.device)
        return users if table.spec.role == "user" else items


def _flat(values: dict[str, Tensor], tables: Mapping[str, Table]) -> dict[str, Tensor]:
    """Rows gathered in any shape as plain rows × dim."""
    return {name: rows.reshape(-1, tables[name].spec.dim) for name, rows in values.items()}


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if this machine has it."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")
        choices = ", ".join(["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
        text = f"device = {str(device)!r} is not available here ({reason}); choose one of: {choices}."
        raise SettingsError(text) from None
    return torch.device(device)
