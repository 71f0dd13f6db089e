"""Arguments of MeLON's kernels: the pair network, the terms of units, touches of rows, and the targets of units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from melon.types import Floats, Ints


@dataclass(frozen=True)
class UnitTerms:
    """What all entries of a unit share: units × role width (absent without a parameter side), and units × 2."""

    hidden: Tensor | None
    logits: Tensor

    def at(self, units: Tensor | slice) -> UnitTerms:
        """The terms of some units."""
        return UnitTerms(None if self.hidden is None else _picked(self.hidden, units), _picked(self.logits, units))


@dataclass(frozen=True)
class RateNetwork:
    """The pair function's own weights (docs/methods.md 4.5, 4.6); what depends on the line alone is in `UnitTerms`.

    `first` is width × (scale of g, sign of g[, θ]) and absent without a parameter side; `second` (width × width, with
    its bias) is absent where the role is affine; `head` is 2 × width. w = most_rate · σ(…).
    """

    most_rate: float
    first: Tensor | None = None
    second: Tensor | None = None
    second_bias: Tensor | None = None
    head: Tensor | None = None

    @property
    def sees_theta(self) -> bool:
        """Whether a parameter's value is one of the features."""
        return self.first is not None and self.first.shape[1] == 3


@dataclass(frozen=True)
class RowTouches:
    """Touches of a table's rows: line t is unit[t] on row[t], with the gradient that stands at source[t].

    `values` are rows × entries as the rates see them; `old` is the same numbers, but may carry a gradient. `gradient`
    is what is applied and `feature` what the rates see of it: sources × entries. A row's `scale` multiplies its steps
    and its `share` what it forgets (without it nothing is forgotten).
    """

    values: Tensor
    old: Tensor
    row: Ints
    unit: Ints
    source: Ints
    gradient: Tensor
    feature: Tensor
    scale: Floats
    share: Floats | None


@dataclass(frozen=True)
class SideTargets:
    """Users or items that units are about, among those whose surroundings were looked up at this moment.

    `nodes` (looked up × features), `partners` (looked up × places × features) and which of them are `there`. Target t
    is the one that stands at places[t], and unit n is about target at[n].
    """

    nodes: Tensor
    partners: Tensor
    there: Tensor
    places: Ints
    at: Ints


class SideWeights(NamedTuple):
    """Attention (1 × both kinds of features) and the joint layer on [self ; neighbours] with its bias."""

    attention: Tensor
    extend: Tensor
    bias: Tensor


class UnitLayer(NamedTuple):
    """The layer on [user ; item], its bias, and the scale and shift after normalising."""

    mix: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor


class UnitHeads(NamedTuple):
    """From h and the loss to what a unit's entries share: heads (2 × width of h) and their biases, role.1 and its bias.

    The first two columns of role.1 are for the loss; it is absent without a parameter side.
    """

    interaction: Tensor
    bias: Tensor
    role: Tensor | None
    role_bias: Tensor | None


def _picked(tensor: Tensor, units: Tensor | slice) -> Tensor:
    """Some lines of a tensor; the gradient of `index_select` is several times quicker than that of indexing."""
    return tensor[units] if isinstance(units, slice) else tensor.index_select(0, units)
