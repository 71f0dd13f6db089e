"""Challengers: they learn the recorded batches beside the learner and are compared with it event by event."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from service_scenes import LOG, clean_replay, learn_all, saved_model, settings, stream, wait_until

from commands import Run
from conftest import Service, Start
from melon.client import Client
from melon.errors import SettingsError
from melon.learning.deltas import state_digest
from melon.service.http.overview import Settled
from melon.service.learner.challenger import Challenger, compared_by, run_challenger
from melon.service.learner.loop import Learner
from melon.service.learner.quality import PARTS, added
from melon.service.learner.replaying import verify
from melon.service.log.base import Event
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import EventLog
from melon.service.log.steps import StepReader
from melon.service.replica import Replica

FAR = 1e12


def follow(challenger: Challenger) -> None:
    while challenger.step():
        pass


def counts_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest counters of each challenger."""
    return {name: totals[0] for name, (totals, _) in compared_by(folder, [FAR], Settled().get).items()}


def whole(parts: dict[str, Any]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in PARTS:
        total = added(total, parts.get(part, {}))
    return total


def test_the_same_model_does_the_same(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers=f"twin={model}")
    with EventLog(folder, LOG) as log, Learner(given) as learner:
        log.append(stream(200))
        learn_all(learner)
        with Challenger(given, "twin") as challenger:
            follow(challenger)
            assert state_digest(challenger.replay.model) == state_digest(learner.replay.model)
        served = whole(learner.book.last().totals["served"])  # type: ignore[union-attr]
        twin = whole(counts_in(folder)["twin"])
        assert served["ranked"] > 50
        assert {name: twin[name] for name in served} == served
        assert twin["won@10"] == twin["lost@10"] == 0


@pytest.mark.parametrize("other", ["bpr/default", "bpr/melon"])
def test_another_model_is_compared_on_the_same_events(tmp_path: Path, other: str) -> None:
    folder = tmp_path / "live"
    given = settings(folder, None, challengers=("other=" + other,))
    with EventLog(folder, LOG) as log, Learner(given) as learner, Challenger(given, "other") as early:
        log.append(stream(150))
        learn_all(learner)
        follow(early)
        log.append(stream(150, seed=4, start=150))
        learn_all(learner)
        follow(early)
        served = whole(learner.book.last().totals["served"])  # type: ignore[union-attr]
        counts = whole(counts_in(folder)["other"])
        assert counts["ranked"] == served["ranked"] > 50  # both began with nothing, so that both know the same items
        assert counts["won@10"] + counts["lost@10"] > 0
        assert counts["won@10"] - counts["lost@10"] == served["HR@10"] - counts["HR@10"]
        (folder / "challengers" / "other.lock").unlink()
        with Challenger(given, "other") as late:
            follow(late)
            assert state_digest(late.replay.model) == state_digest(early.replay.model)
        assert whole(counts_in(folder)["other"]) == counts


def test_it_follows_what_is_no_plain_batch(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers=f"twin={model}", guard=1e-9)
    with EventLog(folder, LOG) as log, Learner(given) as learner:
        log.append(stream(100))
        learn_all(learner)
        log.forget("u3").result()
        log.control("resume", {}).result()
        log.append(stream(40, seed=5, start=100))
        learn_all(learner)
        with Challenger(given, "twin") as challenger:
            follow(challenger)
            assert challenger.replay.position.offset == learner.position.offset
            assert state_digest(challenger.replay.model) == state_digest(learner.replay.model)


@pytest.mark.parametrize(
    "text", ["melon", "=bpr/melon", "served=bpr/melon", "A=bpr/melon", "a=bpr/melon,a=bpr/default"]
)
def test_names_that_cannot_be_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="NAME=MODEL"):
        settings(tmp_path, None, challengers=text).challenger_models()


@pytest.mark.parametrize("model", ["nowhere", "nowhere/at/all", "bpr/none", "none/melon"])
def test_models_that_are_not_there_are_refused(tmp_path: Path, model: str) -> None:
    given = settings(tmp_path, None, challengers=f"one={model}")
    with EventLog(tmp_path, LOG), Learner(given), pytest.raises(SettingsError):
        Challenger(given, "one")


