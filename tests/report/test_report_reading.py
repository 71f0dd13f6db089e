"""Reading benches: what belongs in one table, what is missing, and what cannot be read."""

import json
from pathlib import Path

import pytest
from report_scenes import write_run

from melon.errors import DataError
from melon.paper.published import ABLATION, DATASETS, ELAPSED_MS, METRICS, RESULTS, paper_dataset, paper_table
from melon.report.naming import COLOURS, colour, label
from melon.report.reading import read_bench


def test_other_protocols_are_other_contests(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "usual", seed=seed)
    write_run(tmp_path / "born", candidates="born")
    bench = read_bench([tmp_path / "born", tmp_path / "usual"])
    assert [contest.apart for contest in bench.contests] == ["candidates catalogue", "candidates born"]
    assert [contest.arrangement["candidates"] for contest in bench.main] == ["catalogue"]
    assert bench.contests[0].seeds == [0, 1]


def test_other_streams_and_recommenders_are_other_contests(tmp_path: Path) -> None:
    write_run(tmp_path, stream="one")
    write_run(tmp_path, stream="one", recommender="ncf")
    write_run(tmp_path, stream="two-part", recommender="ncf", budget=3)
    found = {(contest.stream, contest.recommender): contest.apart for contest in read_bench([tmp_path]).main}
    assert found == {("one", "bpr"): "", ("one", "ncf"): "", ("two-part", "ncf"): "budget 3"}


def test_presets_are_methods_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "usual")
    write_run(tmp_path / "paper", preset="paper")
    (contest,) = read_bench([tmp_path / "usual", tmp_path / "paper"]).contests
    assert contest.strategies == ["melon", "melon (paper)"]
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
    record["config"]["asked"]["strategy"] = "als"
    missing = {"dataset": {"path": "a-b"}, "config": record["config"], "not_applicable": "needs one table"}
    (tmp_path / "a-b-bpr-0-als.json").write_text(json.dumps(missing), encoding="utf-8")
    (tmp_path / "a-b-bpr-1-eals.failed.txt").write_text("Traceback\n  …\nValueError: broken\n", encoding="utf-8")
    (tmp_path / "a-b-bpr-0-melon.failed.txt").write_text("of an earlier try", encoding="utf-8")
    gaps = {(gap.strategy, gap.seed): (gap.kind, gap.reason) for gap in read_bench([tmp_path]).gaps}
    assert gaps == {("als", 0): ("N/A", "needs one table"), ("eals", 1): ("failed", "ValueError: broken")}


def test_a_single_result_file(tmp_path: Path) -> None:
    path = write_run(tmp_path, stream="/some/where/news.parquet".replace("/", "_"))
    record = json.loads(path.read_text(encoding="utf-8"))
    record["dataset"]["path"] = "/some/where/news.parquet"
    path.write_text(json.dumps(record), encoding="utf-8")
    (contest,) = read_bench([path]).contests
    assert contest.stream == "news"


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

    def test_half_a_record_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text('{"metrics": {"HR@5": 1}}', encoding="utf-8")
        with pytest.raises(DataError, match=r"x\.json is no whole result: it has no 'dataset'"):
            read_bench([tmp_path])

    def test_a_foreign_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text("[1, 2]", encoding="utf-8")
        with pytest.raises(DataError, match=r"x\.json is no result of melon"):
            read_bench([tmp_path / "x.json"])

    def test_ranks_are_needed(self, tmp_path: Path) -> None:
        path = write_run(tmp_path)
        path.with_suffix(".ranks.parquet").unlink()
        with pytest.raises(DataError, match=r"needs its ranks in toy-bpr-0-melon\.ranks\.parquet"):
            _ = read_bench([tmp_path]).contests[0].events

    def test_other_events(self, tmp_path: Path) -> None:
        write_run(tmp_path, rank=[1, 2, 3, 4])
        write_run(tmp_path, "eals", rank=[1, 2, 3])
        with pytest.raises(DataError, match="ranks other events"):
            _ = read_bench([tmp_path]).contests[0].events


class TestThePapersNumbers:
    def test_every_table_is_whole(self) -> None:
        assert {where[0] for where in RESULTS} == {"Adressa", "Amazon", "Yelp"} == set(ABLATION)
        assert RESULTS.keys() == ELAPSED_MS.keys()
        for (_, recommender), rows in RESULTS.items():
            assert len(rows) == (6 if recommender == "ncf" else 7)
            assert ("sml" in rows) == (recommender == "bpr")
            for row in rows.values():
                assert tuple(row) == METRICS
                hits = [row[f"HR@{cut}"][0] for cut in (5, 10, 20)]
                assert hits == sorted(hits)

    def test_some_of_them(self) -> None:
        assert RESULTS["Adressa", "ncf"]["melon"]["HR@5"] == (0.863, 0.004)
        assert RESULTS["Yelp", "bpr"]["eals"]["NDCG@20"] == (0.562, 0.002)
        assert RESULTS["Amazon", "bpr"]["s2meta"]["NDCG@20"] == (0.237, 0.216)
        assert ELAPSED_MS["Yelp", "ncf"]["s2meta"] == 3345
        assert ABLATION["Yelp"]["melon_p"] == (0.208, 0.0)
        assert RESULTS["Adressa", "bpr"]["melon"]["HR@5"] == ABLATION["Adressa"]["melon"]

    def test_the_categories_add_up(self) -> None:
        amazon = [each for name, each in DATASETS.items() if name.startswith("Amazon")]
        assert sum(each.users for each in amazon) == 91_013
        assert sum(each.items for each in amazon) == 118_031
        assert sum(each.interactions for each in amazon) == 3_625_349

    @pytest.mark.parametrize(
        ("stream", "dataset", "table"),
        [
            ("news_globo", "Adressa", "Adressa"),
            ("amazon_grocery", "Amazon Grocery", "Amazon"),
            ("yelp_unfiltered", "Yelp", "Yelp"),
            ("amazon_toys", None, None),
            ("my stream", None, None),
        ],
    )
    def test_what_stands_in_for_what(self, stream: str, dataset: str | None, table: str | None) -> None:
        found = paper_dataset(stream)
        assert (found and found.name, paper_table(stream)) == (dataset, table)


def test_names_and_colours() -> None:
    assert label("sml", "ncf") == "SML-NCF (ours)"
    assert label("sml", "bpr") == "SML"
    assert label("my_strategy") == "my_strategy"
    assert colour("melon (paper)") == COLOURS["melon"]
    lights = [each.light for each in COLOURS.values()]
    assert len(set(lights)) == len(lights)  # the page finds a method's colour by it


def test_pretraining_that_was_tuned_for_each_stream_is_no_arrangement(tmp_path: Path) -> None:
    for stream, l2 in (("one", 0.1), ("two", 0.3)):
        write_run(tmp_path, stream=stream, pretrain_settings={"l2": l2, "epochs": 3})
    write_run(tmp_path, stream="two", seed=1, pretrain_settings={"l2": 0.01, "epochs": 3})
    found = [(contest.stream, contest.apart) for contest in read_bench([tmp_path]).contests]
    assert ("one", "") in found
    others = [apart for stream, apart in found if stream == "two"]
    assert len(others) == 2, "two trainings of one stream are two contests, and are told apart"
    assert all("l2" in apart for apart in others)
