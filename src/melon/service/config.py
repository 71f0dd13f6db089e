"""Settings of the service: one class, set by a TOML file, environment variables `MELON_SERVE_*` and flags."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict

from melon.errors import SettingsError, unknown_name
from melon.fitting.config import BUDGET
from melon.settings import Settings
from melon.stream.proven import ITEM_USERS

PREFIX = "MELON_SERVE_"
#: Addresses that only this machine can reach.
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

#: Limits of one request; they are part of the API and no settings.
MOST_EVENTS = 10_000
MOST_USERS = 500
MOST_K = 1_000
MOST_CANDIDATES = 10_000
MOST_DEPTH, MOST_VALUES = 16, 100_000
#: Work of one request for lists (see `work_of`), at most; and what is charged to its key as one request.
MOST_WORK, WORK_OF_A_REQUEST = 50_000, 100
#: Items of a list with diversity (each is compared with all that wait), or with caps, at most.
MOST_DIVERSE, MOST_CAPPED = 100, 250
MOST_ID_BYTES = 256
#: A clock may be ahead of ours by this many seconds.
MOST_AHEAD_S = 300

#: What an event is for: it is learned; it hides the item from this user's lists; it is only stored.
Use = Literal["learn", "hide", "store"]
USES: tuple[Use, ...] = ("learn", "hide", "store")
Names = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.:-]+$")], ...], NoDecode]
Challengers = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=500)], ...], NoDecode]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


#: What the tenants of a service have in common, because they share one port.
OF_SERVICE = ("host", "port", "tls_cert", "tls_key", "connections", "header_s", "body_rate", "stop_s")
_TENANT = re.compile(r"[a-z][a-z0-9_]{0,31}")
#: Names that a comparison has already, and the form of others.
FORMER = "former"
COMPARED = ("served", "popular", "frozen", "own", FORMER)
_CHALLENGER = re.compile(r"[a-z][a-z0-9_-]{0,31}")


class ServeSettings(Settings, BaseSettings):
    """Everything that `melon serve` can be set to: the HTTP process, the log and the learner."""

    model_config = SettingsConfigDict(env_prefix=PREFIX)

    model: Path | None = Field(None, description="The folder of the model to start from; without one it starts cold.")
    data: Path | None = Field(None, description="The folder of the log and of checkpoints (default: MODEL.live).")
    log: SecretStr | None = Field(
        None, description="postgresql://…: a database for the log, shared by processes on any machine."
    )
    host: str = Field("127.0.0.1", description="The address to listen on; all except loopback need keys.")
    port: Annotated[int, Field(ge=0, le=65_535)] = Field(8000, description="The port; 0 takes a free one.")
    tls_cert: Path | None = Field(None, description="A certificate (PEM), if there is no proxy for TLS.")
    tls_key: Path | None = Field(None, description="The private key of the certificate.")
    keys: Path | None = Field(None, description="The file of API keys (default: keys.json in the data folder).")

    learn: Names = Field(("view", "click", "buy"), description="Event types that are learned.")
    hide: Names = Field(("dislike", "owned"), description="Event types that hide the item from the user's lists.")
    store: Names = Field(("impression",), description="Event types that are stored only.")

    gorse: bool = Field(False, description="Also answer the clients of Gorse under /api.")
    segment: bool = Field(False, description="Also accept the clients of Segment and RudderStack.")

    batch_most: Annotated[int, Field(ge=1, le=10_000)] = Field(256, description="Events in a batch, at most.")
    batch_every_ms: NotNegative = Field(20.0, description="Milliseconds between two batches, at least.")
    checkpoint_s: Positive = Field(60.0, description="Seconds between two checkpoints, at most.")
    checkpoint_events: AtLeastOne = Field(50_000, description="Events between two checkpoints, at most.")
    keep_deltas_s: Positive = Field(600.0, description="Seconds for which deltas are kept for API processes.")
    keep_deltas_bytes: AtLeastOne = Field(256 << 20, description="Bytes of deltas that are kept, at most.")
    threads: AtLeastOne = Field(1, description="Threads of the learner; recorded with the log, replays need the same.")
    seed: Whole = Field(0, description="The root of everything random.")
    max_pairs: Whole = Field(0, description="Pairs that a new service remembers as seen; 0: all.")
    fit_after: Whole = Field(20_000, description="Events after which a cold start fits a model on its log; 0: never.")
    fit_minutes: Positive = Field(10.0, description="Minutes for choosing settings in this fit.")
    fit_budget: Whole = Field(BUDGET, description="Trials for each choice in this fit.")

    challengers: Challengers = Field((), description="Models that learn beside the served one: NAME=MODEL, ….")
    split: Challengers = Field((), description="Shares of users who get a challenger's lists: NAME=10%, ….")

    negatives: Whole = Field(99, description="Candidates beside the item taken in quality; 0: no measurement.")
    frozen: bool = Field(True, description="Also measure the model as deployed; takes its memory once more.")
    quality_s: Positive = Field(3600.0, description="Seconds of organic events on which baselines are compared.")
    quality_events: AtLeastOne = Field(1_000, description="Events that this comparison needs, at least.")
    guard: NotNegative = Field(20.0, description="A batch that moves rows this many times the median is quarantined.")
    stop_after: Whole = Field(10, description="Batches quarantined in a row after which learning stops; 0: never.")
    resume_s: Positive = Field(600.0, description="Seconds after which stopped learning continues in small batches.")
    user_most: AtLeastOne = Field(64, description="Events of one user in a batch, at most.")
    item_users: Whole = Field(ITEM_USERS, description="Users that an item without facts needs before others see it.")
    webhooks: Challengers = Field((), description="Addresses (https://…) to which alarms are posted, with a signature.")
    webhook_secret: Path | None = Field(None, description="The file with the secret that signs them.")
    webhook_private: bool = Field(False, description="Allow webhooks to private networks and this machine.")
    max_lag: Whole = Field(20_000, description="Log entries that the learner may be behind without an alarm.")

    dedup_days: NotNegative = Field(30.0, description="Days for which event ids are remembered.")
    keep_events: Whole = Field(0, description="Events to keep beside those whose ids are remembered; 0: all.")
    keep_days: NotNegative = Field(0.0, description="Days for which the log keeps events; 0: for ever.")
    reserve_bytes: Whole = Field(16 << 20, description="Bytes reserved on disk, freed when the disk is full.")
    body_most: Annotated[int, Field(ge=1024)] = Field(4 << 20, description="Bytes of a request's body, at most.")
    queue_events: AtLeastOne = Field(50_000, description="Events that may wait for the disk before posts get 429.")
    queue_lists: AtLeastOne = Field(512, description="Lists that may wait for scoring before requests get 503.")
    connections: AtLeastOne = Field(1_000, description="Open connections, at most.")
    header_s: Positive = Field(10.0, description="Seconds a client may take for a request's headers.")
    body_rate: Positive = Field(1024.0, description="Bytes per second of a body, at least.")
    rate: Annotated[float, Field(ge=0)] = Field(0.0, description="Requests per second and key; 0: no limit.")
    burst: AtLeastOne = Field(200, description="Requests that a key may make at once.")
    hung_s: Positive = Field(60.0, description="Seconds without a report until a restart; learner: ten times.")
    stop_s: Positive = Field(10.0, description="Seconds for open requests when the service stops.")
    served_most: AtLeastOne = Field(
        100_000, description="Lists remembered for rotation and for what was taken from them."
    )
    log_ids: bool = Field(False, description="Write ids into the service's log lines instead of their hashes.")

    @field_validator("learn", "hide", "store", "challengers", "split", "webhooks", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(one.strip() for one in value.split(",") if one.strip()) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, init_settings: Any, *others: Any, **more: Any) -> Any:  # noqa: ARG003
        """Values as they are given; `read_settings` adds a file and the environment."""
        return (init_settings,)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        types = [*self.learn, *self.hide, *self.store]
        twice = sorted({name for name in types if types.count(name) > 1})
        if twice:
            raise ValueError(f"the event type {twice[0]!r} is named twice in learn, hide and store")
        if not self.learn:
            raise ValueError("no event type is learned; name at least one in learn")
        for address in self.webhooks:
            if not re.fullmatch(r"https?://[^/@?#\s]+(/[^\s#]*)?", address):
                raise ValueError(f"webhook {address!r} is not an address such as https://ops.example.org/melon")
        if self.webhooks and self.webhook_secret is None:
            raise ValueError("webhooks are signed; name the file of their secret with webhook_secret")
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

    def challenger_models(self) -> dict[str, str]:
        """The model of each challenger by its name."""
        models: dict[str, str] = {}
        for text in self.challengers:
            name, _, model = text.partition("=")
            if not _CHALLENGER.fullmatch(name) or not model or name in models or name in COMPARED:
                raise SettingsError(
                    f"challenger {text!r} is not NAME=MODEL with another name: lower-case letters and digits, none of "
                    f"{', '.join(COMPARED)}. MODEL is the folder of a model, or RECOMMENDER/STRATEGY (bpr/melon)."
                )
            models[name] = model
        return models

    def shares(self) -> dict[str, float]:
        """The share of users who get the lists of a challenger, by its name."""
        shares: dict[str, float] = {}
        for text in self.split:
            name, _, share = text.partition("=")
            try:
                shares[name] = float(share.removesuffix("%")) / 100
            except ValueError:
                shares[name] = math.nan
            if name not in self.challenger_models() or not 0 < sum(shares.values()) < 1 or not shares[name] > 0:
                raise SettingsError(
                    f"split {text!r} is not NAME=10% of a challenger of that name, with less than 100 % in all."
                )
        return shares

    def uses(self) -> dict[str, Use]:
        """What is done with each event type."""
        return {name: use for use in USES for name in getattr(self, use)}

    def toml(self, common: ServeSettings | None = None) -> str:
        """The settings as a file that `read_settings` reads back; an address that may hold a password is left out.

        With `common`, what differs from those settings of all tenants.
        """
        lines = []
        known = {} if common is None else common.plain()
        for name, value in self.plain().items():
            if name in known and known[name] == value:
                continue
            about = str(type(self).model_fields[name].description)
            lines += [
                f"# {about}",
                f"# {name} ="
                if value is None or name == "log"
                else f"{name} = {json.dumps(value, ensure_ascii=False)}",
            ]
        return "\n".join(lines) + "\n"


def read_settings(file: Path | None, flags: Mapping[str, Any]) -> ServeSettings:
    """Settings from a file, overridden by the environment, overridden by flags (those that are not None)."""
    values, tenants = _given(file, flags)
    if tenants:
        raise SettingsError(
            f"{file} has tenants ({', '.join(tenants)}); only melon serve takes them. Name one tenant's folder with "
            "--data, or its database with --log."
        )
    return ServeSettings.parse(values, "melon serve")


def read_service(file: Path | None, flags: Mapping[str, Any]) -> tuple[ServeSettings, dict[str, ServeSettings]]:
    """The same for a service that may have tenants: sections `[tenants.NAME]`, each with settings of its own.

    What is said outside of the sections holds for each tenant that says nothing else. Each has a folder of its own in
    the service's folder; where the service has a database, each has a schema of its own in it.
    """
    values, sections = _given(file, flags)
    service = ServeSettings.parse(values, "melon serve")
    if sections and service.keys is not None:
        raise SettingsError("keys: each tenant has its own; name a file in its section, or none at all.")
    tenants: dict[str, ServeSettings] = {}
    for name, section in sections.items():
        if not _TENANT.fullmatch(name) or not isinstance(section, dict):
            raise SettingsError(f"[tenants.{name}] in {file}: a tenant's name has lower-case letters, digits and _.")
        for shared in OF_SERVICE:
            if shared in section:
                raise SettingsError(f"[tenants.{name}] in {file}: {shared} belongs to the whole service; set it above.")
        own: dict[str, Any] = {"data": service.folder / name}
        if service.log is not None:
            own["log"] = _schema_of_its_own(service.log.get_secret_value(), name)
        tenants[name] = ServeSettings.parse({**values, **own, **section}, f"tenant {name}")
    for what in ("folder", "log"):
        places: dict[Any, str] = {}
        for name, tenant in tenants.items():
            place = getattr(tenant, what)
            if place is not None and places.setdefault(place, name) != name:
                raise SettingsError(f"tenants {places[place]} and {name} have the same {what}; give each its own.")
    return service, tenants


def _schema_of_its_own(url: str, name: str) -> str:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    query["schema"] = f"{query.get('schema', 'melon')}_{name}"
    return urlunsplit(parts._replace(query=urlencode(query)))


def _given(file: Path | None, flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values from file, environment and flags, and the file's sections of tenants."""
    values = {} if file is None else _from_file(file)
    tenants = values.pop("tenants", {})
    for name in os.environ:
        _check_variable(name)
    values |= EnvSettingsSource(ServeSettings)()
    values |= {name: value for name, value in flags.items() if value is not None}
    return values, tenants


def _from_file(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise SettingsError(f"the settings file {file} cannot be read: {problem.strerror or problem}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"the settings file {file} is not valid TOML: {problem}.") from None
    for name in values:
        if name not in ServeSettings.model_fields and name != "tenants":
            raise unknown_name(f"setting in {file}", name, ServeSettings.model_fields)
    return values


def _check_variable(name: str) -> None:
    """Refuse a variable that looks like a setting of the service and is none."""
    known = [PREFIX + field.upper() for field in ServeSettings.model_fields]
    if name.startswith(PREFIX) and name not in known:
        raise unknown_name("environment variable", name, known)
    renamed = PREFIX + name.removeprefix("MELON_")
    if renamed in known and name not in ("MELON_DATA", "MELON_SEED"):  # benchmarks and tests have these
        raise SettingsError(f"the environment variable {name} is called {renamed}.")
