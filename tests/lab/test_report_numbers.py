"""The report's arithmetic against answers worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

from melon.evaluation.table import ResultTable, podium
from melon.lab.comparisons import (
    PairedTests,
    curve,
    estimate,
    frontier,
    milliseconds,
    table_of,
    trailing_mean,
    trailing_width,
)
from melon.lab.report import against_reference
from report_scenes import comparison_of, ranks_with, write_run


def test_mean_and_standard_error() -> None:
    found = estimate([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found is not None
    assert found.mean == pytest.approx(0.3)
    assert found.error == pytest.approx(np.sqrt(0.025 / 5))  # sd(ddof=1) / √5


def test_one_seed_has_no_error_and_none_no_mean() -> None:
    found = estimate([0.5])
    assert found is not None
    assert (found.mean, found.error) == (0.5, None)
    assert estimate([]) is None


def test_the_table_is_the_mean_over_seeds(tmp_path: Path) -> None:
    write_run(tmp_path, rank=[1, 50, 50, 50], seed=0)
    write_run(tmp_path, rank=[1, 1, 1, 50], seed=1)
    found = table_of(comparison_of(tmp_path), "all")["melon"]
    assert found["HR@5"].mean == pytest.approx(0.5)
    assert found["HR@5"].error == pytest.approx(np.std([0.25, 0.75], ddof=1) / np.sqrt(2))
    assert found["NDCG@10"].mean == pytest.approx(0.5)


def test_baselines_are_always_in_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, "eals")
    comparison = comparison_of(tmp_path)
    assert comparison.methods == ["frozen", "popularity", "recent_popularity", "default", "eals"]
    assert comparison.strategies == ["eals"]
    assert table_of(comparison, "all")["frozen"]["HR@5"].mean == 0.0


def test_repeats_are_left_out_of_the_headline(tmp_path: Path) -> None:
    write_run(tmp_path, rank=[1, 1, 50, 50], repeat=[True, False, False, False])
    comparison = comparison_of(tmp_path)
    assert comparison.headline == "first"
    assert table_of(comparison, "first")["melon"]["HR@5"].mean == pytest.approx(1 / 3)
    assert table_of(comparison, "all")["melon"]["HR@5"].mean == pytest.approx(1 / 2)


def test_the_whole_catalogue_is_shown_where_it_was_ranked(tmp_path: Path) -> None:
    write_run(tmp_path, full={"HR@5": 0.125})
    assert table_of(comparison_of(tmp_path), "full")["melon"]["HR@5"].mean == 0.125
    write_run(tmp_path / "other")
    assert table_of(comparison_of(tmp_path / "other"), "full")["melon"] == {}


@pytest.mark.parametrize(
    ("values", "first", "second"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"c"}, {"b"}),
        ({"a": 3.0, "b": 2.0, "c": 3.0}, {"a", "c"}, {"b"}),
        ({"a": 1.0}, {"a"}, set()),
        ({}, set(), set()),
    ],
)
def test_best_and_second(values: dict[str, float], first: set[str], second: set[str]) -> None:
    assert podium(values) == (first, second)


def test_the_curve_is_ndcg_per_batch(tmp_path: Path) -> None:
    write_run(tmp_path, rank=[1, 3, 50, 1, 2], batch=2)
    comparison = comparison_of(tmp_path)
    assert curve(comparison, "melon") == pytest.approx([(1 + 0.5) / 2, 0.5, 1 / np.log2(3)])
    assert curve(comparison, "frozen") == pytest.approx([0, 0, 0])


def test_a_batch_of_repeats_alone_is_a_gap(tmp_path: Path) -> None:
    write_run(tmp_path, rank=[1, 1, 1, 1], repeat=[True, True, False, False], batch=2)
    found = curve(comparison_of(tmp_path), "melon")
    assert np.isnan(found[0])
    assert found[1] == 1.0


def test_events_that_were_left_out_keep_their_batch(tmp_path: Path) -> None:
    import polars as pl

    path = write_run(tmp_path, rank=[1, 50, 1, 1], batch=2).with_suffix(".ranks.parquet")
    pl.read_parquet(path)[[0, 2, 3]].write_parquet(path)
    assert comparison_of(tmp_path).batches.tolist() == [0, 1, 1]


def test_trailing_mean() -> None:
    values = np.array([1.0, np.nan, 3.0, 5.0])
    assert trailing_mean(values, 2) == pytest.approx([1.0, 1.0, 3.0, 4.0])
    assert [trailing_width(n) for n in (5, 80, 1_000)] == [3, 10, 20]


def test_the_frontier_is_what_nothing_cheaper_beats() -> None:
    points = {
        "cheap": (1.0, 0.3),
        "dominated": (2.0, 0.2),
        "better": (3.0, 0.5),
        "same": (4.0, 0.5),
        "best": (9.0, 0.6),
    }
    assert frontier(points) == ["cheap", "better", "best"]
    assert frontier({"a": (1.0, 0.1), "b": (1.0, 0.2)}) == ["b"]


def test_time_is_the_mean_over_seeds(tmp_path: Path) -> None:
    write_run(tmp_path, seed=0, update_ms=10)
    write_run(tmp_path, seed=1, update_ms=30)
    assert milliseconds(comparison_of(tmp_path), "melon") == 20
    assert milliseconds(comparison_of(tmp_path), "frozen") is None


class TestComparisons:
    def test_better_worse_and_open(self, tmp_path: Path) -> None:
        n = 400
        tuned = {"default": ranks_with(200, n)}
        for name, hits in (("melon", 320), ("eals", 80), ("mwnet", 200)):
            write_run(tmp_path, name, ranks_with(hits, n), baselines=tuned)
        found = PairedTests().family(comparison_of(tmp_path), ["eals", "mwnet", "melon"])
        assert {name: each.conclusion for name, each in found.items()} == {
            "melon": "better",
            "eals": "worse",
            "mwnet": "no significant loss",
        }
        assert found["melon"].difference.difference == pytest.approx(0.3)
        assert {each.family for each in found.values()} == {3}
        assert found["mwnet"].no_gain
        low, high = found["melon"].difference.by_user
        assert found["melon"].visible == pytest.approx((high - low) / 2)

    def test_ndcg_has_an_interval_of_its_own(self, tmp_path: Path) -> None:
        """From rank 3 to rank 1 nothing changes for HR@5; NDCG@10 gains 1/log2(2) − 1/log2(4) on each such event."""
        n = 400
        write_run(tmp_path, "melon", [1.0] * n, baselines={"default": [3.0] * 200 + [1.0] * 200})
        comparison, tests = comparison_of(tmp_path), PairedTests()
        assert tests.family(comparison, ["melon"])["melon"].difference.difference == 0.0
        second = tests.second(comparison, "melon")
        assert second.difference == pytest.approx(0.25)
        low, high = second.by_user
        assert 0.2 < low < 0.25 < high < 0.3

    def test_one_user_is_one_fact(self, tmp_path: Path) -> None:
        """A gain that a single user makes is not decided, however many events it has."""
        n = 60
        rank = [50.0] * 30 + [1.0] * 30
        users = [*range(30), *[99] * 30]
        write_run(tmp_path, "melon", rank, users=users)
        assert PairedTests().family(comparison_of(tmp_path), ["melon"])["melon"].conclusion == "no significant loss"
        write_run(tmp_path / "many", "melon", rank, users=list(range(n)))
        assert PairedTests().family(comparison_of(tmp_path / "many"), ["melon"])["melon"].conclusion == "better"

    def test_holm_asks_more_of_a_larger_family(self, tmp_path: Path) -> None:
        n = 300
        rng = np.random.default_rng(4)
        base = np.where(rng.random(n) < 0.5, 1.0, 50.0)
        slight = base.copy()
        slight[np.flatnonzero(base > 5)[:9]] = 1.0
        slight[np.flatnonzero(base <= 5)[:2]] = 50.0
        tuned = {"default": base.tolist()}
        write_run(tmp_path, "melon", slight.tolist(), baselines=tuned)
        noise = ["eals", "mwnet", "metasgd", "s2meta", "sml", "melon_i", "melon_p"]
        for name in noise:
            write_run(tmp_path, name, base.tolist(), baselines=tuned)
        comparison = comparison_of(tmp_path)
        alone = PairedTests().family(comparison, ["melon"])["melon"]
        assert 0.05 / 8 < alone.difference.p_value < 0.05
        assert alone.conclusion == "better"
        assert PairedTests().family(comparison, ["melon", *noise])["melon"].conclusion == "no significant loss"

    def test_where_nothing_but_default_was_run_the_baselines_are_the_family(self, tmp_path: Path) -> None:
        n = 400
        write_run(tmp_path, "default", ranks_with(200, n), baselines={"recent_popularity": ranks_with(320, n)})
        table = against_reference(comparison_of(tmp_path), PairedTests())
        assert isinstance(table, ResultTable)
        conclusions = {row[0].method: row[7].text for row in table.rows}
        assert conclusions == {"frozen": "worse", "popularity": "worse", "recent_popularity": "better"}
        assert "Family: 3 comparisons of baselines." in table.caption

    def test_only_common_seeds_are_compared(self, tmp_path: Path) -> None:
        write_run(tmp_path, "melon", [1, 1, 1, 1], seed=0)
        write_run(tmp_path, "eals", [50, 50, 50, 50], seed=0)
        write_run(tmp_path, "eals", [1, 1, 1, 1], seed=1)
        found = PairedTests().against(comparison_of(tmp_path), "melon", ["eals"])["eals"]
        assert found.difference.difference == 1.0
        assert found.difference.seed_error is None

    def test_a_long_test_part_has_a_tighter_margin(self, tmp_path: Path) -> None:
        write_run(tmp_path, "melon", ranks_with(5, 900))
        comparison = comparison_of(tmp_path)
        assert comparison.margin == 0.015
