"""The supervisor: starts an API process and a learner, restarts either, and stops both in order.

A service with tenants has one API process and a learner for each tenant.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from melon.errors import CheckpointError, HeldError, MelonError, SettingsError, StorageError
from melon.kernels import policy
from melon.service.config import FORMER, LOOPBACK, ServeSettings
from melon.service.keys import keys_of, local_token
from melon.service.learner.challenger import FOLDER, home
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.files import EVENTS, Held, place_of
from melon.service.process import began, die_with, log_as_json

#: Which process: the API process, `learner` or `challenger:NAME`; that of a tenant has `TENANT/` before it.
ProcessRole = str
SettingsByTenant = Mapping[str, ServeSettings]
#: How a child ends that cannot start for a reason a person has to remove.
CANNOT_START = 78
_CHALLENGER = "challenger:"
#: The settings of a child, in its environment: the address of a database may hold a password, and others can see a
#: command line.
_SETTINGS = "MELON_CHILD"
_FIRST_PAUSE, _MOST_PAUSE, _LONG_RUN, _MOST_FAILURES = 0.1, 5.0, 30.0, 5
#: A learner may be busy for longer than a process that answers: it loads models, copies them and replays.
_LEARNER_PATIENCE = 10
#: Seconds that a process has for its first sign of life, and between two tries to start a tenant's learner that fails.
_START_S, _AGAIN_S = 300.0, 30.0


def check_model(settings: ServeSettings) -> None:
    """Say at once, rather than in a child, that a model cannot be served."""
    from melon.learning.manifest import MANIFEST

    if settings.model is not None and not (settings.model / MANIFEST).is_file():
        raise CheckpointError(
            f"{settings.model} is not the folder of a model: it has no {MANIFEST}. Make one with melon pretrain, or "
            "start without a model."
        )


def await_database(settings: ServeSettings, say: Callable[[str], None], seconds: float = 60.0) -> None:
    """Wait for a database that is just being started, as it may be after a power cut; but not for ever."""
    place, end, told = place_of(settings), time.monotonic() + seconds, False
    while place.url is not None:
        try:
            place.exists(EVENTS)
        except StorageError as problem:
            if time.monotonic() > end:
                raise
            if not told:
                say(f"{problem} Waiting for up to {seconds:.0f} s.")
            told = True
            time.sleep(0.5)
        else:
            return


def check_reachable(settings: ServeSettings) -> None:
    """Refuse to be reachable from outside without keys."""
    if settings.host not in LOOPBACK and not keys_of(settings).keys():
        raise SettingsError(
            f"host {settings.host} can be reached from outside and {keys_of(settings).path} has no keys. Make one "
            f"with melon keys add --data {settings.folder} --scope read, or listen on 127.0.0.1."
        )


def check_free(folder: Path, seconds: float = 3.0) -> None:
    """Say at once that another service has the folder; children of one that was killed need a moment to end."""
    end = time.monotonic() + seconds
    for role in ("writer", "learner"):
        while True:
            try:
                Held(folder, role).close()
                break
            except HeldError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)


def listen(settings: ServeSettings) -> socket.socket:
    """A socket that listens before any process is started: a restarted API process finds its clients waiting there."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(1024)
    except OSError as problem:
        listening.close()
        raise SettingsError(
            f"{settings.host}:{settings.port} cannot be listened on: {problem.strerror or problem}. Choose another "
            "with --port, or stop what uses it."
        ) from None
    return listening


