"""MeLON_P (METHODS.md 4.8): the ablation that sees the parameter only; one rate for each parameter of the batch."""

from __future__ import annotations

from melon.strategies.rates.strategy import RateStrategy


class MeLONP(RateStrategy):
    """W is column-constant: w_m = σ(ωᵀ MLP[θ_m, pre(L̄), pre(ḡ_m)] + b), from what the batch says of m as a whole."""

    name = "melon_p"
    sees_interaction = False
    sees_parameter = True
