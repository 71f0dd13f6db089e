"""`melon.evaluate`: the same as the command, with frames, tables and plots."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest

import melon
from commands import Run
from melon.data.files import write_stream
from melon.data.interactions import Interactions
from melon.errors import SettingsError, StoppedError
from melon.evaluation import metrics
from melon.evaluation.result import Evaluation
from melon.registry import Space
from melon.strategies.default import Default
from melon.strategies.registry import STRATEGIES

SMALL: dict[str, Any] = {
    "split": (0.7, 0.05, 0.25),
    "epochs": 2,
    "budget": 2,
    "negatives": 15,
    "batch_size": 64,
    "recommender_settings": {"dim": 6},
    "progress": False,
}
TIMINGS = ("update_ms", "score_ms", "pretrain_s", "peak_rss_mb", "batches", "ranks", "dataset")


@pytest.fixture(scope="module")
def result(flips: Interactions) -> Evaluation:
    return melon.evaluate(flips, "bpr", "eals", **SMALL, seeds=2)


def timeless(record: dict[str, Any]) -> str:
    kept = copy.deepcopy({key: value for key, value in record.items() if key not in TIMINGS})
    return json.dumps(kept, sort_keys=True)


def test_it_is_what_the_command_gives(flips: Interactions, tmp_path: Path, run: Run) -> None:
    stream = tmp_path / "flip.parquet"
    write_stream(stream, flips, {})
    words = ("--split", "0.7,0.05,0.25", "--epochs", "2", "--budget", "2", "--negatives", "15", "--batch-size", "64")
    out = tmp_path / "r.json"
    ended = run("evaluate", stream, *words, "--set", "recommender.dim=6", "--json", out)
    assert ended.code == 0, ended.err
    from_path = melon.evaluate(stream, **SMALL, json=tmp_path / "p.json")
    from_frame = melon.evaluate(
        pl.DataFrame({"user": flips.user_ids[flips.users], "item": flips.item_ids[flips.items], "time": flips.times}),
        **SMALL,
    )
    wanted = timeless(json.loads(out.read_text()))
    assert timeless(from_path.record) == timeless(from_frame.record) == wanted
    assert timeless(json.loads((tmp_path / "p.json").read_text())) == wanted
    assert from_path.record["label"] == "auto" == from_path.name
    assert json.loads(out.read_text())["config"]["asked"]["auto"] is True
    assert "auto" in ended.out


def test_a_record_of_auto_is_auto_again_unless_something_is_named(
    flips: Interactions, tmp_path: Path, run: Run
) -> None:
    stream, asked = tmp_path / "flip.parquet", tmp_path / "asked.json"
    write_stream(stream, flips, {})
    first = melon.evaluate(stream, **SMALL | {"budget": 0, "lists": False})
    asked.write_text(json.dumps(first.record["config"]["asked"]))
    for words, label in (((), "auto"), (("--strategy", "eals"), None), (("--recommender", "bpr"), None)):
        out = tmp_path / "again.json"
        assert run("evaluate", stream, "--config", asked, *words, "--json", out).code == 0
        assert json.loads(out.read_text()).get("label") == label


class TestFrames:
    def test_the_table_has_every_method_and_the_strategy_last(self, result: Evaluation) -> None:
        table = result.table()
        assert table["method"].to_list() == [*result.record["baselines"], "eals"]
        assert table["HR@5"][-1] == pytest.approx(np.mean([one["metrics"]["HR@5"] for one in result.records]))
        assert result.metrics == pytest.approx(table.drop("method").row(-1, named=True))
        assert result.table("without_repeats").shape == table.shape
        for track in ("all", "first_time"):
            lists = result.table(f"lists.{track}")
            assert lists["method"].to_list() == table["method"].to_list()
            assert set(lists.columns) > {"NDCG@10", "MRR@10", "coverage", "gini", "similarity"}
        with pytest.raises(SettingsError, match="unknown section"):
            result.table("metric")

    def test_ranks_are_those_of_the_record(self, result: Evaluation) -> None:
        ranks = result.ranks
        assert ranks["seed"].unique().sort().to_list() == [0, 1]
        for seed, record in enumerate(result.records):
            own = ranks.filter(pl.col("seed") == seed)
            assert metrics(own["rank"].to_numpy()) == record["metrics"]
            assert metrics(own["rank_popularity"].to_numpy()).items() <= record["baselines"]["popularity"].items()

    def test_batches_are_long(self, result: Evaluation) -> None:
        batches = result.batches
        assert batches.columns == ["seed", "batch", "events", "method", "HR@5"]
        assert len(batches) == 2 * len(result.record["batches"]) * (len(result.record["baselines"]) + 1)
        own = batches.filter((pl.col("method") == "eals") & (pl.col("seed") == 0))
        assert own["HR@5"].to_list() == [batch["HR@5"] for batch in result.record["batches"]]

    def test_a_comparison(self, result: Evaluation) -> None:
        difference = result.compare("popularity").difference
        table = {row["method"]: row["HR@5"] for row in result.table().iter_rows(named=True)}
        assert difference == pytest.approx(table["eals"] - table["popularity"])
        assert result.compare("default", "NDCG@10").seed_error is not None
        with pytest.raises(SettingsError, match="unknown baseline 'nobody'"):
            result.compare("nobody")
        with pytest.raises(SettingsError, match="unknown metric"):
            result.compare("default", "AUC")

    def test_a_tuned_default_stands_there_once(self, flips: Interactions) -> None:
        quick = SMALL | {"budget": 0, "lists": False}
        found = melon.evaluate(flips, "bpr", "default", **quick)
        assert found.table()["method"].to_list().count("default") == 1
        assert found.name == "default"
        auto = melon.evaluate(flips, **quick)
        assert auto.table()["method"].to_list()[-1] == "auto"
        assert "default" not in auto.table()["method"].to_list()


class TestShown:
    def test_text(self, result: Evaluation) -> None:
        lines = repr(result).splitlines()
        assert lines[0].startswith("In lists of the whole catalogue, eALS has NDCG@10 ")
        assert lines[1] == "bpr with eals on 1,000 interactions, 250 of them evaluated, 2 seeds"
        assert lines[2].split() == ["method", "HR@5", "HR@10", "HR@20", "NDCG@5", "NDCG@10", "NDCG@20"]
        assert lines[-1].startswith("eals")

    def test_notebook(self, result: Evaluation) -> None:
        assert result._repr_html_().count("<tr>") == 1 + len(result.table())

    def test_latex(self, result: Evaluation) -> None:
        text = result.to_latex()
        assert text.startswith(r"\begin{tabular}{lrrrrrr}")
        assert r"recent\_popularity & " in text
        assert text.count(r"\\") == 1 + len(result.table())
        assert text.count(r"\textbf{") >= 6

    def test_csv(self, result: Evaluation, tmp_path: Path) -> None:
        text = result.to_csv(tmp_path / "t.csv")
        assert (tmp_path / "t.csv").read_text() == text
        read = pl.read_csv(tmp_path / "t.csv")
        assert read.columns == result.table().columns
        assert read["HR@5"].to_list() == pytest.approx(result.table()["HR@5"].to_list(), abs=1e-6)

    def test_plot(self, result: Evaluation) -> None:
        from matplotlib.figure import Figure

        ax = Figure().subplots()
        assert result.plot(ax) is ax
        assert [line.get_label() for line in ax.get_lines()] == result.table()["method"].to_list()
        assert result.plot().get_ylabel() == "HR@5"


class Mine(Default):
    """A strategy that the caller wrote."""

    name = "test mine"
    space: ClassVar[Space] = Space({"lr": (0.1, 0.3)}, ({"lr": 0.3},))


class TestArguments:
    def test_a_class_of_ones_own_is_tuned_and_named_and_then_forgotten(self, flips: Interactions) -> None:
        other = type("Other", (Mine,), {})
        for one in (Mine, other):
            found = melon.evaluate(flips, "bpr", one, **SMALL, lists=False)
            assert found.name == "test mine"
            assert len(found.record["config"]["chosen"]["test mine"]["trials"]) == 2
            assert "test mine" not in STRATEGIES.names()
        with pytest.raises(SettingsError, match="another strategy named 'default'"):
            melon.evaluate(flips, "bpr", type("Other", (Default,), {"name": "default"}), **SMALL)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"seed": "x"}, "seed = 'x' cannot be used"),
            ({"budget": -1}, "budget = -1 must be at least 0"),
            ({"seeds": [0, 0]}, "must name each seed once"),
            ({"seeds": 0}, "seeds = 0"),
            ({"json": "r.txt"}, "must end in .json"),
            ({"strategy": 5}, "strategy = 5 must be a name"),
            ({"settings": [1]}, "settings = .* must be a dict"),
            ({"recommender": "bqr"}, "Did you mean 'bpr'"),
            ({"threads": 10**6}, "threads = 1000000"),
        ],
    )
    def test_wrong_ones_are_refused(self, given: dict[str, Any], said: str, flips: Interactions) -> None:
        with pytest.raises(SettingsError, match=said):
            melon.evaluate(flips, **SMALL | given)

    def test_columns_with_unusual_names(self, flips: Interactions, tmp_path: Path) -> None:
        columns = {"who": flips.users, "what": flips.items, "when": flips.times}
        named = melon.evaluate(
            pl.DataFrame(columns), "bpr", "default", user="who", item="what", time="when", **SMALL | {"budget": 0}
        )
        assert named.record["dataset"]["interactions"] == len(flips)
        with pytest.raises(SettingsError, match="prepared stream"):
            melon.evaluate(tmp_path / "stream.parquet", user="who")

    def test_numbers_of_numpy(self, flips: Interactions) -> None:
        given = {"seed": np.int64(1), "epochs": np.int32(1), "settings": {"lr": np.float32(0.5)}}
        record = melon.evaluate(flips, "bpr", "default", **SMALL | {"budget": 0, "lists": False} | given).record
        json.dumps(record)
        assert record["seed"] == 1

    def test_several_seeds_have_a_file_each(self, flips: Interactions, tmp_path: Path) -> None:
        melon.evaluate(
            flips, "bpr", "default", **SMALL | {"budget": 0, "lists": False}, seeds=[3, 5], json=tmp_path / "r.json"
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            *("r-3.json", "r-3.ranks.parquet", "r-5.json", "r-5.ranks.parquet")
        ]


class TestResuming:
    def test_a_broken_part_is_told_and_made_again(
        self, flips: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from melon.evaluation.cell import Cell

        given = {**SMALL, "budget": 1, "lists": False, "json": tmp_path / "r.json", "progress": True}
        wanted = timeless(melon.evaluate(flips, "bpr", "eals", **given).record)
        with monkeypatch.context() as patch:

            def stop(*_: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(Cell, "_from_scratch", stop)
            patch.setattr(Cell, "_stream", stop)
            with pytest.raises(StoppedError, match="resume=True"):
                melon.evaluate(flips, "bpr", "eals", **given)
        (folder,) = tmp_path.glob("*.progress")
        for broken in ("choice-eals.json", "state-window.safetensors", "state-refitted.safetensors"):
            path = folder / broken
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        capsys.readouterr()
        again = melon.evaluate(flips, "bpr", "eals", **given, resume=True)
        assert timeless(again.record) == wanted
        said = capsys.readouterr().err
        for broken in ("choice-eals.json", "state-window.safetensors", "state-refitted.safetensors"):
            assert f"{folder / broken} is broken" in said

    def test_earlier_work_is_never_used_without_being_asked_for(
        self, flips: Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from melon.evaluation.work import work_folder
        from melon.fitting.config import config_from

        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        given = {name: value for name, value in SMALL.items() if name != "progress"}
        folder = work_folder(None, flips, config_from({**given, "recommender": "bpr", "strategy": "default"}).plain())
        folder.mkdir(parents=True)
        (folder / "choice-default.json").write_text('{"settings": {"lr": 0.0123456}, "score": 1, "trials": []}')
        found = melon.evaluate(flips, "bpr", "default", **SMALL)
        assert found.chosen["lr"] != 0.0123456
