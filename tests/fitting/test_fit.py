"""One path to a model: Python, the command line and an evaluated cell come to the same choices and the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import pytest

from commands import Run
from melon.data.files import write_stream
from melon.data.interactions import Interactions
from melon.data.synthetic import synthetic_stream
from melon.estimator import Melon
from melon.evaluation.cell import Cell
from melon.fitting.config import CellConfig
from melon.fitting.fit import PRETRAINING, Fitted, fit
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import deploy, refit
from melon.fitting.selection import Selection
from melon.models.bpr import BPR
from melon.progress import Progress
from melon.registry import Space
from melon.strategies.default import Default
from melon.stream.batch import batch_of
from melon.stream.split import split

SMALL: dict[str, Any] = {"epochs": 2, "budget": 2, "batch_size": 64, "recommender_settings": {"dim": 6}}
WORDS = ("--epochs", "2", "--budget", "2", "--batch-size", "64", "--set", "recommender.dim=6")


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("flip", n_users=30, n_items=40, n_events=2_000, seed=1)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory, log: Interactions) -> Path:
    path = tmp_path_factory.mktemp("streams") / "flip.parquet"
    write_stream(path, log, {})
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def plan(**more: Any) -> Plan:
    protocol = EvaluationProtocol(batch_size=64, negatives=15)
    given: dict[str, Any] = {"recommender_settings": {"dim": 6}, "epochs": 2, "budget": 2, "protocol": protocol}
    return Plan(**given | more)


class TestOneDefault:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({}, ()),
            ({"recommender": "bpr", "strategy": "default"}, ("--recommender", "bpr", "--strategy", "default")),
            (
                {"recommender": "bpr", "strategy": "mwnet", "half_life": "auto", "seed": 3}
                | {"budget": 1, "settings": {"passes": 1}},
                (
                    *("--recommender", "bpr", "--strategy", "mwnet", "--half-life", "auto"),
                    *("--seed", "3", "--budget", "1", "--set", "passes=1"),
                ),
            ),
            ({"budget": 0, "recommender": "ncf"}, ("--budget", "0", "--recommender", "ncf")),
        ],
        ids=["auto", "named", "learned", "without a trial"],
    )
    def test_python_and_the_command_line_give_the_same_bytes(
        self,
        arguments: dict[str, Any],
        words: tuple[str, ...],
        log: Interactions,
        stream: Path,
        tmp_path: Path,
        run: Run,
    ) -> None:
        Melon(**SMALL | arguments).fit(log).save(tmp_path / "python")
        ended = run("pretrain", stream, "--out", tmp_path / "command", *WORDS, *words)
        assert ended.code == 0, ended.err
        assert content(tmp_path / "python") == content(tmp_path / "command")

    @pytest.mark.parametrize(
        "more", [{}, {"strategy": "eals"}, {"half_life": "auto"}, {"recommender": "blend", "half_life": "auto"}]
    )
    def test_a_cell_chooses_the_same_on_the_same_log(self, more: dict[str, Any], log: Interactions) -> None:
        config = CellConfig(
            **{"epochs": 2, "budget": 3, "batch_size": 64, "negatives": 15, "recommender_settings": {"dim": 6}} | more
        )
        cell = Cell(log, config)
        choices = cell.choose()
        fitted = fit(log.head(cell.parts.validation_stop), config.plan)
        chosen = choices["pretrain"]["settings"], choices[config.strategy]["settings"]
        assert chosen[0].items() <= fitted.choices[PRETRAINING].items()
        assert chosen[1].items() <= fitted.choices[config.strategy].items()

    def test_half_life_is_off_for_named_pairings_and_searched_by_auto(self, log: Interactions) -> None:
        def half_life(**more: Any) -> set[Any]:
            lines: list[str] = []
            Melon(**SMALL | {"progress": False, "report": lines.append} | more).fit(log)
            return {line.split("half_life=")[1].split(",")[0].split(":")[0] for line in lines if "half_life=" in line}

        named = {"recommender": "bpr", "strategy": "default"}
        assert half_life(**named) == {"None"}
        assert half_life(**named, half_life="off") == {"None"}
        assert half_life(**named, half_life="auto") == {"10000", "1000"}
        assert half_life() == {"10000", "1000"}
        assert half_life(**named, half_life=500) == {"500"}
        assert half_life(**named, settings={"half_life": 300.0}) == {"300"}
        assert half_life(**named, half_life="auto", settings={"half_life": None}) == {"None"}
        assert half_life(half_life="off") == {"None"}


class Searched(Default):
    """A strategy that the caller wrote, with something to search."""

    name = "searched"
    space: ClassVar[Space] = Space({"lr": (0.1, 0.3, 1.0)}, ({"lr": 0.3},))


class Unsearched(Default):
    """And one without."""

    name = "unsearched"


class Own(BPR):
    """A recommender that the caller wrote."""

    name = "own"


class TestWhatIsSaid:
    def test_a_class_with_a_search_space_is_tuned(self, log: Interactions) -> None:
        lines: list[str] = []
        model = Melon(Own, Searched, **SMALL | {"budget": 3}, report=lines.append).fit(log)
        assert [line.partition(":")[0] for line in lines if line.startswith("searched ")] == [
            "searched lr=0.3, half_life=None",
            *("searched lr=1, half_life=None", "searched lr=0.1, half_life=None"),
        ]
        assert model.choices_["searched"]["lr"] in (0.1, 0.3, 1.0)
        assert any(line.startswith("pre-training l2=") for line in lines)
        assert model.notes_ == ()

    def test_a_class_without_one_is_told(self, log: Interactions, capsys: pytest.CaptureFixture[str]) -> None:
        model = Melon("bpr", Unsearched, **SMALL).fit(log)
        assert len(model.notes_) == 1
        assert "'unsearched' declares no search space" in model.notes_[0]
        assert model.notes_[0] in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            ({"budget": 0}, "the budget is 0"),
            ({"epochs": 0}, "epochs = 0"),
            ({"minutes": 1e-9, "budget": 3}, "time limit of 1e-09 minutes cut the choice"),
        ],
    )
    def test_why_nothing_or_little_was_chosen(
        self, more: dict[str, Any], said: str, log: Interactions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from melon.estimator import load

        model = Melon("bpr", "default", **SMALL | more).fit(log)
        assert [said in note for note in model.notes_] == [True]
        assert said in capsys.readouterr().err
        model.save(tmp_path)
        assert load(tmp_path).notes_ == model.notes_
        assert said in model._repr_html_()

    def test_a_learned_strategy_that_was_not_trained(self, stream: Path, tmp_path: Path, run: Run) -> None:
        words = ("--recommender", "bpr", "--strategy", "melon", "--preset", "paper", "--negatives", "15")
        ended = run("evaluate", stream, *WORDS, *words, "--budget", "0", "--json", tmp_path / "r.json")
        record = json.loads((tmp_path / "r.json").read_text())
        note = record["notes"][1]
        assert "'melon' was not meta-trained" in note
        assert "learns on the stream alone" in note
        assert note in ended.err.replace("\n", " ")
        assert any(record["baselines"]["default"][name] != value for name, value in record["metrics"].items())

    def test_a_short_log(self, log: Interactions) -> None:
        assert "too few for a selection window" in Melon("bpr", "default", **SMALL).fit(log.head(60)).notes_[0]

    def test_silence(self, log: Interactions, capsys: pytest.CaptureFixture[str]) -> None:
        Melon("bpr", "default", **SMALL | {"budget": 0}, progress=False).fit(log)
        assert capsys.readouterr() == ("", "")

    def test_progress_goes_to_standard_error(self, log: Interactions, capsys: pytest.CaptureFixture[str]) -> None:
        Melon("bpr", "default", **SMALL).fit(log)
        shown = capsys.readouterr()
        assert shown.out == ""
        for stage in ("choosing pre-training settings", "choosing settings of default", "pre-training bpr on 2,000"):
            assert stage in shown.err


class TestSteps:
    @pytest.mark.parametrize("recommender", ["bpr", "blend"])
    def test_rows_that_are_deployed_without_a_copy_are_the_same(self, log: Interactions, recommender: str) -> None:
        chosen = plan(recommender=recommender, budget=0, epochs=1)
        states = []
        for once in (False, True):
            state = refit(chosen, log, {"epochs": 1}, once=once)
            updater = deploy(chosen.make_strategy({"half_life": 100.0}), state, log)
            updater.learn(batch_of(log, 0, 64))
            states.append(updater)
        one, other = states
        assert one.history.seen.keys().tobytes() == other.history.seen.keys().tobytes()
        for name, table in one.recommender.tables.items():
            for part, tensor in table.state().items():
                assert np.array_equal(tensor, other.recommender.tables[name].state()[part]), (name, part)

    def test_choices_are_known_before_the_long_training(self, log: Interactions) -> None:
        told: list[Any] = []

        class Stops(Progress):
            def stage(self, name: str) -> None:
                if name.startswith("pre-training"):
                    raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fit(log, plan(), Stops(), told.append)
        assert told[0].keys() == {PRETRAINING, "default"}

    def test_double_precision_is_used_all_the_way(self, log: Interactions) -> None:
        fitted = fit(log, plan(dtype="float64", strategy="mwnet", settings={"passes": 1}))
        tables = fitted.model.updater.recommender.tables.values()
        assert {str(table.everything().dtype) for table in tables} == {"float64"}
        floating = [value for value in fitted.model.updater.strategy.memory().values() if value.dtype.kind == "f"]
        assert {str(value.dtype) for value in floating} == {"float64"}


class TestStopping:
    """Ctrl-C while settings are tried keeps the best so far; in the last pre-training, the epochs that are done."""

    LOG = synthetic_stream("flip", n_users=40, n_items=60, n_events=1_500, seed=2)
    PLAN = Plan(
        "bpr",
        recommender_settings={"dim": 4},
        pretrain_settings={"epochs": 3},
        protocol=EvaluationProtocol(batch_size=64, negatives=15),
        budget=3,
    )

    def stopped_at(self, *words: str) -> Fitted:
        """A fit that is stopped at the first report that begins with each of these."""
        left = list(words)

        class Stopping(Progress):
            def note(self, text: str) -> None:
                if left and text.startswith(left[0]):
                    left.pop(0)
                    raise KeyboardInterrupt

            stage = tick = note

            def notice(self, text: str) -> None: ...

        fitted = fit(self.LOG, self.PLAN, Stopping())
        assert not left
        return fitted

    def test_while_strategies_are_tried(self) -> None:
        fitted = self.stopped_at("default lr=")
        assert fitted.notes == ("choosing was stopped: the best settings so far were taken",)
        assert fitted.choices["pre-training"]["epochs"] == 3
        assert fitted.model.recommend([self.LOG.user_ids[0]], 3)[0]

    def test_before_anything_was_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Selection, "_train_while_it_helps", stop)
            fitted = fit(self.LOG, self.PLAN)
        assert fitted.notes == ("choosing was stopped before anything was judged: defaults are used",)

    def test_in_the_last_pre_training(self) -> None:
        fitted = self.stopped_at("epoch 2 of 3")
        assert fitted.choices["pre-training"]["epochs"] == 2
        assert "stopped after 2 of 3 epochs" in fitted.notes[0]

    def test_the_second_time_ends_it(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.stopped_at("default lr=", "epoch 1 of 3")

    def test_an_evaluation_ends_at_once(self) -> None:
        parts = split(self.LOG, (0.7, 0.1, 0.2))
        selection = Selection(self.LOG.head(parts.validation_stop), parts, self.PLAN)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Selection, "_train_while_it_helps", MagicMock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                selection.pretraining()

    def test_workers_change_no_byte(self) -> None:
        plan = replace(self.PLAN, recommender="blend", pretrain_settings={}, epochs=4, half_life="auto", budget=4)
        one, two = (fit(self.LOG, plan, workers=count) for count in (1, 2))
        assert one.choices == two.choices
        for name, table in one.model.updater.recommender.tables.items():
            assert np.array_equal(table.everything(), two.model.updater.recommender.tables[name].everything()), name
