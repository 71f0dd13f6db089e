"""`melon bench` with real processes: records, resuming, killing, failing cells, and what does not go together."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from commands import Run, melon
from melon.data.files import load_stream
from melon.errors import LearningError, SettingsError
from melon.evaluation.baselines import BASELINES
from melon.evaluation.cell import Cell
from melon.evaluation.work import Work
from melon.fitting.config import CellConfig
from melon.kernels.threads import use_threads
from melon.lab.bench import BenchFolder, BenchPlan, CellOutcome, LocalExecutor, Task, environment, run_grid, tasks_of
from melon.lab.terminal import bench_table
from melon.progress import Progress

SPLIT = (0.8, 0.05, 0.15)
OPTIONS = ["--split", "0.8,0.05,0.15", "--budget", "2", "--epochs", "2", "--negatives", "15", "--batch-size", "32"]
BASE = CellConfig(split=SPLIT, budget=2, epochs=2, negatives=15, batch_size=32)
#: What a clock or the machine decides.
TIMINGS = ("update_ms", "score_ms", "pretrain_s", "peak_rss_mb", "seconds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from melon.demo import write_synthetic

    made = tmp_path_factory.mktemp("streams")
    write_synthetic("flip", made / "flip.parquet", 1_200, 0)
    write_synthetic("news", made / "news.parquet", 1_200, 0)
    return made


@pytest.fixture(scope="module")
def bench(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two streams, two recommenders, three strategies, one seed, on two processes."""
    out = tmp_path_factory.mktemp("bench") / "runs"
    ended = melon(*command_of(folder, out)[3:], "--jobs", 2)
    assert ended.code == 0, ended.err
    return out


def command_of(
    folder: Path, out: Path, *, streams: tuple[str, ...] = ("flip", "news"), recommenders: str = "bpr,ials"
) -> list[str]:
    paths = [str(folder / f"{name}.parquet") for name in streams]
    which = ["--recommenders", recommenders, "--strategies", "eals,metasgd", "--seeds", "1"]
    return [sys.executable, "-m", "melon", "bench", *paths, *which, *OPTIONS, "--out", str(out)]


