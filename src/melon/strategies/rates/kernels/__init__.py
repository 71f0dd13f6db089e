"""The pair function's sums over all pairs: a reference in PyTorch, a compiled kernel, and the choice between them."""

from melon.strategies.rates.kernels.choice import PairKernel, pair_kernel, warm_up
from melon.strategies.rates.kernels.forms import LineTerms, RateNetwork, RowTouches

__all__ = ["LineTerms", "PairKernel", "RateNetwork", "RowTouches", "pair_kernel", "warm_up"]
