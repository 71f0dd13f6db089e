"""MeLON and its ablations with the rate model (docs/methods.md 4.12), which needs no PyTorch.

Their published forms do, and are imported when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from melon.errors import SettingsError
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
            from melon.strategies.melon.published import PublishedSettings  # which needs PyTorch

            for name in set(unknown) & PublishedSettings.model_fields.keys():
                raise SettingsError(f"{owner}: {name} is a setting of its published form; choose preset = paper.")
        return super().parse(values, owner)


class DefaultForm(StreamTrainedStrategy):
    """Of MeLON and its ablations."""

    settings_type = MeLONSettings
    settings: MeLONSettings


class MeLON(DefaultForm):
    """A rate for every (interaction, parameter) pair."""

    name = "melon"


class MeLONI(DefaultForm):
    """The ablation without the parameter's side: one rate for all that an interaction touches.

    It sees the loss, and how much and how recent history the user and the item taken have.
    """

    name = "melon_i"
    unseen = ("value", "gradient")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)

    def seen(self, facts: Scores) -> Scores:
        return np.repeat(facts[:, :1], facts.shape[1], axis=1)


class MeLONP(DefaultForm):
    """The ablation without the interaction's side: a rate for each parameter, whatever part it plays.

    It sees facts of the row and the parameter's value; gradient, loss and partner belong to the interaction.
    """

    name = "melon_p"
    unseen = ("partner", "loss", "gradient")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)

    def seen(self, facts: Scores) -> Scores:
        own = facts.copy()
        own[:, 0, 4:6] = 0  # counts of an item say nothing of a user
        return own