@pytest.mark.slow
def test_it_runs_in_a_process_of_its_own_and_comes_back_when_killed(tmp_path: Path) -> None:
    words = [Path(sys.executable).with_name("melon"), "serve", "--data", tmp_path, "--port", "0"]
    command = [*words, "--challenger", "other=bpr/default", "--set", "fit_after=0", "--set", "negatives=15"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        url = next(found[1] for line in process.stdout if (found := re.search(r"serving on (http://\S+?);", line)))
        with Client(url, deadline=300.0) as client:
            events = stream(400)
            client.record_many([{"user": event.user, "item": event.item} for event in events])
            wait_until(lambda: client.quality("1h")["models"].get("other", {}).get("ranked", 0) > 20, 240.0)
            lock = tmp_path / "challengers" / "other.lock"
            first = lock.read_text().split()[0]
            before = client.quality("1h")["models"]["other"]
            os.kill(int(first), signal.SIGKILL)
            wait_until(lambda: lock.read_text().split()[:1] not in ([], [first]), 60.0)
            wait_until(lambda: client.quality("1h")["models"].get("other") == before, 60.0)
        with Client(url, key=(tmp_path / "admin.token").read_text().strip(), deadline=60.0) as client:
            served = client.status()["model"]["recommender"]
            client.promote("other")
            wait_until(lambda: client.status()["model"]["recommender"] == "bpr", 60.0)
            client.record_many([{"user": event.user, "item": event.item} for event in stream(50, seed=4)])
            wait_until(lambda: client.status()["challengers"].get("former", {}).get("lag") == 0, 120.0)
            client.rollback()
            wait_until(lambda: client.status()["model"]["recommender"] == served != "bpr", 60.0)
            assert client.status()["alarms"] == []
    finally:
        process.terminate()
        assert process.wait(120) == 0
    assert "the bytes are those that were recorded" in list(verify(tmp_path))[-1]


def test_a_challenger_is_promoted_and_rolled_back_at_an_event(tmp_path: Path) -> None:
    """Learner, replica and replay switch at the control; each model has learned every event before and after it."""
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers="rates=bpr/melon")
    with EventLog(folder, LOG) as log, Learner(given) as learner, Challenger(given, "rates") as rates:
        replica = Replica(folder)
        replica.load()
        log.append(stream(120))
        learn_all(learner)
        log.control("promote", {"challenger": "rates"}).result()
        log.append(stream(60, seed=4, start=120))
        learn_all(learner)
        assert learner.position.offset == 120  # it waits for the challenger
        follow(rates)
        learn_all(learner)
        assert learner.replay.model.updater.strategy.name == "melon"
        assert learner.position.version == "bpr/melon"
        follow(rates)
        assert state_digest(rates.replay.model) == state_digest(learner.replay.model)
        assert whole(counts_in(folder)["rates"])["ranked"] > 50
        replay_equals(folder, learner, replica)

        with Challenger(given, "former") as former:
            follow(former)
            log.control("rollback", {}).result()
            learn_all(learner)
            follow(former)
            learn_all(learner)
            assert learner.replay.model.updater.strategy.name == "default"
            follow(former)  # which is now the model that was promoted before
            assert former.replay.model.updater.strategy.name == "melon"
        log.append(stream(40, seed=5, start=180))
        learn_all(learner)
        replay_equals(folder, learner, replica)
        # The model that was served first is as if nothing had happened.
        alone = tmp_path / "alone"
        boundaries = [(step.first, step.last) for step in learner.book.after(0) if step.kind == "events"]
    with EventLog(alone, LOG) as log, Learner(settings(alone, model)) as other:
        events = [*stream(120), *stream(60, seed=4, start=120), *stream(40, seed=5, start=180)]
        taken = 0
        for first, last in boundaries:
            log.append(events[taken : taken + last - first + 1])
            taken += last - first + 1
            learn_all(other)
        assert state_digest(other.replay.model) == state_digest(learner.replay.model)


def replay_equals(folder: Path, learner: Learner, replica: Replica) -> None:
    while replica.follow():
        pass
    replayed, digest = clean_replay(folder)
    assert digest == learner.position.digest == replica.position.digest
    assert state_digest(replayed) == state_digest(learner.replay.model)
    with replica.reading() as (model, position):
        assert position.version == learner.position.version
        assert model.updater.strategy.name == learner.replay.model.updater.strategy.name
        user = model.users.ids([0]).tolist()
        assert model.recommend(user, 5) == learner.replay.model.recommend(user, 5)