def records_of(out: Path) -> dict[str, Any]:
    """Every record without its timings, with its ranks."""
    found = {}
    for path in sorted(out.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for name in TIMINGS:
            record.pop(name, None)
        for batch in record.get("batches", ()):
            del batch["update_ms"]
        if "ranks" in record:
            record["every rank"] = pl.read_parquet(out / record["ranks"]).fill_nan(None).to_dict(as_series=False)
        found[path.stem] = record
    return found


def test_every_cell_has_a_record_and_the_foundation_is_there_unasked(bench: Path) -> None:
    cells = {
        f"{s}-{r}-0-{t}" for s in ("flip", "news") for r in ("bpr", "ials") for t in ("default", "eals", "metasgd")
    }
    records = records_of(bench)
    assert records.keys() == {*cells, "bench"}
    assert not list(bench.glob("*.failed.txt"))
    for name in cells:
        if name.endswith("ials-0-metasgd"):
            assert "has nothing to update" in records[name]["not_applicable"]
        else:
            assert records[name]["metrics"]["HR@5"] >= 0
            always = {"frozen", "popularity", "recent_popularity", *BASELINES, "default"}
            assert records[name]["baselines"].keys() == always


def test_cells_share_pre_training_default_and_candidates(bench: Path) -> None:
    records = records_of(bench)
    for group in ("flip-bpr-0", "news-ials-0"):
        one, other = records[f"{group}-default"], records[f"{group}-eals"]
        assert one["config"]["chosen"]["pretrain"] == other["config"]["chosen"]["pretrain"]
        assert one["baselines"] == other["baselines"]
        assert one["every rank"]["rank"] == other["every rank"]["rank_default"]
    assert sorted(path.name for path in (bench / "work").iterdir()) == sorted(
        f"{s}-{r}-0" for s in ("flip", "news") for r in ("bpr", "ials")
    )


def test_a_record_is_what_a_cell_alone_gives(bench: Path, folder: Path) -> None:
    config = replace(BASE, strategy="eals")
    alone = Cell(load_stream(folder / "flip.parquet"), config).run("flip").record
    benched = json.loads((bench / "flip-bpr-0-eals.json").read_text(encoding="utf-8"))
    for name in ("metrics", "config", "baselines", "step", "dataset"):
        assert benched[name] == json.loads(json.dumps(alone[name])), name


def test_a_finished_bench_is_only_shown_again(bench: Path, folder: Path, run: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in bench.glob("*-*.json")}
    ended = run(*command_of(folder, bench)[3:])
    assert ended.code == 0
    assert "12 of 12 cells are there already" in ended.err
    assert "HR@5" in ended.out
    assert {path: path.stat().st_mtime_ns for path in bench.glob("*-*.json")} == before


def test_a_folder_knows_its_own_settings_again(folder: Path, tmp_path: Path) -> None:
    streams = {"flip": folder / "flip.parquet"}
    base = replace(BASE, recommender_settings={"inputs": ("profiles",)})  # a file holds a list
    plan = BenchPlan(streams, ("blend",), ("default",), 1, base)
    for _ in range(2):
        BenchFolder(tmp_path).claim(plan)
    with pytest.raises(SettingsError, match="recommender_settings"):
        BenchFolder(tmp_path).claim(replace(plan, base=BASE))


@pytest.mark.parametrize("records", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_started_again_it_gives_the_same_records(
    bench: Path, folder: Path, tmp_path: Path, run: Run, records: int
) -> None:
    out, expected = tmp_path / "runs", {name: one for name, one in records_of(bench).items() if "flip-bpr" in name}
    command = [*command_of(folder, out, streams=("flip",), recommenders="bpr"), "--jobs", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until and len(list(out.glob("*-*.json"))) < records:
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list(out.glob("*-*.json"))) < len(expected) or process.returncode == 0
    ended = run(*command[3:])
    assert ended.code == 0, ended.err
    assert {name: one for name, one in records_of(out).items() if name != "bench"} == expected


def test_a_stopped_bench_says_how_to_go_on(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command_of(folder, tmp_path / "runs"), stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (tmp_path / "runs" / "work").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Run the same command again to continue" in told
    assert "Traceback" not in told


class Fails(Progress):
    def __init__(self) -> None:
        self.told: list[str] = []

    def ended(self, outcome: CellOutcome) -> None:
        self.told.append(f"{outcome.task.key} {'record' if outcome.record else outcome.problem}")


def test_a_process_that_dies_takes_only_its_own_cell_down(folder: Path, tmp_path: Path) -> None:
    streams = {"flip": folder / "flip.parquet"}
    tasks = tasks_of({"flip": SPLIT}, ["bpr"], ["eals", "metasgd"], 1, BASE)
    executor, watcher, kept = LocalExecutor(streams, tmp_path, jobs=1, threads=1), Fails(), {}
    try:
        outcomes = run_grid(tasks, {}, executor, lambda outcome: kept.update({outcome.task.key: outcome}), watcher)
        for outcome in outcomes:
            if outcome.task.shared:  # the next one is killed as soon as it has begun
                original = executor.submit

                def submit_and_kill(task: Task, original: Any = original) -> None:
                    original(task)
                    if task.config.strategy == "eals":
                        ((_, pool),) = executor._running.values()
                        os.kill(next(iter(pool._processes)), signal.SIGKILL)

                executor.submit = submit_and_kill  # type: ignore[method-assign]
    finally:
        executor.stop()
    assert kept["flip-bpr-0-eals"].problem == "its process ended early; the machine may have run out of memory."
    assert kept["flip-bpr-0-metasgd"].record is not None
    assert len(watcher.told) == 3


def test_a_cell_that_fails_is_told_and_tried_again(folder: Path, tmp_path: Path, run: Run) -> None:
    """A rate beyond all reason breaks one strategy; the others have their records, and the exit code says it."""
    bad = tmp_path / "bad"
    bad.mkdir()
    settings = 'recommender = "bpr"\nstrategy = "eals"\n[settings]\nlr = 1e6\nweight_decay = 1e6\noptimizer = "sgd"\n'
    (bad / "flip-bpr-eals.toml").write_text(settings, encoding="utf-8")
    words = ["bench", folder / "flip.parquet", "--strategies", "eals", "--seeds", "1", *OPTIONS]
    ended = run(*words, "--config", bad, "--out", tmp_path / "runs")
    assert ended.code == 1
    assert "flip-bpr-0-eals failed" in ended.out
    assert "has diverged" in (tmp_path / "runs/flip-bpr-0-eals.failed.txt").read_text(encoding="utf-8")
    assert (tmp_path / "runs/flip-bpr-0-default.json").exists()
    ended = run(*words, "--out", tmp_path / "runs")
    assert ended.code == 0
    assert "1 of 2 cells are there already" in ended.err
    assert not (tmp_path / "runs/flip-bpr-0-eals.failed.txt").exists()


def test_what_waits_for_a_foundation_that_fails_fails_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Cell, path: str) -> None:
        raise LearningError("all pre-trainings failed")

    monkeypatch.setattr(Cell, "run", broken)
    log = load_stream(folder / "flip.parquet")

    class Here:
        workers = 2

        def __init__(self) -> None:
            self.queue: list[Task] = []

        def submit(self, task: Task) -> None:
            self.queue.append(task)

        def outcome(self, patience: float) -> CellOutcome:
            return self.queue.pop().run(log, Work())

        def stop(self) -> None: ...

    tasks = tasks_of({"flip": SPLIT}, ["bpr"], ["eals"], 1, BASE)
    outcomes = {o.task.key: o for o in run_grid(tasks, {}, Here(), lambda outcome: None, Progress())}
    assert outcomes["flip-bpr-0-default"].problem == "all pre-trainings failed"
    assert outcomes["flip-bpr-0-eals"].problem == "its pre-training failed: all pre-trainings failed"
    assert len(bench_table(tasks, outcomes).rows) == 1


class TestWhatDoesNotGoTogether:
    def test_other_options_in_the_same_folder(self, bench: Path, folder: Path, run: Run) -> None:
        ended = run(*command_of(folder, bench)[3:], "--budget", "3")
        assert ended.code == 2
        assert "holds a bench with budget = 2, and this one has 3" in ended.said

    def test_another_stream_of_the_same_name(self, bench: Path, folder: Path, tmp_path: Path, run: Run) -> None:
        other = tmp_path / "flip.parquet"
        other.write_bytes((folder / "news.parquet").read_bytes())
        ended = run("bench", other, "--strategies", "eals", *OPTIONS, "--out", bench)
        assert ended.code == 2
        assert "another stream named 'flip'" in ended.said

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--set", "lr=0.1"], "put it into a file named"),
            (["--strategies", "melom"], "Did you mean 'melon'?"),
            (["--recommenders", "brp"], "Did you mean 'bpr'?"),
            (["--split", "flap=0.8,0.1,0.1"], "Did you mean 'flip'?"),
            (["--seeds", "0"], "seeds = 0 is too few"),
            (["--jobs", "0"], "jobs = 0 is too few"),
        ],
    )
    def test_options(self, folder: Path, tmp_path: Path, run: Run, words: list[str], complaint: str) -> None:
        ended = run("bench", folder / "flip.parquet", "--strategies", "eals", *words, "--out", tmp_path / "runs")
        assert ended.code == 2
        assert complaint in ended.said

    def test_two_streams_of_one_name(self, folder: Path, tmp_path: Path, run: Run) -> None:
        ended = run("bench", folder / "flip.parquet", folder / "flip.parquet", "--out", tmp_path / "runs")
        assert ended.code == 2
        assert "same file name" in ended.said


