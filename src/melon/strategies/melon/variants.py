"""MeLON and its two ablations: which directions of the learning-rate matrix the meta-model sees (METHODS.md 4, 4.8)."""

from __future__ import annotations

from melon.strategies.melon.strategy import RateStrategy


class MeLON(RateStrategy):
    """W is two-dimensional: a rate for every (interaction, parameter) pair, from the interaction's neighbourhood and
    the parameter's role in it.
    """

    name = "melon"
    sees_interaction = True
    sees_parameter = True


class MeLONI(RateStrategy):
    """The ablation that sees the interaction only. W is row-constant: w_x = σ(ωᵀ h_x + b)."""

    name = "melon_i"
    sees_interaction = True
    sees_parameter = False


class MeLONP(RateStrategy):
    """The ablation that sees the parameter only: a rate from its role, whatever the interaction's neighbourhood."""

    name = "melon_p"
    sees_interaction = False
    sees_parameter = True
