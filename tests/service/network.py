"""Machines for tests: network namespaces where root may make them, and a wire to a server that delays and cuts."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence

IP = shutil.which("ip", path="/usr/sbin:/usr/bin:/sbin")
#: Whether this process may make namespaces: root, with iproute2 (Debian).
CAN_SEPARATE = IP is not None and os.geteuid() == 0

#: The end of what a client of PostgreSQL sends at once.
_SYNC = b"S\0\0\0\4"


def _ip(*words: str) -> None:
    subprocess.run([str(IP), *words], check=True, capture_output=True)


class Machine:
    """A machine with a cable of its own: a network namespace, or loopback where there can be none."""

    def __init__(self, number: int) -> None:
        self.address = self.gateway = "127.0.0.1"
        self.command: Sequence[str] = ()
        self._name, self._cable = f"melon-{os.getpid()}-{number}", f"melon{os.getpid() % 10_000}n{number}"
        if not CAN_SEPARATE:
            return
        net = f"10.{os.getpid() % 190 + 30}.{number}"  # another one than that of a test beside this one
        self.address, self.gateway = f"{net}.2", f"{net}.1"
        self.command = (str(IP), "netns", "exec", self._name)
        _ip("netns", "add", self._name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._name)
        _ip("addr", "add", f"{self.gateway}/30", "dev", self._cable)
        _ip("-n", self._name, "addr", "add", f"{self.address}/30", "dev", "eth0")
        for name in ("lo", "eth0"):
            _ip("-n", self._name, "link", "set", name, "up")
        self.plug(in_place=True)

    def plug(self, *, in_place: bool) -> None:
        """Put the cable in, or pull it out: then packets vanish, and nobody is told."""
        _ip("link", "set", self._cable, "up" if in_place else "down")

    def remove(self) -> None:
        """Take it away, with its cable."""
        if CAN_SEPARATE:
            _ip("netns", "del", self._name)


class Wire:
    """A wire from a machine to a port of loopback: it can delay, hold everything back, be cut on one side or both.

    With `torn` it is cut on the machine's side in the middle of what is sent to PostgreSQL, inside a transaction that
    holds the log's lock: all has arrived but the last word, for which the server waits.
    """

    def __init__(self, address: str, port: int) -> None:
        self._to = port
        self.delay, self.held, self.closed, self.torn = 0.0, False, False, False
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._halves: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._connect, address, 0))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def _run(self, work: object) -> asyncio.Server:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)  # type: ignore[arg-type]

    def cut(self, *, half: bool = False) -> None:
        """Reset all connections; with `half` the server's side stays open, as if the machine had lost its power."""

        def reset() -> None:
            for pair in tuple(self._pairs):
                if half:
                    self._halves.add(pair)
                    pair[0].transport.abort()
                else:
                    for end in pair:
                        end.transport.abort()

        self._loop.call_soon_threadsafe(reset)

    def remove(self) -> None:
        """Cut it for ever."""

        def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.1, self._loop.stop)

        self._loop.call_soon_threadsafe(end)
        self._thread.join(10)

    async def _connect(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self.closed:
            client.transport.abort()
            return
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            client.transport.abort()
            return
        pair = client, server
        self._pairs.add(pair)
        there, back = map(asyncio.ensure_future, (self._pump(reader, server, there=True), self._pump(answers, client)))
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        if pair in self._halves:
            await back  # until the server ends it
        there.cancel()
        back.cancel()
        self._pairs.discard(pair)
        self._halves.discard(pair)
        for end in pair:
            end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, there: bool = False) -> None:
        locked = False
        try:
            while content := await reader.read(65_536):
                locked = (locked or b"pg_advisory_xact_lock" in content) and b"COMMIT" not in content
                if there and self.torn and locked and content.endswith(_SYNC):
                    self.torn, self.closed = False, True
                    writer.write(content.removesuffix(_SYNC))
                    self.cut(half=True)
                    return
                if self.delay:
                    await asyncio.sleep(self.delay)
                while self.held:
                    await asyncio.sleep(0.02)
                writer.write(content)
                await writer.drain()
        except OSError:
            pass
