"""Kept work: whole files only, read back bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from melon.bench.work import PlainKeeper, StateKeeper, TallyKeeper, Work, work_folder
from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import Ranks
from melon.fitting.pretrained import PretrainedState, RecommenderPlan, refit


def tally(*, full: bool) -> Tally:
    made, rng = Tally(), np.random.default_rng(0)
    start = 10
    for size in (5, 7, 1, 3):
        usable = rng.random(size) < 0.6 if size > 1 else np.zeros(1, dtype=bool)
        count = int(usable.sum())
        ranks = Ranks(1 + rng.integers(0, 20, count) / 2, rng.integers(0, 3, count))
        everything = Ranks(1 + rng.integers(0, 99, count) / 2, rng.integers(0, 3, count)) if full else None
        made.add(Point(start, start + size, usable, ranks, everything, *rng.random(4).tolist()))
        start += size
    return made


@pytest.mark.parametrize("full", [True, False])
def test_a_tally_comes_back_as_it_was(full: bool, tmp_path: Path) -> None:
    made = tally(full=full)
    TallyKeeper().write(made, tmp_path / "t.safetensors")
    back = TallyKeeper().read(tmp_path / "t.safetensors")
    assert len(back.points) == len(made.points)
    for one, other in zip(made.points, back.points, strict=True):
        for name in ("start", "stop", "loss", "score_ms", "update_ms"):
            assert getattr(one, name) == getattr(other, name)
        assert one.usable.tolist() == other.usable.tolist()
        assert one.ranks.rank.tobytes() == other.ranks.rank.tobytes()
        assert one.ranks.ties.tolist() == other.ranks.ties.tolist()
        assert (one.full_ranks is None) == (other.full_ranks is None) == (not full)
        if one.full_ranks and other.full_ranks:
            assert one.full_ranks.rank.tobytes() == other.full_ranks.rank.tobytes()
    assert back.rank.tobytes() == made.rank.tobytes()
    assert back.set_aside == made.set_aside
    assert [path.name for path in tmp_path.iterdir()] == ["t.safetensors"]


def test_a_recommender_comes_back_as_it_was(flips: Interactions, tmp_path: Path) -> None:
    plan = RecommenderPlan("ncf", {"dim": 4, "layers": (5,)})
    made = refit(plan, flips.head(200), {"epochs": 1}, 3)
    keeper = StateKeeper(lambda tables: PretrainedState(plan, 3, tables))
    keeper.write(made, tmp_path / "s.safetensors")
    back = keeper.read(tmp_path / "s.safetensors")
    assert back.tables.keys() == made.tables.keys()
    for name, table in made.copy().tables.items():
        for part, tensor in table.state().items():
            assert back.copy().tables[name].state()[part].numpy().tobytes() == tensor.numpy().tobytes()


def test_work_is_done_once_and_remembered_across_processes(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"n": len(made)}

    folder = tmp_path / "deep" / "down"
    first, second = Work(folder), Work(folder)
    assert [first.once("a/b", PlainKeeper(), make) for _ in range(2)] == [{"n": 1}] * 2
    assert second.once("a/b", PlainKeeper(), make) == {"n": 1}
    assert second.once("other", PlainKeeper(), make) == {"n": 2}
    assert len(made) == 2
    second.forget()
    assert not folder.exists()
    assert Work(folder).once("a/b", PlainKeeper(), make) == {"n": 3}


def test_without_a_folder_work_is_remembered_for_as_long_as_it_lives() -> None:
    work = Work()
    assert work.once("a", PlainKeeper(), lambda: {"n": 1}) is work.once("a", PlainKeeper(), dict)
    work.forget()


def test_what_breaks_half_way_leaves_nothing(tmp_path: Path) -> None:
    def make() -> dict[str, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Work(tmp_path).once("a", PlainKeeper(), make)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        Work(tmp_path / "file" / "folder")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from melon.bench import work as module

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(DataError, match="No space left on device"):
        TallyKeeper().write(tally(full=False), tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_another_question_has_another_folder(flips: Interactions, tmp_path: Path) -> None:
    asked = {"seed": 0, "strategy": "default"}
    here = work_folder(tmp_path / "r.json", flips, asked)
    assert here == work_folder(tmp_path / "r.json", flips, dict(reversed(asked.items())))
    assert here.parent == tmp_path
    assert here != work_folder(tmp_path / "r.json", flips, {**asked, "seed": 1})
    assert here != work_folder(tmp_path / "r.json", flips.head(900), asked)
    assert work_folder(None, flips, asked).name.startswith("melon-")
