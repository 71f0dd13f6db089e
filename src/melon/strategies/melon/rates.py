"""The rate model (docs/methods.md 4.12): what rates know of a touch, φ, and φ as compiled kernels read it.

log w = start + facts of the row + spline of log L + role of the parameter. Every part begins without effect, so a model
that has not been meta-trained gives every parameter the plain step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from melon.errors import CheckpointError
from melon.kernels.melon.rates import FACTS, UNITS, RateModel, RateSlopes
from melon.kernels.melon.rates import INPUTS as SEEN
from melon.models.plain import TAUGHT
from melon.tables import TableSpec
from melon.types import AnyArray, Flags, Floats, Ints, Scores

#: What rates can see: facts of the row (`rates` are the item's recent counts at two half-lives, `partner` is of the
#: other side), the interaction's loss, and the parameter's value and gradient.
RateInput = Literal["age", "new", "idle", "touches", "rates", "partner", "loss", "value", "gradient"]
INPUTS: tuple[RateInput, ...] = ("age", "new", "idle", "touches", "rates", "partner", "loss", "value", "gradient")
#: Which input each fact belongs to.
FACT_INPUTS: tuple[RateInput, ...] = ("age", "new", "idle", "touches", "rates", "rates", "partner")
#: Losses at which the loss's part of a log rate bends; it is linear in log L between them and constant outside.
KNOTS: Floats = np.log([0.03, 0.15, 0.5, 1.2, 2.5])
#: A row that is touched keeps 1 − D / 10 of itself, and D is at most this.
MOST_DECAY, DECAY_UNIT = 5.0, 0.1
#: Inputs of the role network: a, ℓg, ℓθ, nθ, ng, co, the loss, and the facts. A bias has a, ℓθ and both norms instead.
ROLE_INPUTS = 7 + FACTS
#: Where kernels have these, and those of a bias, among what they see.
_ROWS = (8, *range(1, 1 + FACTS))
_VECTOR_PLACES, _BIAS_PLACES = [13, 14, 15, 9, 10, 11, *_ROWS], [9, 10, 11, 12, *_ROWS]
#: How the first layer of each role's network is drawn; the second starts at 0.
WEIGHT_SPREAD, BIAS_SPREAD = 0.5 / np.sqrt(ROLE_INPUTS), 0.3
#: The spread of biases is at least this.
_LEAST_BIAS_SPREAD = 0.05
#: Half-lives of recent counts in interactions: a few batches, and some dozens of them.
HALF_LIVES = (300.0, 3_000.0)
#: Numbers kept for an item: its counts, and their moment in two parts, for float32 holds no number of events exactly.
RECENT_WIDTH = len(HALF_LIVES) + 2
_PART = 1 << 20

Phi = dict[str, Floats]
_NETWORK = ("hidden", "hidden_bias", "out")
_ROLE = ("alpha", "beta", *_NETWORK)


def row_facts(met: Ints, idle: Ints, touches: Ints, recent: Floats, partner: Ints) -> Floats:
    """Facts of touches: … × facts.

    `met` is how many interactions the row has had, `idle` for how long nobody touched it, `touches` how many lines of
    the batch touch it; `recent` (… × 2) are counts of its item, and `partner` is how many the other side has had.
    """
    columns = [
        np.log1p(met) / 3 - 1,
        np.asarray(met == 0, dtype=np.float64),
        np.log1p(idle) / 10,
        np.log(touches) / 3,
        np.log1p(recent[..., 0]) / 3,
        np.log1p(recent[..., 1]) / 3,
        np.log1p(partner) / 3 - 1,
    ]
    return np.stack(columns, axis=-1)


def batch_facts(users: Ints, items: Ints, met: tuple[Ints, Ints], idle: tuple[Ints, Ints], recent: Floats) -> Floats:
    """Facts of a batch's touches: n × (user, item taken, items drawn) × facts.

    `met` and `idle` are of users (n) and of items (n × slots), `recent` (n × slots × 2) counts of items.
    """
    touches = _times(users), _times(items)
    of_user = row_facts(met[0], idle[0], touches[0], recent[:, 0], met[1][:, 0])
    of_items = row_facts(met[1], idle[1], touches[1], recent, np.broadcast_to(met[0][:, None], items.shape))
    return np.concatenate([of_user[:, None], of_items], axis=1)


def _times(rows: Ints) -> Ints:
    """How often each row stands among them."""
    _, place, counts = np.unique(rows, return_inverse=True, return_counts=True)
    times: Ints = counts[place].reshape(rows.shape)
    return times


class RecentCounts:
    """The counts of rows of items. An interaction that is k interactions old counts 2^(-k / half-life).

    A row's counts are stored as of the last batch in which it was taken and decayed when they are read, so a row that
    nobody touches costs nothing. The interactions of a batch count as of its start, whatever their order.
    """

    def __init__(self, stored: AnyArray, now: int) -> None:
        self._stored, self._now = stored, now

    def now(self) -> Floats:
        """Rows × half-lives, as of now."""
        stored = self._stored.astype(np.float64)
        counts, high, low = stored[:, : len(HALF_LIVES)], stored[:, -2], stored[:, -1]
        age = self._now - (high * _PART + low)
        left: Floats = np.exp2(-age[:, None] / np.array(HALF_LIVES))
        return counts * left

    def after(self, taken: Ints) -> AnyArray:
        """The row state after a batch that takes these rows, some several times; other rows stay as they are."""
        times = np.bincount(taken, minlength=len(self._stored))
        moment = np.array([self._now // _PART, self._now % _PART], dtype=np.float64)
        fresh = np.concatenate([self.now() + times[:, None], np.broadcast_to(moment, (len(times), 2))], axis=1)
        return np.where((times > 0)[:, None], fresh.astype(self._stored.dtype), self._stored)


@dataclass(frozen=True)
class Roles:
    """Which line of φ a touch of a table belongs to: its first touch (the user, or the item taken) and any other."""

    first: Mapping[str, int]
    other: Mapping[str, int]
    count: int

    @classmethod
    def apart(cls, specs: Mapping[str, TableSpec]) -> Roles:
        """Each table its own, and an item that is taken another than one that is drawn."""
        first, other, count = {}, {}, 0
        for name, spec in specs.items():
            first[name], count = count, count + 1
            other[name] = count if spec.role == "item" else first[name]
            count += spec.role == "item"
        return cls(first, other, count)

    @classmethod
    def by_table(cls, specs: Mapping[str, TableSpec]) -> Roles:
        """Each table its own, whatever part its row plays in an interaction."""
        places = {name: place for place, name in enumerate(specs)}
        return cls(places, places, len(places))

    @classmethod
    def one(cls, specs: Mapping[str, TableSpec]) -> Roles:
        """The same for everything."""
        places = dict.fromkeys(specs, 0)
        return cls(places, places, 1)

    def of(self, table: str, slots: int) -> list[int]:
        """The roles of a table's touches by one interaction."""
        return [self.first[table], *[self.other[table]] * (slots - 1)]

    def columns(self, slots: int) -> list[int]:
        """The roles of a factorised score's columns: the user's vector, the items' vectors, their biases."""
        users, *items = TAUGHT
        return [self.first[users], *(role for name in items for role in self.of(name, slots))]


