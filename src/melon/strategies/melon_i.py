"""MeLON_I (METHODS.md 4.8): the ablation that sees the interaction only; one rate for each interaction."""

from __future__ import annotations

from melon.strategies.rates.strategy import RateStrategy


class MeLONI(RateStrategy):
    """W is row-constant: w_x = σ(ωᵀ h_x + b)."""

    name = "melon_i"
    sees_interaction = True
    sees_parameter = False
