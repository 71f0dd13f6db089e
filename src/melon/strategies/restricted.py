"""MWNet and MetaSGD as restrictions of the one rate model (docs/methods.md 4.12), which needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from melon.errors import require_torch
from melon.strategies.melon.rates import INPUTS, Roles
from melon.strategies.stream_trained import StreamTrainedStrategy
from melon.tables import TableSpec


class Restricted(StreamTrainedStrategy):
    """A restriction of the rate model beside a published form, which is meant where no form is named."""

    def __init__(self, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> None:
        if "form" not in (settings or {}):
            require_torch(f"the published form of strategy {self.name!r} (preset stream does without)")
        super().__init__(settings, seed=seed)


class StreamTrainedMWNet(Restricted):
    """One rate for each interaction, from its loss alone."""

    name = "mwnet"
    unseen = tuple(name for name in INPUTS if name != "loss")
    decays = False

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)


class StreamTrainedMetaSGD(Restricted):
    """One rate for each table, whatever the interaction."""

    name = "metasgd"
    unseen = INPUTS
    decays = False

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)