def url_of(settings: ServeSettings, listening: socket.socket) -> str:
    """Where the service answers; one that listens everywhere does so on loopback too."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def greeting(url: str, settings: ServeSettings, tenant: str = "") -> str:
    """Where the service and its console are; without keys, the address that lets this user administrate."""
    key = "" if keys_of(settings).required else f"#key={local_token(settings.folder)}"
    whose, url = (f"serving {tenant}", f"{url}/t/{tenant}") if tenant else ("serving", url)
    return f"{whose} on {url}; the console is at {url}/{key}; the log is in {settings.folder}; stop with Ctrl-C"


class Supervisor:
    """Children and a stop. Signals end it: first the API process, then the learners."""

    def __init__(
        self, settings: ServeSettings, listening: socket.socket | None, later: Collection[str] = (),
        tenants: SettingsByTenant | None = None, roles: Collection[str] = ("learner", "api"),
    ) -> None:  # fmt: skip
        """`later` names challengers that `add_challenger` starts; `roles` says what runs on this machine."""
        self._settings, self._listening, self._roles = settings, listening, roles
        self._tenants = dict(tenants or {})
        #: Whose learners there are: of the tenants, or of the service itself.
        self._services: SettingsByTenant = self._tenants or {"": settings}
        self._challengers = {
            _role_of(tenant, f"{_CHALLENGER}{name}")
            for tenant, one in self._services.items()
            for name in one.challenger_models()
            if name not in later
        }
        self._watches: dict[ProcessRole, threading.Thread] = {}
        self._stop = threading.Event()
        self._children: dict[ProcessRole, subprocess.Popen[bytes]] = {}
        self.problem: str | None = None

    def run(self, started: Callable[[str], None] = lambda url: None) -> None:  # noqa: ARG005
        """Serve until SIGTERM or SIGINT, or until a child cannot be started."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        for one in self._services.values():
            one.shares()  # a split that cannot be is refused here
        learners = [_role_of(tenant, "learner") for tenant in self._services]
        for role in [
            *(learners if "learner" in self._roles else ()),
            *(("api",) if "api" in self._roles else ()),
            *(self._challengers if "learner" in self._roles else ()),
        ]:
            self._begin(role)
        try:
            if self._listening is not None:
                started(url_of(self._settings, self._listening))
            while not self._stop.wait(0.5):
                for tenant, one in self._services.items():
                    if "learner" in self._roles and Checkpoints(home(one.folder, FORMER)).numbers():
                        # the model that a promotion has replaced
                        self._begin(_role_of(tenant, f"{_CHALLENGER}{FORMER}"))
        finally:
            self._stop.set()
            self._end("api", self._settings.stop_s + 5)
            for role in [role for role in self._children if _CHALLENGER in role]:
                self._end(role, self._settings.stop_s)
            for role in learners:
                self._end(role, self._settings.stop_s + 60)
            for watch in self._watches.values():
                watch.join()
        if self.problem is not None:
            raise SettingsError(self.problem)

    def _begin(self, role: ProcessRole) -> None:
        """Start a process and watch it, unless that is done already."""
        watch = self._watches.get(role)
        if watch is None or not watch.is_alive():
            self._watches[role] = threading.Thread(target=self._watch, args=(role,))
            self._watches[role].start()

    def add_challenger(self, name: str) -> None:
        """Start a challenger that was left out at the start: its model is there now."""
        if not self._stop.is_set():
            self._begin(f"{_CHALLENGER}{name}")

    def pid(self, role: ProcessRole) -> int | None:
        child = self._children.get(role)
        return None if child is None else child.pid

    def _watch(self, role: ProcessRole) -> None:
        pause, failures, first = _FIRST_PAUSE, 0, True
        while not self._stop.is_set():
            started = time.monotonic()
            child = self._children[role] = self._start(role)
            if self._stop.is_set():  # whoever ends the children may have looked before there was one
                child.terminate()
            code = self._ended(child, role)
            if self._stop.is_set():
                return
            long_run = time.monotonic() - started > _LONG_RUN
            # A process that was killed is started again for ever; one that fails by itself right away, a few times.
            failures = failures + 1 if code > 0 and not long_run else 0
            if _CHALLENGER in role and (
                failures > _MOST_FAILURES or (code == CANNOT_START and role not in self._challengers)
            ):
                sys.stderr.write(f"melon: the {role} fails; the service goes on without it\n")
                return
            if (code == CANNOT_START and first) or failures > _MOST_FAILURES:
                if "/" not in role and (first or role == "api"):
                    self.problem = f"the {role} could not be started; its message is above."
                    self._stop.set()
                    return
                sys.stderr.write(f"melon: {role} fails; it is tried again, and everything else goes on\n")
                first = False
                self._stop.wait(_AGAIN_S)
                continue
            first = False
            pause = _FIRST_PAUSE if long_run else min(2 * pause, _MOST_PAUSE)
            self._stop.wait(pause)

    def _ended(self, child: subprocess.Popen[bytes], role: ProcessRole) -> int:
        """Wait for the end of a child; one that gives no sign of life for long is killed: it hangs."""
        patience = self._settings.hung_s * (1 if role == "api" else _LEARNER_PATIENCE)
        seen, since = self._last_sign(role), time.monotonic()
        alive = False  # by a sign of its own, not of the process before it
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(min(1.0, patience / 4))
            sign = self._last_sign(role)
            if sign != seen or not sign or self._stop.is_set():
                alive, seen, since = alive or sign != seen, sign, time.monotonic()
            elif time.monotonic() - since > (patience if alive else max(patience, _START_S)):
                sys.stderr.write(f"melon: the {role} gave no sign of life for {patience:g} s; it is restarted\n")
                child.kill()

    def _last_sign(self, role: ProcessRole) -> float:
        """When one of the files of a role was last touched; 0 where there is none."""
        last = 0.0
        for lock in self._locks(role):
            with contextlib.suppress(OSError):
                last = max(last, lock.stat().st_mtime)
        return last

    def _locks(self, role: ProcessRole) -> list[Path]:
        """The files that show that a process lives; the API process touches that of each tenant."""
        if role == "api":
            return [one.folder / "writer.lock" for one in self._services.values()]
        tenant, _, bare = role.rpartition("/")
        folder = self._services[tenant].folder
        if bare.startswith(_CHALLENGER):
            return [folder / FOLDER / f"{bare.removeprefix(_CHALLENGER)}.lock"]
        return [folder / f"{bare}.lock"]

    def _start(self, role: ProcessRole) -> subprocess.Popen[bytes]:
        tenant, _, bare = role.rpartition("/")
        words = [sys.executable, "-m", "melon.service.supervisor", role, str(os.getpid())]
        handles = []
        tenants: SettingsByTenant = {}
        if bare == "api" and self._listening is not None:
            tenants = self._tenants
            handles = [self._listening.fileno()]
            words.append(str(handles[0]))
        own = self._settings if bare == "api" else self._services[tenant]
        content = {"settings": _told(own), "tenants": {name: _told(one) for name, one in tenants.items()}}
        # A session of its own, so that Ctrl-C reaches the supervisor alone and things end in order.
        return subprocess.Popen(
            words, pass_fds=handles, start_new_session=True, env=os.environ | {_SETTINGS: json.dumps(content)}
        )

    def _end(self, role: ProcessRole, seconds: float) -> None:
        child = self._children.get(role)
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def run_role(
    role: ProcessRole,
    settings: ServeSettings,
    listening: socket.socket | None = None,
    tenants: SettingsByTenant | None = None,
) -> None:
    """One role in this process, with compiled kernels: plain Python would drift from what other processes compute."""
    policy.require_compiled()
    if role == "learner":
        from melon.service.learner.loop import run_learner

        log_as_json()
        run_learner(settings)
        return
    if role.startswith(_CHALLENGER):
        from melon.service.learner.challenger import run_challenger

        log_as_json()
        run_challenger(settings, role.removeprefix(_CHALLENGER))
        return
    from melon.service.http.app import run_api

    settings.folder.mkdir(parents=True, exist_ok=True)
    listening = listening or listen(settings)
    run_api(settings, listening, url_of(settings, listening), tenants)


def _role_of(tenant: str, bare: str) -> ProcessRole:
    return f"{tenant}/{bare}" if tenant else bare


def _told(settings: ServeSettings) -> dict[str, Any]:
    """Settings for a child, with the address of the database."""
    return {**settings.plain(), "log": place_of(settings).url}


def _child(role: ProcessRole, parent: str, handle: str | None = None) -> None:
    die_with(int(parent))
    try:
        content = json.loads(os.environ[_SETTINGS])
        tenants = {name: ServeSettings.model_validate(one) for name, one in content["tenants"].items()}
        settings = ServeSettings.model_validate(content["settings"])
        run_role(
            role.rpartition("/")[2], settings, None if handle is None else socket.socket(fileno=int(handle)), tenants
        )
    except MelonError as problem:
        sys.stderr.write(f"melon: {role}: {problem}\n")
        sys.exit(1 if began.is_set() else CANNOT_START)


if __name__ == "__main__":
    _child(sys.argv[1], *sys.argv[2:])
