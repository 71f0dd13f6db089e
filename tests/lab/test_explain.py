"""`melon explain`: every strategy can be looked at, the batch is the one asked for, and the model stays as it is."""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import melon
from melon import cli
from melon.data.interactions import Interactions
from melon.data.prepare import prepare
from melon.data.synthetic import synthetic_stream
from melon.demo import write_synthetic
from melon.errors import SettingsError
from melon.lab.figures import draw_rates
from melon.learning.model import LiveModel
from melon.learning.rate_matrix import explain_batch

LEARNED = 600
#: One strategy of each form of rates; the conformance checks meet every pairing.
PAIRINGS = [
    *(("bpr", name, {}) for name in ("default", "eals", "s2meta", "melon")),
    *(("ncf", name, {}) for name in ("metasgd", "melon")),
    ("bpr", "default", {"optimizer": "adam_dense"}),
    ("ncf", "sml", {"form": "stream"}),
]


@pytest.fixture(scope="module")
def log() -> Interactions:
    return synthetic_stream("flip", n_users=30, n_items=40, n_events=800, seed=2)


@pytest.fixture(scope="module")
def saved(log: Interactions, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def save(recommender: str, strategy: str, settings: dict[str, Any] | None = None) -> Path:
        key = json.dumps([recommender, strategy, settings or {}])
        if key not in made:
            small = {"dim": 4} if recommender == "bpr" else {"dim": 3, "layers": (5, 4)}
            model = melon.Melon(
                recommender, strategy, recommender_settings=small, settings=settings, epochs=1, budget=0, batch_size=50
            )
            made[key] = tmp_path_factory.mktemp("models") / "model"
            model.fit(log.head(LEARNED)).save(made[key])
        return made[key]

    return save


def files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("recommender", "strategy", "settings"), PAIRINGS)
def test_every_strategy_can_be_looked_at(
    recommender: str, strategy: str, settings: dict[str, Any], saved: Callable[..., Path], log: Interactions
) -> None:
    folder = saved(recommender, strategy, settings)
    model, _ = LiveModel.load(folder)
    found = explain_batch(model, log, at=None, batch_size=50)
    assert found.about["event"] == LEARNED
    assert found.rows.rates.shape == found.rows.gradients.shape
    assert sum(size for _, size in found.rows.groups) == found.rows.rates.shape[1]
    assert len(found.rows.losses) == len(found.rows.rates) == 50
    facts = found.facts()
    assert ("shared" in facts) == (recommender == "ncf")
    assert all(np.isfinite(part.sigma_ratio) and part.rank >= 1 for part in facts.values())
    if strategy == "default":
        assert facts["rows"].rank == 1
    if strategy in ("metasgd", "sml"):
        assert facts["shared"].rank == 1
    json.dumps({name: part.as_dict() for name, part in facts.items()}, allow_nan=False)


def test_newcomers_stand_behind_the_known(saved: Callable[..., Path]) -> None:
    model, _ = LiveModel.load(saved("bpr", "melon", {"form": "paper"}))
    users, items = len(model.users), len(model.items)
    strangers = Interactions.from_ids(np.array([900, 0, 901, 900]), np.array([0, 901, 0, 902]), np.arange(4))
    batch = model.look_ahead(strangers, 0, 4)
    assert batch.users.tolist() == [users, model.users.rows([0])[0], users + 1, users]
    assert batch.items.tolist() == [model.items.rows([0])[0], items, model.items.rows([0])[0], items + 1]
    assert (len(model.users), len(model.items)) == (users, items)
    assert explain_batch(model, strangers, at=0, batch_size=4).rows.rates.shape[0] == 4


def test_it_is_the_batch_that_would_be_learned(saved: Callable[..., Path], log: Interactions) -> None:
    """The same rates as the model shows when its turn comes."""
    folder = saved("bpr", "melon", {"form": "paper"})
    model, _ = LiveModel.load(folder)
    found = explain_batch(model, log, at=None, batch_size=50)
    other, _ = LiveModel.load(folder)
    seen: list[Any] = []
    plain = other.updater.strategy.propose

    def spy(situation: Any) -> Any:
        seen.append(situation.evidence.losses.numpy())
        return plain(situation)

    other.updater.strategy.propose = spy  # type: ignore[method-assign]
    later = Interactions.from_ids(
        log.user_ids[log.users[LEARNED : LEARNED + 50]],
        log.item_ids[log.items[LEARNED : LEARNED + 50]],
        log.times[LEARNED : LEARNED + 50],
    )
    list(other.learn(later, 50))
    assert np.array_equal(seen[0].astype(np.float64), found.rows.losses)


class TestWhichBatch:
    def about(self, saved: Callable[..., Path], log: Interactions, **asked: Any) -> Any:
        model, _ = LiveModel.load(saved("bpr", "default"))
        return explain_batch(model, log, **{"at": None, "batch_size": 50, **asked}).about

    def test_as_asked(self, saved: Callable[..., Path], log: Interactions) -> None:
        assert self.about(saved, log, at=10)["event"] == 10

    def test_the_end_may_be_short(self, saved: Callable[..., Path], log: Interactions) -> None:
        assert self.about(saved, log, at=790)["interactions"] == 10

    def test_a_stream_that_is_all_known(self, saved: Callable[..., Path], log: Interactions) -> None:
        about = self.about(saved, log.head(LEARNED))
        assert about["event"] == LEARNED - 50
        assert "last events" in about["note"]

    @pytest.mark.parametrize("asked", [{"at": 800}, {"at": -1}, {"batch_size": 0}])
    def test_there_is_no_such_batch(self, asked: Any, saved: Callable[..., Path], log: Interactions) -> None:
        with pytest.raises(SettingsError, match="--at or --batch-size"):
            self.about(saved, log, **asked)


