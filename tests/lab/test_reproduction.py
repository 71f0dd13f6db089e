"""`melon reproduce`: what is found in a folder, and the whole way from made-up raw files to a report."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from commands import Run
from melon.data.files import load_stream
from melon.lab.paper import WANTED, look

pytest.importorskip("matplotlib", reason="needs melon-recommender[plots]")

Event = tuple[int, int, int]
START = 1_483_228_800  # 2017-01-01


def events(seed: int, n: int = 3_960, users: int = 70, items: int = 180) -> list[Event]:
    """User, item, seconds: everybody and everything often enough to be kept, and one user who comes too rarely."""
    rng = np.random.default_rng(seed)
    found = [(int(u), int(i)) for u, i in zip(rng.integers(users, size=n), np.arange(n) % items, strict=True)]
    return [*((u, i, START + 60 * at) for at, (u, i) in enumerate(found)), (users + 7, 3, START + 60 * n)]


def amazon_2014(some: list[Event]) -> str:
    return "".join(f"A{u:013d},B{i:09d},5.0,{at}\n" for u, i, at in some)


def amazon_2018(some: list[Event]) -> str:
    return "".join(f"B{i:09d},A{u:013d},5.0,{at}\n" for u, i, at in some)


def amazon_reviews(some: list[Event]) -> str:
    lines = (
        {"reviewerID": f"A{u:013d}", "asin": f"B{i:09d}", "overall": 4.0, "unixReviewTime": at} for u, i, at in some
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def yelp(some: list[Event]) -> str:
    def date(at: int) -> str:
        return str(np.datetime64(at, "s")).replace("T", " ")

    lines = ({"user_id": f"u{u}", "business_id": f"b{i}", "stars": 4.0, "date": date(at)} for u, i, at in some)
    return "".join(json.dumps(line) + "\n" for line in lines)


def adressa(some: list[Event]) -> str:
    articles = [
        {"eventId": n, "userId": f"u{u}", "id": f"a{i}", "time": at, "activeTime": 5}
        for n, (u, i, at) in enumerate(some)
    ]
    front = {"eventId": 0, "userId": "u1", "time": START, "activeTime": 3}
    return "".join(json.dumps(line) + "\n" for line in [front, *articles])


def write(path: Path, text: str, *, packed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All five, each in another of the shapes that they come in."""
    folder = tmp_path_factory.mktemp("raw")
    week = events(0)
    write(folder / "one_week" / "20170101", adressa(week[:2_400]))
    write(folder / "one_week" / "20170102", adressa(week[2_400:]))
    write(folder / "ratings_Books.csv", amazon_2014(events(1)))
    write(folder / "Electronics.csv.gz", amazon_2018(events(2)), packed=True)
    write(folder / "reviews_Grocery_and_Gourmet_Food.json.gz", amazon_reviews(events(3)), packed=True)
    write(folder / "yelp" / "yelp_academic_dataset_review.json", yelp(events(4)))
    return folder


class TestLooking:
    def test_all_five_are_found_with_the_paper_s_splits(self, raw: Path) -> None:
        found, missing = look(raw)
        assert not missing
        assert {each.stream: each.wanted.split for each in found} == {
            "adressa": "0.95,0.005,0.045",
            "amazon_book": "0.95,0.005,0.045",
            "amazon_electronics": "0.9,0.01,0.09",
            "amazon_grocery": "0.8,0.02,0.18",
            "yelp": "0.95,0.005,0.045",
        }
        assert [path.name for path in found[0].raw] == ["20170101", "20170102"]

    def test_streams_stand_in_where_there_are_no_raw_files(self, raw: Path, tmp_path: Path) -> None:
        for name in ("news_globo", "yelp", "something_else"):
            write(tmp_path / f"{name}.parquet", "not looked into yet")
        write(tmp_path / "sub" / "review.json", yelp(events(5)))
        found, missing = look(tmp_path)
        assert [(each.stream, bool(each.raw)) for each in found] == [("news_globo", False), ("yelp", True)]
        assert [wanted.stream for wanted in missing] == ["amazon_book", "amazon_electronics", "amazon_grocery"]

    def test_copies_in_two_folders_are_read_once_and_ratings_before_reviews(self, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            write(tmp_path / folder / "ratings_Books.csv", "")
            write(tmp_path / folder / "Books.json", "")
        (found,), _ = look(tmp_path)
        assert found.raw == (tmp_path / "a" / "ratings_Books.csv",)

    @pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.stream)
    def test_what_is_missing_is_told_with_an_address(self, wanted: object) -> None:
        assert "https://" in wanted.how  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def few() -> list[object]:
    return ["--quick", "--forms", "stream", "--strategies", "default,eals", "--budget", "0"]


