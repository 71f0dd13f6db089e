"""Challengers: they learn the recorded batches beside the learner and are compared with it event by event."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service_scenes import LOG, learn_all, saved_model, settings, stream, wait_until

from melon.client import Client
from melon.errors import SettingsError
from melon.learning.deltas import state_digest
from melon.service.learner.challenger import Challenger, compared_by
from melon.service.learner.loop import Learner
from melon.service.learner.quality import PARTS, added
from melon.service.log.events import EventLog

FAR = 1e12


def follow(challenger: Challenger) -> None:
    while challenger.step():
        pass


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
        twin = whole(compared_by(folder, [FAR])["twin"][0])
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
        counts = whole(compared_by(folder, [FAR])["other"][0])
        assert counts["ranked"] == served["ranked"] > 50  # both began with nothing, so that both know the same items
        assert counts["won@10"] + counts["lost@10"] > 0
        assert counts["won@10"] - counts["lost@10"] == served["HR@10"] - counts["HR@10"]
        (folder / "challengers" / "other.lock").unlink()
        with Challenger(given, "other") as late:
            follow(late)
            assert state_digest(late.replay.model) == state_digest(early.replay.model)
        assert whole(compared_by(folder, [FAR])["other"][0]) == counts


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
    finally:
        process.terminate()
        assert process.wait(120) == 0
