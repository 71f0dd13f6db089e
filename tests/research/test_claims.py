"""Conclusions: each claim can be held, fail, and stay open, and says by which number."""

import json
from pathlib import Path

import numpy as np
import pytest

from claims import (
    affordable,
    batch_sizes,
    both_paces,
    claim_results,
    claims,
    consistent_gains,
    on_top,
    paper_report,
    quick_adaptation,
    slope,
    t_quantile,
    together,
    two_directions,
)
from melon.lab.comparisons import MethodComparison, PairedTests
from melon.lab.page import html_page
from melon.lab.report import report
from report_scenes import bench_of, comparison_of, ranks_with, write_run

N = 400


def comparisons(folder: Path) -> list[MethodComparison]:
    return list(bench_of(folder).main)


def write_comparison(folder: Path, stream: str, recommender: str = "bpr", *, fast: bool = False, **hits: int) -> None:
    """A comparison in which each method has so many hits of 400; the tuned Default has 100."""
    frozen, recent = (10, 90) if fast else (90, 10)
    baselines = {
        "default": ranks_with(100, N),
        "frozen": ranks_with(frozen, N),
        "recent_popularity": ranks_with(recent, N),
    }
    for name, count in hits.items():
        write_run(folder, name, ranks_with(count, N), stream=stream, recommender=recommender, baselines=baselines)


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        (["held", "held"], "held"),
        (["held", "not decided"], "not decided"),
        (["not held", "not decided"], "not held"),
        ([], "not decided"),
    ],
)
def test_a_claim_about_all_cases(parts: list[str], outcome: str) -> None:
    assert together(parts) == outcome  # type: ignore[arg-type]


class TestConsistentGains:
    def test_held(self, tmp_path: Path) -> None:
        for stream in ("one", "two"):
            for recommender in ("bpr", "ncf"):
                write_comparison(tmp_path, stream, recommender, melon=300, eals=150)
        found = consistent_gains(comparisons(tmp_path), PairedTests())
        assert found.outcome == "held"
        assert found.number.startswith("better than every baseline in 4 of 4 comparisons; than default steps")

    def test_one_comparison_without_a_gain_sinks_it(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "one", melon=300, eals=150)
        write_comparison(tmp_path, "two", melon=150, eals=300)
        found = consistent_gains(comparisons(tmp_path), PairedTests())
        assert found.outcome == "not held"
        assert "better than every baseline in 1 of 2 comparisons" in found.number
        assert any("hardest baseline, eALS" in line for line in found.lines)

    def test_one_recommender_is_too_few(self, tmp_path: Path) -> None:
        for stream in ("one", "two"):
            write_comparison(tmp_path, stream, melon=300, eals=150)
        found = consistent_gains(comparisons(tmp_path), PairedTests())
        assert found.outcome == "not decided"
        assert found.number.startswith("only one recommender here, too few for a claim about all of them")

    def test_its_own_halves_are_no_baselines(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "one", melon=300, melon_i=399, eals=100)
        assert "in 1 of 1 comparison" in consistent_gains(comparisons(tmp_path), PairedTests()).number


class TestTwoDirections:
    def test_held(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "one", melon=300, melon_i=100, melon_p=150)
        assert two_directions(comparisons(tmp_path), PairedTests()).outcome == "held"

    def test_no_gain_over_one_of_them(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "one", melon=300, melon_i=100, melon_p=300)
        assert two_directions(comparisons(tmp_path), PairedTests()).outcome == "not held"

    def test_without_both_it_is_open(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "one", melon=300, melon_i=100)
        assert two_directions(comparisons(tmp_path), PairedTests()).outcome == "not decided"


class TestAffordable:
    @pytest.mark.parametrize(("ms", "outcome"), [(100.0, "held"), (500.0, "not held")])
    def test_by_the_slowest(self, ms: float, outcome: str, tmp_path: Path) -> None:
        write_run(tmp_path, stream="quick", update_ms=5.0)
        write_run(tmp_path, stream="other", update_ms=ms)
        found = affordable(comparisons(tmp_path))
        assert found.outcome == outcome
        assert found.number.startswith(f"{1000 / ms:.1f} updates a second")


class TestQuickAdaptation:
    def test_a_growing_lead_holds(self, tmp_path: Path) -> None:
        rank = np.repeat([9.0, 5.0, 3.0, 2.0, 1.0, 1.0], 8).tolist()
        write_run(tmp_path, rank=rank, batch=2)
        assert quick_adaptation([comparison_of(tmp_path)]).outcome == "held"

    def test_a_closing_gap_fails(self, tmp_path: Path) -> None:
        rank = np.repeat([1.0, 1.0, 2.0, 3.0, 5.0, 9.0], 8).tolist()
        write_run(tmp_path, rank=rank, batch=2)
        found = quick_adaptation([comparison_of(tmp_path)])
        assert found.outcome == "not held"
        assert found.number.startswith("the gap grows in 0 and closes in 1 of 1 comparison")

    def test_few_batches_leave_it_open(self, tmp_path: Path) -> None:
        write_run(tmp_path, rank=[1, 1, 1, 1], batch=2)
        found = quick_adaptation([comparison_of(tmp_path)])
        assert found.outcome == "not decided"
        assert "too few" in found.lines[0]


