"""Work that is done once: shared by cells of one stream, and kept on disk so that a stopped run can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from melon.atomic import cannot_write, replacing, write_text
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation.lists import TRACKS, BatchLists, TrackLists
from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import Ranks
from melon.fitting.fit import Memo
from melon.fitting.plan import Plan
from melon.fitting.pretrained import LogStates, MetaParameters, PretrainedState, ReportText, silent
from melon.types import AnyArray, Arrays, Plain

_Result = TypeVar("_Result")
#: What reading a file raises that is empty, cut short or not the kind it should be.
_BROKEN = (ValueError, KeyError, TypeError, IndexError, SafetensorError)


class Keeper(Protocol[_Result]):
    """How one kind of result is written to a file and read back."""

    suffix: str

    def write(self, result: _Result, path: Path) -> None:
        """Write the file in one step."""

    def read(self, path: Path) -> _Result:
        """Read it back."""


class PlainKeeper:
    """Choices: JSON."""

    suffix = ".json"

    def write(self, result: Plain, path: Path) -> None:
        write_text(path, json.dumps(result))

    def read(self, path: Path) -> Plain:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise TypeError(f"{path} holds no JSON object")
        return content


class StateKeeper:
    """Pre-trained recommenders: safetensors."""

    suffix = ".safetensors"

    def __init__(self, rebuild: Callable[[Mapping[str, dict[str, AnyArray]]], PretrainedState]) -> None:
        self._rebuild = rebuild

    def write(self, result: PretrainedState, path: Path) -> None:
        _save(
            {f"{table}/{part}": held for table, state in result.tables.items() for part, held in state.items()},
            path,
        )

    def read(self, path: Path) -> PretrainedState:
        tables: dict[str, dict[str, AnyArray]] = {}
        for name, array in load_file(path).items():
            table, _, part = name.rpartition("/")
            tables.setdefault(table, {})[part] = array
        return self._rebuild(tables)


class MetaTrainingKeeper:
    """Meta-parameters trained on the selection window: safetensors."""

    suffix = ".safetensors"

    def write(self, result: MetaParameters, path: Path) -> None:
        _save(result, path)

    def read(self, path: Path) -> MetaParameters:
        return load_file(path)


class TallyKeeper:
    """Evaluated streams: safetensors, the batches laid end to end."""

    suffix = ".safetensors"

    def write(self, result: Tally, path: Path) -> None:
        points = result.points
        arrays: Arrays = {
            "bounds": np.array([(p.start, p.stop, len(p.ranks)) for p in points], dtype=np.int64).reshape(-1, 3),
            "costs": np.array([(p.loss, p.score_ms, p.update_ms, p.moved) for p in points]).reshape(-1, 4),
            "usable": np.concatenate([p.usable for p in points]),
            "rank": result.rank,
            "ties": result.ties.astype(np.int64),
        }
        if result.lists:
            arrays["known"] = np.array([lists.known for lists in result.lists])
            arrays["listable"] = np.concatenate([lists.listable for lists in result.lists])
            for track in TRACKS:
                tracks = [lists.tracks[track] for lists in result.lists]
                arrays[f"{track}/rank"] = np.concatenate([each.rank for each in tracks])
                arrays[f"{track}/listed"] = np.concatenate([each.listed for each in tracks])
        _save(arrays, path)

    def read(self, path: Path) -> Tally:
        arrays, tally = load_file(path), Tally()
        events = ranks = 0
        for number, ((start, stop, size), (loss, score_ms, update_ms, moved)) in enumerate(
            zip(arrays["bounds"].tolist(), arrays["costs"].tolist(), strict=True)
        ):
            of_batch, of_events = slice(ranks, ranks + size), slice(events, events + stop - start)
            lists = None
            if "known" in arrays:
                tracks = {
                    track: TrackLists(arrays[f"{track}/rank"][of_events], arrays[f"{track}/listed"][of_events])
                    for track in TRACKS
                }
                lists = BatchLists(int(arrays["known"][number]), arrays["listable"][of_events], tracks)
            own = Ranks(arrays["rank"][of_batch], arrays["ties"][of_batch])
            usable = arrays["usable"][of_events]
            tally.add(Point(start, stop, usable, own, lists, loss, score_ms, update_ms, moved))
            events, ranks = events + stop - start, ranks + size
        return tally


class Work:
    """Remembers results by name; with a folder, also across processes.

    Results in a `base` folder are read too, and nothing is written there. A file that cannot be read back is reported
    and its result made again.
    """

    def __init__(self, folder: Path | None = None, base: Path | None = None, report: ReportText = silent) -> None:
        self._results: dict[str, Any] = {}
        self._folder, self._base, self._report = folder, base, report
        if folder:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise cannot_write(folder, problem) from problem

    def once(self, name: str, keeper: Keeper[_Result], make: Callable[[], _Result]) -> _Result:
        """The result of `make`, made the first time only."""
        if self.known(name, keeper) is None:
            self._results[name] = result = make()
            if self._folder is not None:
                keeper.write(result, self._folder / _file_name(name, keeper))
        remembered: _Result = self._results[name]
        return remembered

    def known(self, name: str, keeper: Keeper[_Result]) -> _Result | None:
        """The result under a name, if there is one."""
        if name not in self._results:
            for folder in (self._folder, self._base):
                path = folder / _file_name(name, keeper) if folder is not None else None
                if path is not None and path.exists():
                    try:
                        self._results[name] = keeper.read(path)
                    except _BROKEN as problem:
                        self._report(f"{path} is broken ({type(problem).__name__}); this part is made again")
                        continue
                    break
        return self._results.get(name)

    def forget(self) -> None:
        """Remove the folder; the work is complete."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class CellMemo(Memo):
    """The steps of a fitting, remembered as work."""

    def __init__(self, work: Work, plan: Plan) -> None:
        super().__init__()
        observed: LogStates = {}
        self._work = work
        self._states = StateKeeper(partial(PretrainedState, plan, observed=observed))

    def choice(self, name: str, make: Callable[[], Plain]) -> Plain:
        return self._work.once(name, PlainKeeper(), make)

    def state(self, name: str, make: Callable[[], PretrainedState]) -> PretrainedState:
        return self._work.once(name, self._states, make)

    def meta_training(self, name: str, make: Callable[[], MetaParameters]) -> MetaParameters:
        return self._work.once(name, MetaTrainingKeeper(), make)


