"""The trials of a tuning in a file that can be gone on with: which were made, how they ended, which come next.

Trials are asked for in rounds. What a round is asked depends on the rounds before it and on the seed alone, and so does
what its trials are compared with; how many of them run at a time, and where, changes nothing.
"""

from __future__ import annotations

import fcntl
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from melon.atomic import cannot_write
from melon.errors import DataError, MissingExtraError, SettingsError
from melon.stream.draws import Draws
from melon.tuning.axes import Axes
from melon.tuning.trials import Curve, Tried
from melon.types import Plain

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.trial import FrozenTrial

_NAME = "melon tune"
#: Points that are drawn blindly, the declared starts among them, before the search looks at scores.
_STARTUP = 8
#: The share of a round that lies beside the best so far.
_BESIDE = 0.5
_ABOUT, _DEFAULTS, _PRETRAINING, _PASSED_OVER = "about", "defaults", "pre-training", "passed over"


@dataclass(frozen=True)
class Trial:
    """A point of the space, and how it did as far as that is known.

    Its number is Optuna's; its place counts those before it that were not passed over.
    """

    number: int
    place: int
    point: Plain
    state: str
    score: float | None
    seconds: float = 0.0
    problem: str | None = None
    curve: Curve | None = None

    @property
    def ended(self) -> bool:
        """Whether its outcome is known."""
        return self.state != "RUNNING"


class Study:
    """Optuna's study in a journal file. One process at a time works on it."""

    def __init__(self, path: Path, axes: Axes, about: Plain, *, seed: int, together: int) -> None:
        optuna = import_optuna()
        self._optuna, self._axes, self._seed, self._together = optuna, axes, seed, together
        self._storage = _storage(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study: OptunaStudy = optuna.create_study(
                storage=self._storage, study_name=_NAME, direction="maximize", load_if_exists=True
            )
        self._claim(path, json.loads(json.dumps(about)))
        for start in axes.starts:
            self._study.enqueue_trial(axes.encode(start), skip_if_exists=True)

    @property
    def defaults(self) -> Tried | None:
        """How the strategy's own defaults did, once that is known."""
        found = self._study.user_attrs.get(_DEFAULTS)
        return None if found is None else Tried(**{**found, "curve": _curve(found["curve"])})

    @defaults.setter
    def defaults(self, tried: Tried) -> None:
        plain = {"key": tried.key, "seconds": tried.seconds, "score": tried.score, "problem": tried.problem}
        self._study.set_user_attr(_DEFAULTS, {**plain, "curve": _plain(tried.curve)})

    @property
    def pretraining(self) -> Plain | None:
        """How the recommender of all trials was pre-trained, once that is known."""
        found: Plain | None = self._study.user_attrs.get(_PRETRAINING)
        return found

    @pretraining.setter
    def pretraining(self, settings: Plain) -> None:
        self._study.set_user_attr(_PRETRAINING, settings)

    def trials(self) -> list[Trial]:
        """Every trial that counts, in the order in which they were asked for."""
        found = self._study.get_trials(deepcopy=False)
        asked = [one for one in found if one.state.name != "WAITING" and _PASSED_OVER not in one.user_attrs]
        return [self._told(place, one) for place, one in enumerate(asked)]

    def round(self, most: int) -> list[Trial]:
        """Trials of the round under way that have not ended; where all have, those of the next, up to `most` trials.

        None are left where there are `most`, or where the whole space was tried.
        """
        self._pass_over_the_unfinished()
        asked = self.trials()
        first = max(len(asked) - 1, 0) // self._together * self._together
        current = asked[first:]
        under_way = [trial for trial in current if not trial.ended]
        if under_way and (len(current) == self._together or len(under_way) < len(current)):
            return under_way
        begun = len(asked) % self._together
        stop = min(len(asked) - begun + self._together, most)
        while len(asked) < stop and self._ask(asked):
            asked = self.trials()
        return [trial for trial in asked if not trial.ended]

    def best_before(self, trial: Trial) -> Trial | None:
        """The best whole trial of the rounds before a trial's own: what it is compared with on its way."""
        return best(self.trials()[: trial.place // self._together * self._together])

    def tell(self, number: int, tried: Tried) -> None:
        """How a trial ended."""
        states, frozen = self._optuna.trial.TrialState, self._study.trials[number]
        identity = frozen._trial_id
        self._storage.set_trial_user_attr(identity, "seconds", tried.seconds)
        if tried.problem is not None:
            self._storage.set_trial_user_attr(identity, "problem", tried.problem)
            self._study.tell(number, state=states.FAIL)
            return
        assert tried.score is not None
        assert tried.curve is not None
        self._storage.set_trial_user_attr(identity, "curve", _plain(tried.curve))
        if tried.pruned:
            self._storage.set_trial_intermediate_value(identity, len(tried.curve.ranked), tried.score)
            self._study.tell(number, state=states.PRUNED)
        else:
            self._study.tell(number, tried.score)

    def _ask(self, asked: list[Trial]) -> bool:
        """One more trial; where the search would try a point again, its nearest neighbour that was not tried.

        Half of a round lies beside the best of the rounds before: on small budgets a walk from neighbour to neighbour
        finds more than a model of few trials does. The other half is TPE's, which looks further away.
        """
        if self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.WAITING,)):
            self._study.ask(self._axes.distributions())  # a start, or what a killed process had put in the queue
            return True
        tried = [trial.point for trial in asked]
        place = len(asked) % self._together
        top = best(asked[: len(asked) - place])
        if top is not None and place < _BESIDE * self._together:
            return self._ask_for(self._axes.untried(top.point, tried))
        drawn = int(Draws(self._seed, "tuning").generator(len(asked)).integers(1 << 31))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls options experimental that it has had for years
            self._study.sampler = self._optuna.samplers.TPESampler(
                seed=drawn, n_startup_trials=_STARTUP, multivariate=True, constant_liar=True
            )
            made = self._study.ask(self._axes.distributions())
        point = self._axes.decode(made.params)
        if point not in tried:
            return True
        self._pass_over(made.number)
        return self._ask_for(self._axes.untried(point, tried))

    def _ask_for(self, point: Plain | None) -> bool:
        """A trial of this very point; there is none where the whole space was tried."""
        if point is None:
            return False
        self._study.enqueue_trial(self._axes.encode(point))
        self._study.ask(self._axes.distributions())
        return True

    def _pass_over_the_unfinished(self) -> None:
        """A process that was killed while it asked leaves a trial without all of its settings."""
        for one in self._study.get_trials(deepcopy=False):
            if one.state.name == "RUNNING" and one.params.keys() != self._axes.values.keys():
                self._pass_over(one.number)

    def _pass_over(self, number: int) -> None:
        self._storage.set_trial_user_attr(self._study.trials[number]._trial_id, _PASSED_OVER, True)
        self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)

    def _told(self, place: int, one: FrozenTrial) -> Trial:
        told = one.user_attrs
        return Trial(
            one.number,
            place,
            self._axes.decode(one.params) if one.params.keys() == self._axes.values.keys() else {},
            one.state.name,
            one.value if one.state.name in ("COMPLETE", "PRUNED") else None,
            told.get("seconds", 0.0),
            told.get("problem"),
            _curve(told.get("curve")),
        )

    def _claim(self, path: Path, about: Plain) -> None:
        known: Plain | None = self._study.user_attrs.get(_ABOUT)
        if known is None:
            self._study.set_user_attr(_ABOUT, about)
            return
        for name, value in about.items():
            if known.get(name) != value:
                raise SettingsError(
                    f"{path} holds a study with {name} = {_short(known.get(name))}, and this one has {_short(value)}. "
                    "Choose another --study (or --out), or remove the file."
                )


