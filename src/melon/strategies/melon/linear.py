"""MeLON's linear form and its ablations: rates meta-trained through a whole stream (docs/methods.md 4.12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from melon.errors import SettingsError
from melon.strategies.melon import strategy as network
from melon.strategies.melon.rates import Roles
from melon.strategies.melon.settings import RateSettings
from melon.strategies.stream_trained import LinearStrategy, StreamTrainedSettings
from melon.tables import TableSpec
from melon.types import Floats


class LinearSettings(StreamTrainedSettings):
    """Those of the default form; settings of the network form are refused."""

    @classmethod
    def parse(cls, values: Mapping[str, Any], owner: str) -> Self:
        """Settings from plain values; one of the other form is refused with the way to it."""
        for name in values:
            if name not in cls.model_fields and name in RateSettings.model_fields:
                raise SettingsError(
                    f"{owner}: {name} is a setting of its network form; choose preset = network (or set form=network)."
                )
        return super().parse(values, owner)


class TwoForms(LinearStrategy):
    """A strategy that has a network form too."""

    settings_type = LinearSettings
    settings: LinearSettings
    #: The same strategy in its published form: settings with `form = network` make one of these.
    network_form: ClassVar[type[network.RateStrategy]]

    def __new__(cls, settings: Mapping[str, Any] | None = None, *, seed: int = 0) -> Self:
        if (settings or {}).get("form") == "network":
            return cls.network_form(settings, seed=seed)  # type: ignore[return-value]  # a strategy all the same
        return super().__new__(cls)


class MeLON(TwoForms):
    """Rates by interaction and row: two-dimensional."""

    name = "melon"
    network_form = network.NetworkMeLON


class MeLONI(TwoForms):
    """The ablation that sees the interaction only: one rate for all that it touches."""

    name = "melon_i"
    network_form = network.NetworkMeLONI

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.one(specs)

    def columns(self, spec: TableSpec, touches: Floats) -> Floats:
        slots = touches.shape[1] - 1 if spec.role == "item" else 1
        return self.rates.seen(touches)[:, :1].repeat(slots, axis=1)


class MeLONP(TwoForms):
    """The ablation that sees the row only, whatever part it plays in an interaction: one rate for each row."""

    name = "melon_p"
    network_form = network.NetworkMeLONP
    unseen = ("partner", "loss")

    def roles(self, specs: Mapping[str, TableSpec]) -> Roles:
        return Roles.by_table(specs)

    def columns(self, spec: TableSpec, touches: Floats) -> Floats:
        columns = super().columns(spec, touches).copy()
        if spec.role != "item":
            columns[..., 4:6] = 0  # counts of an item say nothing of other rows
        return columns