def test_a_learner_that_dies_while_it_waits_promotes_afterwards(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers="rates=bpr/melon")
    with EventLog(folder, LOG) as log:
        with Learner(given) as learner:
            log.append(stream(80))
            log.control("promote", {"challenger": "rates"}).result()
            learn_all(learner)
        with Learner(given) as learner, Challenger(given, "rates") as rates:
            assert not learner.step()
            follow(rates)
            learn_all(learner)
            assert learner.replay.model.updater.strategy.name == "melon"
            before = learner.position
        with Learner(given) as learner:
            assert learner.position == before
        assert clean_replay(folder)[1] == before.digest


def test_one_that_does_not_come_is_not_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melon.service.learner.loop._HANDOVER_S", 0.0)
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log, Learner(settings(folder, model)) as learner:
        log.append(stream(50))
        log.control("rollback", {}).result()
        log.append(stream(20, seed=4, start=50))
        learn_all(learner)
        assert learner.position.offset == 71
        assert "not promoted" in learner.book.named_alarms()["promote"]
        assert not learner.book.switches()
        assert clean_replay(folder)[1] == learner.position.digest


def test_nothing_is_promoted_where_the_model_before_cannot_be_kept(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers="rates=bpr/melon")
    with EventLog(folder, LOG) as log, Learner(given) as learner, Challenger(given, "rates") as rates:
        in_the_way = folder / "challengers" / "former" / "checkpoints"
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_text("a file")
        log.append(stream(80))
        log.control("promote", {"challenger": "rates"}).result()
        log.append(stream(20, seed=4, start=80))
        learn_all(learner)
        follow(rates)
        learn_all(learner)
        assert learner.position.offset == 101
        assert learner.replay.model.updater.strategy.name == "default"
        assert "not promoted" in learner.book.named_alarms()["promote"]
        assert clean_replay(folder)[1] == learner.position.digest


def test_what_another_process_writes_is_not_removed(tmp_path: Path) -> None:
    """The learner writes the model that was served before where its process saves, and removes, its own."""
    saved = saved_model(tmp_path / "model")
    given = settings(tmp_path / "live", saved)
    with EventLog(given.folder, LOG), Learner(given) as learner:
        checkpoints = learner.checkpoints
        for number in (1, 3, 9):
            checkpoints.path(number).mkdir()
        for number in range(4, 8):
            position = replace(learner.position, batch=number)
            checkpoints.write(learner.replay.model, position, learner.log.log_id, {})
        checkpoints.prune({0})
        assert sorted(int(path.name) for path in checkpoints.folder.iterdir()) == [0, 5, 6, 7, 9]


