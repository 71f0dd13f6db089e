"""What one evaluation is told: stream, recommender, strategy, protocol and budget."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from melon.errors import SettingsError, unknown_name
from melon.recommenders.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import MODES, NEGATIVES
from melon.stream.split import BATCH_SIZE, DEFAULT_SPLIT
from melon.types import Plain

PretrainMode = Literal["shared", "own"]
DEFAULT_BUDGET = 8
SECTIONS = ("strategy", "recommender", "pretrain")
_TRACELESS = ("retrain_every", "minutes")
_TABLES = ("settings", "recommender_settings", "pretrain_settings")
#: How a TOML file says that a setting has no value; JSON has a word for it.
NO_VALUE = "null"


@dataclass(frozen=True)
class CellConfig:
    """One cell of a comparison. Settings given here are fixed; what is left open is chosen on the selection window."""

    recommender: str = "bpr"
    strategy: str = "default"
    preset: str = "default"
    pretrain: PretrainMode = "shared"
    seed: int = 0
    epochs: int | None = None
    budget: int = DEFAULT_BUDGET
    minutes: float | None = None
    split: tuple[float, float, float] = DEFAULT_SPLIT
    batch_size: int = BATCH_SIZE
    candidates: str = "catalogue"
    negatives: int = NEGATIVES
    align_ties: bool = False
    full_ranking: bool = False
    retrain_every: int | None = None
    fading: str | float = "off"
    threads: int = 1
    device: str = "cpu"
    settings: Plain = field(default_factory=dict)
    recommender_settings: Plain = field(default_factory=dict)
    pretrain_settings: Plain = field(default_factory=dict)

    def __post_init__(self) -> None:
        RECOMMENDERS[self.recommender]
        STRATEGIES[self.strategy].preset(self.preset)
        for name, least in (("batch_size", 1), ("negatives", 1), ("budget", 1), ("threads", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} = {getattr(self, name)} will not do: it must be at least {least}.")
        if self.epochs is not None and self.epochs < 1:
            raise SettingsError(f"epochs = {self.epochs} will not do: it must be at least 1.")
        if self.retrain_every is not None and self.retrain_every < 1:
            raise SettingsError(f"retrain_every = {self.retrain_every} will not do: it must be at least 1.")
        if self.minutes is not None and not self.minutes > 0:
            raise SettingsError(f"minutes = {self.minutes:g} will not do: it must be more than 0.")
        if self.pretrain not in get_args(PretrainMode):
            raise unknown_name("way to pre-train", self.pretrain, get_args(PretrainMode))
        if isinstance(self.fading, str) and self.fading not in ("off", "auto"):
            raise SettingsError(f"fading = {self.fading!r} will not do: give off, auto, or a half-life such as 5000.")
        if self.candidates not in MODES:
            raise unknown_name("candidate set", self.candidates, MODES)

    @property
    def fixed(self) -> Plain:
        """Strategy settings that are not searched."""
        return {**self.fixed_fading(self.strategy), **STRATEGIES[self.strategy].preset(self.preset), **self.settings}

    def fixed_fading(self, strategy: str) -> Plain:
        """What is settled about fading for a strategy: nothing where it is to be chosen, or unknown to it."""
        if self.fading == "auto" or "fading" not in STRATEGIES[strategy].load().settings_type.model_fields:
            return {}
        return {"fading": None if self.fading == "off" else self.fading}

    def plain(self) -> Plain:
        """JSON-ready, for records."""
        told = {**self.__dict__, "split": list(self.split)}
        # What was not asked for leaves no trace, so that records with and without it stand together.
        return {name: value for name, value in told.items() if value is not None or name not in _TRACELESS}


def parse_assignments(assignments: list[str]) -> dict[str, Plain]:
    """`lr=0.1 recommender.dim=32 pretrain.l2=0.01` by section; a bare key belongs to the strategy."""
    import json

    sections: dict[str, Plain] = {section: {} for section in SECTIONS}
    for text in assignments:
        key, equals, value = text.partition("=")
        section, dot, name = key.partition(".")
        if not dot:
            section, name = "strategy", key
        if not equals or not name or section not in sections:
            raise SettingsError(
                f"--set {text!r} must look like key=value, with key one of the strategy's settings or "
                "recommender.KEY or pretrain.KEY."
            )
        try:
            sections[section][name] = json.loads(value)
        except json.JSONDecodeError:
            sections[section][name] = value
    return sections


def parse_fading(text: str) -> str | float:
    """`off`, `auto`, or a half-life as a number."""
    try:
        return float(text)
    except ValueError:
        return text


def read_config(path: Path) -> Plain:
    """A TOML or JSON file of `CellConfig` fields; a result's own `config.asked` is one too."""
    import json
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        found: Plain = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as problem:
        raise SettingsError(f"the config file {path} cannot be read: {problem.strerror}.") from None
    except ValueError as problem:
        raise SettingsError(
            f"the config file {path} is not valid {path.suffix.lstrip('.') or 'JSON'}: {problem}."
        ) from None
    if not isinstance(found, dict):
        raise SettingsError(f"the config file {path} must hold a table of settings.")
    known = {each.name for each in fields(CellConfig)}
    for key in found:
        if key not in known:
            raise unknown_name(f"key in {path}", key, known)
        found[key] = _typed(key, found[key], path)
        if key in _TABLES:
            found[key] = {name: None if value == NO_VALUE else value for name, value in found[key].items()}
    return found


def _typed(key: str, value: Any, path: Path) -> Any:
    """A value from a file as its field wants it."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(get_type_hints(CellConfig)[key]).validate_python(value)
    except ValidationError as error:
        raise SettingsError(f"{path}: {key} = {value!r} will not do: {error.errors()[0]['msg']}.") from None
