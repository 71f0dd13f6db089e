"""`melon advise`: what is advised from ranks with a known answer, and the command on small streams."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Run
from melon.errors import SettingsError
from melon.evaluation.record import judged
from melon.lab.advice import NO_TIME, Advice, AdvicePlan, Method, judge
from melon.lab.bench import CellOutcome, Task, run_grid, tasks_of
from melon.lab.executors import LocalExecutor
from melon.progress import Progress
from melon.types import Floats

EVENTS = 4_000
USERS, ITEMS = np.arange(EVENTS) % 400, np.arange(EVENTS) * 7 % 500
FEW = ["--negatives", "15", "--batch-size", "32", "--recommenders", "bpr"]


def ranks(hit_rate: float, seed: int = 0) -> Floats:
    """Ranks that hit at this rate; with the same seed, whoever hits less hits on a part of the same events."""
    return np.where(np.random.default_rng(seed).random(EVENTS) < hit_rate, 1.0, 50.0)


def methods(**given: tuple[float, float]) -> list[Method]:
    return [Method(name, ranks(hit_rate), cost) for name, (hit_rate, cost) in given.items()]


SIMPLE = methods(frozen=(0.1, 0.0), popularity=(0.15, 0.0), recent_popularity=(0.2, 0.0))


class TestJudging:
    def test_a_better_strategy_is_taken(self) -> None:
        conclusion = judge(methods(default=(0.3, 2.0), melon=(0.4, 20.0)), SIMPLE, USERS, ITEMS)
        assert conclusion.taken.name == "melon"
        assert conclusion.better == {"melon": True}
        assert all(conclusion.beats.values())
        assert conclusion.challengers["melon"].difference == pytest.approx(0.1, abs=0.02)

    def test_without_a_difference_the_cheapest_is(self) -> None:
        other = Method("melon", ranks(0.305, seed=1), 20.0)
        conclusion = judge([*methods(default=(0.3, 2.0)), other], SIMPLE, USERS, ITEMS)
        assert conclusion.taken.name == "default"
        assert not conclusion.simpler

    def test_of_winners_that_are_alike_the_cheapest_is(self) -> None:
        alike = [Method("dear", ranks(0.402, seed=3), 50.0), Method("cheap", ranks(0.4, seed=4), 5.0)]
        conclusion = judge([*methods(default=(0.3, 2.0)), *alike], SIMPLE, USERS, ITEMS)
        assert conclusion.better == {"dear": True, "cheap": True}
        assert conclusion.taken.name == "cheap"

    def test_of_winners_that_differ_the_best_is(self) -> None:
        conclusion = judge(methods(default=(0.3, 2.0), cheap=(0.35, 5.0), dear=(0.5, 50.0)), SIMPLE, USERS, ITEMS)
        assert conclusion.taken.name == "dear"

    @pytest.mark.parametrize("hit_rate", [0.3, 0.302, 0.4])
    def test_what_does_without_a_strategy_is_taken_where_it_is_not_beaten(self, hit_rate: float) -> None:
        simple = [
            *methods(frozen=(0.1, 0.0), popularity=(0.1, 0.0)),
            Method("recent_popularity", ranks(hit_rate, 5), 0.0),
        ]
        conclusion = judge(methods(default=(0.3, 2.0), melon=(0.301, 20.0)), simple, USERS, ITEMS)
        assert conclusion.taken.name == "recent_popularity"
        assert conclusion.simpler
        assert conclusion.beats == {"frozen": True, "popularity": True, "recent_popularity": False}

    def test_repeats_are_left_out_where_there_are_both_kinds(self) -> None:
        some = np.array([True, False, False])
        assert judged(some).tolist() == [False, True, True]
        assert judged(np.zeros(3, dtype=bool)).all()
        assert judged(np.ones(3, dtype=bool)).all()


def advice_of(strategies: list[Method], simple: list[Method], **more: object) -> Advice:
    everybody = (*simple, *strategies)
    told: dict[str, object] = {
        "stream": Path("s.parquet"),
        "interactions": 9_000,
        "recent": 5_000,
        "span": (0, 86_400),
        "judged": EVENTS,
        "without_repeats": False,
        "conclusion": judge(strategies, simple, USERS, ITEMS),
        "methods": everybody,
        "beside": (),
        "chosen": {each.name: {"lr": 0.3} for each in strategies},
        "half_life": 300,
        "left_out": {},
        "batch_size": 256,
    }
    return Advice(**{**told, **more})  # type: ignore[arg-type]


class TestWords:
    def test_a_winner_with_what_it_gains_and_costs(self) -> None:
        found = advice_of(methods(**{"bpr default": (0.3, 2.0), "bpr melon": (0.4, 20.0)}), SIMPLE)
        text = "\n".join(found.sentences())
        assert "Take bpr updated by melon: HR@5 0.4" in text
        assert "It is better than bpr default: +0." in text
        assert "Over no update at all: +0." in text
        assert "Over recent popularity: +0." in text
        assert "20.0 ms for each batch of 256: 12,800 interactions a second, 10.0 times bpr default" in text
        assert "melon pretrain s.parquet --recommender bpr --strategy melon --half-life auto --out model/" in text

    def test_no_difference_is_said(self) -> None:
        strategies = [*methods(**{"bpr default": (0.3, 2.0)}), Method("bpr melon", ranks(0.305, seed=1), 20.0)]
        found = advice_of(
            strategies, SIMPLE, left_out={"ncf melon": NO_TIME, "bpr sml": "it failed", "ncf sml": NO_TIME}
        )
        text = "\n".join(found.sentences())
        assert "No other strategy is shown to be better than it, so the cheapest is enough." in text
        assert "Left out (no time left; more --minutes take more in): ncf melon, ncf sml." in text
        assert "Left out (it failed): bpr sml." in text

    @pytest.mark.parametrize(
        ("hit_rate", "words"), [(0.302, "shows no significant difference"), (0.5, "is worse: -0.")]
    )
    def test_popularity_alone(self, hit_rate: float, words: str) -> None:
        simple = [*SIMPLE[:2], Method("recent_popularity", ranks(hit_rate, seed=5), 0.0)]
        text = "\n".join(advice_of(methods(**{"bpr default": (0.3, 2.0)}), simple).sentences())
        assert "Take recent popularity alone" in text
        assert words in text
        assert "halve every 300 interactions" in text

    def test_a_baseline_that_is_shown_only_is_named_where_it_is_ahead(self) -> None:
        strategies = methods(**{"bpr default": (0.3, 2.0)})
        for hit_rate, named in ((0.5, True), (0.2, False)):
            baseline = Method("item_knn", ranks(hit_rate, seed=6), 0.0)
            found = advice_of(strategies, SIMPLE, beside=(baseline.name,), methods=(*SIMPLE, baseline, *strategies))
            assert ("cannot serve: item-kNN + popularity" in "\n".join(found.sentences())) is named
            assert "Take bpr updated by default" in found.sentences()[0]

    def test_json_holds_all_of_it(self) -> None:
        found = advice_of(methods(**{"bpr default": (0.3, 2.0), "bpr melon": (0.4, 20.0)}), SIMPLE).plain()
        again = json.loads(json.dumps(found, allow_nan=False))
        assert again["take"] == "bpr melon"
        assert again["against_reference"]["bpr melon"]["better"] is True
        assert again["methods"]["frozen"]["update_ms"] is None


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from melon.demo import write_synthetic

    return write_synthetic("news", tmp_path_factory.mktemp("streams") / "news.parquet", 2_500, 0)


class TestCommand:
    def test_words(self, stream: Path, run: Run) -> None:
        ended = run("advise", stream, "--strategies", "default,eals", *FEW, "--minutes", "10")
        assert ended.code == 0, ended.err
        assert "The last 2,500 of 2,500 interactions" in ended.out
        assert "Take " in ended.out
        assert "bpr eals: HR@5" in ended.err

    def test_json_about_the_recent_part_only(self, stream: Path, run: Run) -> None:
        words = ["advise", stream, "--strategies", "eals,metasgd", "--jobs", "2", *FEW, "--recommenders", "ials"]
        ended = run(*words, "--minutes", "10", "--json")
        assert ended.code == 0, ended.err
        found = json.loads(ended.out)
        assert found["reference"] == "ials default"
        assert {"frozen", "popularity", "recent_popularity", "ials default", "ials eals"} <= found["methods"].keys()
        assert "has nothing to update" in found["left_out"]["ials metasgd"]
        assert found["judged"] <= 0.2 * 2_500

    @pytest.mark.parametrize(
        ("more", "complaint"),
        [
            (["--minutes", "0"], "minutes = 0 is too short"),
            (["--minutes", "1e-9"], "were not enough for plain fine-tuning"),
            (["--strategies", "melom"], "Did you mean 'melon'?"),
            (["--recommenders", "brp"], "Did you mean 'bpr'?"),
            (["--jobs", "0"], "jobs = 0 is too few"),
        ],
    )
    def test_bad_options(self, stream: Path, run: Run, more: list[str], complaint: str) -> None:
        ended = run("advise", stream, *FEW, *more)
        assert ended.code == 2
        assert complaint in ended.said

    def test_a_stream_that_is_too_short(self, tmp_path: Path, run: Run) -> None:
        run("data", "synthetic", "flip", "--events", "900", "--out", tmp_path / "short.parquet")
        ended = run("advise", tmp_path / "short.parquet", *FEW)
        assert ended.code == 1
        assert "needs at least 1,000" in ended.said


def test_the_order_is_the_quick_ones_first_and_every_plain_one_before_the_rest() -> None:
    plan = AdvicePlan(("bpr", "blend", "ncf"), ("melon", "default", "eals"), 1.0, {})
    keys = [{f"{task.config.recommender} {task.config.strategy}" for task in phase} for phase in plan.phases()]
    first, plain = {"bpr default", "bpr melon", "bpr eals"}, {"bpr default", "blend default", "ncf default"}
    rest = {f"{recommender} {strategy}" for recommender in ("blend", "ncf") for strategy in ("melon", "eals")}
    assert keys == [plain - {"ncf default"}, first | {"blend default"}, first | plain, first | plain | rest]
    assert [len(phase) for phase in plan.phases()] == [2, 4, 5, 9]
    with pytest.raises(SettingsError, match="minutes"):
        AdvicePlan(("bpr",), ("default",), float("nan"), {})


def test_a_grid_ends_where_there_is_enough(stream: Path, tmp_path: Path) -> None:
    from melon.fitting.config import CellConfig

    class Ended(Progress):
        count = 0

        def ended(self, outcome: CellOutcome) -> None:
            self.count += 1

    base = CellConfig(split=(0.8, 0.05, 0.15), budget=1, epochs=1, negatives=15, batch_size=64)
    tasks: list[Task] = tasks_of({"news": base.split}, ["bpr"], ["eals"], 1, base)
    executor: LocalExecutor = LocalExecutor({"news": stream}, tmp_path, jobs=1, threads=1)
    progress = Ended()
    try:
        outcomes = list(run_grid(tasks, {}, executor, lambda _: None, progress, lambda: progress.count == 1))
    finally:
        executor.stop()
    assert [outcome.task.config.strategy for outcome in outcomes] == ["default"]