def test_what_a_challenger_saved_forgets_too(tmp_path: Path) -> None:
    """A checkpoint of a challenger that knows a forgotten person keeps the wish open until it is written anew."""
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers="rates=bpr/melon")
    with EventLog(folder, LOG) as log, Learner(given) as learner, Challenger(given, "rates") as rates:
        log.append([*stream(60), Event("somebody-known", "i1", 5_000)])
        learn_all(learner)
        follow(rates)
        rates.save(wait=True)
        offset = log.forget("somebody-known").result()
        learn_all(learner)
        learner.save(wait=True)
        assert learner.book.forgotten() < offset
        follow(rates)
        learner._forgotten()
        assert learner.book.forgotten() == offset
        log.tidy()
    assert not any(b"somebody-known" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_it_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    given = settings(folder, model, challengers="rates=bpr/melon")
    with EventLog(folder, LOG) as log, Learner(given) as learner:
        log.append(stream(100))
        learn_all(learner)
        with Challenger(given, "rates") as first:
            follow(first)
            first.save(wait=True)
            at = first.replay.position
        log.append(stream(80, seed=4, start=100))
        learn_all(learner)
        with Challenger(given, "rates") as second:
            assert second.replay.position == at
            follow(second)
            counts = counts_in(folder)
        shutil.rmtree(folder / "challengers")
        with Challenger(given, "rates") as fresh:
            follow(fresh)
            assert state_digest(fresh.replay.model) == state_digest(second.replay.model)
            assert counts_in(folder) == counts


@pytest.fixture(scope="module")
def live(start: Start) -> Iterator[Service]:
    service = start(challengers="rates=bpr/melon", split="rates=40%", batch_every_ms=0.0)
    stop = threading.Event()
    # The process of the former model is started when there is one; here it is waited for.
    names = ("rates", "former")
    threads = [threading.Thread(target=run_when_there, args=(service, name, stop)) for name in names]
    for thread in threads:
        thread.start()
    yield service
    stop.set()
    for thread in threads:
        thread.join(60)


def run_when_there(service: Service, name: str, stop: threading.Event) -> None:
    there = Checkpoints(service.settings.folder / "challengers" / name)
    while name == "former" and not there.numbers() and not stop.is_set():
        time.sleep(0.02)
    if not stop.is_set():
        run_challenger(service.settings, name, stop)


class TestServed:
    """A real server with a challenger: some users get its lists, it is promoted, and rolled back."""

    def makers(self, service: Service) -> dict[str, str | None]:
        users = [f"u{n}" for n in range(30)]
        results = [service.get(f"/v1/recommendations/{user}?k=3") for user in users]
        return {user: one["model"].get("challenger") for user, one in zip(users, results, strict=True)}

    def caught_up(self, service: Service, name: str) -> None:
        service.wait(lambda: service.get("/v1/status")["challengers"].get(name, {}).get("lag") == 0)

    def test_a_share_of_users_gets_its_lists(self, live: Service) -> None:
        assert live.call("POST", "/v1/rollback").status == 404
        assert live.call("POST", "/v1/challengers/nobody/promote").status == 404
        live.post([{"user": f"u{n % 30}", "item": f"i{n % 50}"} for n in range(300)])
        self.caught_up(live, "rates")
        live.wait(lambda: "rates" in self.makers(live).values())
        makers = self.makers(live)
        assert 4 <= sum(maker == "rates" for maker in makers.values()) <= 20
        assert self.makers(live) == makers
        alone = [live.get(f"/v1/recommendations/{user}?k=3")["items"] for user in makers]
        together = live.post({"users": list(makers), "k": 3}, "/v1/recommendations")["results"]
        assert [one["items"] for one in together] == alone
        mine = next(user for user, maker in makers.items() if maker == "rates")
        offset = live.post([{"user": mine, "item": "i7"}])["offset"]
        listed = live.get(f"/v1/recommendations/{mine}?after={offset}&wait_ms=9000")
        assert not listed["stale"]
        assert listed["model"]["offset"] >= offset
        live.post([{"user": mine, "item": listed["items"][0]["item"], "recommendation": listed["recommendation"]}])
        state = live.get("/v1/status")["challengers"]["rates"]
        assert state["share"] == 0.4
        assert 0 < state["taken"] < state["lists"]

    def test_it_is_promoted_and_rolled_back_by_commands(self, live: Service, run: Run) -> None:
        folder = live.settings.folder
        for words, strategy in ((("promote", "rates"), "melon"), (("rollback",), "default")):
            name = words[-1] if len(words) > 1 else "former"
            live.post([{"user": f"u{n % 30}", "item": f"i{n % 50}"} for n in range(40)])
            self.caught_up(live, name)
            done = run(*words, folder)
            assert done.code in (0, None), done
            live.wait(lambda strategy=strategy: live.get("/v1/status")["model"]["strategy"] == strategy)  # type: ignore[misc]
        marks = {mark["kind"]: mark["text"] for mark in live.get("/v1/overview?window=1h")["annotations"]}
        assert marks["promote"] == "a challenger was promoted: rates"
        assert marks["rollback"] == "the model before was served again"
        assert "switch" in marks["reload"]
        assert live.get("/v1/status")["alarms"] == []
        live.post([{"user": "u1", "item": "i1"}])
        live.wait(lambda: live.get("/v1/status")["lag"] == 0)
        with StepReader(folder) as steps:
            last = steps.last()
        assert clean_replay(folder)[1] == last.digest  # type: ignore[union-attr]


@pytest.mark.parametrize("split", ["a=10%", "one=x", "one=-5%", "one=100%", "one"])
def test_splits_that_cannot_be_are_refused(tmp_path: Path, split: str) -> None:
    with pytest.raises(SettingsError, match="split"):
        settings(tmp_path, None, challengers="one=bpr/melon", split=split).shares()
