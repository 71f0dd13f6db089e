"""Lists from a rival that is better than the served model: when, from which step on, and what is said about it."""

from pathlib import Path

import numpy as np
import pytest
from service_scenes import LOG, learn_all, saved_model, settings, stream

import melon
from conftest import Service, Start
from melon.service.learner.guard import Alarms
from melon.service.learner.loop import Learner
from melon.service.learner.quality import Quality
from melon.service.learner.watch import Watch, fallback_to
from melon.service.log.events import EventLog
from melon.service.log.steps import StepReader

WORSE, LEVEL, BETTER = (-0.1, -0.2, -0.01), (-0.1, -0.3, 0.1), (0.2, 0.1, 0.3)


@pytest.mark.parametrize(
    ("now", "ahead", "then"),
    [
        (None, {}, None),
        (None, {"popular": LEVEL, "frozen": BETTER}, None),
        (None, {"popular": WORSE, "frozen": BETTER}, "popular"),
        (None, {"popular": WORSE, "frozen": (-0.3, -0.4, -0.2)}, "frozen"),
        ("popular", {"popular": LEVEL}, "popular"),
        ("popular", {}, "popular"),
        ("popular", {"popular": LEVEL, "frozen": WORSE}, "frozen"),
        ("popular", {"popular": BETTER, "frozen": LEVEL}, None),
        ("frozen", {"popular": BETTER, "frozen": LEVEL}, "frozen"),
    ],
)
def test_a_rival_is_taken_and_left_by_its_interval(now: str | None, ahead: dict, then: str | None) -> None:
    assert fallback_to(now, ahead) == then


def counted(rival: str, won: int, lost: int) -> dict:
    return {rival: {"organic": {"ranked": 1000, "won@10": won, "lost@10": lost}}}


def test_decisions_are_recorded_with_their_step_and_end_with_the_setting(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log:
        log.append(stream(100))
        some = settings(folder, model, fallback=True)
        with Learner(some) as learner:
            learn_all(learner)
            texts: list[list[str]] = []
            watch = Watch(some, learner.log, learner.book, Alarms(texts.append), lambda write: write())
            for won, lost in ((10, 200), (10, 200), (100, 100)):
                watch.quality(counted("frozen", won, lost), 7)
            assert learner.book.fallbacks() == [(8, "frozen")]
            assert any("lists come from the model as it was deployed" in text for text in texts[-1])
            watch.quality(counted("frozen", 300, 10), 11)
            assert learner.book.fallbacks() == [(8, "frozen"), (12, None)]
            assert texts[-1] == []
            watch.quality(counted("popular", 10, 200), 20)
            assert watch.fallback == "popular"
        with Learner(some) as learner:
            assert any("recent popularity" in text for text in learner.book.alarms())
        with Learner(settings(folder, model)) as learner:
            assert learner.book.fallbacks()[-1] == (learner.position.batch + 1, None)
            assert learner.book.alarms() == []


def test_a_service_falls_back_and_comes_back(start: Start, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str | None] = [None]
    monkeypatch.setattr("melon.service.learner.watch._JUDGED_S", 0.0)
    monkeypatch.setattr("melon.service.learner.watch.fallback_to", lambda now, ahead: wanted[0])
    service = start(fallback=True)

    def turn(rival: str | None) -> None:
        wanted[0] = rival
        service.wait(lambda: post(service) > 0 and service.get("/v1/status")["fallback"] == rival)
        offset = post(service)
        service.wait(lambda: service.get("/v1/status")["model"]["offset"] >= offset)

    asked = {"users": ["u1"], "k": 5, "candidates": ["i1", "i2", "i3", "i149"], "filter_seen": False}
    turn("popular")
    listed = service.get("/v1/recommendations/u1?k=5")
    assert listed["source"] == "fallback"
    assert {one["why"] for one in listed["items"]} == {"fallback"}
    popular = service.get("/v1/popular?k=5&user=u1")
    assert [one["item"] for one in listed["items"]] == [one["item"] for one in popular["items"]]
    assert service.get("/v1/recommendations/nobody")["source"] == "popular"
    assert 'melon_fallback{rival="popular"} 1.0' in service.call("GET", "/metrics").content
    assert any("recent popularity" in text for text in service.get("/v1/status")["alarms"])
    turn("frozen")
    deployed = melon.load(shop)
    listed = service.get("/v1/recommendations/u1?k=5")
    assert listed["source"] == "fallback"
    assert [one["item"] for one in listed["items"]] == [one.item for one in deployed.recommend(["u1"], 5)[0]]
    ranked = service.post(asked, "/v1/recommendations")["results"][0]
    scores = dict(zip(asked["candidates"], deployed.score(["u1"], asked["candidates"]).tolist(), strict=True))
    assert [one["item"] for one in ranked["items"]] == sorted(scores, key=scores.__getitem__, reverse=True)
    turn(None)
    assert service.get("/v1/recommendations/u1")["source"] == "model"
    with StepReader(service.settings.folder) as steps:
        assert [rival for _, rival in steps.fallbacks()] == ["popular", "frozen", None]
    assert 'melon_source_total{source="fallback"}' in service.call("GET", "/metrics").content


def post(service: Service) -> int:
    return int(service.post({"user": "visitor", "item": f"i{np.random.default_rng().integers(150)}"})["offset"])


def test_a_loss_that_rises_by_chance_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder, draws = saved_model(tmp_path / "model"), tmp_path / "live", np.random.default_rng(0)
    with EventLog(folder, LOG) as log, Learner(settings(folder, model, batch_most=20)) as learner:
        log.append(stream(400))
        rises: list[bool | None] = []
        judged = Quality.loss_rose
        monkeypatch.setattr(Quality, "loss_rose", lambda self, model: rises.append(judged(self, model)))
        learn_all(learner)
        assert set(rises) == {None, False}  # batches of 20 are judged in pairs
        quality, (live, events) = learner.quality, (learner.course.model, learner.course.events(381, 400))
        for shift, rose in ((0.0, False), (3.0, True)):
            quality._rises = []
            for _ in range(2):
                quality.measure(live, events)
                users, offered, before = quality._probe
                quality._probe = users, offered, before - shift + 0.01 * draws.normal(size=len(before))
                told = judged(quality, live)
            assert told is rose
