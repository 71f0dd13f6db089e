"""What a recommender is: tables of rows, a score for (user, item), and what a stream tells beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from melon.errors import SettingsError
from melon.journal import note, recording
from melon.models.catalogue import Catalogue
from melon.models.losses import Loss, make_loss
from melon.models.plain import PlainSteps
from melon.settings import Settings
from melon.stream.history import History
from melon.tables import Clock, Moment, Table, TableSpec, TableView
from melon.types import Floats, Ints, Scores

if TYPE_CHECKING:
    from melon.models.autograd import Differentiable

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

    def scores(self, users: Ints, *, unseen: bool = False) -> Scores:
        lines = [
            self._recommender.score_catalogue(users[n : n + 1], self._n_items, self._context) for n in range(len(users))
        ]
        return np.concatenate(lines) if lines else np.empty((0, self._n_items), dtype=self._recommender.dtype)


class SummedSteps(NamedTuple):
    """Pre-training's step: `lr` and `l2` for each touch of a row, `shared_lr` for the mean on shared weights."""

    batch_size: int
    lr: float
    l2: float
    shared_lr: float


class Recommender(ABC):
    """Scores pairs from rows; the updater alone writes the rows, and scoring changes nothing.

    Required: `declare` and `score`. Everything below them has a default that follows from these two; what is worth
    overriding stands under "optional", what needs no overriding under "provided". A recommender whose score PyTorch
    differentiates derives from `melon.models.TorchRecommender` instead.
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
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.settings = self.settings_type.parse(settings or {}, f"recommender {self.name!r}")
        self.loss = loss or make_loss(self.settings.loss)
        self.seed = seed
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.clock = Clock()
        self.specs: tuple[TableSpec, ...] = self.declare()
        self.tables: dict[str, Table] = {
            spec.name: Table(spec, clock=self.clock, seed=seed, dtype=self.dtype) for spec in self.specs
        }

    # Required.

    @abstractmethod
    def declare(self) -> tuple[TableSpec, ...]:
        """The tables, from the settings."""

    @abstractmethod
    def score(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        """Scores of the stored model for candidates n × c, one line of items per user."""

    @classmethod
    def declared(cls, settings: Mapping[str, Any]) -> tuple[TableSpec, ...]:
        """The tables that settings declare, without making them."""
        unmade = cls.__new__(cls)
        unmade.settings = cls.settings_type.parse(settings, f"recommender {cls.name!r}")
        return unmade.declare()

    # Optional: how rows learn, and quicker ways to score.

    @property
    def factorised(self) -> bool:
        """Whether rows are taught p_u · q_i + b_i by the pairwise loss: `user_factors`, `item_factors`, `item_bias`.

        Kernels then make plain steps and meta-train. A bias of users, which cancels in the loss, may stand beside them.
        """
        return False

    def differentiable(self) -> Differentiable:
        """Its score and its gradients in PyTorch, for strategies and losses that no kernel serves."""
        raise SettingsError(
            f"the recommender {self.name!r} has no gradients, so no strategy can update its rows; use it with the "
            "strategy 'default', or derive it from melon.models.TorchRecommender."
        )

    def pretrain(self, users: Ints, items: Ints, steps: SummedSteps) -> float | None:
        """Learn rows n and n × (1 + negatives) in compiled kernels, batch after batch, and return the sum of losses.

        None where there are no such kernels: `melon.learning.pretrain` then takes the same steps in PyTorch.
        """
        return None

    def learns(self, spec: TableSpec) -> bool:
        """Whether the loss can teach this table anything: a user's bias cancels in a pairwise loss."""
        return not (self.loss.shift_invariant and spec.role == "user" and spec.kind == "bias")

    def row_scores(self, users: Ints, items: Ints, context: Context | None = None) -> Scores:
        """Scores of candidates as far as the loss of rows teaches them, without what a head adds."""
        return self.score(users, items, context)

    def score_catalogue(self, users: Ints, n_items: int, context: Context | None = None) -> Scores:
        """Scores of all items 0 … n_items-1 for each user."""
        at_once = max(_SCORED_AT_ONCE // max(len(users), 1), 1)
        blocks = (np.arange(start, min(start + at_once, n_items)) for start in range(0, max(n_items, 1), at_once))
        lines = [self.score(users, np.tile(block, (len(users), 1)), context) for block in blocks]
        return np.concatenate(lines, axis=1)

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        """The scorer of items 0 … n_items-1 for lists: what depends on this version of the model alone is in it."""
        return _PlainCatalogue(self, n_items, context)

    def similarities(self, items: Ints, context: Context | None = None) -> Floats | Scores:
        """How similar each item of the catalogue is to each of the given ones; by default the cosine of vectors."""
        vectors = self.item_vectors(context)
        lengths = np.maximum(np.sqrt(np.einsum("nd,nd->n", vectors, vectors)), 1e-12)
        similar: Scores = (vectors[items] / lengths[items, None]) @ vectors.T
        similar /= lengths
        return similar

    @cached_property
    def plain_steps(self) -> PlainSteps | None:
        """Compiled plain gradient steps; None where the loss, the score or the number type is not theirs."""
        return PlainSteps(self.tables) if self.factorised and self.dtype == np.float32 else None

    # Optional: state beside the tables, such as counts that follow the stream.

    def features(self, users: Ints, items: Ints, context: Context | None = None) -> Scores | None:
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

    #: Whether `observe` notes in the open journal (`melon.journal`) what it overwrites. Else the whole streaming state
    #: is copied before each batch.
    keeps_journal: ClassVar[bool] = False

    # Provided.

    def follow(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        """`observe` what has been learned, so that an open journal can take it back."""
        if type(self).observe is Recommender.observe:
            return
        if recording() and not self.keeps_journal:
            note(partial(self.restore_streaming_state, self.streaming_state()))
        self.observe(users, items, times, past)

    def views(self, context: Context | None = None) -> dict[str, TableView]:
        """Every table at the moment of scoring."""
        at = None if context is None else context.moment
        return {name: table.view(at) for name, table in self.tables.items()}

    def item_vectors(self, context: Context | None = None) -> Scores:
        """One vector per item, for similarities: its embeddings side by side."""
        views = self.views(context)
        names = [spec.name for spec in self.specs if spec.role == "item" and spec.kind == "embedding"]
        if not names:
            raise SettingsError(f"the recommender {self.name!r} has no vectors of items to compare.")
        return np.concatenate([views[name].everything() for name in names], axis=1)

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
