"""Work that is done once: shared by cells of one stream, and kept on disk so that a stopped run can go on."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor

from melon.atomic import cannot_write, replacing, write_text
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import Ranks
from melon.fitting.pretrained import Practice, PretrainedState

Made = TypeVar("Made")
Arrays = dict[str, np.ndarray[Any, Any]]


class Keeper(Protocol[Made]):
    """How one kind of result goes to disk and comes back."""

    suffix: str

    def write(self, made: Made, path: Path) -> None:
        """To disk, in one step."""

    def read(self, path: Path) -> Made:
        """And back."""


class PlainKeeper:
    """Choices: JSON."""

    suffix = ".json"

    def write(self, made: dict[str, Any], path: Path) -> None:
        write_text(path, json.dumps(made))

    def read(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


class StateKeeper:
    """Pre-trained recommenders: safetensors."""

    suffix = ".safetensors"

    def __init__(self, rebuild: Callable[[Mapping[str, dict[str, Tensor]]], PretrainedState]) -> None:
        self._rebuild = rebuild

    def write(self, made: PretrainedState, path: Path) -> None:
        _save(
            {f"{table}/{part}": t.cpu().numpy() for table, state in made.tables.items() for part, t in state.items()},
            path,
        )

    def read(self, path: Path) -> PretrainedState:
        tables: dict[str, dict[str, Tensor]] = {}
        for name, array in load_file(path).items():
            table, _, part = name.rpartition("/")
            tables.setdefault(table, {})[part] = torch.from_numpy(array)
        return self._rebuild(tables)


class PracticeKeeper:
    """What a strategy takes along from the selection window: safetensors."""

    suffix = ".safetensors"

    def write(self, made: Practice, path: Path) -> None:
        _save({name: tensor.detach().cpu().numpy() for name, tensor in made.items()}, path)

    def read(self, path: Path) -> Practice:
        return {name: torch.from_numpy(array) for name, array in load_file(path).items()}


class TallyKeeper:
    """Evaluated streams: safetensors, the batches laid end to end."""

    suffix = ".safetensors"

    def write(self, made: Tally, path: Path) -> None:
        points = made.points
        arrays: Arrays = {
            "bounds": np.array([(p.start, p.stop, len(p.ranks)) for p in points], dtype=np.int64).reshape(-1, 3),
            "costs": np.array([(p.loss, p.score_ms, p.update_ms, p.moved) for p in points]).reshape(-1, 4),
            "usable": np.concatenate([p.usable for p in points]),
            "rank": made.rank,
            "ties": made.ties.astype(np.int64),
        }
        if made.full_rank is not None:
            arrays["full_rank"] = made.full_rank
            arrays["full_ties"] = np.concatenate([p.full_ranks.ties for p in points if p.full_ranks])
        _save(arrays, path)

    def read(self, path: Path) -> Tally:
        arrays, tally = load_file(path), Tally()
        events = ranks = 0
        for (start, stop, size), (loss, score_ms, update_ms, moved) in zip(
            arrays["bounds"].tolist(), arrays["costs"].tolist(), strict=True
        ):
            here = slice(ranks, ranks + size)
            full = Ranks(arrays["full_rank"][here], arrays["full_ties"][here]) if "full_rank" in arrays else None
            usable = arrays["usable"][events : events + stop - start]
            own = Ranks(arrays["rank"][here], arrays["ties"][here])
            tally.add(Point(start, stop, usable, own, full, loss, score_ms, update_ms, moved))
            events, ranks = events + stop - start, ranks + size
        return tally


class Work:
    """Remembers what was made under each name; with a folder, also across processes.

    What a `base` folder holds is taken from there; nothing is written to it.
    """

    def __init__(self, folder: Path | None = None, base: Path | None = None) -> None:
        self._made: dict[str, Any] = {}
        self._folder, self._base = folder, base
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise cannot_write(folder, problem) from problem

    def once(self, name: str, keeper: Keeper[Made], make: Callable[[], Made]) -> Made:
        """What `make` gives, made the first time only."""
        if self.known(name, keeper) is None:
            self._made[name] = made = make()
            if self._folder is not None:
                keeper.write(made, self._folder / (name.replace("/", "-") + keeper.suffix))
        found: Made = self._made[name]
        return found

    def known(self, name: str, keeper: Keeper[Made]) -> Made | None:
        """What was made under a name before, if anything was."""
        if name not in self._made:
            file = name.replace("/", "-") + keeper.suffix
            for there in (self._folder, self._base):
                if there is not None and (there / file).exists():
                    self._made[name] = keeper.read(there / file)
                    break
        return self._made.get(name)

    def forget(self) -> None:
        """Remove the folder; the work is complete."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def work_folder(beside: Path | None, log: Interactions, asked: Mapping[str, Any]) -> Path:
    """Where the work of one command is kept: beside its result, or in the folder for temporary files."""
    import tempfile

    told = json.dumps(asked, sort_keys=True, default=str)
    key = hashlib.sha256(f"{log.identity} {told}".encode()).hexdigest()[:16]
    if beside is not None:
        return beside.with_suffix(f".{key}.progress")
    return Path(tempfile.gettempdir()) / f"melon-{key}.progress"


def _save(arrays: Arrays, path: Path) -> None:
    try:
        with replacing(path) as unfinished:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, unfinished)
    except SafetensorError as problem:
        raise DataError(f"{path} cannot be written: {problem}.") from problem
