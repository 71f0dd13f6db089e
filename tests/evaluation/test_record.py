"""Records: written whole or not at all, read with clear errors, and their lines in a table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from melon.atomic import require_writable, write_text
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation import labels
from melon.evaluation.baselines import BASELINES
from melon.evaluation.cell import Cell
from melon.evaluation.record import lists_sentence, read_json, result_lines, write_result
from melon.fitting.config import CellConfig

Record = dict[str, Any]


@pytest.fixture(scope="module")
def record(flips: Interactions, small: Callable[..., CellConfig]) -> Record:
    return Cell(flips, small(strategy="eals")).run("stream.parquet").record


def test_lines_of_a_result(record: Record) -> None:
    mixed = [labels.label(name) for name in BASELINES]
    names = ["frozen (no update)", "popularity", "recent popularity", *mixed, "default steps (tuned)", "eALS"]
    assert [line.label for line in result_lines([record])] == names
    full = {line.method: line.metrics for line in result_lines([record], "lists.all")}
    assert full["eals"] == record["lists"]["all"]
    assert full["mix"] == record["baselines"]["mix"]["lists"]["all"]
    sentence = lists_sentence(record)
    assert sentence.startswith("In lists of the whole catalogue, eALS has NDCG@10 ")
    assert labels.label(record["nearest"]) in sentence
    tuned = {**record, "strategy": "default"}
    assert [line.label for line in result_lines([tuned])] == names[:-1]
    own = [line.label for line in result_lines([{**tuned, "pretrain": "own"}])]
    assert own == [*names[:-1], "default steps, own pre-training"]


def test_default_that_was_not_tuned_is_not_called_tuned(record: Record) -> None:
    chosen = {**record["config"]["chosen"], "default": {"settings": {}, "score": None, "trials": []}}
    plain = {**record, "config": {**record["config"], "chosen": chosen}}
    assert [line.label for line in result_lines([plain])][-2] == "default steps"


def test_auto_is_called_auto(record: Record) -> None:
    asked = {**record["config"]["asked"], "recommender": "blend", "strategy": "default", "half_life": "auto"}
    auto = {**record, "recommender": "blend", "strategy": "default", "config": {**record["config"], "asked": asked}}
    assert [line.label for line in result_lines([auto])][-1] == "auto"
    assert [line.label for line in result_lines([record, auto])][-2:] == ["eALS", "auto"]
    named = {**auto, "config": {**record["config"], "asked": {**asked, "half_life": "off"}}}
    assert [line.label for line in result_lines([record, named])][-1] == "default steps on blend"


@pytest.mark.parametrize("text", ["", '{"metrics": {"HR@5"', "[1, 2]", "[" * 100_000])
def test_a_torn_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"torn\.json .* Remove it"):
        read_json(tmp_path / "torn.json")


def test_results_are_written_whole_or_not_at_all(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = {"event": np.arange(3), "rank": np.array([1.0, 2.5, 3.0])}
    target = tmp_path / "new" / "r.json"
    written = write_result(record, ranks, target)
    assert written["ranks"] == "r.ranks.parquet"
    assert pl.read_parquet(target.parent / written["ranks"])["rank"].to_list() == [1.0, 2.5, 3.0]
    before = target.read_text()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("melon.atomic.os.open", full)
    with pytest.raises(DataError, match=r"r.json cannot be written: No space left on device"):
        write_text(target, "half")
    assert target.read_text() == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["r.json", "r.ranks.parquet"]


def test_where_nothing_can_be_written_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "r.json", tmp_path):
        with pytest.raises(DataError, match="cannot be written"):
            require_writable(path)
    require_writable(tmp_path / "new" / "r.json")
    assert list((tmp_path / "new").iterdir()) == []
