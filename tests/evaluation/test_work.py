"""RowStateSpec work: whole files only, read back bit for bit."""

import os
from pathlib import Path

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.errors import DataError
from melon.evaluation.lists import TRACKS, BatchLists, TrackLists
from melon.evaluation.prequential import Point, Tally
from melon.evaluation.ranking import Ranks
from melon.evaluation.work import PLAIN, TALLY, Work, start_afresh, states, work_folder
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.pretrained import refit


def tally(*, full: bool) -> Tally:
    made, rng = Tally(), np.random.default_rng(0)
    start = 10
    for size in (5, 7, 1, 3):
        usable = rng.random(size) < 0.6 if size > 1 else np.zeros(1, dtype=bool)
        count = int(usable.sum())
        ranks = Ranks(1 + rng.integers(0, 20, count) / 2, rng.integers(0, 3, count))
        tracks = {track: TrackLists(rng.random(size), rng.integers(-1, 9, (size, 10), np.int32)) for track in TRACKS}
        lists = BatchLists(start, rng.random(size) < 0.5, tracks) if full else None
        made.add(Point(start, start + size, usable, ranks, lists, *rng.random(3).tolist()))
        start += size
    return made


@pytest.mark.parametrize("full", [True, False])
def test_a_tally_comes_back_as_it_was(full: bool, tmp_path: Path) -> None:
    made = tally(full=full)
    TALLY.write(made, tmp_path / "t.safetensors")
    back = TALLY.read(tmp_path / "t.safetensors")
    assert len(back.points) == len(made.points)
    for one, other in zip(made.points, back.points, strict=True):
        for name in ("start", "stop", "score_ms", "update_ms"):
            assert getattr(one, name) == getattr(other, name)
        assert one.usable.tolist() == other.usable.tolist()
        assert one.ranks.rank.tobytes() == other.ranks.rank.tobytes()
        assert one.ranks.ties.tolist() == other.ranks.ties.tolist()
        assert (one.lists is None) == (other.lists is None) == (not full)
        if one.lists and other.lists:
            assert one.lists.known == other.lists.known
            for track in TRACKS:
                assert one.lists.tracks[track].rank.tobytes() == other.lists.tracks[track].rank.tobytes()
                assert one.lists.tracks[track].listed.tobytes() == other.lists.tracks[track].listed.tobytes()
    assert back.rank.tobytes() == made.rank.tobytes()
    assert back.left_out == made.left_out
    assert [path.name for path in tmp_path.iterdir()] == ["t.safetensors"]


def test_a_recommender_comes_back_as_it_was(flips: Interactions, tmp_path: Path) -> None:
    settings = {"dim": 4, "layers": (5,)}
    plan = Plan("ncf", recommender_settings=settings, protocol=EvaluationProtocol(seed=3))
    made = refit(plan, flips.head(200), {"epochs": 1})
    keeper = states(plan)
    keeper.write(made, tmp_path / "s.safetensors")
    back = keeper.read(tmp_path / "s.safetensors")
    assert back.tables.keys() == made.tables.keys()
    for name, table in made.copy().tables.items():
        for part, tensor in table.state().items():
            assert back.copy().tables[name].state()[part].tobytes() == tensor.tobytes()


def test_work_is_done_once_and_remembered_across_processes(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"n": len(made)}

    folder = tmp_path / "deep" / "down"
    first, second = Work(folder), Work(folder)
    assert [first.once("a/b", PLAIN, make) for _ in range(2)] == [{"n": 1}] * 2
    assert second.once("a/b", PLAIN, make) == {"n": 1}
    assert second.once("other", PLAIN, make) == {"n": 2}
    assert len(made) == 2
    second.forget()
    assert not folder.exists()
    assert Work(folder).once("a/b", PLAIN, make) == {"n": 3}


def test_without_a_folder_work_is_remembered_for_as_long_as_it_lives() -> None:
    work = Work()
    assert work.once("a", PLAIN, lambda: {"n": 1}) is work.once("a", PLAIN, dict)
    work.forget()


def test_what_breaks_half_way_leaves_nothing(tmp_path: Path) -> None:
    def make() -> dict[str, int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Work(tmp_path).once("a", PLAIN, make)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        Work(tmp_path / "file" / "folder")


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from melon.evaluation import work as module

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(DataError, match="No space left on device"):
        TALLY.write(tally(full=False), tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_another_question_has_another_folder(flips: Interactions, tmp_path: Path) -> None:
    asked = {"seed": 0, "strategy": "default"}
    here = work_folder(tmp_path / "r.json", flips, asked)
    assert here == work_folder(tmp_path / "r.json", flips, dict(reversed(asked.items())))
    assert here.parent == tmp_path
    assert here != work_folder(tmp_path / "r.json", flips, {**asked, "seed": 1})
    assert here != work_folder(tmp_path / "r.json", flips.head(900), asked)


class TestPrivateFolder:
    """Work without a result file is kept where nobody else can have put anything."""

    @pytest.fixture(autouse=True)
    def temporary(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def test_it_is_ones_own(self, flips: Interactions, tmp_path: Path) -> None:
        folder = work_folder(None, flips, {})
        assert folder.parent == tmp_path / f"melon-{os.getuid()}"
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert work_folder(None, flips, {}) == folder

    @pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
    def test_anything_else_is_refused(self, flips: Interactions, tmp_path: Path, kind: str) -> None:
        folder = tmp_path / f"melon-{os.getuid()}"
        if kind == "open to others":
            folder.mkdir()
            folder.chmod(0o777)
        elif kind == "a link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            folder.symlink_to(tmp_path / "elsewhere")
        else:
            folder.touch()
        with pytest.raises(DataError, match=r"private folder|cannot be written"):
            work_folder(None, flips, {})

    def test_what_cannot_be_removed_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "old").mkdir()
        monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(DataError, match="cannot be removed"):
            start_afresh(tmp_path / "old")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_a_broken_choice_is_reported_and_made_again(content: bytes, tmp_path: Path) -> None:
    Work(tmp_path).once("a", PLAIN, lambda: {"n": 1})
    (tmp_path / "a.json").write_bytes(content)
    lines: list[str] = []
    again = Work(tmp_path, report=lines.append)
    assert again.once("a", PLAIN, lambda: {"n": 2}) == {"n": 2}
    assert len(lines) == 1
    assert f"{tmp_path / 'a.json'} is broken" in lines[0]
    assert Work(tmp_path).once("a", PLAIN, dict) == {"n": 2}


def test_a_broken_tally_is_reported_and_made_again(tmp_path: Path) -> None:
    made = tally(full=True)
    Work(tmp_path).once("t", TALLY, lambda: made)
    whole = (tmp_path / "t.safetensors").read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole[:-1]):
        (tmp_path / "t.safetensors").write_bytes(content)
        lines: list[str] = []
        again = Work(tmp_path, report=lines.append).once("t", TALLY, lambda: made)
        assert again is made
        assert len(lines) == 1