def test_splits_of_one_stream_and_a_file_for_all_cells(folder: Path, tmp_path: Path) -> None:
    from melon.lab.bench import bench_plan

    file = tmp_path / "all.toml"
    file.write_text("half_life = 500.0\n", encoding="utf-8")
    streams = [folder / "flip.parquet", folder / "news.parquet"]
    plan = bench_plan(streams, {"budget": 2}, "bpr,ncf", "eals", 2, ["0.8,0.1,0.1", "news=0.7,0.1,0.2"], [file])
    tasks = plan.tasks()
    assert len(tasks) == 2 * 2 * 2 * 2
    for task in tasks:
        assert task.config.split == ((0.7, 0.1, 0.2) if task.stream == "news" else (0.8, 0.1, 0.1))
        assert task.config.half_life == 500.0
    file.write_text('strategy = "eals"\n[settings]\nlr = 0.2\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"is about one strategy.*give its folder"):
        bench_plan(streams, {"budget": 2}, "bpr,ncf", "eals", 2, [], [file])


def test_a_stream_on_which_nothing_can_be_ranked_is_told(tmp_path: Path, run: Run) -> None:
    n = 800
    frame = pl.DataFrame(
        {"user": [k % 2 for k in range(n)], "item": [k // 2 % 20 for k in range(n)], "ts": list(range(n))}
    )
    frame.write_parquet(tmp_path / "full.parquet")
    words = ["bench", tmp_path / "full.parquet", "--strategies", "default", "--seeds", "1", *OPTIONS]
    ended = run(*words, "--out", tmp_path / "runs")
    assert ended.code == 0
    assert "no event could be ranked" in ended.err


class TestAFolderOfConfigs:
    @pytest.fixture
    def configs(self, tmp_path: Path) -> Path:
        """Two strategies on flip, one on news, and one about a stream that is not asked for."""
        made = tmp_path / "configs"
        made.mkdir()
        for name, lr, l2 in (("flip-bpr-eals", 0.2, 0.1), ("flip-bpr-default", 0.5, 0.1), ("news-bpr-eals", 0.7, 0.3)):
            strategy = name.rpartition("-")[2]
            head = f'recommender = "bpr"\nstrategy = "{strategy}"\nsplit = [0.7, 0.1, 0.2]\nbudget = 30\n'
            tables = f"[settings]\nlr = {lr}\n[pretrain_settings]\nl2 = {l2}\n"
            (made / f"{name}.toml").write_text(head + tables, encoding="utf-8")
        (made / "other-bpr-eals.toml").write_text("this is about a stream of no concern here", encoding="utf-8")
        return made

    def test_each_cell_takes_its_own_and_a_group_pre_trains_alike(self, folder: Path, configs: Path) -> None:
        from melon.lab.bench import bench_plan

        streams = [folder / "flip.parquet", folder / "news.parquet"]
        plan = bench_plan(
            streams, {"budget": 2, "settings": {}}, "bpr,ncf", "eals,metasgd", 1, ["news=0.8,0.1,0.1"], [configs]
        )
        tasks = {task.key: task.config for task in plan.tasks()}
        assert {key: c.settings.get("lr") for key, c in tasks.items() if c.recommender == "bpr"} == {
            "flip-bpr-0-default": 0.5,
            "flip-bpr-0-eals": 0.2,
            "flip-bpr-0-metasgd": None,
            "news-bpr-0-default": None,
            "news-bpr-0-eals": 0.7,
            "news-bpr-0-metasgd": None,
        }
        for config in tasks.values():
            assert config.budget == 2
        for key, l2 in (("flip-bpr", 0.1), ("news-bpr", 0.3)):
            assert {tasks[f"{key}-0-{s}"].pretrain_settings["l2"] for s in ("default", "eals", "metasgd")} == {l2}
        assert tasks["flip-bpr-0-metasgd"].split == (0.7, 0.1, 0.2)
        assert tasks["news-bpr-0-metasgd"].split == (0.8, 0.1, 0.1), "the command line wins"
        assert tasks["flip-ncf-0-eals"].pretrain_settings == {}

    def test_files_of_a_group_that_pre_train_otherwise(self, folder: Path, configs: Path, run: Run) -> None:
        text = (configs / "flip-bpr-eals.toml").read_text(encoding="utf-8")
        (configs / "flip-bpr-eals.toml").write_text(text.replace("l2 = 0.1", "l2 = 0.3"), encoding="utf-8")
        words = ["bench", folder / "flip.parquet", "--strategies", "eals", "--out", configs / "runs"]
        ended = run(*words, "--config", configs)
        assert ended.code == 2
        assert "differ in pretrain_settings" in ended.said

    def test_a_name_that_belies_its_file(self, folder: Path, configs: Path, run: Run) -> None:
        (configs / "flip-bpr-eals.toml").rename(configs / "flip-bpr-metasgd.toml")
        ended = run("bench", folder / "flip.parquet", "--out", configs / "runs", "--config", configs)
        assert ended.code == 2
        assert "is about flip-bpr-eals" in ended.said

    def test_a_folder_about_other_streams(self, folder: Path, tmp_path: Path, run: Run) -> None:
        ended = run("bench", folder / "flip.parquet", "--out", tmp_path / "runs", "--config", tmp_path)
        assert ended.code == 2
        assert "has no config for any of: flip" in ended.said

    def test_one_record_says_what_it_was_told(self, folder: Path, configs: Path, run: Run) -> None:
        (configs / "flip-bpr-default.toml").unlink()
        words = ["bench", folder / "flip.parquet", "--strategies", "eals", "--seeds", "1", *OPTIONS]
        ended = run(*words, "--config", configs, "--out", configs / "runs")
        assert ended.code == 0, ended.err
        records = records_of(configs / "runs")
        default, eals = records["flip-bpr-0-default"], records["flip-bpr-0-eals"]
        assert eals["config"]["chosen"]["eals"]["settings"]["lr"] == 0.2
        assert default["config"]["chosen"]["pretrain"]["settings"]["l2"] == 0.1
        assert eals["config"]["asked"]["split"] == list(SPLIT)


def test_processes_are_told_how_many_threads_to_use(folder: Path, tmp_path: Path) -> None:
    assert environment(2)["OMP_NUM_THREADS"] == "2"
    before = dict(os.environ)
    # The server that forks keeps the variables that it was started with: the second worker has to set its own.
    for threads in (2, 1):
        executor: Any = LocalExecutor({"flip": folder / "flip.parquet"}, tmp_path, jobs=1, threads=threads)
        try:
            executor.submit(Looks())
            while (outcome := executor.outcome(1.0)) is None:
                pass
            assert outcome == (str(threads), 2)
            assert dict(os.environ) == before
        finally:
            (worker,) = executor._free[0]._processes.values()
            executor.stop()
        worker.join(5)
        assert not worker.is_alive()


@dataclass
class Looks:
    """A job that says how many threads its process uses."""

    key: str = "looks"
    group: str = "looks"
    stream: str = "flip"
    shared: bool = False

    def run(self, log: Any, work: Any) -> tuple[str, int]:
        use_threads(2)
        torch.ones(100_000).exp().sum()
        return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()

    def lost(self, why: str) -> str:
        return why


@pytest.mark.parametrize("name", ["flip-bpr-0-eals.json", "bench.json"])
@pytest.mark.parametrize("text", ['{"dataset": {"path"', '{"metrics": {}}'], ids=["cut", "half"])
def test_a_torn_file_is_one_line_that_names_it(
    name: str, text: str, folder: Path, bench: Path, tmp_path: Path, run: Run
) -> None:
    shutil.copytree(bench, tmp_path / "runs", ignore=shutil.ignore_patterns("work"))
    (tmp_path / "runs" / name).write_text(text, encoding="utf-8")
    ended = run(*command_of(folder, tmp_path / "runs")[3:])
    assert ended.code == 1
    assert name in ended.said
    assert "emove it" in ended.said
