"""What a pair kernel is given: the network, what the entries of a line share, and the touches of rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LineTerms:
    """What the entries of a line share: lines × role width (absent without a parameter side), and lines × 2."""

    hidden: Tensor | None
    logits: Tensor

    def at(self, lines: Tensor | slice) -> LineTerms:
        """The terms of some lines."""
        return LineTerms(None if self.hidden is None else _picked(self.hidden, lines), _picked(self.logits, lines))


@dataclass(frozen=True)
class RateNetwork:
    """The pair function's own weights (METHODS.md 4.5, 4.6); what depends on the line alone is in `LineTerms`.

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
    """Lines × entries: values as the rates see them, values that are forgotten from, gradients applied and seen.

    `old` is the same numbers as `theta`, but may carry a gradient. `scale` multiplies a line's step and `share` its
    forgetting (lines; without it nothing is forgotten).
    """

    theta: Tensor
    old: Tensor
    gradient: Tensor
    feature: Tensor
    scale: Tensor
    share: Tensor | None


def _picked(tensor: Tensor, lines: Tensor | slice) -> Tensor:
    """Some lines of a tensor; the gradient of `index_select` is several times quicker than that of indexing."""
    return tensor[lines] if isinstance(lines, slice) else tensor.index_select(0, lines)
