"""A saved model without Python: `melon recommend`, `melon similar`, `melon learn`."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import melon
from commands import Run

LOG = [(f"u{n % 17}", f"i{n * n % 31}", 1_000_000_000 + n) for n in range(400)]
QUICK: dict[str, Any] = {"epochs": 2, "budget": 0, "batch_size": 32, "progress": False}
COLUMNS = ["user", "item", "time"]


def csv(rows: list[tuple[Any, Any, int]], path: Path) -> Path:
    pl.DataFrame(rows, schema=COLUMNS, orient="row").write_csv(path)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    melon.Melon("bpr", "default", **QUICK).fit(LOG[:300]).save(tmp_path / "model")
    return tmp_path / "model"


class TestRecommend:
    def test_a_list_as_python_gives_it(self, model: Path, run: Run) -> None:
        ended = run("recommend", model, "--user", "u3", "--user", "nobody", "--k", "4", "--json")
        assert ended.code == 0, ended.err
        known, stranger = json.loads(ended.out)
        wanted = melon.load(model).recommend(["u3", "nobody"], k=4)
        assert (known["user"], known["source"], stranger["source"]) == ("u3", "model", "model")
        assert [(one["item"], one["score"]) for one in known["items"]] == list(wanted[0])
        assert [one["item"] for one in stranger["items"]] == [one.item for one in wanted[1]]

    def test_a_list_of_nothing(self, model: Path, run: Run) -> None:
        refused = run("recommend", model, "--user", "u1", "--k", "0")
        assert refused.code == 2
        assert "k = 0 must be a whole number of at least 1" in refused.err

    def test_a_table(self, model: Path, run: Run) -> None:
        ended = run("recommend", model, "--user", "u3", "-k", "3", "--user", "x")
        lines = ended.out.splitlines()
        assert lines[0] == "user u3"
        assert lines[1].split() == ["rank", "item", "score"]
        assert lines[2].split()[:2] == ["1", melon.load(model).recommend("u3", k=1)[0][0].item]
        assert "user x (not known yet: the list of a newcomer)" in lines

    def test_seen_items_only_if_asked_for(self, model: Path, run: Run) -> None:
        seen = {item for user, item, _ in LOG[:300] if user == "u3"}

        def items(*more: str) -> set[str]:
            (found,) = json.loads(run("recommend", model, "--user", "u3", "--k", "99", "--json", *more).out)
            return {one["item"] for one in found["items"]}

        assert items().isdisjoint(seen)
        assert items("--seen") >= seen

    @pytest.mark.parametrize(
        ("ids", "word", "wrong"),
        [
            (lambda name: int(name[1:]), "3", "three"),
            (lambda name: uuid.UUID(int=int(name[1:])), str(uuid.UUID(int=3)), "3"),
        ],
        ids=["integers", "uuids"],
    )
    def test_ids_are_read_as_the_model_has_them(
        self, ids: Any, word: str, wrong: str, tmp_path: Path, run: Run
    ) -> None:
        rows = [(ids(user), ids(item), time) for user, item, time in LOG]
        melon.Melon("bpr", "default", **QUICK).fit(rows).save(tmp_path / "m")
        (found,) = json.loads(run("recommend", tmp_path / "m", "--user", word, "--json").out)
        assert found["source"] == "model"
        refused = run("recommend", tmp_path / "m", "--user", wrong)
        assert refused.code == 1
        assert f"user '{wrong}' cannot be in this model, whose user ids are" in refused.said

    def test_what_is_no_model(self, tmp_path: Path, run: Run) -> None:
        refused = run("recommend", tmp_path / "nowhere", "--user", "u1")
        assert refused.code == 1
        assert "nowhere" in refused.err
        assert run("recommend", tmp_path).code == 2


class TestSimilar:
    def test_lists(self, model: Path, run: Run) -> None:
        ended = run("similar", model, "--item", "i1", "--item", "i4", "--k", "3", "--json")
        assert ended.code == 0, ended.err
        wanted = melon.load(model).similar_items(["i1", "i4"], k=3)
        for one, item, like in zip(json.loads(ended.out), ("i1", "i4"), wanted, strict=True):
            assert one["item"] == item
            assert [(each["item"], each["score"]) for each in one["items"]] == list(like)
        assert run("similar", model, "--item", "i1").out.startswith("like item i1")

    def test_a_stranger(self, model: Path, run: Run) -> None:
        refused = run("similar", model, "--item", "nothing")
        assert refused.code == 1
        assert "item 'nothing' has not been seen" in refused.err


class TestLearn:
    def test_it_is_partial_fit_and_the_model_is_saved_back(self, model: Path, tmp_path: Path, run: Run) -> None:
        new = [*LOG[300:], ("newcomer", "novelty", 1_000_000_400)]
        twin = melon.load(model).partial_fit(new)
        ended = run("learn", model, csv(new, tmp_path / "new.csv"))
        assert ended.code == 0, ended.err
        assert "learned 101 interactions, 1 new user, 1 new item" in ended.out
        assert f"wrote {model}" in ended.out
        twin.save(tmp_path / "twin")
        assert content(model) == content(tmp_path / "twin")
        assert json.loads(run("recommend", model, "--user", "newcomer", "--json").out)[0]["source"] == "model"
        assert "the list of a newcomer" in run("recommend", model, "--user", "nobody yet").out
        assert "newcomer)" not in run("recommend", model, "--user", "newcomer").out

    def test_prepared_streams_and_columns(self, model: Path, tmp_path: Path, run: Run) -> None:
        raw = csv(LOG[300:], tmp_path / "new.csv")
        assert run("data", "prepare", raw, "--out", tmp_path / "s.parquet", "--min-interactions", "1").code == 0
        first = run("learn", model, tmp_path / "s.parquet", "--out", tmp_path / "a")
        assert first.code == 0
        assert "warning" not in first.out
        again = run("learn", tmp_path / "a", tmp_path / "s.parquet", "--out", tmp_path / "twice")
        assert re.search(r"warning: \d+ interactions of 100 are older than the newest in the model", again.out)
        pl.read_csv(raw).rename({"user": "wer", "item": "was", "time": "wann"}).write_csv(tmp_path / "other.csv")
        words = ("--user", "wer", "--item", "was", "--time", "wann")
        assert run("learn", model, tmp_path / "other.csv", *words, "--out", tmp_path / "b").code == 0
        assert content(tmp_path / "a") == content(tmp_path / "b")

    def test_numbers_in_a_file_are_texts_where_the_model_has_texts(self, tmp_path: Path, run: Run) -> None:
        rows = [(str(n % 17), str(n * n % 31), 1_000_000_000 + n) for n in range(400)]
        melon.Melon("bpr", "default", **QUICK).fit(rows[:300]).save(tmp_path / "m")
        twin = melon.load(tmp_path / "m").partial_fit(rows[300:])
        assert run("learn", tmp_path / "m", csv(rows[300:], tmp_path / "new.csv")).code == 0
        assert melon.load(tmp_path / "m").recommend("3") == twin.recommend("3")

    def test_texts_where_the_model_has_numbers(self, tmp_path: Path, run: Run) -> None:
        melon.Melon("bpr", "default", **QUICK).fit([(n % 17, n * n % 31, n) for n in range(300)]).save(tmp_path / "m")
        before = content(tmp_path / "m")
        refused = run("learn", tmp_path / "m", csv([("ann", 3, 2_000_000_000)], tmp_path / "new.csv"))
        assert refused.code == 1
        assert "user 'ann' cannot be in this model, whose user ids are integers" in refused.said
        assert content(tmp_path / "m") == before

    def test_nothing_there(self, model: Path, tmp_path: Path, run: Run) -> None:
        for name in ("missing.csv", "missing.parquet"):
            refused = run("learn", model, tmp_path / name)
            assert refused.code == 1
            assert name in refused.err


def test_defaults_in_help_are_those_of_the_configuration(run: Run) -> None:
    from melon.fitting.config import CellConfig

    shown = " ".join(run("evaluate", "--help").out.replace("│", " ").split())
    for name in ("batch_size", "negatives", "candidates", "seed", "budget", "threads", "preset", "pretrain"):
        option = shown.split(f"--{name.replace('_', '-')} ")[1]
        assert option.split("(default: ")[1].startswith(f"{getattr(CellConfig(), name)})"), name
    assert "{" not in shown.split("╮")[-1].replace("{stream}", "")
