"""MWNet and MetaSGD as restrictions of the one rate model (docs/methods.md 4.12), which needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

from melon.strategies.melon.rates import INPUTS, Roles
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.tables import TableSpec


class StreamTrainedMWNet(StreamTrainedStrategy):
    """One rate for each interaction, from its loss alone."""

    name = "mwnet"
    unseen = tuple(name for name in INPUTS if name != "loss")
    decays = False

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)


class StreamTrainedMetaSGD(StreamTrainedStrategy):
    """One rate for each table, whatever the interaction."""

    name = "metasgd"
    unseen = INPUTS
    decays = False

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)
