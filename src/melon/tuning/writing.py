"""The file that a tuning writes: a config for `evaluate`, `bench` and `pretrain`, with its origin in comments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from melon.bench.config import NO_VALUE, CellConfig
from melon.types import Plain

#: Fields of the protocol that the file names where they are not the default.
_NAMED = ("preset", "pretrain", "fading", "batch_size", "candidates", "negatives", "align_ties")


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
