"""Settings of the service: one TOML file, environment variables `MELON_*` and flags, checked in one place."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import Field, field_validator, model_validator

from melon.errors import SettingsError, unknown_name
from melon.settings import Settings

PREFIX = "MELON_"
#: Addresses that only this machine can reach.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

#: Limits of one request; they are part of the API and no settings.
MOST_EVENTS = 10_000
MOST_USERS = 500
MOST_K = 1_000
MOST_CANDIDATES = 10_000
MOST_DEPTH = 16
MOST_ID_BYTES = 256
#: A clock may be ahead of ours by this many seconds.
MOST_AHEAD_S = 300

#: What an event is for: it is learned; it hides the item from this user's lists; it is only stored.
Use = Literal["learn", "hide", "store"]
USES: tuple[Use, ...] = ("learn", "hide", "store")
Names = tuple[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.:-]+$")], ...]
Positive = Annotated[float, Field(gt=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class ServeSettings(Settings):
    """Everything that `melon serve` can be set to."""

    model: Path | None = Field(None, description="The folder of the model to start from; without one it starts cold.")
    data: Path | None = Field(None, description="The folder of the log and of checkpoints (default: MODEL.live).")
    host: str = Field("127.0.0.1", description="The address to listen on; others than loopback need keys.")
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(8000, description="The port; 0 takes a free one.")
    tls_cert: Path | None = Field(None, description="A certificate (PEM), if no proxy ends TLS.")
    tls_key: Path | None = Field(None, description="The private key of the certificate.")
    keys: Path | None = Field(None, description="The file of API keys (default: keys.json in the data folder).")

    learn: Names = Field(("view", "click", "buy"), description="Event types that are learned.")
    hide: Names = Field(("dislike", "owned"), description="Event types that hide the item from the user's lists.")
    store: Names = Field(("impression",), description="Event types that are stored only.")

    batch_most: Annotated[int, Field(ge=1, le=10_000)] = Field(256, description="Events in a batch, at most.")
    batch_every_ms: Annotated[float, Field(ge=0)] = Field(20.0, description="Milliseconds between two cuts, at least.")
    checkpoint_s: Positive = Field(60.0, description="Seconds between two checkpoints, at most.")
    checkpoint_events: AtLeastOne = Field(50_000, description="Events between two checkpoints, at most.")
    dedup_days: Positive = Field(30.0, description="Days for which event ids are remembered.")
    fit_after: Annotated[int, Field(ge=0)] = Field(
        20_000, description="Events after which a cold start fits on its own log; 0 never does."
    )
    threads: AtLeastOne = Field(1, description="Threads of the learner; recorded with the log.")
    fallback: bool = Field(False, description="Serve from a rival that is better, until the model is better again.")
    max_pairs: Annotated[int, Field(ge=0)] = Field(0, description="Pairs that a new service remembers as seen; 0: all.")

    body_most: Annotated[int, Field(ge=1024)] = Field(4 << 20, description="Bytes of a request's body, at most.")
    queue_events: AtLeastOne = Field(50_000, description="Events that may wait for the disk before posts get 429.")
    queue_lists: AtLeastOne = Field(512, description="Lists that may wait for scoring before requests get 503.")
    connections: AtLeastOne = Field(1_000, description="Open connections, at most.")
    header_s: Positive = Field(10.0, description="Seconds a client may take for a request's headers.")
    body_rate: Positive = Field(1024.0, description="Bytes per second of a body, at least.")
    rate: Annotated[float, Field(ge=0)] = Field(0.0, description="Requests per second and key; 0 is no bound.")
    burst: AtLeastOne = Field(200, description="Requests that a key may make at once.")
    stop_s: Positive = Field(10.0, description="Seconds for requests that are under way when the service stops.")
    served_most: AtLeastOne = Field(
        100_000, description="Lists remembered for rotation and for what was taken from them."
    )
    log_ids: bool = Field(False, description="Write ids into the service's log lines instead of their hashes.")

    @field_validator("learn", "hide", "store", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(one.strip() for one in value.split(",") if one.strip()) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        types = [*self.learn, *self.hide, *self.store]
        twice = sorted({name for name in types if types.count(name) > 1})
        if twice:
            raise ValueError(f"the event type {twice[0]!r} is named twice in learn, hide and store")
        if not self.learn:
            raise ValueError("no event type is learned; name at least one in learn")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; give both or neither")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the log, deltas and checkpoints."""
        if self.data is not None:
            return self.data
        if self.model is None:
            return Path("melon.live")
        return self.model.with_name(f"{self.model.resolve().name}.live")

    @property
    def key_file(self) -> Path:
        return self.keys or self.folder / "keys.json"

    def uses(self) -> dict[str, Use]:
        """What is done with each event type."""
        return {name: use for use in USES for name in getattr(self, use)}

    def toml(self) -> str:
        """The settings as a file that `read_settings` reads back."""
        lines = []
        for name, value in self.plain().items():
            about = str(type(self).model_fields[name].description)
            lines += [f"# {about}", f"# {name} =" if value is None else f"{name} = {_toml(value)}"]
        return "\n".join(lines) + "\n"


def read_settings(
    file: Path | None, flags: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> ServeSettings:
    """Settings from a file, overridden by the environment, overridden by flags (those that are not None)."""
    values: dict[str, Any] = {}
    if file is not None:
        values |= _from_file(file)
    values |= _from_environment(os.environ if environment is None else environment)
    values |= {name: value for name, value in flags.items() if value is not None}
    return ServeSettings.parse(values, "melon serve")


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise SettingsError(f"the settings file {file} cannot be read: {problem.strerror or problem}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"the settings file {file} is no valid TOML: {problem}.") from None
    for name in values:
        if name not in ServeSettings.model_fields:
            raise unknown_name(f"setting in {file}", name, ServeSettings.model_fields)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`MELON_PORT=8080` is `port = 8080`. Other variables that begin so belong to other parts of melon."""
    values: dict[str, Any] = {}
    for name, field in ServeSettings.model_fields.items():
        text = environment.get(PREFIX + name.upper())
        # MELON_DATA is where benchmarks look for recorded streams; the folder of the service has a name of its own.
        text = environment.get("MELON_SERVE_DATA") if name == "data" else text
        if text is not None:
            values[name] = _number(text, field.annotation, name)
    return values


def _number(text: str, annotation: Any, name: str) -> Any:
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (ValueError, KeyError):
        raise SettingsError(f"the environment variable {PREFIX}{name.upper()} = {text!r} is not valid.") from None


def _toml(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