def best(trials: list[Trial]) -> Trial | None:
    """The whole trial with the highest score; of equals the earliest."""
    complete = [trial for trial in trials if trial.state == "COMPLETE"]
    return max(complete, key=lambda trial: trial.score or 0.0, default=None)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else works on the study meanwhile. The hold ends with the process, however that ends."""
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


def import_optuna() -> Any:
    """Optuna, quiet; a clear line where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("melon tune", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _storage(path: Path) -> Any:
    """The journal, without a line that was cut short when its process was killed."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _mend(path)
        path.with_name(path.name + ".lock").unlink(missing_ok=True)  # a killed process leaves it; see `alone`
        return JournalStorage(JournalFileBackend(str(path)))
    except OSError as problem:
        raise cannot_write(path, problem) from problem
    except (ValueError, KeyError, TypeError, AssertionError) as problem:
        raise DataError(f"{path} is no study of melon tune: {problem}. Choose another --study.") from problem


def _mend(path: Path) -> None:
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            known = isinstance(json.loads(line), dict)
        except ValueError:
            known = False
        if not known:
            raise DataError(f"{path} is no study of melon tune: line {number} is not its own. Choose another --study.")
    if len(whole) < len(content):
        if not whole:
            raise DataError(f"{path} is no study of melon tune. Choose another --study.")
        with path.open("r+b") as file:
            file.truncate(len(whole))


def _plain(curve: Curve | None) -> Plain | None:
    return None if curve is None else {"ranked": curve.ranked, "gained": curve.gained}


def _curve(told: Mapping[str, Any] | None) -> Curve | None:
    return None if told is None else Curve(list(told["ranked"]), list(told["gained"]))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"
