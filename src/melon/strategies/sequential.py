"""A batch learned one interaction after another, each from where the one before left its rows.

Interactions that share no row change nothing for each other, so they can be learned at once. A batch falls into waves
of such interactions, and going wave by wave gives what going one by one gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from melon.recommenders.base import Recommender
from melon.recommenders.evidence import Examples
from melon.strategies.base import Proposal, RowState, Situation, Strategy


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