class RateParameters:
    """φ, and what else belongs to it.

    φ is `facts` (roles × constant and facts), `splines` (roles × knots), `decay` (D by table of rows), `half_lives`
    (logarithms, by table of items), `temperature` (the logarithm of τ) and, for a factorised score, the role of a
    parameter: `alpha` and `beta` (roles × 3), a network (`hidden`, `hidden_bias`, `out`) and the `scales` of tables.
    """

    def __init__(
        self, specs: Mapping[str, TableSpec], roles: Roles, inputs: tuple[RateInput, ...], lr: float, seed: int = 0
    ) -> None:
        self.roles = roles
        self.row_tables = [name for name, spec in specs.items() if spec.role != "shared"]
        self.item_tables = [name for name, spec in specs.items() if spec.role == "item"]
        self.sees_loss = "loss" in inputs
        self._model: tuple[Phi, object, RateModel] | None = None
        count, seen = roles.count, set(inputs)
        facts = np.array([name in seen for name in FACT_INPUTS])
        self.has_role = bool({"value", "gradient"} & seen) and set(TAUGHT) <= specs.keys()
        units = UNITS if self.has_role else 0
        shapes: dict[str, tuple[int, ...]] = {
            "facts": (count, 1 + FACTS),
            "splines": (count, len(KNOTS)),
            "decay": (len(self.row_tables),),
            "half_lives": (len(self.item_tables),),
            "temperature": (1,),
            "alpha": (count, 3),
            "beta": (count, 3),
            "hidden": (count, units, ROLE_INPUTS),
            "hidden_bias": (count, units),
            "out": (count, units),
            "scales": (len(TAUGHT),),
        }
        self.phi: Phi = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.phi["facts"][:, 0] = np.log(lr)
        self.phi["scales"][:] = 1.0
        #: Which numbers of φ meta-training may move.
        self.free: dict[str, Flags] = {name: np.ones(shape, dtype=bool) for name, shape in shapes.items()}
        self.free["facts"][:, 1:] = facts
        self.free["splines"][:] = self.sees_loss
        self.free["scales"][:] = False
        for name in _ROLE if not self.has_role else ():
            self.free[name][:] = False
        self._places = [_VECTOR_PLACES] * count
        if self.has_role:
            for role in {roles.first[TAUGHT[2]], roles.other[TAUGHT[2]]} - {roles.first[TAUGHT[1]]}:
                self._places[role] = _BIAS_PLACES
            for role, places in enumerate(self._places):
                self._see(role, seen, facts, bias=places is _BIAS_PLACES)
            draw = np.random.default_rng([seed, 0x6D656C6F6E])
            self.phi["hidden"][:] = draw.normal(0, WEIGHT_SPREAD, shapes["hidden"]) * self.free["hidden"]
            self.phi["hidden_bias"][:] = draw.normal(0, BIAS_SPREAD, shapes["hidden_bias"])

    def _see(self, role: int, seen: set[RateInput], facts: Flags, *, bias: bool) -> None:
        """Which inputs the role of a parameter may use: a, ℓg, ℓθ and nθ, ng, co, or those of a bias."""
        value, gradient, both = "value" in seen, "gradient" in seen, {"value", "gradient"} <= seen
        own = [both, value] if bias else [both, gradient, value]
        norms = [value, value and "partner" in seen] if bias else [value, gradient, both]
        network = [*own, *norms, self.sees_loss, *facts.tolist()]
        self.free["alpha"][role] = own + [False] * (3 - len(own))
        self.free["beta"][role] = norms + [False] * (3 - len(norms))
        self.free["hidden"][role] = network + [False] * (ROLE_INPUTS - len(network))

    def speed(self, name: str) -> float:
        """How fast meta-training moves a part of φ, relative to its rate."""
        return 0.3 if name in _NETWORK else 1.0

    def anchor(self, name: str, start: Floats) -> Floats | None:
        """Where the penalty of meta-training draws a part of φ to: the plain step; None without one."""
        if name in ("decay", "half_lives", "temperature", "scales"):
            return None
        return start if name == "facts" else np.zeros_like(start)

    @property
    def knows_roles(self) -> bool:
        """Whether the role of a parameter has any effect."""
        return self.has_role and any(self.phi[name].any() for name in ("alpha", "beta", "out"))

    def measure(self, users: Scores, items: Scores, bias: Scores) -> None:
        """Take the spread of tables' numbers as the scales of what roles see."""
        spread = [float(users.std()), float(items.std()), max(float(bias.std()), _LEAST_BIAS_SPREAD)]
        self.phi = {**self.phi, "scales": np.maximum(spread, 1e-6)}

    def model(self, slots: int, dtype: type[np.floating] = np.float32) -> RateModel:
        """φ as kernels of a factorised score read it, for interactions with that many items."""
        if self._model is None or self._model[0] is not self.phi or self._model[1] != (slots, dtype):
            phi = self.phi
            slopes = np.zeros((self.roles.count, len(KNOTS) + 1))
            slopes[:, 1:-1] = np.diff(phi["splines"], axis=1) / np.diff(KNOTS)
            columns, out = np.array(self.roles.columns(slots), dtype=np.int64), phi["out"].astype(dtype)
            weights, scales = self._weights().astype(dtype), phi["scales"].astype(dtype)
            model = RateModel(columns, weights, out, KNOTS, phi["splines"], slopes, scales)
            self._model = phi, (slots, dtype), model
        return self._model[2]

    def _weights(self) -> Floats:
        """What log rates and units take from what is seen: roles × inputs × (1 + units)."""
        phi = self.phi
        weights = np.zeros((self.roles.count, SEEN, 1 + phi["out"].shape[1]))
        for role, places in enumerate(self._places if self.has_role else ()):
            half = 3 if places is _VECTOR_PLACES else 2
            weights[role, places[: 2 * half], 0] = [*phi["alpha"][role, :half], *phi["beta"][role, :half]]
            weights[role, places, 1:] = phi["hidden"][role, :, : len(places)].T
            weights[role, 0, 1:] = phi["hidden_bias"][role]
        weights[:, : 1 + FACTS, 0] = phi["facts"]
        return weights

    def slopes(self) -> RateSlopes:
        """Zeros to which kernels add ∂J by φ."""
        phi = self.phi
        shape = self.roles.count, SEEN, 1 + phi["out"].shape[1]
        return RateSlopes(np.zeros(shape), np.zeros(phi["out"].shape), np.zeros(phi["splines"].shape))

    def by_phi(self, slopes: RateSlopes) -> Phi:
        """∂J by φ, from what kernels have added up."""
        by_phi = {name: np.zeros(value.shape) for name, value in self.phi.items()}
        by_phi |= {"facts": slopes.weights[:, : 1 + FACTS, 0], "splines": slopes.splines, "out": slopes.out}
        for role, places in enumerate(self._places if self.has_role else ()):
            half, seen = 3 if places is _VECTOR_PLACES else 2, slopes.weights[role]
            by_phi["alpha"][role, :half] = seen[places[:half], 0]
            by_phi["beta"][role, :half] = seen[places[half : 2 * half], 0]
            by_phi["hidden"][role, :, : len(places)] = seen[places, 1:].T
            by_phi["hidden_bias"][role] = seen[0, 1:]
        return by_phi

    def kept(self, table: str) -> float:
        """What a touch leaves of a row."""
        return float(1 - DECAY_UNIT * self.phi["decay"][self.row_tables.index(table)])

    def half_lives(self) -> dict[str, float]:
        """Of the tables of items."""
        return dict(zip(self.item_tables, np.exp(self.phi["half_lives"]).tolist(), strict=True))

    def take(self, phi: Mapping[str, AnyArray], owner: str) -> None:
        """Become another φ of the same shape; one that meta-training cannot give is a `CheckpointError`."""
        for name, own in self.phi.items():
            given = phi.get(name, own if not own.size else None)
            if given is None or given.shape != own.shape or given.dtype != own.dtype:
                shape = "nothing" if given is None else f"{given.dtype} of shape {tuple(given.shape)}"
                raise CheckpointError(
                    f"this is not what strategy {owner!r} with these settings has learned: {name} is {shape} instead "
                    f"of shape {tuple(own.shape)}. It was saved with another strategy, preset, recommender or version; "
                    "load it with the settings it was saved with, or meta-train again."
                )
            sound = np.isfinite(given).all()
            if name == "decay":
                sound &= ((given >= 0) & (given <= MOST_DECAY)).all()
            if name == "scales":
                sound &= (given > 0).all()
            if not sound:
                raise CheckpointError(
                    f"{name} of strategy {owner!r} has numbers that meta-training cannot give: {given}."
                )
        self.phi = {name: np.array(phi[name]) if own.size else own for name, own in self.phi.items()}
