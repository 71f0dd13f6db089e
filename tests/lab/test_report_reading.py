"""Reading benches: what belongs in one table, what is missing, and what cannot be read."""

import json
from pathlib import Path

import pytest

from melon.errors import DataError
from melon.evaluation.labels import label
from melon.lab.comparisons import read_bench
from report_scenes import write_run


def test_other_protocols_are_other_comparisons(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "usual", seed=seed)
    write_run(tmp_path / "known", candidates="known")
    bench = read_bench([tmp_path / "known", tmp_path / "usual"])
    assert [comparison.apart for comparison in bench.comparisons] == ["candidates catalogue", "candidates known"]
    assert [comparison.arrangement["candidates"] for comparison in bench.main] == ["catalogue"]
    assert bench.comparisons[0].seeds == [0, 1]


def test_other_streams_and_recommenders_are_other_comparisons(tmp_path: Path) -> None:
    write_run(tmp_path, stream="one")
    write_run(tmp_path, stream="one", recommender="ncf")
    write_run(tmp_path, stream="two-part", recommender="ncf", budget=3)
    found = {
        (comparison.stream, comparison.recommender): comparison.apart for comparison in read_bench([tmp_path]).main
    }
    assert found == {("one", "bpr"): "", ("one", "ncf"): "", ("two-part", "ncf"): "budget 3"}


def test_presets_are_methods_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "usual")
    write_run(tmp_path / "paper", preset="paper")
    (comparison,) = read_bench([tmp_path / "usual", tmp_path / "paper"]).comparisons
    assert comparison.strategies == ["melon", "melon (paper)"]
    assert label("melon (paper)") == "MeLON (paper)"


def test_the_same_cell_twice_is_told(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_run(tmp_path / folder)
    bench = read_bench([tmp_path / "one", tmp_path / "two"])
    assert len(bench.runs) == 1
    assert "left out" in bench.notes[0]


def test_what_is_not_applicable_and_what_failed(tmp_path: Path) -> None:
    path = write_run(tmp_path, stream="a-b")
    record = json.loads(path.read_text(encoding="utf-8"))
    record["config"]["asked"]["strategy"] = "sml"
    missing = {"dataset": {"path": "a-b"}, "config": record["config"], "not_applicable": "needs one table"}
    (tmp_path / "a-b-bpr-0-sml.json").write_text(json.dumps(missing), encoding="utf-8")
    (tmp_path / "a-b-bpr-1-eals.failed.txt").write_text("Traceback\n  …\nValueError: broken\n", encoding="utf-8")
    (tmp_path / "a-b-bpr-0-melon.failed.txt").write_text("of an earlier try", encoding="utf-8")
    gaps = {(gap.strategy, gap.seed): (gap.kind, gap.reason) for gap in read_bench([tmp_path]).gaps}
    assert gaps == {("sml", 0): ("N/A", "needs one table"), ("eals", 1): ("failed", "ValueError: broken")}


def test_a_single_result_file(tmp_path: Path) -> None:
    path = write_run(tmp_path, stream="/some/where/news.parquet".replace("/", "_"))
    record = json.loads(path.read_text(encoding="utf-8"))
    record["dataset"]["path"] = "/some/where/news.parquet"
    path.write_text(json.dumps(record), encoding="utf-8")
    (comparison,) = read_bench([path]).comparisons
    assert comparison.stream == "news"


class TestTrouble:
    def test_no_such_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"there is no .*nowhere"):
            read_bench([tmp_path / "nowhere"])

    def test_nothing_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "bench.json").write_text("{}", encoding="utf-8")
        with pytest.raises(DataError, match="holds no results"):
            read_bench([tmp_path])

    def test_broken_json_is_named(self, tmp_path: Path) -> None:
        write_run(tmp_path)
        (tmp_path / "toy-bpr-1-melon.json").write_text('{"metrics": ', encoding="utf-8")
        with pytest.raises(DataError, match=r"toy-bpr-1-melon\.json is not valid JSON"):
            read_bench([tmp_path])

    def test_a_record_of_an_earlier_version_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text('{"metrics": {"HR@5": 1}, "fading": null}', encoding="utf-8")
        with pytest.raises(DataError, match=r"x\.json was written by an earlier version.*run the bench again"):
            read_bench([tmp_path])

    def test_half_a_record_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text('{"metrics": {"HR@5": 1}}', encoding="utf-8")
        with pytest.raises(DataError, match=r"x\.json is incomplete: it has no 'dataset'"):
            read_bench([tmp_path])

    def test_a_foreign_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("[1, 2]", encoding="utf-8")
        with pytest.raises(DataError, match=r"x\.json is not a result of melon"):
            read_bench([tmp_path / "x.json"])

    def test_ranks_are_needed(self, tmp_path: Path) -> None:
        path = write_run(tmp_path)
        path.with_suffix(".ranks.parquet").unlink()
        with pytest.raises(DataError, match=r"needs its ranks in toy-bpr-0-melon\.ranks\.parquet"):
            _ = read_bench([tmp_path]).comparisons[0].events

    def test_other_events(self, tmp_path: Path) -> None:
        write_run(tmp_path, rank=[1, 2, 3, 4])
        write_run(tmp_path, "eals", rank=[1, 2, 3])
        with pytest.raises(DataError, match="ranks other events"):
            _ = read_bench([tmp_path]).comparisons[0].events


