"""Config files in a bench: which cells each is for, and the options that it gives them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from melon.bench.config import CellConfig, read_config
from melon.data.files import load_stream
from melon.errors import SettingsError
from melon.types import Plain

#: What a file in a folder says of its own cells alone. The rest is shared by all cells of its stream and recommender.
_OWN = ("strategy", "settings", "preset")
#: What the bench itself says.
_OURS = ("recommender", "seed", "budget", "threads", "device", "full_ranking")


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
