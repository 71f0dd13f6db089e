"""Looking at a batch's learning rates on the way: nothing else changes, and what was seen is kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation.cell import Cell, CellResult
from melon.evaluation.work import RatesKeeper, Work
from melon.fitting.config import CellConfig
from melon.lab.bench import BenchFolder, CellOutcome, Task

MakeConfig = Callable[..., CellConfig]


@pytest.fixture(scope="module")
def seen(flips: Interactions, small: MakeConfig) -> CellResult:
    return Cell(flips, small(strategy="melon", budget=1, epochs=1), rates=True).run()


def test_looking_changes_nothing(
    seen: CellResult, flips: Interactions, small: MakeConfig, timeless: Callable[[Any], str]
) -> None:
    plain = Cell(flips, small(strategy="melon", budget=1, epochs=1)).run()
    assert plain.rates is None
    assert timeless(plain.record) == timeless(seen.record)
    assert all(plain.ranks[name].tobytes() == seen.ranks[name].tobytes() for name in plain.ranks)
    assert all(batch["update_ms"] > 0 for batch in seen.record["batches"])


def test_it_is_the_last_full_batch(seen: CellResult) -> None:
    assert seen.rates is not None
    sizes = [batch["n"] for batch in seen.record["batches"]]
    assert sizes[-1] < 64
    about = seen.rates.about
    assert about["event"] == 1_000 - sizes[-1] - 64
    assert about["learned"] == about["event"]  # scored, and not learned yet
    assert about["interactions"] == len(seen.rates.rows.rates) == 64


def test_the_foundation_has_nothing_to_show(flips: Interactions, small: MakeConfig) -> None:
    assert Cell(flips, small(budget=1, epochs=1), rates=True).run().rates is None


def test_rates_survive_a_stop(flips: Interactions, small: MakeConfig, tmp_path: Path) -> None:
    config = small(strategy="eals", budget=1, epochs=1)
    first = Cell(flips, config, work=Work(tmp_path), rates=True).run().rates
    again = Cell(flips, config, work=Work(tmp_path), rates=True).run().rates
    assert first is not None
    assert again is not None
    assert np.array_equal(first.rows.rates.astype(np.float32), again.rows.rates)


def test_there_and_back(seen: CellResult, tmp_path: Path) -> None:
    assert seen.rates is not None
    RatesKeeper().write(seen.rates, tmp_path / "x.rates.safetensors")
    back = RatesKeeper().read(tmp_path / "x.rates.safetensors")
    assert back.about == seen.rates.about
    assert back.rows.groups == seen.rates.rows.groups
    for name, facts in seen.rates.facts().items():
        assert back.facts()[name].rank == facts.rank
        assert back.facts()[name].mean == pytest.approx(facts.mean, rel=1e-6)


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.rates.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"x\.rates\.safetensors is no file of learning rates"):
        RatesKeeper().read(tmp_path / "x.rates.safetensors")


def test_cells_without_rates_are_run_again_where_rates_are_asked_for(
    seen: CellResult, small: MakeConfig, tmp_path: Path
) -> None:
    folder, task = BenchFolder(tmp_path), Task("flips", small(strategy="melon", budget=1, epochs=1))
    folder.keep(CellOutcome(task, 1.0, seen.record, seen.ranks))
    asked = replace(task, rates=True)
    assert folder.done([task])
    assert not folder.done([asked])
    folder.keep(CellOutcome(asked, 1.0, seen.record, seen.ranks, rates=seen.rates))
    assert folder.rates(asked).exists()
    assert folder.done([asked])
