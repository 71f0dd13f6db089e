"""The console's files and the routes behind it: what they promise, against what the service itself says."""

import asyncio
import hashlib
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request

from conftest import Service, Start
from melon.learning.deltas import state_digest
from melon.service import learner
from melon.service.activity import Activity, quantile
from melon.service.http import overview as overview_module
from melon.service.http.console import console_files
from melon.service.http.overview import Sharing
from melon.service.keys import keys_of
from melon.service.learner.guard import REMEDIES, SIMPLE_BASELINES
from melon.service.learner.quality import anytime_difference, difference
from melon.service.log.files import runs

ROOT = Path(__file__).parents[2]
VENDORED = ("htm-preact.js", "uplot.js", "uplot.css")
OWN = {name: content.decode() for name, content in console_files().items() if name not in VENDORED}


def learn(service: Service, events: list[tuple[str, str]]) -> None:
    offset = service.post([{"user": user, "item": item} for user, item in events])["offset"]
    service.wait(lambda: service.get("/v1/status")["model"]["offset"] >= offset)


class TestFiles:
    def test_vendored_files_are_those_of_the_packages(self) -> None:
        told = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
        hashes = dict(re.findall(r"`([\w.-]+)` \| .* \| `([0-9a-f]{64})`", told))
        assert set(hashes) == set(VENDORED)
        for name, digest in hashes.items():
            assert hashlib.sha256(console_files()[name]).hexdigest() == digest, name

    def test_our_own_part_is_small_and_asks_nobody_else(self) -> None:
        assert sum(text.count("\n") for name, text in OWN.items() if name.endswith((".js", ".css"))) <= 1_500
        for name, text in OWN.items():
            assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w-]+\.[\w.]+/", text), name
            assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie|\beval\(|innerHTML", text), (
                name
            )
            if name.endswith(".html"):
                assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text), name

    @pytest.mark.parametrize("path", ["/", "/docs", "/console/app.js", "/console/style.css", "/console/melon.svg"])
    def test_each_is_served_under_a_strict_policy(self, service: Service, path: str) -> None:
        answer = service.call("GET", path)
        assert answer.status == 200
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert service.call("GET", path, If_None_Match=answer.headers["ETag"]).status == 304

    def test_nothing_else_is(self, service: Service) -> None:
        for path in ("/console/", "/console/none.js", "/console/..%2Fbackend.py", "/console/%2e%2e/backend.py"):
            assert service.call("GET", path).status == 404


def asked_for(path: str) -> Request:
    return Request({"type": "http", "path": path, "query_string": b""})


