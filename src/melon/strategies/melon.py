"""MeLON (METHODS.md 4): a learning rate and a forgetting rate for every (interaction, parameter) pair."""

from __future__ import annotations

from melon.strategies.rates.strategy import RateStrategy


class MeLON(RateStrategy):
    """W is two-dimensional: every entry its own, from the interaction's surroundings and the parameter's role in it."""

    name = "melon"
    sees_interaction = True
    sees_parameter = True
