"""A PostgreSQL server of its own for tests: a temporary folder, a free port of loopback, `fsync` on.

`MELON_POSTGRES=FOLDER` names the folder of the server's programs, where another version than the system's is wanted.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest


def programs() -> Path:
    """The folder of the server's programs; without them a test is skipped."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = shutil.which("initdb", path=os.environ.get("MELON_POSTGRES")) or (str(found[-1]) if found else None)
    if program is None:
        pytest.skip("PostgreSQL's server programs are not installed (Debian: postgresql)")
    return Path(program).resolve().parent


class PostgresServer:
    """One server; it refuses to run as root, so there it runs as `nobody`."""

    def __init__(self, options: str = "") -> None:
        self._programs = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="melon-postgres-"))
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user is not None:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        self.folder.chmod(0o700)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self._run("initdb", "--auth=trust", "--username=melon", "--no-sync", "--encoding=UTF8", "--locale=C")
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(
                f"\nlisten_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = ''\n{options}\n"
            )
        self.start()

    def url(self, schema: str = "melon") -> str:
        return f"postgresql://melon@127.0.0.1:{self.port}/postgres?schema={schema}"

    def start(self) -> None:
        self._run("pg_ctl", "--log", str(self.folder / "log"), "--wait", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "--wait", "--mode", mode, "stop")

    def kill(self) -> None:
        """End the server at once, as a power cut would, and wait until it is gone."""
        number = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(number, signal.SIGKILL)
        while Path(f"/proc/{number}").exists():
            time.sleep(0.02)

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):  # it was stopped by the test
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *words: str) -> None:
        command = [str(self._programs / program), "-D", str(self.folder / "data"), *words]
        subprocess.run(command, check=True, user=self.user, cwd="/", capture_output=program == "initdb")
