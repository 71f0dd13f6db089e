"""MeLON as it is by default, and its ablations: the rate model (docs/methods.md 4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

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
            from melon.strategies.melon.network import PublishedSettings  # which needs PyTorch

            for name in set(unknown) & PublishedSettings.model_fields.keys():
                raise SettingsError(f"{owner}: {name} is a setting of its published form; choose preset = paper.")
        return super().parse(values, owner)


class TwoForms(StreamTrainedStrategy):
    """A strategy that has a published form too: settings with `form = paper` or `form = code` make one of these."""

    settings_type = MeLONSettings
    settings: MeLONSettings
    published_form: ClassVar[str]

    def __new__(cls, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> Self:
        if (settings or {}).get("form") in ("paper", "code"):
            from melon.strategies.melon import published

            made: Self = getattr(published, cls.published_form)(settings, seed=seed)  # a strategy all the same
            return made
        return super().__new__(cls)


class MeLON(TwoForms):
    """A rate for every (interaction, parameter) pair."""

    name = "melon"
    published_form = "PublishedMeLON"


class MeLONI(TwoForms):
    """The ablation without the parameter's side: one rate for all that an interaction touches.

    It sees the loss, and how much and how recent history the user and the item taken have.
    """

    name = "melon_i"
    published_form = "PublishedMeLONI"
    unseen = ("value", "gradient")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)

    def seen(self, facts: Scores) -> Scores:
        return np.repeat(facts[:, :1], facts.shape[1], axis=1)


class MeLONP(TwoForms):
    """The ablation without the interaction's side: a rate for each parameter, whatever part it plays.

    It sees facts of the row and the parameter's value; gradient, loss and partner belong to the interaction.
    """

    name = "melon_p"
    published_form = "PublishedMeLONP"
    unseen = ("partner", "loss", "gradient")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)

    def seen(self, facts: Scores) -> Scores:
        own = facts.copy()
        own[:, 0, 4:6] = 0  # counts of an item say nothing of a user
        return own
