"""The page about one stream: a sentence, a picture, a table, details folded; nothing is fetched or unescaped."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from melon.data.interactions import Interactions
from melon.evaluation import labels
from melon.evaluation.cell import Cell
from melon.evaluation.record import result_lines
from melon.fitting.config import CellConfig
from melon.lab.page import headline, result_document, result_page

Record = dict[str, Any]
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def record(flips: Interactions, small: Callable[..., CellConfig]) -> Record:
    return Cell(flips, small(strategy="eals")).run("odd <name>.parquet").record


@pytest.fixture(scope="module")
def default(flips: Interactions, small: Callable[..., CellConfig]) -> Record:
    return Cell(flips, small()).run("odd <name>.parquet").record


@pytest.fixture(scope="module")
def html(record: Record) -> str:
    return result_page([record])


def test_a_sentence_a_picture_a_table_and_folded_details(html: str, record: Record) -> None:
    assert html.startswith("<!doctype html>")
    sentence, picture, table, folded = (html.index(part) for part in (" is best: the ", "<svg", "<table", "<details"))
    assert html.index("In lists of the whole catalogue, eALS has NDCG@10 ") < sentence < picture < table < folded
    assert labels.label(record["nearest"]) in html[:sentence]
    assert html.count("<svg") == html.count("</svg>") == 1
    for name in ("frozen (no update)", "popularity", "recent popularity", "default steps (tuned)", "eALS"):
        assert f"</i>{name}</td>" in html
    assert f"{record['metrics']['HR@5']:.3f}".removeprefix("0") in html
    assert "w_new=" in html[folded:]
    assert "250 interactions evaluated" in html[folded:]
    assert "<nav" not in html


def test_the_best_comes_first_and_the_sentence_names_it(record: Record, default: Record) -> None:
    winning = copy.deepcopy(record)
    winning["metrics"]["HR@5"] = 0.99
    records = [default, winning]
    text = headline(records, result_lines(records))
    assert text.startswith("eALS is best: the item taken is in its first five of 16 in 99 % of 250 cases")
    assert "for default steps (tuned)" in text
    rows = result_document(records).sections[1].blocks[0].rows  # type: ignore[union-attr]
    assert rows[0][0].text == "eALS"


def test_without_any_rank_it_says_so(record: Record) -> None:
    empty = copy.deepcopy(record)
    for part in (empty["baselines"], {"own": empty}):
        for summary in part.values():
            summary["metrics"] = {}
    empty["baselines"] = {name: {"without_repeats": {}, "lists": None} for name in empty["baselines"]}
    empty["without_repeats"], empty["lists"] = {}, None
    text = headline([empty], result_lines([empty], "lists.all"))
    assert text.startswith("No event could be ranked")


def test_batches_without_a_rank_leave_a_gap(record: Record) -> None:
    holed = copy.deepcopy(record)
    for line in holed["baseline_batches"].values():
        line[0] = None
    holed["batches"][0]["HR@5"] = None
    assert "<svg" in result_page([holed])


def test_many_strategies_are_thin_lines_but_for_the_best(record: Record, default: Record) -> None:
    records = [default]
    for name in ("eals", "mwnet", "metasgd", "sml", "melon"):
        one = copy.deepcopy(record)
        one["strategy"] = name
        one["config"]["chosen"][name] = one["config"]["chosen"]["eals"]
        records.append(one)
    records[-1]["metrics"]["HR@5"] = 0.9
    page = result_page(records)
    picture = page[page.index("<svg") : page.index("</svg>")]
    assert "MeLON" in picture
    assert "5 other strategies" in picture
    assert "MetaSGD" not in picture


def test_everything_is_escaped(record: Record) -> None:
    evil = copy.deepcopy(record)
    evil["version"] = evil["dataset"]["path"] = evil["dataset"]["sha256"] = evil["recommender"] = EVIL
    evil["protocol"] |= {"candidates": EVIL, "ties": EVIL, "batch_size": EVIL}
    evil["baselines"][EVIL] = evil["baselines"]["frozen"]
    evil["baseline_batches"][EVIL] = evil["baseline_batches"]["frozen"]
    evil["config"]["chosen"][EVIL] = {"settings": {EVIL: EVIL}, "trials": []}
    evil["config"]["chosen"]["eals"]["settings"][EVIL] = EVIL
    page = result_page([evil], title=EVIL)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    evil["strategy"] = EVIL
    evil["metrics"]["HR@5"] = 1.0
    assert "<script" not in result_page([evil])
