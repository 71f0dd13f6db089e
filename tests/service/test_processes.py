"""The service as processes: started by the command, restarted when they die, stopped in order; and start-up errors."""

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service_scenes import clean_replay

from commands import Run
from conftest import Service, Start
from melon import Client
from melon.learning.deltas import state_digest
from melon.service.config import ServeSettings
from melon.service.log.events import EventLog

MELON = Path(sys.executable).with_name("melon")


class Running:
    """`melon serve` as a process."""

    def __init__(self, *words: object, port: int = 0) -> None:
        command = [MELON, "serve", *map(str, words), "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if address := re.search(r"serving \w*? ?on (http://\S+?)(?:/t/\w+)?;", line):
                self.url = address[1]
                break
        else:
            raise AssertionError("".join(self.lines))
        # A pipe that nobody reads would stop the service at its next line.
        threading.Thread(target=self.lines.extend, args=(self.process.stdout,), daemon=True).start()

    def children(self) -> dict[str, int]:
        """The processes by role."""
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = re.findall(r"^\s*(\d+) .*melon\.service\.supervisor ([\w/]+) ", listed.stdout, re.MULTILINE)
        return {role: int(pid) for pid, role in found}

    def status(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/v1/status", timeout=30) as response:
            return json.loads(response.read())

    def post(self, events: list[dict[str, Any]]) -> Any:
        request = urllib.request.Request(
            f"{self.url}/v1/interactions", json.dumps(events).encode(), {"Content-Type": "application/json"}
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                if error.code != 503 or not error.headers["Retry-After"]:
                    raise
                time.sleep(0.2)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


def until(done: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if done():
                return
        except OSError:
            pass
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture
def running(shop: Path, tmp_path: Path) -> Iterator[Running]:
    service = Running(shop, "--data", tmp_path / "live")
    yield service
    if service.process.poll() is None:
        service.stop()


@pytest.mark.parametrize("role", ["api", pytest.param("learner", marks=pytest.mark.slow)])
def test_a_process_that_hangs_is_restarted(shop: Path, tmp_path: Path, role: str) -> None:
    service = Running(shop, "--data", tmp_path / "live", "--set", "hung_s=10")  # the learner has ten times as much
    try:
        until(lambda: service.status()["model"] is not None)
        pid = service.children()[role]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: service.children().get(role) not in (None, pid))
        until(lambda: service.status()["model"] is not None)
        service.post([{"user": "u1", "item": "i1", "event_id": "after"}])
        until(lambda: service.status()["lag"] == 0)
        assert any(f"the {role} gave no sign of life" in line for line in service.lines)
    finally:
        service.stop()


def test_processes_are_restarted_and_stop_in_order(running: Running, tmp_path: Path, run: Run) -> None:
    until(lambda: running.status()["model"] is not None)
    first = running.children()
    assert set(first) == {"learner", "api"}
    running.post([{"user": "ann@example.org", "item": "i1", "event_id": f"a{n}"} for n in range(20)])
    with urllib.request.urlopen(f"{running.url}/v1/recommendations/ann@example.org", timeout=30) as answer:
        assert answer.status == 200
    os.kill(first["learner"], signal.SIGKILL)
    # Nothing is refused while only the learner is away.
    told = running.post([{"user": "u1", "item": "i1", "event_id": f"b{n}"} for n in range(20)])
    assert told["accepted"] == 20
    until(lambda: running.children().get("learner") not in (None, first["learner"]))
    os.kill(first["api"], signal.SIGKILL)
    # The supervisor still listens: a request waits for the next process, or is told to come again.
    told = running.post([{"user": "u1", "item": "i1", "event_id": f"b{n}"} for n in range(30)])
    assert (told["accepted"], told["duplicates"]) == (10, 20)
    until(lambda: running.status()["lag"] == 0)
    assert running.status()["log"]["events"] == 50
    second = running.children()
    assert not set(second.values()) & set(first.values())
    assert running.stop() == 0
    for pid in second.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    # Lines of both processes are JSON, and have no ids of people.
    lines = [json.loads(line) for line in running.lines[1:]]
    assert {line.get("route") for line in lines} >= {"/v1/recommendations/{user}", "/v1/interactions"}
    assert any(line["message"].startswith("learning from batch") for line in lines)
    assert "ann@example.org" not in "".join(running.lines)
    again = run("doctor", "--data", tmp_path / "live", "--json")
    assert again.code == 0, again.said
    found = {one["what"]: one["found"] for one in json.loads(again.out)}
    about = json.loads(run("log", "info", tmp_path / "live", "--json").out)
    assert f"{about['events']} events, offset {about['offset']}" == "50 events, offset 50"
    assert found["log"] == "50 events, offset 50; steps and checkpoints fit"
    assert found["model"] == f"{about['model']} of the folder, steps: {about['steps']}"


@pytest.mark.slow
def test_a_learner_that_cannot_go_on_ends_nothing_else(running: Running, tmp_path: Path) -> None:
    """Its checkpoints are gone while it runs: events are stored and lists are made until somebody has mended that."""
    running.post([{"user": "u1", "item": "i1"}])
    until(lambda: running.status()["lag"] == 0)
    checkpoints = tmp_path / "live" / "checkpoints"
    checkpoints.rename(tmp_path / "away")
    os.kill(running.children()["learner"], signal.SIGKILL)
    until(lambda: any("learner fails; it is tried again" in line for line in running.lines), 120)
    running.post([{"user": "u1", "item": "i2", "event_id": "meanwhile"}])
    with urllib.request.urlopen(f"{running.url}/v1/recommendations/u1?k=3") as answer:
        assert len(json.loads(answer.read())["items"]) == 3
    (tmp_path / "away").rename(checkpoints)
    until(lambda: running.status()["lag"] == 0)


def test_an_error_while_it_works_is_no_start_that_failed(shop: Path, tmp_path: Path) -> None:
    """A service ends where a person has to mend its start; a learner that fails later is started again."""
    program = """
import sys
from melon.errors import StorageError
from melon.service import supervisor
from melon.service.learner import loop
def run(self, stop):
    raise StorageError("the disk is gone")
loop.Learner.run = run
supervisor._child("learner", sys.argv[1])
"""
    settings = ServeSettings(model=shop, data=tmp_path / "live")
    given = {**os.environ, "MELON_CHILD": json.dumps({"settings": {**settings.plain(), "log": None}, "tenants": {}})}
    EventLog(settings.folder, settings).close()
    command = [sys.executable, "-c", program, str(os.getpid())]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert "the disk is gone" in done.stderr
    assert done.returncode == 1


@pytest.mark.slow
def test_roles_run_alone(shop: Path, tmp_path: Path) -> None:
    words = [MELON, "serve", shop, "--data", tmp_path / "live"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = subprocess.Popen([*words, "--role", "api", "--port", str(port)], stderr=subprocess.DEVNULL)
    learner = subprocess.Popen([*words, "--role", "learner"], stderr=subprocess.DEVNULL)
    try:
        with Client(f"http://127.0.0.1:{port}", deadline=120.0) as client:
            seen = client.record("u1", "i2")
            until(lambda: (client.status()["model"] or {"offset": 0})["offset"] >= seen.offset)
            assert client.recommend("u1", k=3).source == "model"
        for process in (api, learner):
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)  # uvicorn ends by the signal, after everything else
    finally:
        for process in (api, learner):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_service_that_cannot_say_where_it_is_ends(shop: Path, tmp_path: Path) -> None:
    """Its output is closed: no process is left behind that nobody knows of."""
    read, write = os.pipe()
    os.close(read)
    command = [MELON, "serve", shop, "--data", tmp_path / "live", "--port", "0"]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.DEVNULL) as process:
        os.close(write)
        assert process.wait(120) != 0


@pytest.mark.slow
def test_children_die_with_their_supervisor(running: Running) -> None:
    until(lambda: set(running.children()) == {"learner", "api"})
    until(lambda: running.status()["model"] is not None)
    children = running.children()
    running.process.kill()
    running.process.wait()

    def gone() -> bool:
        alive = [pid for pid in children.values() if Path(f"/proc/{pid}").exists()]
        return not alive

    until(gone)


class Traffic:
    """Posts and lists without a pause; keeps what was acknowledged, and every answer with its moment."""

    def __init__(self, url: str) -> None:
        self.url, self.acknowledged, self.answers = url, list[str](), list[tuple[float, int, str]]()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._post, self._ask)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _call(self, path: str, body: Any = None) -> int:
        """The code of an answer; 0 where there was none."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {"Content-Type": "application/json"})
        code = 0
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                response.read()
                code = response.status
        except urllib.error.HTTPError as error:
            code = error.code
        except (OSError, http.client.HTTPException):  # killed before or while it answered
            time.sleep(0.05)
        self.answers.append((time.monotonic(), code, path))
        return code

    def _post(self) -> None:
        number = 0
        while not self._stop.is_set():
            ids = [f"{number}-{n}" for n in range(10)]
            events = [{"user": f"u{(number + n) % 40}", "item": f"i{n}", "event_id": i} for n, i in enumerate(ids)]
            while (code := self._call("/v1/interactions", events)) != 202 and not self._stop.is_set():
                assert code == 0 or code >= 429, code
                time.sleep(0.05)
            if code == 202:
                self.acknowledged.extend(ids)
            number += 1
            time.sleep(0.01)

    def _ask(self) -> None:
        while not self._stop.is_set():
            self._call("/v1/recommendations/u1?k=3")
            time.sleep(0.02)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_doubled_whoever_is_killed(shop: Path, tmp_path: Path) -> None:
    """`kill -9` of a random victim at random moments under load; MELON_KILLS says how often, MELON_SEED which."""
    from melon.service.log.checkpoints import Checkpoints
    from melon.service.log.events import LogReader

    draws, folder = random.Random(int(os.environ.get("MELON_SEED", "1"))), tmp_path / "live"
    victims = dict.fromkeys(("api", "learner", "supervisor"), 0)
    words = (shop, "--data", folder, "--set", "checkpoint_s=5")
    services = [Running(*words)]

    def answers() -> bool:
        return services[-1].status()["model"] is not None and traffic._call("/v1/recommendations/u1?k=3") == 200

    traffic = Traffic(services[0].url)
    until(answers)
    away = [(0.0, time.monotonic())]  # when the API process was away or not ready
    for number in range(int(os.environ.get("MELON_KILLS", "200"))):
        known = len(traffic.acknowledged)
        until(lambda known=known: len(traffic.acknowledged) > known)  # type: ignore[misc]
        time.sleep(draws.uniform(0.0, 3.0))
        victim = draws.choice(list(victims))
        if victim == "supervisor":
            killed = time.monotonic()
            services[-1].process.kill()
            services[-1].process.wait()
            services.append(Running(*words, port=int(services[0].url.rpartition(":")[2])))
        else:
            until(lambda victim=victim: victim in services[-1].children())  # type: ignore[misc]
            killed = time.monotonic()
            os.kill(services[-1].children()[victim], signal.SIGKILL)
        victims[victim] += 1
        if victim != "learner":
            until(answers)
            away.append((killed, time.monotonic()))
        if number % 20 == 19:
            print(f"{number + 1} kills: {victims}; {len(traffic.acknowledged)} events acknowledged", flush=True)  # noqa: T201
    traffic.stop()
    until(lambda: services[-1].status()["lag"] == 0)
    assert services[-1].stop() == 0
    bad = [one for one in traffic.answers if one[1] == 0 or one[1] >= 500]
    assert not [one for one in bad if not any(first <= one[0] <= last for first, last in away)]
    with LogReader(folder) as reader:
        stored = [event.event_id for event in reader.events(0, reader.last()[0])]
    assert len(stored) == len(set(stored))
    assert set(traffic.acknowledged) <= set(stored)
    copy, digest = clean_replay(folder)
    newest = Checkpoints(folder).newest()
    assert newest is not None
    assert newest.position.digest == digest
    assert state_digest(newest.model) == state_digest(copy)
    done = subprocess.run([MELON, "log", "verify", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"killed {victims}; {len(traffic.acknowledged)} acknowledged, {len(traffic.answers)} answers")  # noqa: T201


@pytest.mark.slow
def test_a_full_disk_is_a_507_until_there_is_room(shop: Path, tmp_path: Path) -> None:
    """The whole service on a file system of 48 MB: refused posts lose nothing, lists go on, and no hand is needed."""
    from melon.service.log.events import LogReader

    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    running = None
    try:
        (disk / "filler").write_bytes(bytes(12 << 20))
        running = Running(shop, "--data", disk / "live", "--set", "checkpoint_s=5")
        until(lambda: running.status()["model"] is not None)
        acknowledged, code, refusal = 0, 0, ""
        while code != 507:
            names = [f"{acknowledged}-{n}-{'x' * 200}" for n in range(500)]
            events = [{"user": f"u{n % 40}", "item": f"i{n % 99}", "event_id": one} for n, one in enumerate(names)]
            try:
                acknowledged += running.post(events)["accepted"]
            except urllib.error.HTTPError as refused:
                code, refusal = refused.code, json.loads(refused.read())["error"]["code"]
        assert refusal == "disk_full"
        assert running.status()["log"] == {"events": acknowledged, "offset": acknowledged, "writable": False}
        with urllib.request.urlopen(f"{running.url}/v1/recommendations/u1?k=3", timeout=30) as answer:
            assert answer.status == 200
        (disk / "filler").unlink()
        until(lambda: running.status()["log"]["writable"])
        assert running.post(events)["accepted"] == 500
        until(lambda: running.status()["lag"] == 0)
        assert running.stop() == 0
        with LogReader(disk / "live") as reader:
            stored = [event.event_id for event in reader.events(0, reader.last()[0])]
        assert len(set(stored)) == len(stored) == acknowledged + 500
        clean_replay(disk / "live")
    finally:
        if running is not None and running.process.poll() is None:
            running.process.kill()
        until(lambda: subprocess.run(["umount", disk], check=False, capture_output=True).returncode == 0)


class TestStartUp:
    def test_a_model_that_is_none(self, run: Run, tmp_path: Path) -> None:
        for folder in (tmp_path / "missing", tmp_path):
            ended = run("serve", folder)
            assert ended.code == 1
            assert f"{folder} is not the folder of a model" in ended.said

    def test_a_port_in_use(self, run: Run, shop: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            ended = run("serve", shop, "--port", taken.getsockname()[1])
        assert ended.code == 2
        assert "cannot be listened on" in ended.said

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--set", "prot=1"], "Did you mean 'port'"),
            (["--set", "port"], "NAME=VALUE"),
            (["--host", "0.0.0.0"], "melon keys add"),
            (["--role", "boss"], "unknown role"),
            (["--config", "none.toml"], "cannot be read"),
            (["--learn", "a", "--hide", "a"], "named twice"),
        ],
    )
    def test_settings_that_cannot_be(self, run: Run, shop: Path, words: list[str], message: str) -> None:
        ended = run("serve", shop, *words)
        assert ended.code == 2
        assert message in ended.said

    def test_a_folder_that_cannot_be_written_is_refused(self, shop: Path, tmp_path: Path, run: Run) -> None:
        """Such as one on a file system that is mounted read-only."""
        folder = tmp_path / "a file" / "live"
        folder.parent.write_text("in the way")
        ended = run("serve", shop, "--data", folder, "--port", 0)
        assert ended.code == 1
        assert f"{folder} cannot be written: Not a directory." in ended.said
        assert "cannot be made" in run("doctor", "--data", folder).out

    def test_a_second_service_in_the_folder_is_refused(self, service: Service, run: Run) -> None:
        ended = run("serve", service.settings.model, "--data", service.settings.folder, "--port", 0)
        assert ended.code == 1
        assert f"has a writer already: process {os.getpid()}" in ended.said

    def test_a_second_writer_is_refused(self, service: Service) -> None:
        from melon.errors import LogError
        from melon.service.backend import Backend

        with pytest.raises(LogError, match=str(os.getpid())):
            Backend(service.settings)

    @pytest.mark.slow
    def test_a_newer_or_damaged_model_ends_the_service(self, shop: Path, tmp_path: Path) -> None:
        import shutil

        model = tmp_path / "model"
        shutil.copytree(shop, model)
        manifest = json.loads((model / "manifest.json").read_text())
        (model / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
        done = subprocess.run(
            [MELON, "serve", model, "--port", "0"], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 2
        assert "learner" in done.stderr
        assert "Traceback" not in done.stderr

    def test_show_config_and_keys(self, run: Run, tmp_path: Path) -> None:
        ended = run("serve", "--port", 9, "--set", "rate=2.5", "--show-config")
        assert "port = 9\n" in ended.out
        assert "rate = 2.5\n" in ended.out
        added = run("keys", "add", "--data", tmp_path, "--scope", "read", "--note", "shop")
        key = added.out.strip()
        listed = run("keys", "list", "--data", tmp_path).out
        assert key.split("_")[1] in listed
        assert key not in listed
        assert run("keys", "revoke", key.split("_")[1], "--data", tmp_path).code == 0
        assert run("keys", "list", "--data", tmp_path).out == ""
        assert run("keys", "add", "--data", tmp_path, "--scope", "rule").code == 2
        config, elsewhere = tmp_path / "melon.toml", tmp_path / "secrets" / "k.json"
        elsewhere.parent.mkdir()
        config.write_text(f'data = "{tmp_path}"\nkeys = "{elsewhere}"\n')
        run("keys", "add", "--config", config, "--scope", "read")
        assert json.loads(elsewhere.read_text())["keys"]


def test_a_forgotten_person_leaves_no_trace_that_doctor_finds(start: Start, run: Run) -> None:
    service = start()
    service.post([{"user": "ann@example.org", "item": f"i{n}"} for n in range(3)])
    found = run("doctor", "--data", service.settings.folder, "--forgotten", "ann@example.org")
    assert found.code == 1
    assert "events.db" in found.out
