"""Learned strategies from a stream to a record, with both ways of pre-training (docs/methods.md 3.0.6)."""

from itertools import product
from typing import Any

import pytest
from learned_scenes import KINDS, slow

from melon.data.synthetic import synthetic_stream
from melon.evaluation.cell import Cell
from melon.fitting.config import CellConfig

#: Widths and steps that suit so small a stream.
CALM: dict[str, dict[str, Any]] = {
    "mwnet": {"lr": 0.05},
    "metasgd": {"alpha_init": 0.1},
    "s2meta": {"width": 5},
    "sml": {"width": 12},
}
QUICK = [("bpr", "melon", "shared"), ("ncf", "metasgd", "own")]
#: Strategies that look ahead in some form: MeLON and its ablations do in their published form.
PUBLISHED = ("melon", "melon_i", "melon_p")
LEARNED = ["mwnet", "metasgd", "s2meta", "sml", *PUBLISHED]
SWEEP = [each for each in product(KINDS, LEARNED, ("shared", "own")) if each not in QUICK]


@pytest.mark.parametrize(("kind", "strategy", "mode"), [*QUICK, *(slow(*each) for each in SWEEP)])
def test_a_cell(kind: str, strategy: str, mode: Any) -> None:
    log = synthetic_stream("flip", n_users=30, n_items=40, n_events=800, seed=2)
    settings: dict[str, Any] = {"passes": 2, **CALM.get(strategy, {})}
    if strategy in PUBLISHED:
        settings["form"] = "paper"
    config = CellConfig(
        kind,
        strategy,
        pretrain=mode,
        epochs=2,
        budget=1,
        split=(0.7, 0.05, 0.25),
        negatives=15,
        batch_size=64,
        settings=settings,
        recommender_settings={"dim": 4} if kind == "bpr" else {"dim": 3, "layers": (5, 4)},
    )
    record = Cell(log, config).run().record
    assert record["pretrain"] == mode
    assert record["strategy"] == strategy
    assert record["interactions_evaluated"] == 200
    assert 0 < record["metrics"]["HR@5"] < 1
    assert record["step"]["moved"] > 0


@pytest.mark.parametrize(("strategy", "preset"), [("default", "paper"), ("melon", "paper"), ("melon", "default")])
def test_a_strategy_trains_its_own_recommender_where_a_chunk_holds_few_of_the_items(strategy: str, preset: str) -> None:
    log = synthetic_stream("flip", n_users=60, n_items=300, n_events=1_600, seed=2)
    chunk = 32
    config = CellConfig(
        "bpr",
        strategy,
        preset=preset,
        pretrain="own",
        epochs=1,
        budget=0,
        batch_size=chunk,
        recommender_settings={"dim": 4},
    )
    assert log.n_items > 8 * chunk
    record = Cell(log, config).run().record
    assert 0 < record["metrics"]["HR@5"] < 1
