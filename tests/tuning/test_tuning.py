"""`melon tune`: rounds, pruning, the journal, the config file, and the command with real processes."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import Run, melon
from melon.bench.cell import Cell
from melon.bench.config import CellConfig
from melon.bench.config_files import config_text, read_config, toml, trials_behind
from melon.bench.work import Work
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import DataError, SettingsError
from melon.evaluation.prequential import Point
from melon.evaluation.ranking import Ranks
from melon.fitting.search import Curve, Search, Trial, neighbours, search
from melon.registry import Space
from melon.tuning.study import PlannedTrial, Study, Tried, alone, best
from melon.tuning.tune import Foundation, TrialJob

SPLIT = (0.8, 0.05, 0.15)
OPTIONS = ["--split", "0.8,0.05,0.15", "--epochs", "2", "--negatives", "15", "--batch-size", "16"]
CONFIG = CellConfig(split=SPLIT, epochs=2, negatives=15, batch_size=16)
SPACE = Space({"lr": (0.01, 0.1, 1.0), "half": (None, 2.0, 1.0), "kind": ("a", "b")}, ({"lr": 0.1}, {"kind": "b"}))


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from melon.demo import write_synthetic

    return write_synthetic("flip", tmp_path_factory.mktemp("streams") / "flip.parquet", 1_500, 0)


@pytest.fixture(scope="module")
def log(stream: Path) -> Interactions:
    return load_stream(stream)


def curve_of(*gained: float, n: int = 10) -> Curve:
    return Curve([n] * len(gained), list(gained))


class TestPruning:
    def test_a_curve_adds_up_to_the_selection_score(self, log: Interactions) -> None:
        rng, curve = np.random.default_rng(0), Curve()
        ranks = [rng.integers(1, 40, 16).astype(float) for _ in range(3)]
        for rank in ranks:
            usable = np.ones(16, dtype=bool)
            curve.add(Point(0, 16, usable, Ranks(rank, np.zeros(16, dtype=int)), None, 0.0, 0.0, 0.0, 0.0))
        from melon.evaluation.ranking import selection_score

        assert curve.score() == pytest.approx(selection_score(np.concatenate(ranks)))

    def test_the_difference_is_paired(self) -> None:
        """Batches differ far more than the two curves do; batch by batch the difference is plain."""
        easy = np.random.default_rng(1).uniform(0, 10, 40)
        noise = np.random.default_rng(2).normal(0, 0.1, 40)
        best_curve, other = curve_of(*easy), curve_of(*(easy - 1 + noise))
        mean, error = other.behind(best_curve)
        assert mean == pytest.approx(0.1, abs=0.005)
        assert error == pytest.approx(np.std((1 - noise), ddof=1) / np.sqrt(40) / 10)
        assert other.hopeless(best_curve)
        assert not best_curve.hopeless(other)
        assert not best_curve.hopeless(best_curve)

    def test_only_after_a_while(self) -> None:
        top = curve_of(*[9.0] * 100)
        for seen, given_up in ((9, False), (24, False), (25, True), (60, True)):
            behind = curve_of(*([1.0, 1.1] * 50)[:seen])
            assert behind.hopeless(top) is given_up, seen
        assert not curve_of(*[1.0, 1.1] * 4).hopeless(curve_of(*[9.0] * 8)), "eight batches say nothing"

    def test_what_lies_within_chance_goes_on(self) -> None:
        rng = np.random.default_rng(3)
        one, other = (curve_of(*rng.uniform(0, 10, 60)) for _ in range(2))
        assert not one.hopeless(other)
        assert not other.hopeless(one)


class TestTrialJob:
    def test_a_trial_scores_as_the_selection_does(self, log: Interactions) -> None:
        work = Work()
        cell = Cell(log, CONFIG, work=work)
        _, start = cell.fitting.window()
        settings = {"optimizer": "sgd", "lr": 0.2, "reduction": "sum", "fading": None}
        tried = TrialJob("trial 0", "flip", "g", CONFIG, settings).run(log, work)
        assert tried.score == cell.selection.judged(cell.selection.at_window("default", settings, start))
        assert tried.problem is None
        assert not tried.pruned

    def test_weights_that_are_shared_are_judged_after_training_again(self, log: Interactions) -> None:
        config = replace(CONFIG, recommender="ncf", recommender_settings={"dim": 4, "layers": [4]})
        work = Work()
        cell = Cell(log, config, work=work)
        _, start = cell.fitting.window()
        settings = {"optimizer": "sgd", "lr": 0.2, "reduction": "sum", "fading": None}
        tried = TrialJob("trial 0", "flip", "g", config, settings).run(log, work)
        again = cell.fitting.window_again()
        assert again is not None
        selection = cell.selection
        assert tried.score == selection.judged(selection.at_window("default", settings, start, again))
        assert tried.score != selection.judged(selection.at_window("default", settings, start))

    def test_a_hopeless_one_stops_on_the_way(self, log: Interactions) -> None:
        work = Work()
        settings = {"optimizer": "sgd", "lr": 0.2}
        whole = TrialJob("trial 0", "flip", "g", CONFIG, settings).run(log, work)
        assert whole.curve is not None
        dream = Curve(whole.curve.ranked, [1.9 * n + 0.01 * (i % 2) for i, n in enumerate(whole.curve.ranked)])
        tried = TrialJob("trial 1", "flip", "g", CONFIG, settings, dream).run(log, work)
        assert tried.pruned
        assert tried.curve is not None
        assert 10 <= len(tried.curve.ranked) < len(whole.curve.ranked)
        assert tried.curve.gained == whole.curve.gained[: len(tried.curve.gained)]

    def test_a_model_that_breaks_is_a_problem_and_not_a_crash(self, log: Interactions) -> None:
        settings = {"optimizer": "sgd", "lr": 1e6, "weight_decay": 1e6}
        tried = TrialJob("trial 0", "flip", "g", CONFIG, settings).run(log, Work())
        assert tried.problem is not None
        assert "not finite" in tried.problem

    def test_where_nothing_can_be_ranked_it_says_so(self) -> None:
        """Two users who have had nearly everything: fewer than 15 items are left to stand beside the one taken."""
        n = 600
        full = Interactions.from_ids(np.arange(n) % 2, np.arange(n) // 2 % 20, np.arange(n))
        tried = TrialJob("trial 0", "full", "g", CONFIG, {"lr": 0.2}).run(full, Work())
        assert tried.problem is not None
        assert "no event could be ranked" in tried.problem

    def test_pre_training_is_made_once_and_shared(self, log: Interactions, tmp_path: Path) -> None:
        laid = Foundation("flip", "g", CONFIG).run(log, Work(tmp_path / "g"))
        assert laid.pretrain is not None
        assert {"epochs", "l2"} == laid.pretrain.keys()
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "g").iterdir()}
        tried = TrialJob("trial 0", "flip", "g", CONFIG, {"lr": 0.2}).run(log, Work(base=tmp_path / "g"))
        assert tried.score == TrialJob("trial 0", "flip", "g", CONFIG, {"lr": 0.2}).run(log, Work()).score
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "g").iterdir()} == before

    def test_nothing_of_the_test_part_is_seen(self, log: Interactions) -> None:
        """Another test part of the same length changes no score."""
        stop = Cell(log, CONFIG).parts.validation_stop
        rng = np.random.default_rng(0)
        n = len(log) - stop
        other = Interactions.from_ids(
            np.concatenate([log.user_ids[log.users[:stop]], rng.integers(10**6, 10**7, n)]),
            np.concatenate([log.item_ids[log.items[:stop]], rng.integers(10**6, 10**7, n)]),
            np.concatenate([log.times[:stop], log.times[stop - 1] + np.arange(n)]),
        )
        job = TrialJob("trial 0", "flip", "g", CONFIG, {"lr": 0.2})
        assert job.run(log, Work()).score == job.run(other, Work()).score


def landscape(point: dict[str, Any]) -> Tried:
    """A made-up score for a point: highest at lr 1, half 1.0, kind b."""
    score = {0.01: 0.1, 0.1: 0.2, 1.0: 0.4}[point["lr"]] + {None: 0.0, 2.0: 0.1, 1.0: 0.2}[point["half"]]
    score += 0.05 * (point["kind"] == "b")
    return Tried("", 1.0, score, curve_of(score * 10, score * 11))


def study_in(folder: Path, together: int = 4, strategy: str = "made up") -> Study:
    return Study(folder / "s.journal", Search(SPACE, {}, together), {"strategy": strategy})


def rounds(study: Study, most: int) -> Iterator[list[PlannedTrial]]:
    while trials := study.round(most):
        yield trials
        for trial in trials:
            study.tell(trial, landscape(trial.point))


def points(study: Study) -> list[dict[str, Any]]:
    return [trial.point for trial in study.trials()]


class TestStudy:
    def test_starts_come_first_and_no_point_comes_twice(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        sizes = [len(each) for each in rounds(study, 14)]
        assert sizes == [2, 4, 4, 4]
        found = points(study)[:14]
        assert found[:2] == [{"lr": 0.1, "half": None, "kind": "a"}, {"lr": 0.01, "half": None, "kind": "b"}]
        assert len({json.dumps(point) for point in found}) == 14
        top = best(study.trials())
        assert top is not None
        assert top.score == max(landscape(point).score or 0 for point in found)

    def test_one_at_a_time_it_is_the_search_of_a_fit(self, tmp_path: Path) -> None:
        study = study_in(tmp_path, together=1)
        list(rounds(study, 9))
        walk = search(SPACE, 9, lambda point, _: Trial(point, landscape(point).score))
        assert points(study)[:9] == [trial.settings for trial in walk.trials]

    def test_a_round_lies_beside_the_best_of_the_rounds_before(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        for trials in rounds(study, 10):
            top = best([trial for trial in study.trials() if trial.round < trials[0].round])
            if top is not None:
                assert trials[0].point in list(neighbours(top.point, Search(SPACE).axes))

    def test_what_was_stopped_early_draws_nobody(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        first, second = study.round(2)
        study.tell(first, Tried("", 1.0, 0.9, curve_of(9.0), pruned=True))
        study.tell(second, Tried("", 1.0, 0.1, curve_of(1.0)))
        beside = list(neighbours(second.point, Search(SPACE).axes))
        assert all(trial.point in beside for trial in study.round(5))

    def test_a_whole_space_comes_to_an_end(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        assert sum(len(each) for each in rounds(study, 1_000)) == 3 * 3 * 2

    def test_the_order_in_which_a_round_ends_changes_nothing(self, tmp_path: Path) -> None:
        one, other = study_in(tmp_path / "a"), study_in(tmp_path / "b")
        list(rounds(one, 12))
        while trials := other.round(12):
            for trial in reversed(trials):
                other.tell(trial, landscape(trial.point))
        assert points(one) == points(other)

    @pytest.mark.parametrize("told", [0, 1, 3])
    def test_a_study_that_was_cut_off_goes_on_as_if_nothing_had_happened(self, tmp_path: Path, told: int) -> None:
        whole = study_in(tmp_path / "whole")
        list(rounds(whole, 12))
        cut = study_in(tmp_path / "cut")
        for trials in rounds(cut, 8):
            if trials[0].place == 2:
                for trial in trials[:told]:
                    cut.tell(trial, landscape(trial.point))
                break
        path = tmp_path / "cut" / "s.journal"
        path.write_bytes(path.read_bytes() + b'{"trial": 4, "cut sho')  # the process died in the middle of a line
        again = study_in(tmp_path / "cut")
        assert [trial.place for trial in again.round(12)] == [*range(2 + told, 6)]
        list(rounds(again, 12))
        assert points(again) == points(whole)

    def test_cut_off_in_its_first_line(self, tmp_path: Path) -> None:
        whole = study_in(tmp_path)
        path = tmp_path / "s.journal"
        path.write_bytes(path.read_bytes()[:12])
        assert points(study_in(tmp_path)) == points(whole)

    def test_lines_are_on_disk_before_the_next_trial(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[int] = []
        monkeypatch.setattr("os.fsync", synced.append)
        study = study_in(tmp_path)
        for trial in study.round(2):
            study.tell(trial, landscape(trial.point))
        assert len(synced) == 3

    def test_a_trial_that_would_not_be_planned_now_is_refused(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        for trial in study.round(2):
            study.tell(trial, landscape(trial.point))
        path = tmp_path / "s.journal"
        path.write_text(path.read_text().replace('"lr": 0.01', '"lr": 1.0'))
        with pytest.raises(DataError, match=r"trial 2 is .* it was made by another version"):
            study_in(tmp_path)

    def test_more_trials_join_those_that_are_there(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        assert [len(each) for each in rounds(study, 1)] == [1]
        assert [len(each) for each in rounds(study_in(tmp_path), 4)] == [1, 2]
        more = study_in(tmp_path)
        assert [len(each) for each in rounds(more, 6)] == [2]
        assert sum(trial.ended for trial in more.trials()) == 6
        straight = study_in(tmp_path / "straight")
        list(rounds(straight, 6))
        assert points(straight) == points(more)

    def test_a_trial_is_compared_with_rounds_before_its_own(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        for trials in rounds(study, 12):
            earlier = study.trials()[: trials[0].place]
            assert len({trial.round for trial in trials}) == 1
            for trial in trials:
                assert study.best_before(trial) == best(earlier)

    def test_how_trials_ended_is_remembered(self, tmp_path: Path) -> None:
        study = study_in(tmp_path)
        list(rounds(study, 2))
        first, second, third, _ = study.round(6)
        study.tell(first, Tried("", 2.0, problem="it broke"))
        study.tell(second, Tried("", 1.0, 0.25, curve_of(2.0, 3.0), pruned=True))
        study.tell(third, Tried("", 1.0, 0.5, curve_of(5.0, 5.0)))
        study.keep_defaults(Tried("defaults", 1.0, 0.4, curve_of(4.0)))
        study.keep_pretraining({"l2": 0.03})
        again = study_in(tmp_path)
        failed, pruned, done, open_one = again.trials()[2:]
        assert failed.tried == Tried("trial 3", 2.0, problem="it broke")
        assert pruned.tried == Tried("trial 4", 1.0, 0.25, curve_of(2.0, 3.0), pruned=True)
        assert done.tried == Tried("trial 5", 1.0, 0.5, curve_of(5.0, 5.0))
        assert [trial.state for trial in (failed, pruned, done)] == ["FAIL", "PRUNED", "COMPLETE"]
        assert not open_one.ended
        assert best(again.trials()) == done
        assert again.defaults == Tried("defaults", 1.0, 0.4, curve_of(4.0))
        assert again.pretraining == {"l2": 0.03}

    def test_a_study_of_something_else_is_refused(self, tmp_path: Path) -> None:
        study_in(tmp_path)
        with pytest.raises(SettingsError, match='holds a study with strategy = "made up", and this one has "other"'):
            study_in(tmp_path, strategy="other")

    @pytest.mark.parametrize("content", [b"not a journal\n", b"[1, 2]\n", b"no line end", b'{"op_code": 0}\n'])
    def test_a_file_that_is_no_study_is_left_alone(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "s.journal"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"is no study of (this )?melon tune"):
            study_in(tmp_path)
        assert path.read_bytes() == content

    def test_one_at_a_time(self, tmp_path: Path) -> None:
        with (
            alone(tmp_path / "s.journal"),
            pytest.raises(SettingsError, match="another melon tune"),
            alone(tmp_path / "s.journal"),
        ):
            pass


class TestTheFile:
    def test_it_says_what_a_cell_needs(self, tmp_path: Path) -> None:
        config = CellConfig(strategy="mwnet", split=SPLIT, fading="auto", recommender_settings={"dim": 8})
        settings = {"lr": 0.3, "virtual_lr": None, "normalise": True, "optimizer": "sgd", "fading": 3_000.0}
        text = config_text(config, settings, {"l2": 1e-06, "epochs": 4}, 12, ["how", "it came about"])
        path = tmp_path / "x.toml"
        path.write_text(text, encoding="utf-8")
        assert text.startswith("# how\n# it came about\n")
        made = CellConfig(**read_config(path))
        assert made.settings == settings
        assert made.fixed == settings
        assert (made.strategy, made.split, made.fading, made.budget) == ("mwnet", SPLIT, "auto", 12)
        assert made.recommender_settings == {"dim": 8}
        assert made.pretrain_settings == {"l2": 1e-06, "epochs": 4}

    @given(st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False)))
    def test_values_go_there_and_back(self, value: Any) -> None:
        assert tomllib.loads(f"x = {toml(value)}")["x"] == value

    @given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])))
    def test_words_too(self, value: str) -> None:
        assert tomllib.loads(f"x = {toml(value)}")["x"] == value


def command(stream: Path, out: Path, *more: str) -> list[str]:
    words = ["tune", str(stream), "--strategy", "eals", "--trials", "6", "--round", "3", *OPTIONS, "--out", str(out)]
    return [sys.executable, "-m", "melon", *words, *more]


@pytest.fixture(scope="module")
def tuned(stream: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "eals.toml"
    ended = melon(*command(stream, out, "--jobs", "2")[3:])
    assert ended.code == 0, ended.err
    assert "chosen for eals" in ended.out
    assert "over the strategy's defaults" in ended.out
    assert "6 of 6, best" in ended.err
    return out


class TestCommand:
    def test_the_file_tells_where_it_comes_from(self, tuned: Path, log: Interactions) -> None:
        text = tuned.read_text(encoding="utf-8")
        assert log.sha256 in text
        assert "melon tune" in text.splitlines()[0]
        assert "trials: " in text
        assert not [name for name in ("date", "2026") if name in text]

    def test_one_process_gives_the_same_file(self, tuned: Path, stream: Path, tmp_path: Path, run: Run) -> None:
        ended = run(*command(stream, tmp_path / "x.toml")[3:])
        assert ended.code == 0
        assert (tmp_path / "x.toml").read_text(encoding="utf-8") == tuned.read_text(encoding="utf-8")

    @pytest.mark.parametrize("lines", [pytest.param(2, marks=pytest.mark.slow), 5])
    def test_killed_and_started_again_it_gives_the_same_file(
        self, tuned: Path, stream: Path, tmp_path: Path, run: Run, lines: int
    ) -> None:
        out = tmp_path / "x.toml"
        process = subprocess.Popen(command(stream, out, "--jobs", "2"), stderr=subprocess.DEVNULL)
        journal, until = tmp_path / "x.journal", time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until:
            if journal.exists() and journal.read_bytes().count(b"\n") >= lines:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        ended = run(*command(stream, out)[3:])
        assert ended.code == 0, ended.err
        assert out.read_text(encoding="utf-8") == tuned.read_text(encoding="utf-8")

    def test_stopped_it_keeps_what_is_done_and_writes_the_best_so_far(self, stream: Path, tmp_path: Path) -> None:
        out = tmp_path / "x.toml"
        words = [*command(stream, out), "--trials", "500"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("trial "):
                break
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(timeout=60) == 130
        assert "Run the same command again to resume" in told
        assert "Traceback" not in told
        assert read_config(out)["strategy"] == "eals"

    def test_evaluate_and_pretrain_take_it_and_search_nothing_more(
        self, tuned: Path, stream: Path, tmp_path: Path, run: Run
    ) -> None:
        more = ["--budget", "2"]
        ended = run("evaluate", stream, "--config", tuned, *more, "--json", tmp_path / "r.json")
        assert ended.code == 0
        record = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
        chosen = record["config"]["chosen"]
        found = read_config(tuned)
        assert chosen["eals"]["settings"] == found["settings"]
        assert chosen["eals"]["trials"] == []
        assert {name: chosen["pretrain"]["settings"][name] for name in ("l2", "epochs")} == found["pretrain_settings"]
        ended = run("pretrain", stream, "--config", tuned, *more, "--out", tmp_path / "model")
        assert ended.code == 0
        assert f"w_new={found['settings']['w_new']}" in ended.out

    def test_a_complete_study_is_only_written_again(self, tuned: Path, stream: Path, run: Run) -> None:
        before = tuned.read_text(encoding="utf-8")
        assert trials_behind(tuned) == 6
        tuned.unlink()
        ended = run(*command(stream, tuned)[3:])
        assert ended.code == 0
        assert "pre-training" not in ended.err
        assert tuned.read_text(encoding="utf-8") == before

    def test_one_trial_is_enough(self, stream: Path, tmp_path: Path, run: Run) -> None:
        ended = run(*command(stream, tmp_path / "x.toml")[3:], "--trials", "1")
        assert ended.code == 0
        assert "trials: 1 done" in ended.out

    def test_a_learned_strategy_practises_first(self, stream: Path, tmp_path: Path, run: Run) -> None:
        words = ["tune", stream, "--strategy", "mwnet", "--trials", "1", "--set", "passes=1", *OPTIONS]
        ended = run(*words, "--out", tmp_path / "x.toml")
        assert ended.code == 0
        assert read_config(tmp_path / "x.toml")["settings"]["passes"] == 1

    def test_all_trials_failing_is_told(self, stream: Path, tmp_path: Path, run: Run) -> None:
        words = [*command(stream, tmp_path / "x.toml")[3:], "--trials", "2", "--set", "weight_decay=1e9"]
        ended = run(*words, "--set", "lr=1e6", "--set", "optimizer=sgd")
        assert ended.code == 1
        assert "no trial came through" in ended.said
        assert not (tmp_path / "x.toml").exists()

    @pytest.mark.parametrize(
        ("more", "complaint"),
        [
            (["--strategy", "default"], 'holds a study with strategy = "eals"'),
            (["--seed", "1"], "holds a study with seed = 0, and this one has 1"),
            (["--set", "w_new=2"], "holds a study with settings = {}"),
            (["--no-pruning"], "pruning = true, and this one has false"),
        ],
    )
    def test_a_study_of_something_else(
        self, tuned: Path, stream: Path, run: Run, more: list[str], complaint: str
    ) -> None:
        ended = run(*command(stream, tuned)[3:], *more)
        assert ended.code == 2
        assert complaint in ended.said

    @pytest.mark.parametrize(
        ("more", "complaint"),
        [
            (["--trials", "0"], "trials = 0 must be at least 1"),
            (["--round", "0"], "round = 0 must be at least 1"),
            (["--jobs", "0"], "jobs = 0 is too few"),
            (["--strategy", "melom"], "Did you mean 'melon'?"),
            (["--strategy", "als", "--recommender", "ncf"], "plain matrix factorisation"),
            (["--out", "x.json"], "must end in .toml"),
            (["--split", "0.1,0.01,0.89"], "too short to compare settings"),
        ],
    )
    def test_bad_options(self, stream: Path, tmp_path: Path, run: Run, more: list[str], complaint: str) -> None:
        ended = run(*command(stream, tmp_path / "x.toml")[3:], *more)
        assert ended.code in (1, 2)
        assert complaint in ended.said

    def test_everything_fixed_leaves_nothing_to_search(self, stream: Path, tmp_path: Path, run: Run) -> None:
        fixed = ["lr=0.1", "optimizer=sgd", "reduction=sum", "w_new=2", "neg=uniform", "replay=0"]
        words = [word for each in fixed for word in ("--set", each)]
        ended = run(*command(stream, tmp_path / "x.toml")[3:], *words)
        assert ended.code == 2
        assert "nothing to search" in ended.said
