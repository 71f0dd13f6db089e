"""Work that is done once: shared by cells of one stream, and kept on disk so that a stopped run can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

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


@dataclass(frozen=True)
class Keeper(Generic[_Result]):
    """How one kind of result is written to a file, in one step, and read back."""

    suffix: str
    write: Callable[[_Result, Path], None]
    read: Callable[[Path], _Result]


def _read_plain(path: Path) -> Plain:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"{path} holds no JSON object")
    return content


def _save(arrays: Arrays, path: Path) -> None:
    try:
        with replacing(path) as unfinished:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, unfinished)
    except SafetensorError as problem:
        raise DataError(f"{path} cannot be written: {problem}.") from problem


def _save_state(state: PretrainedState, path: Path) -> None:
    _save({f"{table}/{part}": held for table, parts in state.tables.items() for part, held in parts.items()}, path)


def _read_state(plan: Plan, observed: LogStates, path: Path) -> PretrainedState:
    tables: dict[str, dict[str, AnyArray]] = {}
    for name, array in load_file(path).items():
        table, _, part = name.rpartition("/")
        tables.setdefault(table, {})[part] = array
    return PretrainedState(plan, tables, observed)


def _save_tally(tally: Tally, path: Path) -> None:
    """The batches laid end to end."""
    points = tally.points
    arrays: Arrays = {
        "bounds": np.array([(p.start, p.stop, len(p.ranks)) for p in points], dtype=np.int64).reshape(-1, 3),
        "costs": np.array([(p.score_ms, p.update_ms, p.moved) for p in points]).reshape(-1, 3),
        "usable": np.concatenate([p.usable for p in points]),
        "rank": tally.rank,
        "ties": tally.ties.astype(np.int64),
    }
    if tally.lists:
        arrays["known"] = np.array([lists.known for lists in tally.lists])
        arrays["listable"] = np.concatenate([lists.listable for lists in tally.lists])
        for track in TRACKS:
            tracks = [lists.tracks[track] for lists in tally.lists]
            arrays[f"{track}/rank"] = np.concatenate([each.rank for each in tracks])
            arrays[f"{track}/listed"] = np.concatenate([each.listed for each in tracks])
    _save(arrays, path)


def _read_tally(path: Path) -> Tally:
    arrays, tally = load_file(path), Tally()
    events = ranks = 0
    for number, ((start, stop, size), (score_ms, update_ms, moved)) in enumerate(
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
        tally.add(Point(start, stop, arrays["usable"][of_events], own, lists, score_ms, update_ms, moved))
        events, ranks = events + stop - start, ranks + size
    return tally


#: Choices, meta-parameters and evaluated streams.
PLAIN: Keeper[Plain] = Keeper(".json", lambda plain, path: write_text(path, json.dumps(plain)), _read_plain)
META_TRAINING: Keeper[MetaParameters] = Keeper(".safetensors", _save, load_file)
TALLY: Keeper[Tally] = Keeper(".safetensors", _save_tally, _read_tally)


def states(plan: Plan, observed: LogStates | None = None) -> Keeper[PretrainedState]:
    """Pre-trained recommenders of a plan."""
    return Keeper(".safetensors", _save_state, partial(_read_state, plan, {} if observed is None else observed))


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
        self._work = work
        self._keepers: dict[str, Keeper[Any]] = {
            "choice": PLAIN,
            "state": states(plan),
            "meta-training": META_TRAINING,
        }

    def once(self, name: str, make: Callable[[], _Result]) -> _Result:
        result: _Result = self._work.once(name, self._keepers[name.partition("/")[0]], make)
        return result


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
            f"{folder} is not a private folder of yours, so it is not used; remove it, set TMPDIR to another "
            "folder, or give --json."
        )
    return folder


def _file_name(name: str, keeper: Keeper[Any]) -> str:
    return name.replace("/", "-") + keeper.suffix