def test_pretraining_that_was_tuned_for_each_stream_is_no_arrangement(tmp_path: Path) -> None:
    for stream, l2 in (("one", 0.1), ("two", 0.3)):
        write_run(tmp_path, stream=stream, pretrain_settings={"l2": l2, "epochs": 3})
    write_run(tmp_path, stream="two", seed=1, pretrain_settings={"l2": 0.01, "epochs": 3})
    found = [(comparison.stream, comparison.apart) for comparison in read_bench([tmp_path]).comparisons]
    assert ("one", "") in found
    others = [apart for stream, apart in found if stream == "two"]
    assert len(others) == 2, "two trainings of one stream are two comparisons, and are told apart"
    assert all("l2" in apart for apart in others)


def test_the_pace_belongs_to_the_stream(tmp_path: Path) -> None:
    """Recent popularity beats one recommender that is never updated, and not the other: the stream is slow."""
    recent = [1.0, 1.0, 50.0, 50.0]
    write_run(tmp_path, baselines={"recent_popularity": recent, "frozen": [1.0, 1.0, 1.0, 50.0]})
    write_run(tmp_path, recommender="ncf", baselines={"recent_popularity": recent, "frozen": [50.0] * 4})
    write_run(tmp_path, stream="other", baselines={"recent_popularity": recent, "frozen": [50.0] * 4})
    bench = read_bench([tmp_path])
    assert (bench.pace("toy"), bench.pace("other")) == ("slow", "fast")


def test_auto_and_strategies_that_were_not_tuned_are_named_so(tmp_path: Path) -> None:
    write_run(tmp_path, "melon", trials={"melon": 4, "default": 4})
    write_run(tmp_path, "eals", trials={"eals": 0, "default": 4})
    write_run(tmp_path, "sml", trials={"sml": 0, "default": 4}, settings={"lr": 0.1})
    (comparison,) = read_bench([tmp_path]).comparisons
    names = [comparison.label(method) for method in ("default", "melon", "eals", "sml")]
    assert names == ["default steps (tuned)", "MeLON", "eALS (not tuned)", "SML"]
    write_run(tmp_path / "auto", "default", recommender="blend", half_life="auto", minutes=30.0, auto=True)
    (comparison,) = read_bench([tmp_path / "auto"]).comparisons
    assert (comparison.label("default"), comparison.apart) == ("auto", "")
