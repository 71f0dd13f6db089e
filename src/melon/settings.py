"""Settings of recommenders, strategies and pre-training: typed, frozen, and with errors a person can act on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from melon.errors import GONE, RENAMED, SettingsError, unknown_name

#: A number of units or dimensions: large enough for any model, and too small to fill the memory by a slip.
Width = Annotated[int, Field(ge=1, le=4096)]


class Settings(BaseModel):
    """Base of all settings; unknown keys and values of the wrong type are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], owner: str) -> Self:
        """Settings from plain values; `owner` says whose they are in the error."""
        given = dict(values)
        for key in values.keys() - cls.model_fields.keys():
            usual, instead = GONE.get(key, (None, ""))
            if not instead:
                raise unknown_name(f"setting of {owner}", key, cls.model_fields)
            if (value := given.pop(key)) != usual:
                raise SettingsError(f"{owner}: {key} = {value!r} is no longer there: {instead}.")
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            place, value = ".".join(str(part) for part in first["loc"]), first["input"]
            if first["type"] == "literal_error" and value in RENAMED:
                raise SettingsError(f"{owner}: {place} = {value!r} is now called {RENAMED[value]!r}.") from None
            raise SettingsError(f"{owner}: {place} = {value!r} is not valid: {first['msg']}.") from None

    def plain(self) -> dict[str, Any]:
        """The settings as JSON-ready values."""
        return self.model_dump(mode="json")
