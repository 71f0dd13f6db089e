"""MeLON and its ablations with the rate model (docs/methods.md 4.12), which needs no PyTorch.

Their published forms do, and are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np

from melon.errors import SettingsError, require_torch
from melon.strategies.melon.rates import Roles
from melon.strategies.stream_trained import StreamTrainedSettings, StreamTrainedStrategy
from melon.tables import TableSpec
from melon.types import Scores


class MeLONSettings(StreamTrainedSettings):
    """Those of the default form; settings of the published form are refused."""

    @classmethod
    def parse(cls, values: Mapping[str, Any], owner: str) -> Self:
        """Settings from plain values; one of the other form is refused with the way to it."""
        unknown = [name for name in values if name not in cls.model_fields]
        if unknown:
            from melon.strategies.melon.network import PublishedSettings  # which needs PyTorch

            for name in set(unknown) & PublishedSettings.model_fields.keys():
                raise SettingsError(f"{owner}: {name} is a setting of its published form; choose preset = paper.")
        return super().parse(values, owner)


class TwoForms(StreamTrainedStrategy):
    """A strategy that has a published form too, which some values of the setting `form` make instead."""

    published: ClassVar[str]
    forms: ClassVar[tuple[str, ...]]

    def __new__(cls, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> Self:
        if (settings or {}).get("form") not in cls.forms:
            return super().__new__(cls)
        require_torch(f"the published form of strategy {cls.name!r}")
        module, _, name = cls.published.partition(":")
        made: Self = getattr(import_module(module), name)(settings, seed=seed)  # a strategy all the same
        return made


class MeLONForms(TwoForms):
    """Of MeLON and its ablations."""

    settings_type = MeLONSettings
    settings: MeLONSettings
    forms = ("paper", "code")


class MeLON(MeLONForms):
    """A rate for every (interaction, parameter) pair."""

    name = "melon"
    published = "melon.strategies.melon.published:PublishedMeLON"


class MeLONI(MeLONForms):
    """The ablation without the parameter's side: one rate for all that an interaction touches.

    It sees the loss, and how much and how recent history the user and the item taken have.
    """

    name = "melon_i"
    published = "melon.strategies.melon.published:PublishedMeLONI"
    unseen = ("value", "gradient")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)

    def seen(self, facts: Scores) -> Scores:
        return np.repeat(facts[:, :1], facts.shape[1], axis=1)


class MeLONP(MeLONForms):
    """The ablation without the interaction's side: a rate for each parameter, whatever part it plays.

    It sees facts of the row and the parameter's value; gradient, loss and partner belong to the interaction.
    """

    name = "melon_p"
    published = "melon.strategies.melon.published:PublishedMeLONP"
    unseen = ("partner", "loss", "gradient")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)

    def seen(self, facts: Scores) -> Scores:
        own = facts.copy()
        own[:, 0, 4:6] = 0  # counts of an item say nothing of a user
        return own
