"""The conformance checks: all that we ship passes them, and what is broken fails the right one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from melon.errors import ConformanceError, LearningError, MelonError, SettingsError
from melon.models.autograd import FactorScore
from melon.models.base import Context, Recommender
from melon.models.bpr import BPR
from melon.models.evidence import Evidence, Examples, Values
from melon.models.registry import RECOMMENDERS
from melon.strategies.base import LearningRates, Proposal, Situation, Strategy
from melon.strategies.default import Default
from melon.strategies.learned import LearnedStrategy
from melon.strategies.melon.stream import MeLON
from melon.strategies.metasgd import MetaSGD
from melon.strategies.mwnet import MWNet
from melon.strategies.registry import STRATEGIES
from melon.stream.history import History
from melon.tables import TableSpec
from melon.testing import (
    PAIRING_CHECKS,
    RECOMMENDER_CHECKS,
    SMALL_RECOMMENDERS,
    UNEXPLAINED,
    Family,
    Pairing,
    check_pairing,
    check_recommender,
    check_strategy,
    finite_after_many_batches,
    learning_rates_explain_the_update,
)

NAMES = [check.__name__ for check in PAIRING_CHECKS]

#: Sizes that keep the checks quick; a recommender that is not named here is checked as it comes.
SMALL: dict[str, dict[str, Any]] = {"bpr": {"dim": 6}, "ncf": {"dim": 4, "layers": (6, 5)}}
SMALL["ials"] = {"dim": 6, "sweeps": 2}
SMALL["blend"] = {"dim": 6, "head_units": 4, "head_negatives": 3, "head_rest": 20, "slots": 16}
#: On so small a stream every row is hit many times in a batch, which wants small steps.
CALM: dict[str, dict[str, Any]] = {
    "eals": {"lr": 0.05},
    "mwnet": {"lr": 0.05},
    "metasgd": {"alpha_init": 0.05},
    "sml": {"lr": 0.05, "width": 32},
}
FAMILIES: dict[str, Family] = {
    "default": "uniform",
    "eals": "interaction",
    "mwnet": "interaction",
    "metasgd": "parameter",
    "s2meta": "parameter",
    "sml": "parameter",
    "melon_i": "interaction",
    "melon_p": "parameter",
}

_FORGETS = "beside its step it forgets: θ' = f θ − Σ w g; without forgetting it is checked below"
_EXPLAIN = "learning_rates_explain_the_update"
_LONG = "200 meta-steps take a while; checked by a slow test"
EXEMPT: dict[str, dict[str, str]] = {
    "s2meta": {"learning_rates_explain_the_update": _FORGETS},
    "melon": {"learning_rates_explain_the_update": _FORGETS},
    "melon_i": {"learning_rates_explain_the_update": _FORGETS},
    "melon_p": {"learning_rates_explain_the_update": _FORGETS},
}
#: Pairings that do not exist; any other refusal is a failure.
REFUSED = {("ials", strategy) for strategy in STRATEGIES.names()}


def maker(name: str) -> Callable[..., Recommender]:
    return partial(RECOMMENDERS[name].load(), SMALL.get(name, {}))


def learns_to_learn(name: str) -> bool:
    return issubclass(STRATEGIES[name].load(), LearnedStrategy)


PAIRINGS = [(recommender, strategy) for recommender in RECOMMENDERS.names() for strategy in STRATEGIES.names()]
#: `ials` learns by observing alone.
DRIVEN = [name for name in RECOMMENDERS.names() if name != "ials"]
LEARNED = [pair for pair in PAIRINGS if learns_to_learn(pair[1]) and pair[0] in DRIVEN]
FORGETTING = [pair for pair in LEARNED if "forgetting" in STRATEGIES[pair[1]].load().settings_type.model_fields]


@pytest.mark.parametrize("name", RECOMMENDERS.names())
def test_every_recommender_conforms(name: str) -> None:
    report = check_recommender(maker(name))
    gradients = ("scores_are_those_of_the_loss", "closed_form_matches_autograd", "large_scores_stay_finite")
    without = dict.fromkeys(gradients, "it has no tables, so there are no gradients") if name == "ials" else {}
    assert report.passed == tuple(check.__name__ for check in RECOMMENDER_CHECKS if check.__name__ not in without)
    assert report.not_applicable == without
    assert report.subject == name


@pytest.mark.parametrize(("recommender", "strategy"), PAIRINGS)
def test_every_pairing_conforms(recommender: str, strategy: str) -> None:
    exempt = dict(EXEMPT.get(strategy, {}))
    if learns_to_learn(strategy):
        exempt[finite_after_many_batches.__name__] = _LONG
    if not STRATEGIES[strategy].load()().explains_rates:
        exempt |= {name: UNEXPLAINED for name in NAMES if name.startswith("learning_rates")}
    made = partial(STRATEGIES[strategy].load(), CALM.get(strategy, {}))
    report = check_pairing(maker(recommender), made, family=FAMILIES.get(strategy), exempt=exempt)
    assert report.applicable == ((recommender, strategy) not in REFUSED)
    assert sorted([*report.passed, *report.not_applicable]) == sorted(NAMES)
    if report.applicable:
        assert dict(report.not_applicable) == exempt
    else:
        assert all(f"strategy {strategy!r}" in reason for reason in report.not_applicable.values())


#: Other settings, what does not apply to them, and the recommender that they are checked with here: one with shared
#: weights, or the one whose meta-training is compiled. The others are slow tests; every strategy meets them above.
OTHER_SETTINGS: dict[str, tuple[Callable[..., Strategy], set[str], str]] = {
    "adam_lazy": (partial(Default, {"optimizer": "adam_lazy", "lr": 0.01}), {_EXPLAIN}, "ncf"),
    "adam_dense": (
        partial(Default, {"optimizer": "adam_dense", "lr": 0.01, "weight_decay": 0.001}),
        {"untouched_rows_stay", _EXPLAIN},
        "ncf",
    ),
    "mwnet lazy": (partial(MWNet, {"optimizer": "adam_lazy", "lr": 0.01}), {_EXPLAIN}, "ncf"),
    "mwnet dense": (
        partial(MWNet, {"optimizer": "adam_dense", "lr": 0.01, "weight_decay": 0.001}),
        {"untouched_rows_stay", _EXPLAIN},
        "ncf",
    ),
    "metasgd by column": (
        partial(MetaSGD, {"alpha_init": 0.05, "share": "dim", "reduction": "row_mean", "half_life": 50.0}),
        set(),
        "ncf",
    ),
    "s2meta meta-trained": (
        partial(STRATEGIES["s2meta"].make, {"form": "stream", "lr": 0.05, "forgetting": False}),
        set(),
        "ncf",
    ),
    "sml meta-trained": (partial(STRATEGIES["sml"].make, {"form": "stream", "lr": 0.05, "width": 8}), set(), "ncf"),
    "mwnet meta-trained": (partial(STRATEGIES["mwnet"].make, {"form": "stream", "lr": 0.05}), {_EXPLAIN}, "bpr"),
    "melon": (partial(MeLON, {"lr": 0.05}), {_EXPLAIN}, "blend"),
}


@pytest.mark.parametrize(
    ("name", "recommender"),
    [
        pytest.param(name, recommender, marks=[] if recommender == home else pytest.mark.slow)
        for name, (_, _, home) in OTHER_SETTINGS.items()
        for recommender in DRIVEN
    ],
)
def test_other_settings_conform_too(name: str, recommender: str) -> None:
    made, not_applicable, _ = OTHER_SETTINGS[name]
    long = {finite_after_many_batches.__name__: "done for these optimisers in the updater's tests"}
    report = check_pairing(maker(recommender), made, exempt=long)
    assert set(report.not_applicable) == not_applicable | set(long)


@pytest.mark.parametrize(("recommender", "strategy"), FORGETTING)
def test_without_forgetting_the_rates_of_a_learned_strategy_explain_its_step(recommender: str, strategy: str) -> None:
    made = partial(STRATEGIES[strategy].load(), {"forgetting": False})
    assert learning_rates_explain_the_update(Pairing(maker(recommender), made)) is None


@pytest.mark.slow
@pytest.mark.parametrize(("recommender", "strategy"), LEARNED)
def test_a_learned_strategy_stays_finite(recommender: str, strategy: str) -> None:
    assert finite_after_many_batches(Pairing(maker(recommender), STRATEGIES[strategy].load())) is None


class TestReports:
    def test_all_recommenders_are_tried(self) -> None:
        few = dict.fromkeys(NAMES[2:], "another test")
        reports = check_strategy(Default, family="uniform", exempt=few)
        assert reports.keys() == SMALL_RECOMMENDERS.keys()
        assert all(report.passed == tuple(NAMES[:2]) for report in reports.values())
        assert reports["ncf"].subject == "ncf with default"

    def test_a_refusal_is_told_and_is_enough_where_another_pairing_works(self) -> None:
        reports = check_strategy(OnlyWithoutShared, {name: SMALL_RECOMMENDERS[name] for name in ("bpr", "ncf")})
        assert reports["bpr"].applicable
        assert not reports["ncf"].applicable
        assert set(reports["ncf"].not_applicable) == set(NAMES)
        assert set(reports["ncf"].not_applicable.values()) == {"shared weights are not for me"}

    def test_a_strategy_that_refuses_everybody_fails(self) -> None:
        with pytest.raises(ConformanceError, match=r"none of the recommenders .*shared weights are not for me"):
            check_strategy(OnlyWithoutShared, {"ncf": SMALL_RECOMMENDERS["ncf"]})
        with pytest.raises(ConformanceError, match="there are none"):
            check_strategy(OnlyWithoutShared, {})

    def test_an_exemption_is_reported_with_its_reason(self) -> None:
        others = {name: "not of interest here" for name in NAMES if name != "grows"}
        report = check_pairing(SMALL_RECOMMENDERS["bpr"], Default, exempt=others)
        assert report.passed == ("grows",)
        assert report.not_applicable == others
        first, *lines = str(report).splitlines()
        assert first == f"{report.subject}: {len(report.passed)} checks passed"
        assert lines == [f"  not applied: {name} ({why})" for name, why in others.items()]

    def test_an_exemption_from_nothing_is_an_error(self) -> None:
        with pytest.raises(SettingsError, match=r"unknown check 'grow'. Did you mean 'grows'\?"):
            check_pairing(SMALL_RECOMMENDERS["bpr"], Default, exempt={"grow": "no"})
        with pytest.raises(SettingsError, match="unknown check 'grows'"):
            check_recommender(SMALL_RECOMMENDERS["bpr"], exempt={"grows": "no"})

    def test_a_failure_names_subject_check_and_values(self) -> None:
        with pytest.raises(MelonError) as caught:
            fail("learning_rates_explain_the_update", WrongRates)
        message = str(caught.value)
        assert message.startswith("bpr with default fails the check 'learning_rates_explain_the_update'")
        assert "the step of" in message
        assert " against " in message

    def test_an_exception_inside_a_check_is_a_failure_of_it(self) -> None:
        with pytest.raises(ConformanceError, match="'untouched_rows_stay': RuntimeError: out of order") as caught:
            fail("untouched_rows_stay", Raises)
        assert isinstance(caught.value.__cause__, RuntimeError)


class OnlyWithoutShared(Default):
    def bind(self, specs: Mapping[str, TableSpec], dtype: Any) -> None:
        if any(spec.role == "shared" for spec in specs.values()):
            raise SettingsError("shared weights are not for me")


# Broken strategies, each in one way. All are Default but for that.


class Raises(Default):
    def propose(self, situation: Situation) -> Proposal:
        raise RuntimeError("out of order")


class MovesNeighbours(Default):
    """Writes a row that the batch does not touch, past the updater."""

    def propose(self, situation: Situation) -> Proposal:
        assert situation.around is not None
        table: Any = situation.around.tables["item_factors"]
        everything = np.arange(table.rows)
        table.scatter(everything, 0.999 * table.gather(everything))
        return super().propose(situation)


class RemembersTooEarly(Default):
    """Counts a step when it proposes, not when it is told that the proposal was kept."""

    def propose(self, situation: Situation) -> Proposal:
        proposal = super().propose(situation)
        self.keep(proposal.memory)
        return proposal


class Random(Default):
    def propose(self, situation: Situation) -> Proposal:
        proposal = super().propose(situation)
        return Proposal({name: new + 1e-3 * torch.rand_like(new) for name, new in proposal.values.items()})


class SharesItsPast(Default):
    """Keeps something on the class, so that one run knows of another."""

    steps_of_all: int = 0

    def keep(self, memory: Mapping[str, Tensor]) -> None:
        super().keep(memory)
        type(self).steps_of_all += 1

    def propose(self, situation: Situation) -> Proposal:
        scale = 1 + 0.01 * type(self).steps_of_all
        new = super().propose(situation).values
        old = situation.values
        return Proposal(
            {name: old[name] + scale * (value - old[name]) for name, value in new.items()},
            memory={"steps": torch.tensor(0)},
        )


class MindsTheOrder(Default):
    """Gives later interactions of a batch larger steps."""

    def _weights(self, situation: Situation) -> Tensor:
        return torch.linspace(0.5, 1.5, len(situation.examples), dtype=situation.evidence.losses.dtype)

    def propose(self, situation: Situation) -> Proposal:
        return self._optimizer.propose(situation, self._weights(situation))

    def learning_rates(self, situation: Situation) -> LearningRates:
        return self._optimizer.learning_rates(situation, self._weights(situation))


class NeedsMany(Default):
    """Divides by the spread of the losses, which one interaction does not have."""

    def propose(self, situation: Situation) -> Proposal:
        losses = situation.evidence.losses
        spread = (losses - losses.mean()).square().sum() / (len(losses) - 1)
        proposal = super().propose(situation)
        return Proposal({name: new + 0 * spread for name, new in proposal.values.items()}, memory=proposal.memory)


class NeedsFew(Default):
    """Cannot have a row touched more than a hundred times."""

    side: str = "user_factors"

    def propose(self, situation: Situation) -> Proposal:
        for gradient in situation.evidence.gradients:
            if gradient.table == self.side and int(gradient.touches(len(situation.values[self.side])).max()) > 100:
                raise LearningError(f"a row of {self.side} was touched more than 100 times")
        return super().propose(situation)


class NeedsFewItems(NeedsFew):
    side = "item_bias"


class Forgetful(Default):
    """Does not hand its step count to checkpoints, though its steps depend on it."""

    def propose(self, situation: Situation) -> Proposal:
        scale = 1 / (1 + self._optimizer.steps)
        proposal = super().propose(situation)
        old = situation.values
        values = {name: old[name] + scale * (new - old[name]) for name, new in proposal.values.items()}
        return Proposal(values, memory=proposal.memory)

    def memory(self) -> dict[str, Tensor]:
        return {}

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        pass


class NarrowRates(Default):
    def learning_rates(self, situation: Situation) -> LearningRates:
        rates = super().learning_rates(situation)
        return LearningRates(rates.rows[:, :-1], rates.slots[:-1], rates.shared)


class WrongRates(Default):
    def learning_rates(self, situation: Situation) -> LearningRates:
        rates = super().learning_rates(situation)
        return LearningRates(1.01 * rates.rows, rates.slots, rates.shared)


class Explodes(Default):
    """Doubles what it touches."""

    def propose(self, situation: Situation) -> Proposal:
        proposal = super().propose(situation)
        return Proposal({name: 2 * new for name, new in proposal.values.items()}, memory=proposal.memory)


def fail(check: str, strategy: Callable[..., Strategy], family: Family | None = None, **settings: Any) -> None:
    """Run the one check, exempt from all others."""
    others = {name: "another test" for name in NAMES if name != check}
    made = partial(strategy, {"lr": 0.05, **settings})
    check_pairing(SMALL_RECOMMENDERS["bpr"], made, family=family, exempt=others)


BROKEN: dict[str, list[Callable[..., Strategy]]] = {
    "untouched_rows_stay": [MovesNeighbours],
    "proposing_is_pure": [RemembersTooEarly, MovesNeighbours, Random],
    "same_seed_same_result": [Random, SharesItsPast],
    "future_does_not_matter": [Random, SharesItsPast],
    "permutation_is_noise": [MindsTheOrder, Random],
    "single_interaction_works": [NeedsMany],
    "hot_user_works": [NeedsFew],
    "hot_item_works": [NeedsFewItems],
    "state_round_trips": [Forgetful, Random],
    "learning_rates_shape_and_family": [NarrowRates],
    "learning_rates_explain_the_update": [WrongRates, Forgetful, Explodes],
    "finite_after_many_batches": [Explodes],
}


@pytest.mark.parametrize(("check", "strategy"), [(check, one) for check, broken in BROKEN.items() for one in broken])
def test_a_broken_strategy_fails_the_right_check(check: str, strategy: Callable[..., Strategy]) -> None:
    with pytest.raises(ConformanceError, match=f"fails the check '{check}'"):
        fail(check, strategy)


@pytest.mark.parametrize(("family", "strategy"), [("uniform", MindsTheOrder), ("parameter", MindsTheOrder)])
def test_a_matrix_of_another_family_fails(family: Family, strategy: Callable[..., Strategy]) -> None:
    with pytest.raises(ConformanceError, match="'learning_rates_shape_and_family': the rates of"):
        fail("learning_rates_shape_and_family", strategy, family)


def test_a_row_constant_matrix_is_of_the_interaction_family() -> None:
    fail("learning_rates_shape_and_family", MindsTheOrder, "interaction")
    fail("learning_rates_shape_and_family", Default, "parameter")


# Broken recommenders.


class Tired(BPR):
    """Every question changes the answer to the next."""

    def score(self, users: Any, items: Any, context: Context | None = None) -> Any:
        scores = super().score(users, items, context)
        table = self.tables["item_bias"]
        everything = np.arange(table.rows)
        table.scatter(everything, table.gather(everything) - 0.01)
        return scores


class ForgetsTheBias(BPR):
    def row_scores(self, users: Any, items: Any, context: Context | None = None) -> Any:
        vectors, factors = self.tables["item_factors"].gather(items), self.tables["user_factors"].gather(users)
        return 2 * np.einsum("ncd,nd->nc", vectors, factors)


class HalfACatalogue(BPR):
    def score_catalogue(self, users: Any, n_items: int, context: Context | None = None) -> Any:
        scores = super().score_catalogue(users, n_items, context)
        scores[:, 6:] = 0.5
        return scores


class WrongSignScore(FactorScore):
    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        evidence = super().evidence(values, examples, per_branch=per_branch)
        return Evidence(-evidence.losses, evidence.gradients)


class WrongSign(BPR):
    def differentiable(self) -> FactorScore:
        return WrongSignScore(self)


class MissesAGradientScore(FactorScore):
    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        evidence = super().evidence(values, examples, per_branch=per_branch)
        return Evidence(evidence.losses, evidence.gradients[:2])


class MissesAGradient(BPR):
    def differentiable(self) -> FactorScore:
        return MissesAGradientScore(self)


class ByArrival(BPR):
    """Draws new rows by their number instead of their id."""

    def grow(self, users: int, user_keys: np.ndarray, items: int, item_keys: np.ndarray) -> None:
        known = self.rows_of("user"), self.rows_of("item")
        super().grow(users, np.arange(known[0], max(users, known[0])), items, np.arange(known[1], max(items, known[1])))


class OverflowsScore(FactorScore):
    def evidence(self, values: Values, examples: Examples, *, per_branch: bool = False) -> Evidence:
        evidence = super().evidence(values, examples, per_branch=per_branch)
        return Evidence(torch.exp(1000 * evidence.losses), evidence.gradients)


class Overflows(BPR):
    def differentiable(self) -> FactorScore:
        return OverflowsScore(self)


class Counts(BPR):
    """Counts what it observes, and forgets to save the counts."""

    seen: int = 0

    def observe(self, users: np.ndarray, items: np.ndarray, times: np.ndarray, past: History) -> None:
        self.seen += len(users)

    def score(self, users: Any, items: Any, context: Context | None = None) -> Any:
        return super().score(users, items, context) + 0.01 * self.seen


class TakesNothingBack(Counts):
    def streaming_state(self) -> dict[str, np.ndarray]:
        return {"seen": np.array([self.seen])}

    keeps_journal = True  # and yet it notes nothing


@pytest.mark.parametrize(
    ("check", "recommender"),
    [
        ("scores_are_those_of_the_loss", ForgetsTheBias),
        ("catalogue_matches_score", HalfACatalogue),
        ("closed_form_matches_autograd", WrongSign),
        ("closed_form_matches_autograd", MissesAGradient),
        ("rows_start_by_their_ids", ByArrival),
        ("large_scores_stay_finite", Overflows),
        ("streaming_state_round_trips", Counts),
        ("observing_is_taken_back", TakesNothingBack),
    ],
)
def test_a_broken_recommender_fails_the_right_check(check: str, recommender: Callable[..., Recommender]) -> None:
    others = {one.__name__: "another test" for one in RECOMMENDER_CHECKS if one.__name__ != check}
    with pytest.raises(ConformanceError, match=f"bpr fails the check '{check}'"):
        check_recommender(partial(recommender, {"dim": 6}), exempt=others)
    assert check_recommender(SMALL_RECOMMENDERS["bpr"], exempt=others).passed == (check,)


@pytest.mark.parametrize("check", ["scoring_is_pure", "state_round_trips"])
def test_a_recommender_can_break_a_pairing(check: str) -> None:
    others = {name: "another test" for name in NAMES if name != check}
    recommender = {"scoring_is_pure": Tired, "state_round_trips": Counts}[check]
    with pytest.raises(ConformanceError, match=f"bpr with default fails the check '{check}'"):
        check_pairing(partial(recommender, {"dim": 6}), partial(Default, {"lr": 0.05}), exempt=others)


def test_a_recommender_that_does_not_grow_is_found() -> None:
    class Fixed(BPR):
        def grow(self, users: int, user_keys: np.ndarray, items: int, item_keys: np.ndarray) -> None:
            if not self.rows_of("user"):
                super().grow(1000, np.arange(1000), 1000, np.arange(1000))

    others = {name: "another test" for name in NAMES if name != "grows"}
    with pytest.raises(ConformanceError, match="bpr with default fails the check 'grows'"):
        check_pairing(partial(Fixed, {"dim": 6}), partial(Default, {"lr": 0.05}), exempt=others)
