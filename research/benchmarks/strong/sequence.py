"""What SASRec and GRU4Rec share: users' sequences of items, training by sampled softmax, and steps on the stream."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from melon.types import Floats, Ints

DIM, LONGEST = 64, 50
#: A user's sequence starts with a token of its own, so that a new user has a context too.
START = 0
#: Sequences of a training step, and of an epoch at most (others in each epoch); negatives of a step.
AT_ONCE, EPOCH, NEGATIVES = 32, 10_000, 512
#: Replayed events of an online step, and how many tokens before an event such a step looks at.
LINES, NEAR = 128, 20


class Network(nn.Module):
    """An encoder between rows of items: the state behind a sequence, times the row of a candidate, plus its bias."""

    def __init__(self, items: int, encoder: nn.Module, dropout: float) -> None:
        super().__init__()
        self.rows, self.bias, self.encoder = nn.Embedding(items + 1, DIM), nn.Embedding(items + 1, 1), encoder
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.rows.weight, std=DIM**-0.5 / 2)
        nn.init.zeros_(self.bias.weight)

    def encode(self, tokens: Tensor) -> Tensor:
        """The state after each token."""
        states: Tensor = self.encoder(self.dropout(self.rows(tokens) * DIM**0.5))
        return states

    def loss(self, states: Tensor, wanted: Tensor, others: Tensor) -> Tensor:
        """Cross-entropy of the tokens that were wanted, among themselves and others that all states share."""
        own = (states * self.rows(wanted)).sum(-1) + self.bias(wanted)[:, 0]
        rest = states @ self.rows(others).T + self.bias(others).T
        column = torch.full((len(self.rows.weight),), -1)
        column[others] = torch.arange(len(others))
        twice = torch.nonzero(column[wanted] >= 0)[:, 0]
        rest[twice, column[wanted][twice]] = -1e9
        return torch.logaddexp(own, torch.logsumexp(rest, 1)).sub(own).mean()


class Sequences:
    """The items of every user in order, and the place of every event in them. Tokens are items plus one."""

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}
        self.events: list[tuple[int, int]] = []
        self.items = 0

    def append(self, users: Ints, items: Ints) -> None:
        for user, item in zip(users.tolist(), items.tolist(), strict=True):
            tokens = self._of.setdefault(user, [START])
            self.events.append((user, len(tokens)))
            tokens.append(item + 1)
        self.items = max(self.items, int(items.max(initial=-1)) + 1)

    def copied(self) -> Sequences:
        other = Sequences()
        other._of = {user: list(tokens) for user, tokens in self._of.items()}
        other.events, other.items = list(self.events), self.items
        return other

    def now(self, users: Ints) -> tuple[Tensor, Tensor]:
        """The last tokens of users, and the place of the newest."""
        return padded([self._of.get(user, [START])[-LONGEST:] for user in users.tolist()])

    def before(self, events: Ints) -> tuple[Tensor, Tensor, Tensor]:
        """The last tokens before each event, the place of the newest, and the event's own token."""
        places = [self.events[event] for event in events.tolist()]
        tokens, newest = padded([self._of[user][max(at - NEAR, 0) : at] for user, at in places])
        return tokens, newest, torch.tensor([self._of[user][at] for user, at in places])

    def epoch(self, random: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sequence once, in pieces that fit: tokens, and whether each one is there, batch by batch."""
        pieces = []
        for tokens in self._of.values():
            first = int(random.integers(LONGEST)) if len(tokens) > LONGEST + 1 else 0
            starts = [0, *range(first, len(tokens) - 1, LONGEST)] if first else range(0, len(tokens) - 1, LONGEST)
            stops = [*starts[1:], len(tokens) - 1]
            pieces += [tokens[start : stop + 1] for start, stop in zip(starts, stops, strict=True)]
        chosen = random.permutation(len(pieces))[:EPOCH]
        sizes = np.array([len(pieces[piece]) for piece in chosen])
        chosen = chosen[np.argsort(sizes, kind="stable")]  # pieces of a step are about as long as each other
        steps = [chosen[at : at + AT_ONCE] for at in range(0, len(chosen), AT_ONCE)]
        for step in random.permutation(len(steps)):
            tokens, newest = padded([pieces[piece] for piece in steps[step]])
            yield tokens, torch.arange(tokens.shape[1])[None, :] <= newest[:, None]


class SequencePeer:
    """A network that knows the users' sequences; what it does with a batch depends on `online`."""

    def __init__(
        self, make: Callable[[float], nn.Module], catalogue: int, past: tuple[Ints, Ints], settings: Any, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self._random = np.random.default_rng(seed)
        self._network = Network(catalogue, make(settings["dropout"]), settings["dropout"])
        self._adam = torch.optim.Adam(self._network.parameters(), lr=settings["lr"])
        self._sequences, self._online = Sequences(), None
        self._sequences.append(*past)
        self.known = self._sequences.items

    def train(self, epochs: int) -> None:
        """So many more passes over the sequences so far."""
        self._network.train()
        for _ in range(epochs):
            for tokens, there in self._sequences.epoch(self._random):
                states = self._network.encode(tokens[:, :-1])
                self._step(states[there[:, 1:]], tokens[:, 1:][there[:, 1:]])

    def deployed(self, online: Any = None) -> SequencePeer:
        """A copy that follows the stream: with frozen weights, or with the steps that `online` has settings of."""
        peer = copy.copy(self)
        peer._sequences, peer._online = self._sequences.copied(), online
        if online is not None:
            torch.manual_seed(0)
            peer._random = np.random.default_rng(0)
            peer._network = copy.deepcopy(self._network)
            peer._adam = torch.optim.Adam(peer._network.parameters(), lr=online["lr"])
        return peer

    def kept(self) -> SequencePeer:
        """A copy of the weights as they are; its sequences are the same."""
        peer = copy.copy(self)
        peer._network = copy.deepcopy(self._network)
        return peer

    @torch.no_grad()
    def score(self, users: Ints, items: Ints) -> Floats:
        self._network.eval()
        distinct, line = np.unique(users, return_inverse=True)
        tokens, newest = self._sequences.now(distinct)
        states = self._network.encode(tokens)[torch.arange(len(distinct)), newest][torch.from_numpy(line)]
        offered = torch.from_numpy(items + 1)
        scores = (self._network.rows(offered) @ states[:, :, None] + self._network.bias(offered))[..., 0]
        return scores.numpy().astype(np.float64)

    def learn(self, users: Ints, items: Ints) -> None:
        """A step on the batch and some on replayed events; none with frozen weights."""
        first = len(self._sequences.events)
        self._sequences.append(users, items)
        if self._online is None:
            return
        self.known = self._sequences.items
        self._network.train()
        stop, reach = len(self._sequences.events), self._online["reach"] or first
        self._learn_events(np.arange(first, stop))
        for _ in range(self._online["replays"]):
            self._learn_events(self._random.integers(max(stop - reach, 0), stop, LINES))

    def _learn_events(self, events: Ints) -> None:
        tokens, newest, wanted = self._sequences.before(events)
        self._step(self._network.encode(tokens)[torch.arange(len(events)), newest], wanted)

    def _step(self, states: Tensor, wanted: Tensor) -> None:
        count = self._sequences.items
        self._adam.zero_grad()
        self._network.loss(states, wanted, 1 + torch.randperm(count)[:NEGATIVES]).backward()
        self._adam.step()


def padded(lines: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Lines of tokens as one table, and the place of the last one in each; what stands behind it is never read."""
    sizes = torch.tensor([len(line) for line in lines])
    table = torch.zeros((len(lines), int(sizes.max())), dtype=torch.int64)
    for number, line in enumerate(lines):
        table[number, : len(line)] = torch.tensor(line)
    return table, sizes - 1
