"""`research/benchmarks/strong_peers.py`: each peer runs on a small stream, and none sees what comes later."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from melon.data.interactions import Interactions
from melon.evaluation.predictors import Popularity
from melon.evaluation.prequential import Tally, prequential
from melon.stream.candidates import Candidates
from melon.stream.split import BATCH_SIZE, Parts, split

FOLDER = Path(__file__).parents[2] / "research" / "benchmarks"
ONLINE = {"replays": 1, "reach": 200, "lr": 0.01}
NETWORK = {"lr": 0.01, "dropout": 0.2, "epochs": 1}
#: A peer, its variant and settings under which it is quick.
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("ease", "refitted", {"l2": 10.0, "last": 20, "every": 1}),
    ("als", "refitted", {"factors": 8, "alpha": 10.0, "l2": 1.0, "every": 1}),
    ("ials", "streaming", {"dim": 8, "missing": 0.01, "reg": 0.01}),
    ("sasrec", "frozen", NETWORK),
    ("sasrec", "online", {**NETWORK, "online": ONLINE}),
    ("gru4rec", "frozen", NETWORK),
    ("gru4rec", "online", {**NETWORK, "online": ONLINE}),
]


@pytest.fixture(autouse=True)
def _benchmarks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture(scope="module")
def log() -> Interactions:
    """Users take items of their own half of the catalogue, all of which appear early."""
    random = np.random.default_rng(0)
    users = random.integers(0, 60, 1_600)
    items = 2 * random.integers(0, 100, 1_600) + users % 2
    items[:200] = np.arange(200)
    users[:200] = np.arange(200) % 60
    return Interactions.from_ids(users, items, np.arange(1_600))


@pytest.fixture
def parts(log: Interactions) -> Parts:
    return split(log, (0.5, 0.1, 0.4))


def ranks(log: Interactions, parts: Parts, peer: str, variant: str, settings: dict[str, Any]) -> Any:
    from strong.kinds import KINDS
    from strong.mixture import Stretch

    if peer == "als":
        pytest.importorskip("implicit")
    test = Stretch.test(log, parts, [0])
    scores = test.follow(KINDS[peer].make(log, parts.train_stop, variant, settings, 0))
    mixture = {"shape": "as it is", "half_life": 300, "weight": 0.1}
    return np.stack([test.ranks(scores), test.ranks(scores, mixture=mixture)])


@pytest.mark.parametrize(("peer", "variant", "settings"), VARIANTS)
def test_no_peer_sees_what_comes_later(
    log: Interactions, parts: Parts, peer: str, variant: str, settings: dict[str, Any]
) -> None:
    cut = parts.validation_stop + BATCH_SIZE
    later = log.items.copy()
    later[cut:] = np.random.default_rng(1).permutation(later[cut:])
    before = ranks(log, parts, peer, variant, settings)
    after = ranks(replace(log, items=later), parts, peer, variant, settings)
    np.testing.assert_array_equal(before[:, :BATCH_SIZE], after[:, :BATCH_SIZE])
    assert (before[:, BATCH_SIZE:] != after[:, BATCH_SIZE:]).any(axis=1).all()


@pytest.mark.parametrize(("peer", "variant", "settings"), VARIANTS)
def test_every_peer_learns_the_halves(
    log: Interactions, parts: Parts, peer: str, variant: str, settings: dict[str, Any]
) -> None:
    settings = {**settings, "epochs": 12} if "epochs" in settings else settings
    assert ranks(log, parts, peer, variant, settings)[0].mean() < 45  # by chance 50.5


def test_the_protocol_is_the_one_of_the_project(log: Interactions, parts: Parts) -> None:
    """Recent popularity has the same ranks here and in the prequential loop."""
    from strong.mixture import Scores, Stretch

    tally, popularity = Tally(), Popularity(300, log.items[: parts.validation_stop])
    for point in prequential(popularity, log, Candidates(log, seed=3), parts.validation_stop, parts.stop):
        tally.add(point)
    test = Stretch.test(log, parts, [3])
    nothing = Scores(np.zeros((1, len(test.events), 100)), [])
    rank = test.ranks(nothing, mixture={"shape": "as it is", "half_life": 300, "weight": 1.0})
    np.testing.assert_array_equal(test.events, tally.events)
    np.testing.assert_array_equal(rank, tally.rank)


def test_choices_and_records(
    log: Interactions, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import strong_peers
    from strong import kinds

    monkeypatch.setattr(kinds, "MOST", kinds.EVERY)
    monkeypatch.setattr(kinds, "ONLINE", [ONLINE])
    monkeypatch.setattr(kinds, "TRAININGS", [{"lr": 0.01, "dropout": 0.2}])
    for peer in ("ials", "gru4rec"):
        choice = strong_peers.chosen_on_window(tmp_path / f"toy-{peer}.choice.json", log, parts, peer)
        strong_peers.stream(tmp_path, "toy", log, parts, peer, choice, range(2))
    expected = {("ials", "streaming"), ("gru4rec", "frozen"), ("gru4rec", "online")}
    for peer, variant in expected:
        for suffix, seed in (("", 0), ("_popularity", 1)):
            record = tmp_path / f"toy-{peer}-{seed}-{variant}{suffix}.json"
            frame = pl.read_parquet(record.with_suffix(".ranks.parquet"))
            assert frame["event"].to_list() == list(range(parts.validation_stop, len(log)))
            assert json.loads(record.read_text())["metrics"]["HR@5"] == pytest.approx((frame["rank"] <= 5).mean())
    auto = tmp_path / "catalogue" / "auto-further-inputs"
    auto.mkdir(parents=True)
    for part in ("json", "ranks.parquet"):  # in place of what research/benchmarks/auto.py writes
        (auto / f"toy-blend-0-default.{part}").write_bytes((tmp_path / f"toy-ials-0-streaming.{part}").read_bytes())
    capsys.readouterr()
    strong_peers.tables(tmp_path, ["toy"], ["ials", "gru4rec"], 2, tmp_path)
    shown = capsys.readouterr().out
    assert shown.count("– with recent popularity") == len(expected)
    assert shown.count(", toy, 1 seed | HR@5") == 2 * len(expected)
