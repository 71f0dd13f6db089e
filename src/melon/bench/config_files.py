"""Config files: read as options, written by a tuning with their origin in comments, and sorted to cells of a bench."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from melon.bench.config import TABLES, CellConfig, typed
from melon.data.files import load_stream
from melon.errors import SettingsError, unknown_name
from melon.types import Plain

#: How a TOML file says that a setting has no value; JSON has a word for it.
NO_VALUE = "null"
#: What a file in a folder says of its own cells alone. The rest is shared by all cells of its stream and recommender.
_OWN = ("strategy", "settings", "preset")
#: What the bench itself says.
_OURS = ("recommender", "seed", "budget", "threads", "device", "full_ranking")
#: Fields of the protocol that the file names where they are not the default.
_NAMED = ("preset", "pretrain", "fading", "batch_size", "candidates", "negatives", "align_ties")


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


def command(stream: str, config: CellConfig, more: Sequence[str]) -> str:
    """The command in full: every option that is not the default, and none that only concerns the machine."""
    words = ["melon", "tune", stream, "--recommender", config.recommender, "--strategy", config.strategy, *more]
    usual = {field.name: field.default for field in fields(CellConfig)}
    for name in ("preset", "pretrain", "fading", "batch_size", "candidates", "negatives", "epochs", "seed", "threads"):
        value = getattr(config, name)
        if value != usual[name]:
            words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    if config.split != usual["split"]:
        words += ["--split", ",".join(f"{share:g}" for share in config.split)]
    if config.align_ties:
        words.append("--align-ties")
    for section, settings in (
        ("", config.settings),
        ("recommender.", config.recommender_settings),
        ("pretrain.", config.pretrain_settings),
    ):
        words += [word for name, value in settings.items() for word in ("--set", f"{section}{name}={_json(value)}")]
    return shlex.join(words)


def config_text(config: CellConfig, settings: Plain, pretraining: Plain, trials: int, comments: Sequence[str]) -> str:
    """TOML. The budget is the number of trials, so that an evaluation gives its baselines as many."""
    usual = {field.name: field.default for field in fields(CellConfig)}
    top: Plain = {"recommender": config.recommender, "strategy": config.strategy, "split": list(config.split)}
    top |= {name: getattr(config, name) for name in _NAMED if getattr(config, name) != usual[name]}
    top["budget"] = trials
    sections = {
        "settings": settings,
        "recommender_settings": config.recommender_settings,
        "pretrain_settings": {**config.pretrain_settings, **pretraining},
    }
    lines = [f"# {comment}".rstrip() for comment in comments] + [
        f"{name} = {toml(value)}" for name, value in top.items()
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


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class TunedFile:
    """A file about cells of one strategy: on every stream, or, from a folder, on the stream that its name tells."""

    path: Path
    options: Plain
    stream: str | None = None

    def is_for(self, stream: str, config: CellConfig) -> bool:
        """Whether it is about this very cell."""
        return self.stream in (None, stream) and all(
            self.options.get(name, getattr(config, name)) == getattr(config, name)
            for name in ("strategy", "recommender")
        )

    @property
    def shared(self) -> Plain:
        """What holds for every cell of its stream and recommender: pre-training and protocol."""
        return {name: value for name, value in self.options.items() if name not in (*_OWN, *_OURS)}


class Tuned:
    """All config files of a bench that are for some cells only."""

    def __init__(self, files: Sequence[TunedFile] = ()) -> None:
        self._files = files
        for one, other in itertools.pairwise(sorted(files, key=_group)):
            if one.stream is not None and _group(one) == _group(other) and one.shared != other.shared:
                differing = [
                    name for name in {**one.shared, **other.shared} if one.shared.get(name) != other.shared.get(name)
                ]
                raise SettingsError(
                    f"{one.path} and {other.path} differ in {', '.join(differing)}, which the cells of a stream and "
                    "recommender share. Tune both with the same options, or make them agree."
                )

    def apply(self, stream: str, config: CellConfig, given: Collection[str]) -> CellConfig:
        """A cell's config with what the files say of it; what was `given` on the command line stays."""
        for file in self._files:
            if file.stream is None:
                if file.is_for(stream, config):
                    config = replace(
                        config,
                        **{k: v for k, v in file.options.items() if k not in ("strategy", "recommender", "seed")},
                    )
            elif _group(file) == (stream, config.recommender):
                config = replace(config, **{name: v for name, v in file.shared.items() if name not in given})
                if file.is_for(stream, config):
                    own = {name: file.options[name] for name in ("preset", "settings") if name in file.options}
                    config = replace(config, **own)
        return config


def read_tuned(paths: Sequence[Path], streams: Mapping[str, Path]) -> tuple[Plain, Tuned]:
    """Options for every cell, and the files that are for some: they name a strategy, or stand in a folder."""
    general: Plain = {}
    files: list[TunedFile] = []
    for path in paths:
        if path.is_dir():
            files += _folder(path, streams)
            continue
        options = read_config(path)
        if "strategy" in options:
            files.append(TunedFile(path, options))
        else:
            general |= options
    return general, Tuned(files)


def files_about(folder: Path, streams: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """The files of a folder that are about these streams, by their names."""
    named = [(path.stem.rpartition("-")[0].rpartition("-")[0], path) for path in sorted(folder.glob("*.toml"))]
    return [(stream, path) for stream, path in named if stream in streams]


def tuned_elsewhere(path: Path, sha256: str) -> bool:
    """Whether the comments on top of a file name another stream; one without them is taken at its word."""
    head = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    named = re.findall(r"sha256 ([0-9a-f]{64})", "\n".join(head))
    return bool(named) and sha256 not in named


def trials_behind(path: Path) -> int:
    """How many trials a tuned file tells of: fewer than were asked for where its tuning was stopped."""
    counts = re.search(
        r"^# trials: (\d+) done, (\d+) stopped early, (\d+) failed", path.read_text(encoding="utf-8"), re.M
    )
    return sum(map(int, counts.groups())) if counts else 0


def _folder(folder: Path, streams: Mapping[str, Path]) -> list[TunedFile]:
    """`STREAM-RECOMMENDER-STRATEGY.toml` for each cell; files about other streams are left alone."""
    files, fingerprint = [], cache(lambda stream: load_stream(streams[stream]).sha256)
    for stream, path in files_about(folder, streams):
        options = read_config(path)
        says = f"{stream}-{options.get('recommender')}-{options.get('strategy')}"
        if says != path.stem:
            raise SettingsError(f"{path} is about {says}; a file in a folder of configs is named after its cell.")
        if tuned_elsewhere(path, fingerprint(stream)):
            raise SettingsError(
                f"{path} was tuned on another stream named {stream!r}; tune it again, or remove it from the folder."
            )
        files.append(TunedFile(path, options, stream))
    if not files:
        names = ", ".join(streams)
        raise SettingsError(
            f"{folder} has no config for any of: {names}. Files there are named STREAM-RECOMMENDER-STRATEGY.toml."
        )
    return files


def _group(file: TunedFile) -> tuple[str, str]:
    return file.stream or "", str(file.options.get("recommender", ""))
