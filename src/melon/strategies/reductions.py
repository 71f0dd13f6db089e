"""Several touches of a row in one step: how gradients are added up, or interactions taken one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from melon.recommenders.base import Recommender
from melon.recommenders.evidence import Examples, RowGradient
from melon.strategies.base import LearningRates, Proposal, RowState, Situation, Strategy

#: Reductions of a summed gradient (docs/methods.md 3.0.5); `Reduction` in base.py says what each word means.
GradientReduction = Literal["sum", "mean", "row_mean"]


def reduced_gradients(
    situation: Situation, reduction: GradientReduction, shared_reduction: GradientReduction | None = None
) -> dict[str, Tensor]:
    """One gradient for each entry of the compact rows that the next loss can see, by table.

    `shared_reduction` is for weights that every interaction touches, where it differs.
    """
    totals: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table, reached = gradient.table, situation.reached(gradient.table)
        total = gradient.summed(len(situation.values[table]))[:reached]
        totals[table] = totals[table] + total if table in totals else total
    scales = reduction_scales(situation, reduction, shared_reduction)
    summed = {table for table in totals if _reduction_of(situation, table, reduction, shared_reduction) == "sum"}
    return {table: total if table in summed else total * scales[table][:, None] for table, total in totals.items()}


def reduction_scales(
    situation: Situation, reduction: GradientReduction, shared_reduction: GradientReduction | None = None
) -> dict[str, Tensor]:
    """The factor on the summed gradient of each reached row, by table."""
    scales: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        rows, reached, losses = len(situation.values[table]), situation.reached(table), situation.evidence.losses
        reduction_here = _reduction_of(situation, table, reduction, shared_reduction)
        if reduction_here == "row_mean":
            scales[table] = 1 / gradient.touches(rows)[:reached].clamp(min=1).to(losses.dtype)
        else:
            factor = 1.0 if reduction_here == "sum" else 1 / len(situation.examples)
            scales[table] = losses.new_full((reached,), factor)
    return scales


def touched_rows(situation: Situation) -> dict[str, Tensor]:
    """The compact rows that the batch touches and the next loss can see, by table."""
    touches: dict[str, Tensor] = {}
    for gradient in situation.evidence.gradients:
        table = gradient.table
        counts = gradient.touches(len(situation.values[table]))[: situation.reached(table)]
        touches[table] = touches[table] + counts if table in touches else counts
    return {table: torch.nonzero(counts).squeeze(1) for table, counts in touches.items()}


def parameter_rates(
    situation: Situation,
    rates: Mapping[str, Tensor],
    reduction: GradientReduction,
    shared_reduction: GradientReduction | None = None,
) -> LearningRates:
    """The matrix of a strategy with one rate for each parameter (compact rows × dim), whatever the interaction."""
    n, scales = len(situation.examples), reduction_scales(situation, reduction, shared_reduction)
    raw, realised, slots = [], [], []
    shared, raw_shared = {}, {}
    for gradient in situation.evidence.gradients:
        table, rate = gradient.table, rates[gradient.table]
        if isinstance(gradient, RowGradient):
            width, dim = gradient.gradient.shape[1:]
            raw.append(rate[gradient.positions].reshape(n, -1))
            realised.append((rate * scales[table][:, None])[gradient.positions].reshape(n, -1))
            slots += [(table, slot) for slot in range(width) for _ in range(dim)]
        else:
            raw_shared[table] = rate.reshape(1, -1).expand(n, -1)
            shared[table] = (rate * scales[table][:, None]).reshape(1, -1).expand(n, -1)
    return LearningRates(torch.cat(realised, 1), tuple(slots), shared, torch.cat(raw, 1), raw_shared)


def _reduction_of(
    situation: Situation, table: str, reduction: GradientReduction, shared_reduction: GradientReduction | None
) -> GradientReduction:
    is_shared = situation.specs[table].role == "shared"
    return shared_reduction if shared_reduction is not None and is_shared else reduction


@torch.no_grad()
def propose_in_turn(recommender: Recommender, strategy: Strategy, situation: Situation) -> Proposal:
    """What a strategy proposes for a batch whose interactions take turns.

    Weights that every interaction touches would make each wait for all before it; they take the step of the batch as a
    whole, and rows are learned with them as they were.
    """
    whole = strategy.propose(situation)
    roles = {name: spec.role for name, spec in situation.specs.items()}
    row_tables = [name for name in whole.values if roles[name] != "shared"]
    values = {name: old.clone() if roles[name] != "shared" else old for name, old in situation.values.items()}
    state: RowState = {
        name: {key: old.clone() for key, old in tensors.items()}
        for name, tensors in situation.row_state.items()
        if roles[name] != "shared"
    }
    for wave in waves(situation.examples):
        rows = {role: torch.unique(positions) for role, positions in (("user", wave.users), ("item", wave.items))}
        examples = replace(
            wave,
            users=torch.searchsorted(rows["user"], wave.users),
            items=torch.searchsorted(rows["item"], wave.items),
        )
        wave_values = {name: old if roles[name] == "shared" else old[rows[roles[name]]] for name, old in values.items()}
        wave_state = {
            name: {key: old[rows[roles[name]]] for key, old in tensors.items()} for name, tensors in state.items()
        }
        proposal = strategy.propose(
            replace(
                situation,
                examples=examples,
                values=wave_values,
                row_state={**situation.row_state, **wave_state},
                evidence=recommender.evidence(wave_values, examples),
                around=None,
            )
        )
        for name in row_tables:
            values[name][rows[roles[name]]] = proposal.values[name]
            for key, new in proposal.row_state.get(name, {}).items():
                state[name][key][rows[roles[name]]] = new
    new_values = {name: values[name] for name in row_tables}
    new_state = {name: state[name] for name in whole.row_state if name in new_values}
    return Proposal({**whole.values, **new_values}, {**whole.row_state, **new_state}, whole.memory)


def waves(examples: Examples) -> Iterator[Examples]:
    """The interactions of a batch in waves, each in the first one after all earlier ones that it shares a row with."""
    users, items = examples.users, examples.items
    rows = torch.cat([users[:, None], items + users.max() + 1], dim=1)
    left, size = torch.arange(len(users), device=users.device), int(rows.max()) + 1
    while len(left):
        touched = rows[left]
        first = torch.full((size,), len(users), device=users.device)
        first.scatter_reduce_(0, touched.flatten(), left.repeat_interleave(touched.shape[1]), "amin")
        ready = (first[touched] == left[:, None]).all(1)
        yield _taken(examples, left[ready])
        left = left[~ready]


def _taken(examples: Examples, which: Tensor) -> Examples:
    return Examples(
        examples.users[which],
        examples.items[which],
        None if examples.fresh is None else examples.fresh[which],
        None if examples.features is None else examples.features[which],
    )