def test_batches_are_weighted_by_their_events(tmp_path: Path) -> None:
    write_run(tmp_path, rank=[1, 3, 50, 1, 2], batch=2)
    assert batch_sizes(comparison_of(tmp_path)).tolist() == [2, 2, 1]


def test_a_tied_batch_counts_for_each_in_part() -> None:
    curves = {
        "a": np.array([1.0, 0.5, 0.2, np.nan]),
        "b": np.array([0.5, 0.5, 0.1, 1.0]),
        "c": np.array([0.1, 0.5, 0.4, 1.0]),
    }
    shares = on_top(curves)
    assert shares == pytest.approx({"a": (1 + 1 / 3) / 3, "b": (1 / 3) / 3, "c": (1 + 1 / 3) / 3})
    assert sum(shares.values()) == pytest.approx(1)
    assert on_top({}) == {}


def test_the_slope_of_a_straight_line() -> None:
    found = slope(0.1 + 0.002 * np.arange(20), np.full(20, 256))
    assert found is not None
    assert found.per_100 == pytest.approx(0.2)
    assert found.low == pytest.approx(0.2)


@pytest.mark.parametrize(("degrees", "quantile"), [(18, 2.1009), (30, 2.0423), (200, 1.9719)])
def test_few_batches_have_the_wider_interval_of_student(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, rel=0.002)


def test_the_slope_is_that_of_weighted_least_squares() -> None:
    rng = np.random.default_rng(0)
    gap, weights = rng.normal(size=24), rng.integers(1, 100, size=24)
    found = slope(gap, weights)
    x = np.stack([np.ones(24), np.arange(24)], axis=1)
    w = np.diag(weights / weights.mean())
    beta = np.linalg.solve(x.T @ w @ x, x.T @ w @ gap)
    residuals = gap - x @ beta
    error = np.sqrt(np.linalg.inv(x.T @ w @ x)[1, 1] * (residuals @ w @ residuals) / 22)
    assert found is not None
    assert found.per_100 == pytest.approx(100 * beta[1])
    assert found.high - found.per_100 == pytest.approx(100 * t_quantile(22) * error)


def test_few_batches_have_no_slope() -> None:
    assert slope(np.arange(6) / 10, np.ones(6, dtype=int)) is None
    assert slope(np.full(30, np.nan), np.ones(30, dtype=int)) is None


class TestBothPaces:
    def test_held(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "slow", melon=300, eals=300, metasgd=100)
        write_comparison(tmp_path, "fast", fast=True, melon=300, eals=100, metasgd=300)
        found = both_paces(bench_of(tmp_path), comparisons(tmp_path), PairedTests())
        assert found.outcome == "held"
        assert found.number == "the family that should lead does in 2 of 2 comparisons"

    def test_the_other_way_round(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "slow", melon=300, eals=100, metasgd=300)
        write_comparison(tmp_path, "fast", fast=True, melon=300, eals=300, metasgd=100)
        assert both_paces(bench_of(tmp_path), comparisons(tmp_path), PairedTests()).outcome == "not held"

    def test_one_pace_is_too_few(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "slow", melon=300, eals=300, metasgd=100)
        found = both_paces(bench_of(tmp_path), comparisons(tmp_path), PairedTests())
        assert found.outcome == "not decided"
        assert found.number.startswith("only slow streams here")

    def test_melons_own_halves_do_not_stand_for_a_family(self, tmp_path: Path) -> None:
        write_comparison(tmp_path, "slow", melon=300, melon_i=300, melon_p=100)
        assert "no comparison has" in both_paces(bench_of(tmp_path), comparisons(tmp_path), PairedTests()).number


def test_without_melon_everything_is_open(tmp_path: Path) -> None:
    write_run(tmp_path, "eals")
    found = claim_results(bench_of(tmp_path), PairedTests())
    assert len(found) == 5
    assert {each.outcome for each in found} == {"not decided"}


@pytest.mark.parametrize(
    ("form", "says"), [("stream", "meta-trained through a stream"), ("network", "in the paper's form")]
)
def test_the_report_says_which_form_of_melon_is_judged(tmp_path: Path, form: str, says: str) -> None:
    path = write_run(tmp_path, "melon", ranks_with(300, N))
    record = json.loads(path.read_text())
    record["config"]["chosen"]["melon"]["settings"]["form"] = form
    path.write_text(json.dumps(record))
    lead = claims(bench_of(tmp_path), PairedTests()).lead
    assert says in lead
    assert "not as published" in lead


def test_the_papers_sections_stand_in_the_report_and_its_numbers_are_labelled_as_theirs(tmp_path: Path) -> None:
    for name, hits in (("melon", 300), ("melon_i", 200), ("melon_p", 150), ("eals", 120)):
        write_comparison(tmp_path, "yelp", **{name: hits})
    bench = bench_of(tmp_path)
    html = html_page(paper_report(report(bench, "melon report runs"), bench, PairedTests()))
    for key in ("claims", "ablation", "paper"):
        assert f'<section id="{key}">' in html
    at = html.index("<h3>Yelp · BPR</h3>")
    part = html[at : html.index("</table>", at)]
    assert "yelp stands in for Yelp" in part
    line = part[part.index("MeLON</td>") :].split("</tr>")[1]
    assert 'class="words theirs">paper</td>' in line
    assert ".619" in line
