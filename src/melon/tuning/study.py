"""The trials of a tuning: how they ended, which come next, and the journal from which a tuning is resumed.

The journal is a file of JSON lines, each on disk before the next trial is planned. Trials are planned in rounds: a
round depends on the rounds before it alone, and so does the trial that its own are compared with. How many of them run
at a time, and where, changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from melon.atomic import cannot_write
from melon.errors import DataError, SettingsError
from melon.fitting.search import Curve, Search, Trial
from melon.types import Plain

_FORMAT, _VERSION = "melon tune", 2


@dataclass(frozen=True)
class Tried:
    """The outcome of a trial: a score, or a problem; `pruned` where it was stopped early."""

    key: str
    seconds: float = 0.0
    score: float | None = None
    curve: Curve | None = None
    pruned: bool = False
    problem: str | None = None
    pretrain: Mapping[str, Any] | None = None

    def plain(self) -> Plain:
        """JSON-ready; without the key, which is the trial's, and without pre-training, which is kept once."""
        return {name: value for name, value in asdict(self).items() if name not in ("key", "pretrain")}

    @classmethod
    def of(cls, plain: Mapping[str, Any], key: str) -> Tried:
        """The outcome that `plain` describes."""
        curve = plain["curve"]
        values = {name: plain[name] for name in ("seconds", "score", "pruned", "problem")}
        return cls(key, **values, curve=None if curve is None else Curve(list(curve["ranked"]), list(curve["gained"])))


@dataclass(frozen=True)
class PlannedTrial:
    """A point of the space, its place among all trials, the round it belongs to, and its outcome if it has ended."""

    place: int
    round: int
    point: Plain
    tried: Tried | None = None

    @property
    def key(self) -> str:
        """Its name in messages, counted from 1."""
        return f"trial {self.place + 1}"

    @property
    def state(self) -> Literal["RUNNING", "COMPLETE", "PRUNED", "FAIL"]:
        """How it ended, if it has."""
        if self.tried is None:
            return "RUNNING"
        return "FAIL" if self.tried.problem else "PRUNED" if self.tried.pruned else "COMPLETE"

    @property
    def ended(self) -> bool:
        """Whether its outcome is known."""
        return self.tried is not None

    @property
    def score(self) -> float:
        """The score of a whole trial; one that failed or was stopped early counts for nothing."""
        return self.tried.score or 0.0 if self.tried is not None and self.state == "COMPLETE" else 0.0


