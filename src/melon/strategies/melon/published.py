"""MeLON and its ablations as published (docs/methods.md 4): the pair function, the meta-model, and the strategies.

Where paper and published code differ (4.9), `form` decides. A unit is an interaction, or one of its pairs. What all
entries of a unit share is a term of the hidden layer and one of both logits. Compiled kernels compute the network with
two layers in float32; PyTorch has everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from melon.errors import SettingsError
from melon.kernels import policy
from melon.models.evidence import DenseGradient, FactorGradient, Gradient, RowGradient
from melon.settings import Width
from melon.strategies.base import LearningRates, Proposal, Situation, Surroundings
from melon.strategies.learned import LearnedSettings, LearnedStrategy
from melon.strategies.parameters import Parameters, preprocess
from melon.stream.draws import Draws
from melon.tables import TableSpec
from melon.types import Ints, Singles

RATE, FORGET = 0, 1
#: Pairs of a shared weight that are worked on at a time.
PAIRS_AT_ONCE = 1 << 18
#: The kernel module.
KERNELS = "pairs"


class PairNetwork(NamedTuple):
    """Terms of units, `hidden` (units × width) and `logits` (units × 2), and the weights that all pairs meet.

    `first` is width × (scale of g, sign of g[, θ]); without a parameter side there is none, and nothing `hidden`.
    `second` (width × width) and its bias are absent where the role is affine; `head` is 2 × width.
    """

    hidden: Tensor | None
    logits: Tensor
    first: Tensor | None = None
    second: Tensor | None = None
    bias: Tensor | None = None
    head: Tensor | None = None

    def at(self, units: Tensor) -> PairNetwork:
        """With the terms of some units."""
        hidden = None if self.hidden is None else self.hidden.index_select(0, units)
        return self._replace(hidden=hidden, logits=self.logits.index_select(0, units))


def rates(theta: Tensor, gradient: Tensor, network: PairNetwork) -> Tensor:
    """w and f, 2 × lines × entries (or × 1 without a parameter side), differentiable in the network.

    θ is lines × entries, or one line for all; gradient is lines × entries.
    """
    if _kernels(network) is not None:
        found: Tensor = _Rates.apply(theta.detach(), gradient, *network)  # type: ignore[no-untyped-call]
        return found
    return _plain_rates(theta, gradient, network)


def _kernels(network: PairNetwork) -> policy.Kernels | None:
    return None if network.second is None else policy.load(KERNELS, dtype=network.logits.dtype)


def _plain_rates(theta: Tensor, gradient: Tensor, network: PairNetwork) -> Tensor:
    hidden, logits, first, second, bias, head = network
    logits = logits.T.unsqueeze(2)
    if hidden is None:
        return torch.sigmoid(logits)
    assert first is not None
    assert head is not None
    seen = [*preprocess(gradient), theta.detach().expand_as(gradient)][: first.shape[1]]
    if second is None:
        # Affine all the way: the layer folds into one weight per feature and one constant per line.
        role = torch.einsum("oi,ile->ole", head @ first, torch.stack(seen)) + (hidden @ head.T).T.unsqueeze(2)
    else:
        lower = torch.relu(torch.stack(seen, dim=2) @ first.T + hidden.unsqueeze(1))
        role = (torch.relu(F.linear(lower, second, bias)) @ head.T).permute(2, 0, 1)
    return torch.sigmoid(logits + role)


def _rates_back(theta: Tensor, gradient: Tensor, network: PairNetwork, by: Tensor) -> list[Tensor | None]:
    """∂J by the terms and weights of a network, from ∂J by w and f."""
    kernels = _kernels(network)
    if kernels is not None:
        packed, to = _packed(theta, gradient, network), list[Singles]()
        for place, part in enumerate(packed[2:]):
            to.append(np.zeros(part.shape, np.float32 if place < 2 else np.float64))
        kernels.pair_rates_back(*packed, _array(by), *to)
        return [
            torch.from_numpy(slope[tuple(slice(size) for size in part.shape)]).to(part.dtype)
            for slope, part in zip(to, network, strict=True)
            if part is not None
        ]
    with torch.enable_grad():
        leaves = [None if part is None else part.detach().requires_grad_() for part in network]
        found = _plain_rates(theta, gradient, PairNetwork._make(leaves))
    there = [leaf for leaf in leaves if leaf is not None]
    slopes = iter(torch.autograd.grad(found, there, by.sum_to_size(found.shape), allow_unused=True))
    return [None if leaf is None else next(slopes) for leaf in leaves]


class _Rates(Function):
    """The compiled pair function; nothing of the size pairs × width is ever stored."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, gradient: Tensor, *network: Tensor) -> Tensor:
        ctx.save_for_backward(theta, gradient, *network)
        out = np.empty((2, *gradient.shape), np.float32)
        policy.load(KERNELS).pair_rates(*_packed(theta, gradient, PairNetwork(*network)), out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        theta, gradient, *network = ctx.saved_tensors
        return None, None, *_rates_back(theta, gradient, PairNetwork(*network), by)


def _array(tensor: Tensor) -> Singles:
    return np.ascontiguousarray(tensor.detach().numpy())


def _packed(theta: Tensor, gradient: Tensor, network: PairNetwork) -> list[Singles]:
    """What kernels take; units that fill up the width to a multiple of four have zero weights and add nothing."""
    hidden, logits, first, second, bias, head = (part.detach() for part in network if part is not None)
    more = -len(second) % 4
    padded = [
        F.pad(hidden, (0, more)),
        logits,
        F.pad(first, (0, 4 - first.shape[1], 0, more)),
        F.pad(second, (0, more, 0, more)),
        F.pad(bias, (0, more)),
        F.pad(head, (0, more)),
    ]
    return [_array(part) for part in (theta, gradient, *padded)]


#: What is applied and what the rates see, for units start … stop-1: units × entries.
Expand = Callable[[int, int], tuple[Tensor, Tensor]]


def shared_move(theta: Tensor, units: int, expand: Expand, network: PairNetwork, scale: float, share: float) -> Tensor:
    """−scale · Σ_x w g − share · Σ_x (1 − f) θ for every entry of a weight that all units touch; θ is flat."""
    move: Tensor = _SharedMove.apply(theta.detach(), units, expand, scale, share, *network)  # type: ignore[no-untyped-call]
    return move


def some_units(units: int, entries: int) -> Iterator[slice]:
    """All units, some at a time."""
    at_once = max(PAIRS_AT_ONCE // entries, 1)
    return (slice(start, min(start + at_once, units)) for start in range(0, units, at_once))


class _SharedMove(Function):
    """Forward without a graph; with γ = ∂J/∂move known, Σ γ · move is a sum over units (docs/methods.md 4.7)."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, units: int, expand: Expand, scale: float, share: float, *network: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(theta, *network)
        ctx.given = units, expand, scale, share
        move = torch.zeros_like(theta)
        for some, parts in _parts(units, theta, network):
            gradient, feature = expand(some.start, some.stop)
            found = rates(theta[None], feature, parts)
            move -= scale * (found[RATE] * gradient).sum(0)
            move -= share * theta * (1 - found[FORGET]).expand_as(gradient).sum(0)
        return move

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gamma: Tensor) -> tuple[Tensor | None, ...]:
        theta, *network = ctx.saved_tensors
        units, expand, scale, share = ctx.given
        totals = [None if part is None else torch.zeros_like(part) for part in network]
        for some, parts in _parts(units, theta, network):
            gradient, feature = expand(some.start, some.stop)
            by = torch.stack([gradient * (gamma * -scale), (gamma * theta * share).expand_as(gradient)])
            for place, slope in enumerate(_rates_back(theta[None], feature, parts, by)):
                total = totals[place]
                if slope is not None and total is not None:
                    (total[some] if place < 2 else total).add_(slope)
        return None, None, None, None, None, *totals


def _parts(
    units: int, theta: Tensor, network: list[Tensor | None] | tuple[Tensor | None, ...]
) -> Iterator[tuple[slice, PairNetwork]]:
    """Some units at a time, and the network with their terms."""
    hidden, logits, *weights = network
    assert logits is not None
    for some in some_units(units, theta.numel()):
        yield some, PairNetwork(None if hidden is None else hidden[some], logits[some], *weights)


_EPS = 1e-5
_SLOPE = 0.01
#: Logits of learning rates and of forgetting rates at the start, and how far around these they are drawn.
BIASES, SPREADS = np.array([[-4.5], [5.0]]), np.array([[0.5], [1.0]])
_OPPOSITE = {"user": "item", "item": "user"}


class PublishedSettings(LearnedSettings):
    """MeLON as published. `form = code` differs from the paper in what docs/methods.md 4.9 lists.

    Its units are (user, item) pairs, rates see the batch's mean loss and not θ, the role is affine, two normalised
    layers make h, and several touches of a row are averaged.
    """

    form: Literal["paper", "code"] = "paper"
    meta_lr: float = Field(1e-3, ge=0)
    role_width: Width = 20
    interaction_width: Width = 20
    extended_width: Width = 64
    neighbours: int = Field(10, ge=0, le=1_000)
    forgetting: bool = True


class InteractionModel:
    """h_x for pairs of (user, item); node features are constants, so no meta-gradient reaches the recommender."""

    def __init__(
        self, specs: Mapping[str, TableSpec], settings: PublishedSettings, parameters: Parameters, seed: int
    ) -> None:
        self._phi, self._code, self._neighbours = parameters, settings.form == "code", settings.neighbours
        self._tables = {
            role: [s.name for s in specs.values() if s.role == role and s.kind == "embedding"]
            for role in ("user", "item")
        }
        self._draws = Draws(seed, "neighbours")
        width, hidden = settings.extended_width, settings.interaction_width
        for role in ("user", "item"):
            own, other = (sum(specs[name].dim for name in self._tables[r]) for r in (role, _OPPOSITE[role]))
            parameters.weight(f"{role}.attention", 1, own + other)
            for name, inputs in (("self", own), ("neighbour", other)) if self._code else (("extend", own + other),):
                parameters.weight(f"{role}.{name}", width, inputs)
                parameters.zeros(f"{role}.{name}.bias", width)
            if self._code:
                parameters.weight(f"{role}.fuse", width, 2 * width)
        self._layers = 2 if self._code else 1
        for layer, (inputs, outputs) in enumerate(pairwise([2 * width, *[hidden] * self._layers]), start=1):
            parameters.weight(f"interaction.{layer}", outputs, inputs)
            parameters.zeros(f"interaction.{layer}.bias", outputs)
            if self._code:
                parameters.ones(f"interaction.{layer}.scale", outputs)
                parameters.zeros_exactly(f"interaction.{layer}.shift", outputs)

    def units(self, users: Ints, items: Ints, around: Surroundings) -> Tensor:
        """h for units, each a compact user with a compact item."""
        hidden = torch.cat([self._extended("user", users, around), self._extended("item", items, around)], dim=1)
        for layer in range(1, self._layers + 1):
            hidden = self._linear(f"interaction.{layer}", hidden)
            if self._code:  # over the batch, always
                centred = hidden - hidden.mean(0)
                scaled = centred / torch.sqrt(centred.square().mean(0) + _EPS)
                hidden = scaled * self._phi[f"interaction.{layer}.scale"] + self._phi[f"interaction.{layer}.shift"]
            hidden = torch.relu(hidden)
        return hidden

    def _extended(self, role: str, positions: Ints, around: Surroundings) -> Tensor:
        """The extended embedding of compact rows, which may repeat."""
        stored, history = around.users if role == "user" else around.items, around.history
        targets, places = np.unique(positions, return_inverse=True)
        partners = history.neighbours(role, stored[targets], self._draws, self._neighbours).partners
        nodes = self._features(role, stored[targets], around)
        others = self._features(_OPPOSITE[role], np.maximum(partners, 0), around)
        extended = self.extend(role, nodes, others, torch.from_numpy(partners >= 0))
        # The gradient of `index_select` is several times quicker than that of indexing.
        return extended.index_select(0, torch.from_numpy(places.reshape(-1)))

    def _features(self, role: str, rows: Ints, around: Surroundings) -> Tensor:
        return torch.cat([torch.from_numpy(around.tables[name].gather(rows)) for name in self._tables[role]], dim=-1)

    def extend(self, role: str, nodes: Tensor, partners: Tensor, there: Tensor) -> Tensor:
        """Extended embeddings: of nodes (targets × features) and of those partners (targets × places × features) that
        are there.
        """
        attention, own = self._phi[f"{role}.attention"][0], nodes.shape[1]
        scores = (nodes @ attention[:own]).unsqueeze(1) + partners @ attention[own:]
        scores = F.leaky_relu(scores, _SLOPE).masked_fill(~there, float("-inf"))
        # A target without partners has an empty sum, never a softmax over nothing.
        alone = ~there.any(1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(alone, 0.0), dim=1).masked_fill(~there, 0.0)
        gathered = torch.bmm(weights.unsqueeze(1), partners).squeeze(1)
        if not self._code:
            return torch.relu(self._linear(f"{role}.extend", torch.cat([nodes, gathered], dim=1)))
        both = [self._linear(f"{role}.self", nodes), self._linear(f"{role}.neighbour", gathered)]
        return torch.relu(F.linear(torch.relu(torch.cat(both, dim=1)), self._phi[f"{role}.fuse"]))

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self._phi[name], self._phi[f"{name}.bias"])


class PairModel:
    """Role representation and heads. `sees_interaction` and `sees_parameter` say which inputs are kept (4.8)."""

    def __init__(
        self, settings: PublishedSettings, parameters: Parameters, *, sees_interaction: bool, sees_parameter: bool
    ) -> None:
        self._phi, self._sees_parameter, code = parameters, sees_parameter, settings.form == "code"
        self._affine, width = code, settings.role_width
        if sees_parameter:
            # Inputs: loss (2), gradient (2), and the parameter's value.
            parameters.weight("role.1", width, 4 if code else 5)
            parameters.zeros("role.1.bias", width)
            if not code:
                parameters.weight("role.2", width, width)
                parameters.zeros("role.2.bias", width)
            parameters.uniform("head.role", 2, width, 0.01)
        if sees_interaction:
            parameters.uniform("head.interaction", 2, settings.interaction_width, 0.01)
        parameters.uniform("head.bias", 2, 1, SPREADS, BIASES)

    def network(self, losses: Tensor, interaction: Tensor | None) -> PairNetwork:
        """The pair function for units with these losses and representations."""
        phi = self._phi
        logits = phi["head.bias"].T
        if interaction is None:
            logits = logits.expand(len(losses), 2)
        else:
            logits = torch.addmm(logits, interaction, phi["head.interaction"].T)
        if not self._sees_parameter:
            return PairNetwork(None, logits)
        first = phi["role.1"]
        hidden = torch.addmm(phi["role.1.bias"], torch.stack(preprocess(losses), dim=1), first[:, :2].T)
        network = PairNetwork(hidden, logits, first[:, 2:], head=phi["head.role"])
        return network if self._affine else network._replace(second=phi["role.2"], bias=phi["role.2.bias"])


@dataclass(frozen=True)
class Lines:
    """Touches of a table's rows: line t is unit[t] on compact row[t].

    `gradient` is what is applied and `feature` what the rates see of it, line by line. A row's steps are multiplied by
    its `scale`, and what it forgets by its `share`.
    """

    row: Tensor
    unit: Tensor
    gradient: Tensor
    feature: Tensor
    scale: Tensor
    share: Tensor


@dataclass(frozen=True)
class SharedLines:
    """A table that every unit touches: a line of all its entries for each unit, expanded some at a time.

    With `aggregated` there is one line, the batch's sum, which the rates see as its mean over `touches`.
    """

    table: str
    units: int
    touches: int
    gradient: Gradient
    aggregated: bool
    rows: int

    def expand(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """What is applied and what the rates see, for units start … stop-1: units × entries."""
        gradient = self.gradient
        if self.aggregated:
            total = gradient.summed(self.rows).flatten()[None]
            return total, total / self.touches
        if isinstance(gradient, FactorGradient):
            gradient = replace(gradient, left=gradient.left[start:stop], right=gradient.right[start:stop])
        elif isinstance(gradient, DenseGradient):
            gradient = replace(gradient, gradient=gradient.gradient[start:stop])
        flat = gradient.expand().flatten(1)
        return flat, flat


class PublishedStrategy(LearnedStrategy):
    """θ'_m = f̄_m θ_m − Σ_x w_{x,m} g_{x,m}; the published code takes the mean over a row's touches instead."""

    settings_type = PublishedSettings
    settings: PublishedSettings
    init = "normal"
    sees_interaction: ClassVar[bool] = True
    sees_parameter: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._code = self.settings.form == "code"
        self.per_branch = self.static_history = self._code
        self.whole_history = self.sees_interaction
        #: Without the interaction's side, per-interaction gradients would still make W two-dimensional (4.8).
        self._aggregated = not self.sees_interaction

    def build(self, specs: Mapping[str, TableSpec], parameters: Parameters) -> None:
        if self.sees_interaction:
            self._interactions = InteractionModel(specs, self.settings, parameters, self.seed)
        self._pairs = PairModel(
            self.settings, parameters, sees_interaction=self.sees_interaction, sees_parameter=self.sees_parameter
        )

    @property
    def kernels(self) -> tuple[str, ...]:
        return () if self._code or not self.sees_parameter else (KERNELS,)

    def look_ahead(self, situation: Situation) -> dict[str, Tensor]:
        network, values = self._network(situation), situation.reachable()
        for gradient in situation.evidence.row_gradients:
            values[gradient.table] = self._moved(situation, gradient, network)
        for wide in self._shared_lines(situation):
            old, share = situation.values[wide.table], 1 / wide.units if self.settings.forgetting else 0.0
            move = shared_move(old.flatten(), wide.units, wide.expand, network, self._shared_scale(wide), share)
            values[wide.table] = old + move.view_as(old)
        return values

    @torch.no_grad()
    def propose(self, situation: Situation) -> Proposal:
        return Proposal(self.look_ahead(situation))

    @torch.no_grad()
    def learning_rates(self, situation: Situation) -> LearningRates:
        network, n = self._network(situation), len(situation.examples)
        raw, realised, slots = list[Tensor](), list[Tensor](), list[tuple[str, int]]()
        for gradient in situation.evidence.row_gradients:
            lines, (width, dim) = self._lines(situation, gradient), gradient.gradient.shape[1:]
            old, positions = situation.values[gradient.table], gradient.positions.reshape(-1)
            found = rates(old[lines.row], lines.feature, network.at(lines.unit))[RATE].expand(-1, dim)
            if self._aggregated:  # one rate for each row: every interaction that touches the row shows it
                found = torch.zeros_like(old).index_copy(0, lines.row, found)[positions]
            raw.append(found.reshape(n, -1))
            realised.append((found * lines.scale[positions, None]).reshape(n, -1))
            slots += [(gradient.table, slot) for slot in range(width) for _ in range(dim)]
        shared, raw_shared = {}, {}
        for wide in self._shared_lines(situation):
            theta, shown = situation.values[wide.table].flatten(), list[Tensor]()
            for some in some_units(wide.units, theta.numel()):
                _, feature = wide.expand(some.start, some.stop)
                units = torch.arange(some.start, some.stop)
                shown.append(rates(theta[None], feature, network.at(units))[RATE].expand_as(feature))
            per_unit = torch.cat(shown)
            raw_shared[wide.table] = per_unit.expand(n, -1) if self._aggregated else per_unit.reshape(n, -1)
            shared[wide.table] = raw_shared[wide.table] * self._shared_scale(wide)
        return LearningRates(torch.cat(realised, 1), tuple(slots), shared, torch.cat(raw, 1), raw_shared)

    def _network(self, situation: Situation) -> PairNetwork:
        """For every unit: an interaction, or in the code's form each of its pairs, or the whole batch."""
        examples, losses = situation.examples, situation.evidence.losses
        if self._aggregated:
            return self._pairs.network(losses.mean()[None], None)
        branches = examples.items.shape[1] if self._code else 1
        if self._code:
            losses = losses.mean().expand(len(losses) * branches)
        assert situation.around is not None
        users = examples.users.numpy().repeat(branches)
        items = examples.items[:, :branches].reshape(-1).numpy()
        return self._pairs.network(losses, self._interactions.units(users, items, situation.around))

    def _lines(self, situation: Situation, gradient: RowGradient) -> Lines:
        """The lines that can reach the next loss."""
        rows, reached = len(situation.values[gradient.table]), situation.reached(gradient.table)
        touches = gradient.touches(rows)[:reached]
        even = torch.ones(reached, dtype=gradient.gradient.dtype)
        mean = even / touches.clamp(min=1)
        scale = mean if self._code else even
        if self._aggregated:  # a line for each row: the summed gradient is applied, and its mean is looked at
            row = torch.nonzero(touches).squeeze(1)
            total = gradient.summed(rows)[row]
            return Lines(row, torch.zeros_like(row), total, total * mean[row, None], scale, even)
        row, width = gradient.positions.reshape(-1), gradient.positions.shape[1]
        source = torch.nonzero(row < reached).squeeze(1)
        flat = gradient.gradient.flatten(0, 1).index_select(0, source)
        unit = source if self._code or width == 1 else source // width
        return Lines(row[source], unit, flat, flat, scale, mean)

    def _moved(self, situation: Situation, gradient: RowGradient, network: PairNetwork) -> Tensor:
        """New rows of a table."""
        lines = self._lines(situation, gradient)
        old, row = situation.values[gradient.table][: len(lines.scale)], lines.row
        found = rates(old.index_select(0, row), lines.feature, network.at(lines.unit))
        move = found[RATE] * lines.gradient * lines.scale[row, None]
        if self.settings.forgetting:
            move = move + (1 - found[FORGET]) * old.index_select(0, row) * lines.share[row, None]
        return old.index_add(0, row, -move)

    def _shared_lines(self, situation: Situation) -> Iterator[SharedLines]:
        for gradient in situation.evidence.shared_gradients:
            given, units, rows = gradient, len(situation.examples), len(situation.values[gradient.table])
            if self._code:
                if not isinstance(gradient, FactorGradient):
                    raise SettingsError(
                        f"form = code needs the gradient of {gradient.table!r} as one factor for each pair, which this "
                        "recommender does not give; use form = paper."
                    )
                left, right = gradient.left, gradient.right
                units *= left.shape[1]
                given = replace(gradient, left=left.reshape(units, 1, -1), right=right.reshape(units, 1, -1))
            yield SharedLines(gradient.table, 1 if self._aggregated else units, units, given, self._aggregated, rows)

    def _shared_scale(self, wide: SharedLines) -> float:
        return 1 / wide.touches if self._code else 1.0


class PublishedMeLON(PublishedStrategy):
    """W is two-dimensional: a rate for every (interaction, parameter) pair, from the interaction's neighbourhood and
    the parameter's role in it.
    """

    name = "melon"


class PublishedMeLONI(PublishedStrategy):
    """The ablation that sees the interaction only. W is row-constant: w_x = σ(ωᵀ h_x + b)."""

    name = "melon_i"
    sees_parameter = False


class PublishedMeLONP(PublishedStrategy):
    """The ablation that sees the parameter only: a rate from its role, whatever the interaction's neighbourhood."""

    name = "melon_p"
    sees_interaction = False