@pytest.fixture
def _without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than all cells; one test draws them."""
    monkeypatch.setattr("melon.lab.paper.report_folders", lambda *_, **__: SimpleNamespace(summary="no report"))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "paper"


class TestTheWholeWay:
    def test_from_raw_files_to_a_report(self, raw: Path, out: Path, few: list[object], run: Run) -> None:
        ended = run("reproduce", "--data", raw, "--out", out, *few)
        assert ended.code == 0, ended.err
        streams = [wanted.stream for wanted in WANTED]
        assert {path.name for path in (out / "stream-bpr").glob("*-0-*.json")} == {
            f"{stream}-bpr-0-{strategy}.json" for stream in streams for strategy in ("default", "eals")
        }
        for stream in streams:
            log = load_stream(out / "data" / f"{stream}.parquet")
            assert len(log) == 3_960, "the rare user is gone, and so is the front page"
        record = json.loads((out / "stream-bpr" / "amazon_grocery-bpr-0-eals.json").read_text(encoding="utf-8"))
        assert record["dataset"]["split"] == [0.8, 0.02, 0.18]
        page = (out / "report" / "report.html").read_text(encoding="utf-8")
        assert "amazon_grocery" in page

    @pytest.mark.usefixtures("_without_report")
    def test_again_it_only_tells(self, raw: Path, out: Path, few: list[object], run: Run) -> None:
        before = {
            path: path.stat().st_mtime_ns for path in (*out.glob("stream-bpr/*-*.json"), *(out / "data").iterdir())
        }
        ended = run("reproduce", "--data", raw, "--out", out, *few)
        assert ended.code == 0
        assert "10 of 10 cells are there already" in ended.err
        assert "exists already" in ended.out
        assert {path: path.stat().st_mtime_ns for path in before} == before


class TestConfigs:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        """One prepared stream."""
        from melon.data.prepare import prepare

        write(tmp_path / "raw.csv", amazon_2014(events(6)))
        prepare(tmp_path / "raw.csv", out=tmp_path / "data" / "yelp.parquet", user="1", item="2", time="4")
        return tmp_path / "data"

    @pytest.fixture
    def config(self, data: Path, tmp_path: Path) -> Callable[[str], Path]:
        def make(sha256: str) -> Path:
            told = 'recommender = "bpr"\nstrategy = "eals"\nsplit = [0.95, 0.005, 0.045]\n[settings]\nlr = 0.2\n'
            write(tmp_path / "configs" / "yelp-bpr-eals.toml", f"# yelp: sha256 {sha256}\n{told}")
            return tmp_path / "configs"

        return make

    @pytest.mark.usefixtures("_without_report")
    def test_those_of_the_same_stream_are_taken(
        self, data: Path, config: Callable[[str], Path], few: list[object], tmp_path: Path, run: Run
    ) -> None:
        configs = config(load_stream(data / "yelp.parquet").sha256)
        ended = run("reproduce", "--data", data, "--out", tmp_path / "out", "--configs", configs, *few)
        assert ended.code == 0, ended.err
        assert "settings of 1 cells come from" in ended.out
        assert "Adressa is not in" in ended.out
        record = json.loads((tmp_path / "out" / "stream-bpr" / "yelp-bpr-0-eals.json").read_text(encoding="utf-8"))
        assert record["config"]["asked"]["settings"] == {"lr": 0.2}

    @pytest.mark.usefixtures("_without_report")
    def test_those_of_other_data_are_not(
        self, data: Path, config: Callable[[str], Path], few: list[object], tmp_path: Path, run: Run
    ) -> None:
        ended = run("reproduce", "--data", data, "--out", tmp_path / "out", "--configs", config("0" * 64), *few)
        assert ended.code == 0, ended.err
        assert "was tuned on other data and is not used" in ended.out
        record = json.loads((tmp_path / "out" / "stream-bpr" / "yelp-bpr-0-eals.json").read_text(encoding="utf-8"))
        assert record["config"]["asked"]["settings"] == {}

    def test_a_bench_refuses_them(self, data: Path, config: Callable[[str], Path], tmp_path: Path, run: Run) -> None:
        words = ["bench", data / "yelp.parquet", "--strategies", "eals", "--config", config("0" * 64)]
        ended = run(*words, "--out", tmp_path / "out")
        assert ended.code == 2
        assert "was tuned on another stream named 'yelp'" in ended.said


class TestBadInput:
    def test_no_folder(self, tmp_path: Path, run: Run) -> None:
        ended = run("reproduce", "--data", tmp_path / "nowhere")
        assert ended.code == 1
        assert "there is no folder" in ended.said

    def test_nothing_in_it(self, tmp_path: Path, run: Run) -> None:
        ended = run("reproduce", "--data", tmp_path)
        assert ended.code == 1
        assert "holds none of the paper's datasets" in ended.said
        assert "https://www.yelp.com/dataset" in ended.out

    def test_a_strategy_that_does_not_exist(self, raw: Path, tmp_path: Path, run: Run) -> None:
        ended = run("reproduce", "--data", raw, "--strategies", "melom", "--out", tmp_path / "out")
        assert ended.code == 2
        assert "Did you mean 'melon'?" in ended.said

    def test_a_dry_run_runs_nothing(self, raw: Path, tmp_path: Path, run: Run) -> None:
        ended = run("reproduce", "--data", raw, "--out", tmp_path / "out", "--dry-run")
        assert ended.code == 0
        assert "is Amazon Book" in ended.out
        assert not (tmp_path / "out").exists()
