"""`melon log`: what it shows, checks, rebuilds, writes and refuses."""

import json
from pathlib import Path

import pytest
from service_scenes import LOG, learn_all, saved_model, settings, stream

import melon
from commands import Run
from conftest import Start
from melon.errors import DataError
from melon.learning.deltas import state_digest
from melon.learning.model import LiveModel
from melon.service.keys import keys_of
from melon.service.learner.loop import Learner
from melon.service.log.events import EventLog
from melon.service.log.exchange import read_fields


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """The folder of a service that has learned a little, and is stopped."""
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log, Learner(settings(folder, model)) as learner:
        log.append(stream(130))
        learn_all(learner)
        learner.save(wait=True)
    return folder


def test_info_and_verify(live: Path, run: Run) -> None:
    about = json.loads(run("log", "info", live, "--json").out)
    assert (about["events"], about["offset"], about["checkpoints"]) == (130, 130, [0, 4])
    assert "0 behind" in run("log", "info", live).out
    checked = run("log", "verify", live)
    assert checked.code == 0
    assert "the bytes are those that were recorded" in checked.out
    with EventLog(live, LOG) as log:
        log._put(lambda: log._db._connection.execute("UPDATE events SET item = 'i0' WHERE offset = 77"), 0).result()
    changed = run("log", "verify", live)
    assert changed.code == 1
    assert "gives other bytes than were recorded" in changed.err


def test_replay_rebuilds_any_past(live: Path, run: Run, tmp_path: Path) -> None:
    assert "recorded" in run("log", "replay", live, "--out", tmp_path / "all").out
    newest, _ = LiveModel.load(live / "checkpoints" / f"{4:010d}")
    rebuilt, _ = LiveModel.load(tmp_path / "all")
    assert state_digest(rebuilt) == state_digest(newest)
    assert "step 2, offset 80" in run("log", "replay", live, "--to", 100, "--out", tmp_path / "then").out
    assert "step 0" in run("log", "replay", live, "--to", "2001-01-01", "--out", tmp_path / "before").out
    other = run("log", "replay", live, "--without", "u1", "--strategy", "eals", "--out", tmp_path / "other")
    assert "a past that was not" in other.out
    without, _ = LiveModel.load(tmp_path / "other")
    mine = sum(event.user == "u1" for event in stream(130))
    assert mine
    assert without.updater.history.events == newest.updater.history.events - mine
    assert without.updater.strategy.name == "eals"
    for words in (("--to", "soon"), ("--strategy", "nobody")):
        assert run("log", "replay", live, *words, "--out", tmp_path / "x").code == 2


def test_export_and_import_go_round(live: Path, run: Run, tmp_path: Path) -> None:
    assert run("log", "export", live, "--out", tmp_path / "events.ndjson").code == 0
    assert len(run("log", "export", live, "--from", 5, "--to", 9).out.splitlines()) == 5
    assert "130 events appended" in run("log", "import", tmp_path / "new", tmp_path / "events.ndjson").out
    again = run("log", "import", tmp_path / "new", tmp_path / "events.ndjson")
    assert "0 events appended" in again.out
    assert "130 were known" in again.out
    assert run("log", "export", tmp_path / "new", "--to", 3).out.count("\n") == 3
    with EventLog(live, LOG):
        for refused in (run("log", "import", live, tmp_path / "events.ndjson"), run("log", "forget", live, "u1")):
            assert refused.code == 1
            assert "has a writer already: process" in refused.err


def test_import_and_forget_go_through_a_running_service(start: Start, run: Run, tmp_path: Path) -> None:
    service, lines = start(), tmp_path / "events.ndjson"
    folder = service.settings.folder
    events = [{"user": "ann", "item": f"i{n}", "event_id": f"e{n}", "time": 5_000 + n} for n in range(1_200)]
    lines.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert "1200 events appended up to offset 1200" in run("log", "import", folder, lines).out
    assert "1200 were known already" in run("log", "import", folder, lines).out
    lines.write_text('{"user": "ann", "item": "i1"}\n{"user": "ann", "item": "i1", "type": "eaten"}\n')
    refused = run("log", "import", folder, lines)
    assert refused.code == 1
    assert "eaten" in refused.err
    assert f"by the service on {service.url}" in run("log", "forget", folder, "ann").out
    key, _ = keys_of(service.settings).add(["admin", "read"])
    service.wait(lambda: service.call("GET", "/v1/status").status == 401)
    service.key = key
    service.wait(lambda: service.get("/v1/jobs/forget-1201")["done"])
    assert service.get("/v1/users/ann/history")["events"] == []
    token = folder / "admin.token"
    token.chmod(0o644)
    assert "others may read" in run("log", "forget", folder, "u2").err
    token.unlink()
    assert run("log", "forget", folder, "u2").code == 1  # a new token is not that of the service that runs
    assert "forgotten at offset 1202" in run("log", "forget", folder, "u2", "--key", key).out


def test_forget_waits_for_the_learner(live: Path, run: Run) -> None:
    assert "will be forgotten at offset 131" in run("log", "forget", live, "u1").out
    with EventLog(live, LOG), Learner(settings(live, None)) as learner:
        learn_all(learner)
        assert learner.replay.model.users.rows(["u1"])[0] == -1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "is not JSON"),
        ("[]", "is not an event"),
        ('{"user": "u"}', "is not an event"),
        ('{"user": "u", "item": "i", "colour": 1}', "not a field"),
        ('{"user": 1.5, "item": "i"}', "is a float"),
        ('{"user": true, "item": "i"}', "is a bool"),
        ('{"user": "", "item": "i"}', "out of range"),
        ('{"user": "u", "item": "' + "i" * 10_000 + '"}', "out of range"),
        ('{"user": "u", "item": "i", "time": -1}', "out of range"),
        ('{"user": "\\ud800", "item": "i"}', "out of range"),
        ('{"user": "u", "item": 9223372036854775808}', "out of range"),
        ('{"user": "u", "item": "i", "use": "eat"}', "out of range"),
    ],
)
def test_a_bad_line_is_named(line: str, problem: str) -> None:
    with pytest.raises(DataError, match=f"f.ndjson, line 3.*{problem}"):
        read_fields(line, "f.ndjson, line 3")


def test_a_good_line() -> None:
    assert read_fields('{"user": 7, "item": "i", "time": 5, "offset": 9}', "x") == {"user": 7, "item": "i", "time": 5}
    assert melon.MelonError in DataError.__mro__
