"""What a rate model computes most: a reference in PyTorch, compiled kernels, and the choice between them."""

from melon.strategies.melon.kernels.choice import (
    InteractionKernel,
    PairKernel,
    interaction_kernel,
    pair_kernel,
    warm_up,
    work_of_kernels,
)
from melon.strategies.melon.kernels.forms import RateNetwork, RowTouches, UnitTerms

__all__ = [
    "InteractionKernel",
    "PairKernel",
    "RateNetwork",
    "RowTouches",
    "UnitTerms",
    "interaction_kernel",
    "pair_kernel",
    "warm_up",
    "work_of_kernels",
]
