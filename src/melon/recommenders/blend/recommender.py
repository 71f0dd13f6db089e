"""The blend (docs/methods.md 8.5): a personal score, recent popularity and item neighbours, combined by a head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from melon.kernels import policy
from melon.kernels.types import array_of
from melon.recommenders.base import Context, RecommenderSettings, SummedSteps
from melon.recommenders.blend import catalogue
from melon.recommenders.blend.catalogue import BlendCatalogue, BlendParts, TwoStageCatalogue
from melon.recommenders.blend.features import StreamFeatures
from melon.recommenders.blend.head import (
    LINEAR,
    TABLES,
    BlendHead,
    CatalogueScorer,
    HeadSettings,
    head_tables,
    silent,
)
from melon.recommenders.blend.inputs import (
    INPUTS,
    INPUTS_WITH_TRANSITIONS,
    MORE,
    PARTS,
    STREAMED,
    Named,
    activity,
    inputs_of,
)
from melon.recommenders.blend.settings import BlendSettings
from melon.recommenders.catalogue import Catalogue
from melon.recommenders.evidence import Evidence, Examples, FactorGradient, Gradient, Values
from melon.recommenders.factorisation import (
    FactorCatalogue,
    compiled_dots,
    compiled_pretraining,
    factor_evidence,
    factor_scores,
)
from melon.recommenders.heads import HeadedRecommender, Lesson
from melon.recommenders.losses import BPRLoss
from melon.recommenders.plain import TAUGHT, PlainSteps, plain_steps
from melon.recommenders.rough import RoughRows
from melon.stream.history import History
from melon.stream.saved import part_of
from melon.tables import Moment, TableSpec, TableView, Undo
from melon.types import Ints

#: Pairs whose inputs are held at a time.
_PAIRS_AT_ONCE = 1 << 16


class Blend(HeadedRecommender):
    """score(u, i) = p_u · q_i + b_i + h(x), where x is what rows and streaming state say of the pair."""

    name = "blend"
    kernels = ("factor", "neighbours", "lessons", "lists", "ials", "profiles")
    settings_type: ClassVar[type[RecommenderSettings]] = BlendSettings
    settings: BlendSettings

    def __init__(self, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(settings, **options)
        chosen = self.settings
        training = HeadSettings(
            chosen.head == "own",
            chosen.head_units,
            chosen.head_negatives,
            chosen.head_lr,
            chosen.head_decay,
            chosen.head_practice_lr,
            chosen.head_passes,
            tuple(INPUTS.index(name) for part in chosen.without for name in PARTS[part]),
            "personal" not in chosen.without,
            chosen.head_rest,
            chosen.head_repeats,
        )
        self.head: BlendHead = BlendHead(len(self.inputs), training, self.dtype, self.device)
        numbers = np.float32 if self.dtype == torch.float32 else np.float64
        self.stream = StreamFeatures(
            chosen.slots,
            numbers,
            transitions=chosen.transitions,
            more=chosen.inputs,
            seed=self.seed,
            own_rows=self._vectors,
        )
        self.observes_by_rows = "own_profiles" in chosen.inputs

    def declare(self) -> tuple[TableSpec, ...]:
        dim = self.settings.dim
        return (
            TableSpec("user_factors", "user", "embedding", dim, 0.05),
            TableSpec("item_factors", "item", "embedding", dim, 0.05),
            TableSpec("item_bias", "item", "bias", 1),
            *head_tables(len(self.inputs), self.settings.head_units),
        )

    def learns(self, spec: TableSpec) -> bool:
        return super().learns(spec) and (spec.name not in TABLES or not self._own)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the head sees, by name."""
        usual = INPUTS_WITH_TRANSITIONS if self.settings.transitions else INPUTS
        return (*usual, *(name for group, names in MORE.items() if group in self.settings.inputs for name in names))

    @property
    def _own(self) -> bool:
        return self.settings.head == "own"

    def features(self, users: Tensor, items: Tensor, context: Context | None = None) -> Tensor:
        """What streaming state says of candidates n × c, and how active the user is: n × c × features."""
        return self._features(users, Named.of(items.cpu().numpy()), context)

    def taught_features(self, users: Tensor, items: Tensor, context: Context) -> Tensor | None:
        return None if self._own else self.features(users, items, context)

    def scores(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        dot = (values["user_factors"][users] * values["item_factors"][items]).sum(-1)
        bias = values["item_bias"][items, 0]
        if features is None:
            features = self._no_features(dot)
        inputs = inputs_of(dot, bias, features)
        return self.head.personal(inputs) + self.head(values, inputs)

    @property
    def factorised(self) -> bool:
        return type(self.loss) is BPRLoss and self._own

    def taught_scores(self, values: Values, users: Tensor, items: Tensor) -> Tensor:
        return factor_scores(values, users, items)

    def loss_of(self, values: Values, users: Tensor, items: Tensor, features: Tensor | None = None) -> Tensor:
        """The personal part's loss, and the head's with the personal part held constant: each its own gradient."""
        personal = factor_scores(values, users, items)
        losses = self.loss(personal)
        if features is None or self._own:
            return losses
        rows = {name: held if name in TABLES else held.detach() for name, held in values.items()}
        inputs = self._inputs_of(rows, users, items, features)
        return losses + self.head.loss(values, inputs, self.head.personal(inputs))

    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        losses, gradients = factor_evidence(self.loss, values, examples, per_branch=per_branch)
        if self._own:
            return Evidence(losses, tuple(gradients))
        users = examples.users[:, None].expand_as(examples.items)
        taught = examples.features is not None
        features = examples.features if taught else self._no_features(users.to(self.dtype))
        assert features is not None
        inputs = self._inputs_of(values, users, examples.items, features)
        of_head, shared = self.head.gradients(values, inputs, self.head.personal(inputs))
        if taught:
            return Evidence(losses + of_head, (*gradients, *shared))
        # Where nothing is known of the pairs, as in pre-training, the head is taught nothing.
        silent: list[Gradient] = [FactorGradient(one.table, torch.zeros_like(one.left), one.right) for one in shared]
        return Evidence(losses, (*gradients, *silent))

    @cached_property
    def plain_steps(self) -> PlainSteps | None:
        return plain_steps(self.loss, self.tables) if type(self) is Blend and self._own else None

    def lesson(self, users: Tensor, items: Tensor, allowed: Tensor, context: Context) -> Lesson:
        loops = policy.load("lessons", like=self.head.centre)
        if loops is not None:
            return Lesson(self._compiled_inputs(loops, users, items, context), allowed)
        return Lesson(self._stored_inputs(users, Named.of(items.cpu().numpy()), context), allowed)

    def pretrain(self, users: Ints, items: Ints, steps: SummedSteps) -> float | None:
        return compiled_pretraining(self.loss, self.tables, users, items, steps) if type(self) is Blend else None

    def score(self, users: Tensor, items: Tensor, context: Context | None = None) -> Tensor:
        head = self._head_values(context)
        if silent(head):
            named = Named.of(items.cpu().numpy())
            dots, bias = self._stored_personal(users, named, context)
            return dots + bias[self._places(named)]
        linear, hidden, shift, output = self.head.folded(head)
        loops = policy.load("lessons", like=head[LINEAR])
        if loops is not None:
            parts = linear[None, :], hidden, shift[:, None], output[None, :]
            head_parts = self.head.trust, float(linear @ self.head.centre), *map(array_of, parts)
            scores, at_once = linear.new_empty(items.shape), max(_PAIRS_AT_ONCE // max(items.shape[1], 1), 1)
            for start in range(0, len(users), at_once):
                some = slice(start, start + at_once)
                given = self._compiled_inputs(loops, users[some], items[some], context)
                loops.head_scores(given.numpy(), *head_parts, scores[some].numpy())
            return scores
        named = Named.of(items.cpu().numpy())
        inputs = self._stored_inputs(users, named, context)
        deep = (inputs @ hidden.T).add_(shift).relu_() @ output
        return self.head.personal(inputs) + (inputs @ linear).add_(deep) - (linear @ self.head.centre)

    def score_catalogue(self, users: Tensor, n_items: int, context: Context | None = None) -> Tensor:
        if policy.load("lists", like=self.head.centre) is not None:
            return self.catalogue(n_items, context).scores(users)
        head, views = self._head_values(context), self.views(context)
        everything = torch.arange(n_items, device=users.device)
        bias = views["item_bias"].gather(everything).squeeze(-1)
        dots = _dots(views["user_factors"].gather(users), views["item_factors"], n_items)
        if silent(head):
            return dots.add_(bias)
        past, time = (context.history, context.time) if context else (History(), 0)
        items = np.arange(n_items)[None, :]
        named = Named(items, items[0], np.arange(n_items)[None, :])
        columns, divisors = self.stream.of_items(items[0])
        scorer = CatalogueScorer(self.head, head, bias, self._tensor(columns))
        rows = users.cpu().numpy()
        # One user at a time: what is held beside the scores does not grow with the number of users.
        for line, active in enumerate(activity(rows, past).tolist()):
            user = rows[line : line + 1]
            pairs = self.stream.of_pairs(user, items, divisors, past)[0]
            besides = self.stream.of_both(user, named, columns, past, time)[0]
            dots[line] = scorer.of_user(dots[line], self._tensor(np.concatenate([pairs, besides], axis=1)), active)
        return dots

    def catalogue(self, n_items: int, context: Context | None = None) -> Catalogue:
        loops, head = policy.load("lists", like=self.head.centre), self._head_values(context)
        if loops is None:
            return super().catalogue(n_items, context)
        at = None if context is None else context.moment
        common = loops, self.tables, n_items, at, self.clock.now if at is None else at.now
        if silent(head):
            return FactorCatalogue(*common)
        past, time = (context.history, context.time) if context else (History(), 0)
        parts = BlendParts(self.stream, past, time, self.head, head)
        if self.settings.lists == "two_stage" and n_items >= catalogue.FROM:
            return TwoStageCatalogue(self._rough, *common, parts)
        return BlendCatalogue(*common, parts)

    @cached_property
    def _rough(self) -> RoughRows:
        return RoughRows()

    def similarities(self, items: Tensor, context: Context | None = None) -> Tensor:
        """By the users that items share, weighed as the neighbours are."""
        alike = self._tensor(self.stream.similarities(items.cpu().numpy()))
        missing = self.rows_of("item") - alike.shape[1]
        return torch.nn.functional.pad(alike, (0, max(missing, 0)))

    @property
    def observes_apart(self) -> bool:
        return type(self) is Blend and self._own and not self.observes_by_rows

    def fit_past(self, users: Ints, items: Ints) -> None:
        self.stream.fit(users, items)

    def forget_user(self, user: int) -> None:
        self.stream.forget_user(user)

    def observe(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        if self.observes:
            self.stream.observe(users, items, times, past)

    def undo_point(self, users: Ints, items: Ints, past: History) -> Undo:
        return self.stream.undo_point(users, items, past)

    def streaming_state(self) -> dict[str, npt.NDArray[Any]]:
        head = {f"head.{name}": tensor.cpu().numpy() for name, tensor in self.head.memory().items()}
        return {**self.stream.state(), **head}

    def restore_streaming_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self.stream.restore(state)
        memory = part_of(state, "head")
        self.head.recall({name: torch.from_numpy(held.copy()) for name, held in memory.items()})

    def _features(self, users: Tensor, named: Named, context: Context | None) -> Tensor:
        past = context.history if context else History()
        rows = users.cpu().numpy()
        of_items, time = self.stream.of_items(named.distinct), context.time if context else 0
        columns, divisors = (np.take(column, named.places, axis=0) for column in of_items)
        pairs = self.stream.of_pairs(rows, named.items, divisors, past)
        besides = self.stream.of_both(rows, named, of_items[0], past, time)
        active = np.broadcast_to(activity(rows, past).astype(columns.dtype)[:, None, None], (*columns.shape[:-1], 1))
        return self._tensor(np.concatenate([columns, pairs, besides, active], axis=-1))

    def _compiled_inputs(self, loops: policy.Loops, users: Tensor, items: Tensor, context: Context | None) -> Tensor:
        """The head's inputs of candidates, as PyTorch puts them together, to rounding."""
        context = context or Context(time=0, history=History())
        tables = [self.tables[name] for name in TAUGHT]
        at = context.moment
        if at is None:
            at = Moment(self.clock.now, {table.spec.name: table.half_life for table in tables if table.half_life})
        lines = np.ascontiguousarray(users.numpy()), np.ascontiguousarray(items.numpy())
        return self.stream.inputs(loops, tables, *lines, context.history, context.time, at)

    def _stored_personal(self, users: Tensor, named: Named, context: Context | None) -> tuple[Tensor, Tensor]:
        """Dot products of pairs, and the biases of distinct items."""
        at, vectors = None if context is None else context.moment, self.tables["item_factors"]
        distinct = torch.from_numpy(named.distinct).to(users.device)
        factors = self.tables["user_factors"].gather(users, at)
        dot = compiled_dots(factors, vectors, distinct, named.places, at)
        if dot is None:
            dot = vectors.gather(distinct, at)[self._places(named)].mul_(factors.unsqueeze(1)).sum(-1)
        return dot, self.tables["item_bias"].gather(distinct, at)[:, 0]

    def _vectors(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The rows of users and of items as they are stored, before anything fades."""
        vectors = self.tables["user_factors"], self.tables["item_factors"]
        users, items = (table.view().storage[: table.rows].cpu().numpy() for table in vectors)
        return users, items

    def _head_values(self, context: Context | None) -> dict[str, Tensor]:
        at = None if context is None else context.moment
        return {name: self.tables[name].view(at).everything() for name in TABLES}

    def _stored_inputs(self, users: Tensor, named: Named, context: Context | None) -> Tensor:
        dots, bias = self._stored_personal(users, named, context)
        return inputs_of(dots, bias[self._places(named)], self._features(users, named, context))

    def _places(self, named: Named) -> Tensor:
        return torch.from_numpy(named.places).to(self.device)

    def _inputs_of(self, values: Values, users: Tensor, items: Tensor, features: Tensor) -> Tensor:
        dot = (values["user_factors"][users] * values["item_factors"][items]).sum(-1)
        return inputs_of(dot, values["item_bias"][items, 0], features)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device, self.dtype)

    def _no_features(self, like: Tensor) -> Tensor:
        more = len(self.inputs) - len(INPUTS)
        return like.new_zeros((*like.shape, len(STREAMED) + more + 1))


def _dots(factors: Tensor, items: TableView, n_items: int) -> Tensor:
    """factors[n] · item c for every n and c; zeros for items without a row."""
    dots, start = factors.new_zeros((len(factors), n_items)), 0
    for vectors in items.blocks():
        stop = min(start + len(vectors), n_items)
        torch.mm(factors, vectors[: stop - start].T, out=dots[:, start:stop])
        start = stop
    return dots
