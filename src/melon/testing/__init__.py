"""Conformance checks: what every recommender and every strategy must do, also those of other packages.

    from functools import partial
    from melon.testing import check_strategy

    check_strategy(partial(MyStrategy, {"lr": 0.1}))

A check that fails raises `ConformanceError`, which names the check and the values. What does not apply is never passed
over in silence: the report that comes back lists each such check with its reason. Without PyTorch, checks of gradients
do not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from melon.errors import ConformanceError, MissingExtraError, SettingsError, unknown_name
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.registry import RECOMMENDERS
from melon.testing.pairing import PAIRING_CHECKS, Family, MakeStrategy, Pairing
from melon.testing.recommenders import RECOMMENDER_CHECKS, MakeRecommender

__all__ = [
    "PAIRING_CHECKS",
    "RECOMMENDER_CHECKS",
    "SMALL_RECOMMENDERS",
    "CheckReport",
    "Family",
    "MakeRecommender",
    "MakeStrategy",
    "check_pairing",
    "check_recommender",
    "check_strategy",
]


def _made(name: str, settings: Mapping[str, Any], *, seed: int = 0, dtype: npt.DTypeLike = np.float32) -> Recommender:
    made: Recommender = RECOMMENDERS[name].load()(settings, seed=seed, dtype=dtype)
    return made


_SMALL_BLEND = {"dim": 6, "head_units": 4, "head_negatives": 3, "head_rest": 20, "slots": 16, "negatives": 2}
SMALL_RECOMMENDERS: Mapping[str, MakeRecommender] = {
    "bpr": partial(_made, "bpr", {"dim": 6}),
    "ncf": partial(_made, "ncf", {"dim": 4, "layers": (6, 5)}),
    "blend": partial(_made, "blend", _SMALL_BLEND),
}


@dataclass(frozen=True)
class CheckReport:
    """What came of a list of checks: the names of those that passed, and why the others do not apply."""

    subject: str
    passed: tuple[str, ...]
    not_applicable: Mapping[str, str] = field(default_factory=dict)

    @property
    def applicable(self) -> bool:
        """Whether anything could be checked at all."""
        return bool(self.passed)

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.passed)} checks passed"]
        return "\n".join(lines + [f"  not applied: {name} ({why})" for name, why in self.not_applicable.items()])


def check_pairing(
    make_recommender: MakeRecommender,
    make_strategy: MakeStrategy,
    *,
    family: Family | None = None,
    exempt: Mapping[str, str] | None = None,
) -> CheckReport:
    """Run every check of a strategy on one recommender.

    `family` says which form the learning-rate matrix must have. `exempt` names checks that the strategy does not claim
    to pass, each with a reason for the report. Where the strategy refuses the recommender in `bind`, or has no table to
    update, nothing applies.
    """
    pairing, strategy = Pairing(make_recommender, make_strategy, family), make_strategy(seed=0)
    try:
        recommender = make_recommender(seed=0, dtype=np.float32)
    except MissingExtraError as missing:
        return CheckReport(strategy.name, (), {check.__name__: str(missing) for check in PAIRING_CHECKS})
    subject = f"{recommender.name} with {strategy.name}"
    if not recommender.specs:
        nothing = f"strategy {strategy.name!r} has no table to update: the recommender learns by observing alone"
        return CheckReport(subject, (), {check.__name__: nothing for check in PAIRING_CHECKS})
    try:
        Updater(recommender, strategy)
    except SettingsError as refusal:
        return CheckReport(subject, (), {check.__name__: str(refusal) for check in PAIRING_CHECKS})
    return _run(subject, PAIRING_CHECKS, pairing, exempt)


def check_strategy(
    make_strategy: MakeStrategy,
    recommenders: Mapping[str, MakeRecommender] | None = None,
    *,
    family: Family | None = None,
    exempt: Mapping[str, str] | None = None,
) -> dict[str, CheckReport]:
    """`check_pairing` on each recommender; by default small ones of each kind that melon has."""
    makers = recommenders if recommenders is not None else SMALL_RECOMMENDERS
    reports = {name: check_pairing(make, make_strategy, family=family, exempt=exempt) for name, make in makers.items()}
    if not any(report.applicable for report in reports.values()):
        reasons = "; ".join(f"{name}: {next(iter(r.not_applicable.values()))}" for name, r in reports.items())
        raise ConformanceError(f"the strategy drives none of the recommenders ({reasons or 'there are none'}).")
    return reports


def check_recommender(make_recommender: MakeRecommender, *, exempt: Mapping[str, str] | None = None) -> CheckReport:
    """Run every check of a recommender by itself; how it learns is for `check_pairing`."""
    name = make_recommender(seed=0, dtype=np.float32).name
    return _run(name, RECOMMENDER_CHECKS, make_recommender, exempt)


_Subject = TypeVar("_Subject")


def _run(
    subject: str,
    checks: tuple[Callable[[_Subject], str | None], ...],
    given: _Subject,
    exempt: Mapping[str, str] | None,
) -> CheckReport:
    names = [check.__name__ for check in checks]
    excused = exempt or {}
    for name in excused:
        if name not in names:
            raise unknown_name("check", name, names)
    passed, not_applicable = [], {}
    for check in checks:
        try:
            reason = excused[check.__name__] if check.__name__ in excused else check(given)
        except MissingExtraError as missing:
            reason = str(missing)
        except Exception as error:
            reason = str(error) if isinstance(error, ConformanceError) else f"{type(error).__name__}: {error}"
            raise ConformanceError(f"{subject} fails the check {check.__name__!r}: {reason}") from error
        if reason is None:
            passed.append(check.__name__)
        else:
            not_applicable[check.__name__] = reason
    return CheckReport(subject, tuple(passed), not_applicable)