def work_folder(beside: Path | None, log: Interactions, config: Mapping[str, Any]) -> Path:
    """Where the work of one command is kept: beside its result, or in a folder of the user's own for temporary files.

    The name depends on the events, the ids and the whole configuration.
    """
    text = f"{log.identity} {json.dumps(config, sort_keys=True, default=str)}"
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return beside.with_suffix(f".{key}.progress") if beside is not None else _own_folder() / f"{key}.progress"


def start_afresh(folder: Path) -> None:
    """Remove a folder of earlier work, which must not be used; an error where it cannot be removed."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        raise DataError(f"{folder} holds earlier work and cannot be removed; remove it, or choose another --json.")


def _own_folder() -> Path:
    """A folder for temporary files that nobody else can write to."""
    import tempfile

    folder = Path(tempfile.gettempdir()) / f"melon-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as problem:
        raise cannot_write(folder, problem) from problem
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DataError(
            f"{folder} is not a private folder of yours, so no work is kept there; remove it, set TMPDIR to another "
            "folder, or give --json."
        )
    return folder


def _file_name(name: str, keeper: Keeper[Any]) -> str:
    return name.replace("/", "-") + keeper.suffix


def _save(arrays: Arrays, path: Path, header: dict[str, str] | None = None) -> None:
    try:
        with replacing(path) as unfinished:
            whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            save_file(whole, unfinished, metadata=header)
    except SafetensorError as problem:
        raise DataError(f"{path} cannot be written: {problem}.") from problem