class Study:
    """A search whose trials are kept in a journal. One process at a time works on it (`alone`)."""

    def __init__(self, path: Path, search: Search, about: Plain) -> None:
        self._path, self._search = path, search
        self._outcomes: dict[int, Plain] = {}
        self.pretraining: Plain | None = None
        self.defaults: Tried | None = None
        about = json.loads(json.dumps(about))
        lines = _read(path)
        if not lines:
            self._append({"journal": _FORMAT, "version": _VERSION, "about": about})
        else:
            self._claim(lines[0], about)
        for line in lines[1:]:
            self._take(line)
        #: Every planned trial, in order: whole rounds that have ended, and the one under way.
        self._planned: list[PlannedTrial] = []
        self._plan()

    def keep_pretraining(self, settings: Plain) -> None:
        """Remember how the recommender of all trials was pre-trained."""
        if self.pretraining != settings:
            self._keep({"pretraining": settings})

    def keep_defaults(self, tried: Tried) -> None:
        """Remember how the strategy's own defaults did."""
        self._keep({"defaults": {"key": tried.key, **tried.plain()}})

    def trials(self) -> list[PlannedTrial]:
        """Every trial that has ended and those of the round under way that have not, in the order of their plan."""
        return [self._with_outcome(trial) for trial in self._planned]

    def round(self, most: int) -> list[PlannedTrial]:
        """Trials of the round under way that have not ended; none where there are `most`, or nothing is left to try."""
        return [trial for trial in self.trials() if not trial.ended and trial.place < most]

    def best_before(self, trial: PlannedTrial) -> PlannedTrial | None:
        """The best whole trial of the rounds before a trial's own: what it is compared with while it runs."""
        return best([earlier for earlier in self.trials() if earlier.round < trial.round])

    def tell(self, trial: PlannedTrial, tried: Tried) -> None:
        """How a trial ended."""
        self._keep({"trial": trial.place, "point": trial.point, **tried.plain()})
        self._plan()

    def _plan(self) -> None:
        """Plan rounds until there is one with a trial that has not ended, or nothing is left to try."""
        while all(trial.ended for trial in self.trials()):
            for trial in self.trials()[len(self._search.trials) :]:
                # A trial that was stopped early has seen less than others: its neighbours come last.
                score = trial.tried.score if trial.tried and trial.state == "COMPLETE" else None
                self._search.tell(Trial({**trial.point, **self._search.fixed}, score))
            number = self._planned[-1].round + 1 if self._planned else 0
            points = self._search.ask()
            if not points:
                return
            self._planned += [PlannedTrial(len(self._planned) + at, number, point) for at, point in enumerate(points)]

    def _with_outcome(self, trial: PlannedTrial) -> PlannedTrial:
        line = self._outcomes.get(trial.place)
        if line is None:
            return trial
        if line["point"] != json.loads(json.dumps(trial.point)):
            raise DataError(
                f"{self._path}: trial {trial.place + 1} is {_short(line['point'])}, where this melon plans "
                f"{_short(trial.point)}; it was made by another version. Choose another --study."
            )
        return replace(trial, tried=line["tried"])

    def _keep(self, line: Plain) -> None:
        self._append(line)
        self._take(line)

    def _take(self, line: Plain) -> None:
        try:
            if "trial" in line:
                place = int(line["trial"])
                self._outcomes[place] = {"point": line["point"], "tried": Tried.of(line, f"trial {place + 1}")}
            elif "defaults" in line:
                self.defaults = Tried.of(line["defaults"], line["defaults"]["key"])
            else:
                self.pretraining = dict(line["pretraining"])
        except (KeyError, TypeError, ValueError) as problem:
            raise DataError(f"{self._path} is no study of melon tune: {problem}. Choose another --study.") from problem

    def _append(self, line: Plain) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise cannot_write(self._path, problem) from problem

    def _claim(self, first: Plain, about: Plain) -> None:
        stored = first.get("about") if first.get("journal") == _FORMAT else None
        if not isinstance(stored, dict) or first.get("version") != _VERSION:
            raise DataError(
                f"{self._path} is no study of this melon tune (an earlier version kept its trials differently). Choose "
                "another --study, or remove the file."
            )
        for name, value in about.items():
            if stored.get(name) != value:
                raise SettingsError(
                    f"{self._path} holds a study with {name} = {_short(stored.get(name))}, and this one has "
                    f"{_short(value)}. Choose another --study (or --out), or remove the file."
                )


def best(trials: list[PlannedTrial]) -> PlannedTrial | None:
    """The whole trial with the highest score; of equals the earliest."""
    complete = [trial for trial in trials if trial.state == "COMPLETE"]
    return max(complete, key=lambda trial: trial.score, default=None)


def counts(trials: list[PlannedTrial]) -> str:
    """How many trials there were, and how they ended."""
    by_state = {state: sum(trial.state == state for trial in trials) for state in ("COMPLETE", "PRUNED", "FAIL")}
    return "trials: {COMPLETE} done, {PRUNED} stopped early, {FAIL} failed".format(**by_state)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else works on the study meanwhile. The lock ends with the process, however that ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as problem:
        raise cannot_write(path, problem) from problem
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError(
                f"another melon tune works on {path}; wait for it, or choose another --study."
            ) from None
        yield


def _read(path: Path) -> list[Plain]:
    """The lines of a journal; a last line that was cut short when its process was killed is removed."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    whole = content[: content.rfind(b"\n") + 1]
    lines = []
    for number, text in enumerate(whole.splitlines(), 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            raise DataError(f"{path} is no study of melon tune: line {number} is not its own. Choose another --study.")
        lines.append(line)
    if len(whole) < len(content):
        if not content.startswith(b'{"journal"'[: len(content)]):
            raise DataError(f"{path} is no study of melon tune. Choose another --study.")
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return lines


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"