@pytest.mark.parametrize("suffix", [".png", ".svg", pytest.param(".pdf", marks=pytest.mark.slow)])
def test_a_picture_of_each_kind(suffix: str, saved: Callable[..., Path], log: Interactions, tmp_path: Path) -> None:
    model, _ = LiveModel.load(saved("ncf", "melon"))
    found = explain_batch(model, log, at=None, batch_size=20)
    draw_rates(found, tmp_path / f"one{suffix}")
    assert (tmp_path / f"one{suffix}").stat().st_size > 5_000
    if suffix != ".pdf":
        draw_rates(found, tmp_path / f"two{suffix}")
        # Names of clip paths are hashes of places to the last bit, which the layout's solver does not repeat.
        one, two = (
            re.sub(rb"\bp[0-9a-f]{10}\b", b"", (tmp_path / f"{name}{suffix}").read_bytes()) for name in ("one", "two")
        )
        assert one == two


def test_rates_that_do_not_vary_can_be_drawn(saved: Callable[..., Path], log: Interactions, tmp_path: Path) -> None:
    model, _ = LiveModel.load(saved("bpr", "default"))
    draw_rates(explain_batch(model, log, at=0, batch_size=1), tmp_path / "one.png")
    assert (tmp_path / "one.png").exists()


class TestCommand:
    @pytest.fixture
    def run(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
        def main(*words: object) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", ["melon", "explain", *map(str, words)])
            monkeypatch.setenv("COLUMNS", "200")
            with pytest.raises(SystemExit) as stop:
                cli.main()
            shown = capsys.readouterr()
            return int(stop.value.code or 0), shown.out, shown.err

        return main

    @pytest.fixture
    def stream(self, tmp_path: Path) -> Path:
        return write_synthetic("flip", tmp_path / "stream.parquet", 800, 2)

    def test_a_table_and_a_picture(
        self, run: Callable[..., Any], stream: Path, saved: Callable[..., Path], tmp_path: Path
    ) -> None:
        folder, out = saved("ncf", "melon"), tmp_path / "deep" / "matrix.svg"
        before = files(folder)
        code, told, _ = run(folder, stream, "--out", out)
        assert code == 0
        assert out.exists()
        for word in ("σ₂/σ₁", "numerical rank", "rank correlation with the loss", "shared weights", str(out)):
            assert word in told
        assert files(folder) == before

    def test_equal_rates_are_explained(
        self, run: Callable[..., Any], stream: Path, saved: Callable[..., Path], tmp_path: Path
    ) -> None:
        _, said, _ = run(saved("bpr", "default"), stream, "--out", tmp_path / "e.png")
        assert "All rates are equal" in said

    def test_numbers_for_a_program(
        self, run: Callable[..., Any], stream: Path, saved: Callable[..., Path], tmp_path: Path
    ) -> None:
        words = ("--out", tmp_path / "e.png", "--json", "--at", 130, "--batch-size", 30)
        code, told, _ = run(saved("bpr", "melon", {"form": "paper"}), stream, *words)
        assert code == 0
        record = json.loads(told)
        assert (record["event"], record["interactions"], record["strategy"]) == (130, 30, "melon")
        assert record["rows"]["rank"] >= 1
        assert set(record["rows"]["from_one_rate_per_interaction"]) == {"spectral", "frobenius"}

    def test_the_models_own_batch_size_is_the_usual_one(
        self, run: Callable[..., Any], stream: Path, saved: Callable[..., Path], tmp_path: Path
    ) -> None:
        _, told, _ = run(saved("bpr", "default"), stream, "--out", tmp_path / "e.png", "--json", "--at", 0)
        assert json.loads(told)["interactions"] == 50

    def test_what_will_not_do_is_told(
        self, run: Callable[..., Any], stream: Path, saved: Callable[..., Path], tmp_path: Path
    ) -> None:
        folder = saved("bpr", "default")
        code, _, told = run(folder, stream, "--out", tmp_path / "e.txt")
        assert code == 2
        assert ".png" in told
        code, _, told = run(tmp_path / "nothing", stream, "--out", tmp_path / "e.png")
        assert code == 1
        assert "nothing" in told
        code, _, told = run(folder, stream, "--out", tmp_path / "e.png", "--at", 5_000)
        assert code == 2
        assert "--at" in told

    @pytest.mark.parametrize("ids", [["a", "b"], [1_000_000, 1_000_001]], ids=["other kind", "none in common"])
    def test_a_stream_of_other_ids_is_named_as_such(
        self, ids: list[Any], run: Callable[..., Any], saved: Callable[..., Path], tmp_path: Path
    ) -> None:
        rows = [f"{ids[n % 2]},{ids[n % 2]},{n}" for n in range(60)]
        (tmp_path / "raw.csv").write_text("\n".join(["user,item,ts", *rows]), encoding="utf-8")
        prepare(tmp_path / "raw.csv", out=tmp_path / "other.parquet")
        code, _, told = run(saved("bpr", "default"), tmp_path / "other.parquet", "--out", tmp_path / "e.png")
        assert code == 1
        assert "model and stream differ" in told
