"""The command line as a person meets it: commands that work, and Ctrl-C that says how to go on."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

import melon
from commands import Ended, Run
from melon import cli
from melon.cli.options import EXAMPLES
from melon.data.files import load_stream
from melon.data.synthetic import synthetic_stream
from melon.demo import write_synthetic
from melon.evaluation.labels import label
from melon.evaluation.ranking import metrics
from melon.fitting.auto import SETTINGS

SMALL = (
    *("--split", "0.7,0.05,0.25", "--epochs", "2", "--budget", "1", "--negatives", "15", "--batch-size", "64"),
    *("--set", "recommender.dim=6", "--no-lists"),
)
TIMINGS = ("update_ms", "score_ms", "pretrain_s", "peak_rss_mb", "batches", "ranks", "dataset")


def process(*words: object, **more: Any) -> subprocess.Popen[str]:
    """`melon …` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "melon", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        **more,
    )


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streams") / "flip.parquet"
    log = synthetic_stream("flip", n_users=30, n_items=40, n_events=1_000, seed=2)
    pl.DataFrame({"user": log.users, "item": log.items, "ts": log.times}).write_parquet(path)
    return path


def commands(app: typer.Typer = cli.app, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group there is."""
    found = [before]
    for command in app.registered_commands:
        assert command.callback
        found.append((*before, command.name or command.callback.__name__))
    for group in app.registered_groups:
        assert group.typer_instance
        found += commands(group.typer_instance, (*before, group.name or ""))
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], run: Run) -> None:
    ended = run(*words, "--help")
    assert ended.code == 0
    assert ended.err == ""
    assert "Usage: " in ended.out
    assert "--help" in ended.out
    # Every option says what it is for.
    for line in ended.out.splitlines():
        if re.match(r"│ +--", line):
            assert len(re.sub(r"\[[^]]*\]|--\S+|[│*<>A-Z…=.]+", "", line).strip()) > 5, line


def test_without_a_word_there_is_help(run: Run) -> None:
    ended = run()
    assert "Usage: melon" in ended.out + ended.err


def test_version(run: Run) -> None:
    assert run("--version") == Ended(0, f"{melon.__version__}\n", "")


def test_help_names_every_choice(run: Run) -> None:
    from melon.models.registry import RECOMMENDERS
    from melon.strategies.registry import STRATEGIES
    from melon.stream.candidates import MODES

    shown = " ".join(run("evaluate", "--help").out.split())
    for name in (*RECOMMENDERS.names(), *STRATEGIES.names(), *MODES):
        assert name in shown, name


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (("tune", "s.parquet", "--out", "x.toml"), "--save-config"),
        (("reproduce", "--tune"), "--budget"),
        (("evaluate", "s.parquet", "--fading", "auto"), "--half-life"),
        (("evaluate", "s.parquet", "--device", "cuda"), "numpy arrays"),
    ],
)
def test_names_of_earlier_versions_are_refused_with_the_new_one(words: tuple[str, ...], new: str, run: Run) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert new in ended.said


def test_chosen_settings_are_saved_as_a_config(stream: Path, tmp_path: Path, run: Run) -> None:
    result, config, again = tmp_path / "result.json", tmp_path / "flip-bpr-eals.toml", tmp_path / "again.json"
    asked = ("evaluate", stream, "--recommender", "bpr", "--strategy", "eals", *SMALL, "--seed", "1")
    assert run(*asked, "--json", result, "--save-config", config).code == 0
    assert run("evaluate", stream, "--config", config, "--seed", "1", "--json", again).code == 0
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (result, again)]
    assert records[0]["metrics"] == records[1]["metrics"]
    assert records[1]["config"]["asked"]["settings"] == records[0]["config"]["chosen"]["eals"]["settings"]
    assert run(*asked, "--save-config", tmp_path / "x.json").code == 2


def test_from_raw_file_to_info_to_result_as_real_processes(tmp_path: Path, run: Run) -> None:
    log = synthetic_stream("flip", n_users=30, n_items=40, n_events=1_000, seed=2)
    raw = tmp_path / "raw.csv"
    users = [f"user {row}" for row in log.users.tolist()]
    pl.DataFrame({"who": users, "what": log.items, "when": log.times}).write_csv(raw)
    out = tmp_path / "new" / "stream.parquet"

    def done(*words: object) -> str:
        with process(*words) as running:
            shown, errors = running.communicate(timeout=120)
        assert running.returncode == 0, errors
        return shown

    columns = ("--user", "who", "--item", "what", "--time", "when", "--min-interactions", "5")
    shown = done("data", "prepare", raw, "--out", out, *columns)
    assert "interactions of 30 users" in shown
    facts = json.loads(run("data", "info", out, "--json").out)
    assert facts["users"] == 30
    assert facts["interactions"] == len(load_stream(out)) > 900
    assert set(load_stream(out).user_ids.tolist()) == set(users)

    result = tmp_path / "deep" / "result.json"
    shown = done("evaluate", out, "--strategy", "eals", "--json", result, "--html", tmp_path / "page.html", *SMALL)
    for name in ("frozen (no update)", "recent popularity", "default steps (tuned)", "eALS", "chosen for eals:"):
        assert name in shown
    record = json.loads(result.read_text())
    assert record["dataset"]["sha256"] == load_stream(out).sha256
    ranks = pl.read_parquet(result.parent / record["ranks"])
    assert len(ranks) == record["interactions_evaluated"]
    assert metrics(ranks["rank"].to_numpy()) == record["metrics"]
    assert metrics(ranks["rank_popularity"].to_numpy()).items() <= record["baselines"]["popularity"].items()
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in result.parent.iterdir()) == ["result.json", "result.ranks.parquet"]


def test_info_as_a_table(stream: Path, run: Run) -> None:
    ended = run("data", "info", stream)
    assert ended.code == 0
    for words in ("users", "interactions per item", "last 5 %: users first seen in it", "repeats"):
        assert words in ended.out


@pytest.mark.parametrize("kind", ["flip", "news", "drift"])
def test_synthetic_streams_keep_the_ids_of_their_world(kind: str, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "made" / "s.parquet"
    ended = run("data", "synthetic", kind, "--out", out, "--events", "500", "--seed", "3")
    assert ended.code == 0, ended.err
    log, wanted = load_stream(out), synthetic_stream(kind, n_events=500, seed=3)
    assert log.users.tolist() == wanted.users.tolist()
    assert log.items.tolist() == wanted.items.tolist()
    assert log.item_ids.tolist() == wanted.item_ids.tolist()
    assert log.times.tolist() == wanted.times.tolist()


def test_evaluate_says_what_it_does_and_the_table_comes_last(stream: Path, run: Run) -> None:
    ended = run("evaluate", stream, *SMALL, "--lists", "--candidates", "known", "--seed", "1")
    assert ended.code == 0, ended.err
    assert "choosing pre-training settings on the selection window" in ended.err
    assert re.search(r"250 of 300|300 of 300  [\d,]+/s  HR@5 0\.\d+", ended.err)
    assert ended.out.startswith("In lists of the whole catalogue, ")
    assert "first-time pairs" in ended.out
    refused = run("evaluate", stream, *SMALL, "--full-ranking")
    assert refused.code != 0
    assert "Use --lists" in refused.err
    assert "chosen for recent_popularity: half_life=" in ended.out


def test_a_config_file_and_the_command_line_wins(stream: Path, tmp_path: Path, run: Run) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'strategy = "eals"\nseed = 5\nbudget = 1\nepochs = 1\nnegatives = 10\nsplit = [0.6, 0.1, 0.3]\n'
        "[settings]\nw_new = 2.0\nlr = 0.2\n[recommender_settings]\ndim = 4\n"
    )
    out = tmp_path / "r.json"
    ended = run("evaluate", stream, "--config", config, "--seed", "6", "--set", "lr=0.1", "--json", out)
    assert ended.code == 0, ended.err
    record = json.loads(out.read_text())
    assert (record["strategy"], record["seed"], record["dataset"]["split"]) == ("eals", 6, [0.6, 0.1, 0.3])
    assert record["config"]["asked"]["settings"] == {"w_new": 2.0, "lr": 0.1}
    assert record["config"]["asked"]["recommender_settings"] == {
        **SETTINGS,
        "inputs": list(SETTINGS["inputs"]),
        "dim": 4,
    }

    # A result's own settings make the same result again.
    again = tmp_path / "again.json"
    config = tmp_path / "asked.json"
    config.write_text(json.dumps(record["config"]["asked"]))
    assert run("evaluate", stream, "--config", config, "--json", again).code == 0
    assert comparable(again) == comparable(out)


def comparable(path: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads(path.read_text()).items() if key not in TIMINGS}


def test_a_fixed_number_of_epochs_is_kept(stream: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "r.json"
    assert run("evaluate", stream, *SMALL, "--set", "pretrain.epochs=1", "--json", out).code == 0
    assert json.loads(out.read_text())["epochs"] == 1


def test_pretrain_makes_a_model_that_can_be_loaded(stream: Path, tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "model"
    ended = run(
        *("pretrain", stream, "--out", folder, "--epochs", "2", "--budget", "2", "--strategy", "eals"),
        *("--set", "recommender.dim=6", "--set", "w_new=2", "--seed", "3"),
    )
    assert ended.code == 0, ended.err
    assert "chosen for pre-training: epochs=" in ended.out
    assert "w_new=2" in ended.out
    assert f'melon.load("{folder}")' in ended.out
    model = melon.load(folder)
    assert (model.n_users, model.n_items, model.n_interactions) == (30, 40, 1_000)
    assert len(model.recommend([0], k=5)[0]) == 5
    model.partial_fit([(0, 3, 2_000_000_000), (77, 99, 2_000_000_001)])
    assert (model.n_users, model.n_items) == (31, 41)


def test_who_names_nothing_gets_auto_and_is_told_why(stream: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "r.json"
    ended = run("evaluate", stream, *SMALL, "--json", out)
    assert ended.code == 0, ended.err
    record = json.loads(out.read_text())
    assert (record["recommender"], record["strategy"]) == ("blend", "default")
    assert record["config"]["asked"]["half_life"] == "auto"
    assert "auto took blend with default, lr=" in ended.out
    partly = run("evaluate", stream, *SMALL, "--recommender", "bpr", "--strategy", "auto")
    assert "auto took bpr with default" in partly.out
    named = run("evaluate", stream, *SMALL, "--recommender", "bpr", "--strategy", "default")
    assert "auto took" not in named.out


def test_a_limit_of_time_is_told_when_it_is_over(stream: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "r.json"
    ended = run("evaluate", stream, *SMALL, "--budget", "3", "--minutes", "1e-6", "--json", out)
    assert ended.code == 0, ended.err
    assert "minutes of choosing are over" in ended.err
    record = json.loads(out.read_text())
    assert record["config"]["asked"]["minutes"] == 1e-6
    assert len(record["config"]["chosen"]["default"]["trials"]) == 1
    assert (
        "minutes = -1 must be a finite number of more than 0" in run("evaluate", stream, *SMALL, "--minutes", "-1").err
    )
    config = tmp_path / "c.toml"
    config.write_text("minutes = 5\n")
    refused = run("bench", stream, "--config", config, "--out", tmp_path / "b", "--strategies", "default")
    assert refused.code != 0
    assert "limit these with --budget" in refused.err


def test_the_demo_ends_with_a_table_and_a_page(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from melon import demo

    made = demo.CellConfig
    monkeypatch.setattr(
        demo, "CellConfig", lambda **given: made(**{**given, "epochs": 1, "budget": 1, "batch_size": 128})
    )
    ended = run("demo", "--out", tmp_path / "d", "--events", "1200")
    assert ended.code == 0, ended.err
    for name in ("frozen", "popularity", "recent_popularity", *demo.ALL_STRATEGIES, "auto"):
        assert label(name) in ended.out
    assert " is best: the item " in ended.out
    assert (tmp_path / "d" / "demo.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "d" / "auto.json").read_text())["recommender"] == "blend"
    assert f"Open {tmp_path / 'd' / 'index.html'}" in ended.out
    assert "<svg" in (tmp_path / "d" / "index.html").read_text()
    for strategy in demo.ALL_STRATEGIES:
        assert json.loads((tmp_path / "d" / f"{strategy}.json").read_text())["strategy"] == strategy


# Ctrl-C.


def test_ctrl_c_says_how_to_resume_and_resuming_ends_the_same(stream: Path, tmp_path: Path, run: Run) -> None:
    asked = ("evaluate", stream, *SMALL, "--strategy", "eals", "--budget", "4")
    straight, stopped = tmp_path / "straight" / "r.json", tmp_path / "stopped" / "r.json"
    assert run(*asked, "--json", straight).code == 0
    with process(*asked, "--json", stopped) as running:
        assert running.stderr
        said = ""
        while "choosing settings of eals" not in said:  # by now something is finished
            line = running.stderr.readline()
            assert line, "the command ended before it could be stopped"
            said += line
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=60)
    assert running.returncode == 130, rest
    last = rest.splitlines()[-1]
    assert last.startswith("melon: stopped; finished work is kept in ")
    assert "--resume" in last
    assert "Traceback" not in said + rest
    assert not stopped.exists()
    (kept,) = stopped.parent.glob("*.progress")
    assert {path.name for path in kept.iterdir()} >= {"choice-pretrain.json", "state-window.safetensors"}

    code, _, said = run(*asked, "--json", stopped, "--resume")
    assert code == 0, said
    assert "choosing pre-training settings" not in said  # it was finished
    assert "choosing settings of eals" in said
    assert comparable(stopped) == comparable(straight)
    ranks = [pl.read_parquet(path.with_suffix(".ranks.parquet")) for path in (straight, stopped)]
    assert ranks[0].equals(ranks[1])
    assert not list(stopped.parent.glob("*.progress"))


@pytest.mark.parametrize("words", [("data", "info", "S"), ("pretrain", "S", "--out", "O"), ("evaluate", "S")])
def test_ctrl_c_is_130_everywhere(
    words: tuple[str, ...], stream: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("melon.evaluator.load_stream", stop)
    monkeypatch.setattr("melon.data.files.load_stream", stop)
    ended = run(*({"S": stream, "O": tmp_path / "m"}.get(word, word) for word in words))
    assert ended.code == 130
    assert ended.err.strip().endswith("melon: stopped.")


def test_a_stopped_pretraining_says_how_to_go_on(
    stream: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    words = (
        "pretrain",
        stream,
        "--out",
        tmp_path / "m",
        "--epochs",
        "2",
        "--budget",
        "2",
        "--set",
        "recommender.dim=6",
    )
    monkeypatch.setattr("melon.learning.model.LiveModel.adopt", stop)
    ended = run(*words)
    assert ended.code == 130
    assert "stopped before anything was written" in ended.said
    assert not (tmp_path / "m" / "manifest.json").exists()
    flags = ended.said.split("chosen: ")[1].split()
    assert "--set" in flags
    monkeypatch.undo()
    again = process(*words, *flags)
    assert again.wait(timeout=120) == 0
    assert (tmp_path / "m" / "manifest.json").exists()


def test_work_without_a_result_file_is_kept_among_temporary_files(
    stream: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from melon.fitting.fit import Fitting

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    inner = Fitting.pretrained

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fitting, "pretrained", stop)
    ended = run("evaluate", stream, *SMALL)
    assert ended.code == 130
    (kept,) = tmp_path.glob("melon-*/*.progress")
    assert str(kept) in ended.err
    monkeypatch.setattr(Fitting, "pretrained", inner)
    assert run("evaluate", stream, *SMALL, "--resume").code == 0
    assert list(tmp_path.glob("melon-*/*.progress")) == []


def test_threads_are_as_asked(stream: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from melon.fitting.fit import Fitting
    from melon.kernels.threads import allowed

    before, inner, used = allowed(), Fitting.choose, []

    def choose(*given: Any, **more: Any) -> Any:
        used.append(allowed())
        return inner(*given, **more)

    monkeypatch.setattr(Fitting, "choose", choose)
    assert run("evaluate", stream, *SMALL, "--threads", "2", "--json", tmp_path / "r.json").code == 0
    assert used == [2]
    assert allowed() == before
    assert json.loads((tmp_path / "r.json").read_text())["protocol"]["threads"] == 2


def test_the_module_is_the_command() -> None:
    ended = subprocess.run([sys.executable, "-m", "melon", "--version"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{melon.__version__}\n")


@pytest.mark.slow
def test_two_evaluations_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    few = ["--recommender", "bpr", "--strategy", "eals", "--budget", "1", "--epochs", "1", "--negatives", "15"]
    write_synthetic("flip", tmp_path / "flip.parquet", 1_200, 0)
    words = ["evaluate", "flip.parquet", *few, "--split", "0.7,0.1,0.2", "--json", "r.json"]
    command = [sys.executable, "-m", "melon", *words]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["metrics"]
    assert {path.name for path in tmp_path.glob("r.*")} == {"r.json", "r.ranks.parquet"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_shows_examples_that_parse(name: str, run: Run) -> None:
    shown = " ".join(run(*name.split(), "--help").out.split())
    assert "Examples:" in shown
    for example in EXAMPLES[name]:
        line = " ".join(example.split())
        assert line in shown
        assert line.startswith(f"melon {name} ")
        for option in re.findall(r"--[a-z-]+", line):
            assert option in shown.replace(line, ""), f"{name} has no {option}"


def test_no_command_is_without_examples() -> None:
    import typer

    from melon.cli import app

    root = typer.main.get_command(app)
    names: set[str] = set()
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        names |= {f"{name} {part}" for part in command.commands} if hasattr(command, "commands") else {name}
    assert names == set(EXAMPLES)
