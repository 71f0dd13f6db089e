"""The configuration of one evaluation: recommender, strategy, protocol and budget; its files, and checks of values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import numpy as np

from melon.errors import SettingsError, unknown_name
from melon.fitting.auto import AUTO, RECOMMENDER, STRATEGY
from melon.models.registry import RECOMMENDERS
from melon.strategies.registry import STRATEGIES
from melon.stream.candidates import MODES, NEGATIVES
from melon.stream.split import BATCH_SIZE, DEFAULT_SPLIT, parse_split
from melon.types import Plain

if TYPE_CHECKING:
    from melon.fitting.plan import Plan


#: Trials for each choice.
BUDGET = 8
#: More threads than any machine has use for; far more than this ends the process.
MOST_THREADS = 1_024
#: `off`, `auto` (searched, or learned by the strategy), or a half-life.
HalfLifeChoice = str | float


PretrainMode = Literal["shared", "own"]
SECTIONS = ("strategy", "recommender", "pretrain")
#: Fields that a record leaves out where they are not set, so that records with and without them stand together.
_LEFT_OUT = ("retrain_every", "minutes", "auto")
TABLES = ("settings", "recommender_settings", "pretrain_settings")


@dataclass(frozen=True)
class CellConfig:
    """One cell of a comparison. Settings given here are fixed; what is left open is chosen on the selection window."""

    recommender: str = "bpr"
    strategy: str = "default"
    preset: str = "default"
    pretrain: PretrainMode = "shared"
    seed: int = 0
    epochs: int | None = None
    budget: int = BUDGET
    minutes: float | None = None
    split: tuple[float, float, float] = DEFAULT_SPLIT
    batch_size: int = BATCH_SIZE
    candidates: str = "catalogue"
    negatives: int = NEGATIVES
    lists: bool = True
    retrain_every: int | None = None
    half_life: str | float = "off"
    threads: int = 1
    #: Whether `auto` filled in both names.
    auto: bool | None = None
    settings: Plain = field(default_factory=dict)
    recommender_settings: Plain = field(default_factory=dict)
    pretrain_settings: Plain = field(default_factory=dict)

    def __post_init__(self) -> None:
        RECOMMENDERS[self.recommender]
        STRATEGIES[self.strategy].preset(self.preset)
        check_values(self.__dict__)
        for name in ("negatives", "epochs", "retrain_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} = {value} must be at least 1.")
        if self.pretrain not in get_args(PretrainMode):
            raise unknown_name("way to pre-train", self.pretrain, get_args(PretrainMode))
        if self.candidates not in MODES:
            raise unknown_name("candidate set", self.candidates, MODES)

    @property
    def plan(self) -> Plan:
        """How the cell's model is made."""
        from melon.fitting.plan import EvaluationProtocol, Plan

        return Plan(
            self.recommender,
            self.strategy,
            settings={**STRATEGIES[self.strategy].preset(self.preset), **self.settings},
            recommender_settings=self.recommender_settings,
            pretrain_settings=self.pretrain_settings,
            half_life=self.half_life,
            budget=self.budget,
            epochs=self.epochs,
            minutes=self.minutes,
            protocol=EvaluationProtocol(
                *(self.seed, self.batch_size, self.candidates, self.negatives), self.label is not None
            ),
            threads=self.threads,
        )

    @property
    def label(self) -> str | None:
        """`auto` where nothing was named: how the result is called in tables."""
        return AUTO if self.auto and (self.recommender, self.strategy) == (RECOMMENDER, STRATEGY) else None

    @property
    def fixed(self) -> Plain:
        """Strategy settings that are not searched."""
        return self.plan.fixed()

    def plain(self) -> Plain:
        """JSON-ready, for records."""
        content = {**self.__dict__, "split": list(self.split)}
        return {name: value for name, value in content.items() if value is not None or name not in _LEFT_OUT}


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """An integer, numpy's included."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise SettingsError(f"{name} = {value!r} must be a whole number{bound}.")
    return int(value)


def number(name: str, value: Any) -> float:
    """A number, numpy's included; an integer becomes a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise SettingsError(f"{name} = {value!r} must be a number.")
    return float(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of some words."""
    if not isinstance(value, str) or value not in choices:
        raise SettingsError(f"{name} = {value!r} must be one of: {', '.join(choices)}.")
    return value


def name_or_class(name: str, value: Any) -> str | Callable[..., Any]:
    """The name of something in a registry, or something that is called like its class."""
    if isinstance(value, str):
        return value
    if callable(value):
        factory: Callable[..., Any] = value
        return factory
    raise SettingsError(f"{name} = {value!r} must be a name such as 'auto', or a class.")


def settings_table(name: str, value: Any) -> Mapping[str, Any] | None:
    """Settings by name; numpy's numbers become Python's."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise SettingsError(f"{name} = {value!r} must be a dict from names of settings to values.")
    table = {key: _plain(f"{name}[{key!r}]", setting) for key, setting in value.items()}
    return value if all(table[key] is value[key] for key in value) else table


def check_values(given: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a value outside its range; the same for Python and for the command line."""
    for name, bound in (("batch_size", 1), ("budget", 0), ("epochs", 0), ("seed", 0)):
        if given[name] is not None and given[name] < bound:
            raise SettingsError(f"{name} = {given[name]} must be at least {bound}.")
    threads, minutes, half_life = given["threads"], given["minutes"], given["half_life"]
    if not 1 <= threads <= MOST_THREADS:
        raise SettingsError(f"threads = {threads} must be between 1 and {MOST_THREADS:,}.")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise SettingsError(
            f"minutes = {minutes:g} must be a finite number of more than 0; a large one such as 1e6 sets no limit."
        )
    if isinstance(half_life, str) and half_life not in ("off", "auto"):
        raise SettingsError(f"half_life = {half_life!r} must be off, auto, or a half-life such as 5000.")
    if not isinstance(half_life, str) and not 0 < half_life < float("inf"):
        raise SettingsError(f"half_life = {half_life:g} must be off, auto, or a half-life of more than 0 such as 5000.")


def _plain(name: str, value: Any) -> Any:
    plain = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
    try:
        json.dumps(plain)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{name} = {value!r} is not a plain value ({error}).") from None
    return plain


def parse_assignments(assignments: list[str]) -> dict[str, Plain]:
    """`lr=0.1 recommender.dim=32 pretrain.l2=0.01` by section; a bare key belongs to the strategy."""
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


def parse_half_life(text: str) -> str | float:
    """`off`, `auto`, or a half-life as a number."""
    try:
        return float(text)
    except ValueError:
        return text


def config_from(given: Mapping[str, Any]) -> CellConfig:
    """A configuration from the values of a Python program; numpy's numbers become Python's."""
    # The choices of `pretrain` are checked by the configuration itself, which lists them.
    checked: Plain = {
        name: str(value) if name == "pretrain" else typed(name, value, "") for name, value in given.items()
    }
    return CellConfig(**checked)


def typed(key: str, value: Any, place: str) -> Any:
    """A value as its field of a configuration wants it; `place` is where it comes from, for the error."""
    from pydantic import TypeAdapter, ValidationError

    if key in TABLES:
        value = settings_table(f"{place}{key}", value) or {}
    elif key == "split" and isinstance(value, str):
        value = parse_split(value)
    elif isinstance(value, np.generic):
        value = value.item()
    try:
        return TypeAdapter(get_type_hints(CellConfig)[key]).validate_python(value)
    except ValidationError as error:
        raise SettingsError(f"{place}{key} = {value!r} cannot be used: {error.errors()[0]['msg']}.") from None


#: How a TOML file says that a setting has no value; JSON has a word for it.
NO_VALUE = "null"
#: Fields of the protocol that the file names where they are not the default.
_NAMED = ("preset", "pretrain", "half_life", "batch_size", "candidates", "negatives", "epochs", "budget")


def read_config(path: Path) -> Plain:
    """A TOML or JSON file of `CellConfig` fields; a result's own `config.asked` is one too."""
    try:
        text = path.read_text(encoding="utf-8")
        content: Plain = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as problem:
        raise SettingsError(f"the config file {path} cannot be read: {problem.strerror}.") from None
    except (ValueError, RecursionError) as problem:
        raise SettingsError(
            f"the config file {path} is not valid {path.suffix.lstrip('.') or 'JSON'}: {problem}."
        ) from None
    if not isinstance(content, dict):
        raise SettingsError(f"the config file {path} must hold a table of settings.")
    names = {field.name for field in fields(CellConfig)}
    for key in list(content):
        if key not in names:
            raise unknown_name(f"key in {path}", key, names)
        content[key] = typed(key, content[key], f"{path}: ")
        if key in TABLES:
            content[key] = {name: None if value == NO_VALUE else value for name, value in content[key].items()}
    return content


def config_text(record: Plain) -> str:
    """A result's settings as TOML, for `--config`: what was asked for, and what was chosen for its strategy."""
    asked, chosen, dataset = record["config"]["asked"], record["config"]["chosen"], record["dataset"]
    strategy, choice = record["strategy"], chosen[record["strategy"]]
    usual = {field.name: field.default for field in fields(CellConfig)}
    top = {name: asked[name] for name in ("recommender", "strategy", "split")}
    top |= {name: asked[name] for name in _NAMED if name in asked and asked[name] != usual[name]}
    sections = {
        "settings": choice["settings"],
        "recommender_settings": asked["recommender_settings"],
        "pretrain_settings": {**asked["pretrain_settings"], **chosen["pretrain"]["settings"]},
    }
    measure = "NDCG@10 by lists" if record.get("label") == AUTO else "HR@5 + NDCG@10"
    score = "no trial" if choice.get("score") is None else f"{measure} {choice['score']:.4f} before the test part"
    lines = [
        f"# {strategy}: {score}, {len(choice['trials'])} trials, seed {record['seed']}; melon {record['version']}",
        f"# {Path(dataset['path']).stem}: {dataset['interactions']:,} interactions, sha256 {dataset['sha256']}",
        *(f"{name} = {toml(value)}" for name, value in top.items()),
    ]
    for name, table in sections.items():
        if table:
            lines += ["", f"[{name}]", *(f"{key} = {toml(value)}" for key, value in sorted(table.items()))]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A setting as TOML writes it; no value at all is the word that `read_config` knows."""
    if value is None:
        return json.dumps(NO_VALUE)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