class TestOverview:
    def test_it_agrees_with_the_other_routes(self, service: Service) -> None:
        learn(service, [(f"u{n % 30}", f"i{n * 7 % 150}") for n in range(200)])
        overview, quality, status = (service.get(f"/v1/{name}") for name in ("overview?points=5", "quality", "status"))
        assert overview["quality"]["models"] == quality["models"]
        assert overview["quality"]["events"] == quality["events"] >= 200
        assert overview["status"]["log"] == status["log"]
        series = overview["series"]["served"]
        assert sum(series["ranked"]) == quality["models"]["served"]["ranked"]
        hits = sum(share * ranked for share, ranked in zip(series["HR@10"], series["ranked"], strict=True) if ranked)
        assert hits / sum(series["ranked"]) == pytest.approx(quality["models"]["served"]["HR@10"], abs=1e-4)
        for name in ("HR@10", "NDCG@10"):
            assert series[f"{name} low"][-1] <= series[name][-1] <= series[f"{name} high"][-1]
        organic = service.get("/v1/overview?points=5&part=organic")["series"]["served"]["ranked"]
        assert sum(organic) == quality["models"]["served"]["parts"]["organic"]["ranked"]

    def test_points_that_are_past_stay_as_they_were(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(overview_module, "_SETTLED_S", 0.0)
        learn(service, [(f"u{n % 30}", f"i{n * 13 % 150}") for n in range(100)])
        time.sleep(1.1)  # the events are in points that have ended
        for path in ("overview?window=1m&points=60", "overview?points=60&window=1m"):
            content = service.get(f"/v1/{path}")
            assert sum(content["series"]["served"]["ranked"]) == content["quality"]["models"]["served"]["ranked"] > 0
            assert sum(value or 0.0 for value in content["learned_s"]) > 0

    def test_it_tells_how_fresh_and_how_quick_the_process_is(self, service: Service) -> None:
        learn(service, [("u1", "i1"), ("u2", "i2")])
        overview = service.get("/v1/overview?points=4&window=5m")  # no answer that is shared by another test
        assert sum(overview["freshness"]["events"]) == overview["quality"]["events"]
        assert len(overview["freshness"]["events"]) == len(overview["freshness"]["bounds_s"]) + 1
        assert all(value is not None and value >= 0 for value in overview["stages_ms"].values())
        assert overview["process"]["lag"][-1] == 0
        assert [mark["kind"] for mark in overview["annotations"]] == ["start"]

    def test_what_is_no_plain_batch_is_an_annotation(self, start: Start) -> None:
        service = start()
        learn(service, [("u1", "i1")])
        offset = service.call("DELETE", "/v1/users/u1").content["offset"]
        service.wait(lambda: service.get("/v1/status")["model"]["offset"] >= offset)
        assert [mark["kind"] for mark in service.get("/v1/overview")["annotations"]] == ["start", "forget"]

    def test_whole_lists_are_compared_too(self, service: Service) -> None:
        learn(service, [(f"u{n % 30}", f"i{n * 11 % 150}") for n in range(400)])
        lists = service.get("/v1/quality")["lists"]
        for whole in (lists["all"], lists["first"]):
            assert whole["served"]["ranked"] == whole["popular"]["ranked"] == whole["frozen"]["ranked"] > 0
            low, high = whole["popular"]["served_ahead"]["interval"]
            assert low <= whole["served"]["HR@10"] - whole["popular"]["HR@10"] <= high
        assert lists["all"]["own"]["ranked"] == lists["all"]["served"]["ranked"]

    def test_many_who_ask_at_once_get_one_answer(self) -> None:
        made = []

        async def make() -> int:
            made.append(1)
            await asyncio.sleep(0.01)
            return len(made)

        async def ask() -> list[Any]:
            sharing, it, other = Sharing(), asked_for("/it"), asked_for("/other")
            first = await asyncio.gather(*(sharing.get(it, 60.0, make) for _ in range(50)))
            return [*first, await sharing.get(it, 60.0, make), await sharing.get(other, 60.0, make)]

        answers = [response.body for response in asyncio.run(ask())]
        assert answers == [b"1"] * 51 + [b"2"]

    def test_different_answers_are_made_one_after_another(self) -> None:
        """Somebody may ask for very many windows; that must cost others no more than one does."""
        running = most = 0

        async def make() -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            return 1

        async def ask() -> None:
            sharing = Sharing()
            await asyncio.gather(*(sharing.get(asked_for(f"/{n}"), 60.0, make) for n in range(20)))

        asyncio.run(ask())
        assert most == 1

    def test_a_failure_is_not_shared_for_long(self) -> None:
        async def broken() -> int:
            raise ValueError

        async def works() -> int:
            return 1

        async def ask() -> bytes:
            sharing, it = Sharing(), asked_for("/it")
            with pytest.raises(ValueError):  # noqa: PT011
                await sharing.get(it, 60.0, broken)
            return bytes((await sharing.get(it, 60.0, works)).body)

        assert asyncio.run(ask()) == b"1"

    def test_keys_guard_numbers_and_not_the_page(self, start: Start) -> None:
        service = start()
        service.key, _ = keys_of(service.settings).add(["read"])
        service.wait(lambda: service.call("GET", "/v1/status", Authorization="none").status == 401)
        for path in ("/v1/overview", "/v1/learning", "/v1/trends") * 2:  # the second time it is shared
            assert service.call("GET", path, Authorization="none").status == 401
            assert service.call("GET", path).status == 200
        assert service.call("GET", "/", Authorization="none").status == 200
        assert service.call("GET", "/v1/overview?window=1y").status == 400


class TestLearning:
    def test_rates_of_the_last_batch_leave_the_model_as_it_is(self, service: Service) -> None:
        learn(service, [(f"u{n}", f"i{n}") for n in range(20)])
        replica = service.app.state.backend.replica
        with replica.reading() as (model, _):
            before = state_digest(model), model.updater.recommender.clock.now
        batch = service.get("/v1/learning")
        with replica.reading() as (model, _):
            assert (state_digest(model), model.updater.recommender.clock.now) == before
        assert batch["events"] >= 1
        assert batch["loss"] > 0
        rates = batch["rates"]
        assert len(rates["values"]) == len(rates["losses"]) == min(batch["events"], 32)
        assert {sum(group["columns"] for group in rates["groups"])} == {len(line) for line in rates["values"]}
        assert rates["least"] <= rates["mean"] <= rates["most"]

    def test_an_empty_service_says_so(self, start: Start) -> None:
        service = start()
        assert service.get("/v1/learning")["batch"] is None
        assert service.get("/v1/trends") == {"events": 0, "before": 0, "rising": [], "falling": []}

    def test_what_rises_and_what_falls(self, start: Start) -> None:
        service = start()
        learn(service, [(f"u{n}", "old" if n % 2 else "same") for n in range(20)])
        learn(service, [(f"u{n}", "new" if n % 2 else "same") for n in range(20)])
        trends = service.get("/v1/trends?events=20")
        assert [(line["item"], line["before"], line["now"]) for line in trends["rising"]] == [("new", 0, 10)]
        assert [(line["item"], line["before"], line["now"]) for line in trends["falling"]] == [("old", 10, 0)]

    def test_a_look_at_a_list_does_not_count_as_served(self, service: Service) -> None:
        before = service.get("/v1/status")["served"]
        looked = service.get("/v1/recommendations/u3?preview=true")
        assert looked["user"] == "u3"
        assert looked["recommendation"] is None
        assert service.get("/v1/status")["served"] == before
        assert looked["items"] == service.get("/v1/recommendations/u3")["items"]
        assert service.get("/v1/status")["served"]["lists"] == before["lists"] + 1


class TestStatus:
    def test_every_alarm_has_a_remedy_and_a_line_for_operators(self, service: Service) -> None:
        folder = Path(str(learner.__file__)).parent
        source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
        names = set(re.findall(r"alarm\(\s*\"([\w ]+)\"", source)) | {f"quality {name}" for name in SIMPLE_BASELINES}
        backend = service.app.state.backend
        beside = {"learner", "damage", "load", "api kernels", "api lag", *backend.log.alarms}
        assert names | beside == set(REMEDIES)
        page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
        lines = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
        assert sorted(name for line in lines for name in re.findall(r"`([\w ]+)`", line)) == sorted(REMEDIES)

    def test_it_knows_whether_the_learner_runs(self, service: Service, tmp_path: Path) -> None:
        assert service.get("/v1/status")["learner"] == {"running": True, "starts": 1}
        assert not runs(tmp_path, "learner")
        (tmp_path / "learner.lock").write_text("999999999 ")
        assert not runs(tmp_path, "learner")

    def test_a_dead_learner_is_an_alarm_with_a_remedy(self, start: Start) -> None:
        service = start()
        lock = service.settings.folder / "learner.lock"
        text = lock.read_text()
        lock.write_text("999999999 ")
        status = service.get("/v1/status")
        lock.write_text(text)
        assert "learner does not run" in status["alarms"][0]
        assert status["remedies"] == [REMEDIES["learner"]]


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_quantiles_of_a_histogram_are_near_those_of_the_values(share: float) -> None:
    values = np.random.default_rng(1).gamma(2.0, 0.05, 4_000)
    bounds = np.linspace(0.01, 1.0, 100)
    counts = [float((values <= bound).sum()) for bound in bounds] + [float(len(values))]
    assert quantile(bounds.tolist(), counts, share) == pytest.approx(np.quantile(values, share), abs=0.01)
    assert quantile(bounds.tolist(), [0.0] * 101, share) is None
    assert quantile([1.0], [0.0, 5.0], share) == 1.0


def test_two_hours_are_kept_in_full_and_a_week_in_part(service: Service) -> None:
    activity = Activity(service.app.state.backend)
    first = activity.sample(0.0)
    week = 7 * 86_400
    for number, moment in enumerate(range(0, week, 5)):
        activity.keep(replace(first, time=float(moment), lag=number), older=number % 60 == 0)
    newest = replace(first, time=float(week))
    old, middle, young, now = activity.at([week / 2, week - 7_300.0, week - 61.0, week], newest)
    assert [one and one.time for one in (old, middle, young)] == [week / 2, week - 7_500.0, week - 65.0]
    assert now is newest
    assert activity.at([-1.0], newest) == [None]


class TestConfidenceSequence:
    """Somebody who looks after every event, for as long as the stream goes on."""

    def paths(self, won: float, lost: float, paths: int = 400, events: int = 4_000) -> tuple[Any, Any]:
        draws = np.random.default_rng(7).random((paths, events))
        return (draws < won).cumsum(1), ((draws >= won) & (draws < won + lost)).cumsum(1)

    def looked(self, won: Any, lost: Any, interval: Any) -> Any:
        """Whether each path ever showed an interval without zero, at any of many looks."""
        ever = np.zeros(len(won), dtype=bool)
        for at in np.unique(np.geomspace(1, won.shape[1], 150).astype(int)) - 1:
            for path in np.flatnonzero(~ever):
                one = {"ranked": at + 1, "won@10": int(won[path, at]), "lost@10": int(lost[path, at])}
                _, low, high = interval(one)
                ever[path] = low > 0 or high < 0
        return ever

    @pytest.mark.parametrize("rate", [0.02, 0.1, 0.4])
    def test_equals_are_told_apart_in_at_most_one_of_twenty(self, rate: float) -> None:
        assert self.looked(*self.paths(rate, rate), anytime_difference).mean() <= 0.05

    def test_a_plain_interval_does_not_hold_that(self) -> None:
        assert self.looked(*self.paths(0.1, 0.1), difference).mean() > 0.15

    def test_what_differs_is_seen_to(self) -> None:
        assert self.looked(*self.paths(0.15, 0.1), anytime_difference).mean() > 0.99

    def test_it_is_never_narrower_than_a_plain_one(self) -> None:
        assert anytime_difference({}) is None
        for won, lost, ranked in ((0, 0, 1), (3, 1, 10), (50, 40, 1_000), (5_000, 4_000, 100_000)):
            counts = {"ranked": ranked, "won@10": won, "lost@10": lost}
            (mean, low, high), (plain, least, most) = anytime_difference(counts), difference(counts)  # type: ignore[misc]
            assert mean == plain
            assert -1 <= low <= least <= most <= high <= 1

    def test_the_overview_gives_it_since_the_model_began(self, service: Service) -> None:
        learn(service, [(f"u{n % 30}", f"i{n * 3 % 150}") for n in range(100)])
        overview = service.get("/v1/overview?points=3&window=2h")
        popular, whole = overview["since_start"]["popular"], overview["quality"]["models"]["popular"]
        assert popular["ranked"] == whole["ranked"]
        assert popular["HR@10"] == pytest.approx(whole["served_ahead"]["HR@10"], abs=1e-4)
        assert popular["interval"][0] <= whole["served_ahead"]["interval"][0]
