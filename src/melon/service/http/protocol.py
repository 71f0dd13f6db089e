"""Connections: slow clients are ended, and what is no HTTP request is answered in the one shape of errors."""

from __future__ import annotations

import asyncio
import http
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: A client that takes nothing of an answer for so long is gone.
_STALLED_S = 30.0
#: Bytes of a request line and headers, at most.
_HEAD_MOST = 64 << 10


def patient_protocol(header_s: float, body_rate: float, connections: int) -> type[asyncio.Protocol]:
    """uvicorn's protocol with a clock: `header_s` for a request's headers, `body_rate` bytes a second for its body.

    Connections beyond a limit are refused.
    """

    class Patient(HttpToolsProtocol):
        _received, _head, _began = 0, 0, 0.0
        _in_head, _whole = True, False  # of the request that arrives
        _ended = False
        _clock: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start()
            if len(self.connections) > connections:
                # Whoever only keeps a connection makes room for somebody who asks.
                others = [one for one in self.connections if isinstance(one, Patient) and one is not self]
                idle = [one for one in others if one._idle()]
                if idle:
                    min(idle, key=lambda one: one._began)._end()
                else:
                    self._refuse(503, "busy", "Too many connections are open.")

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._clock, self._stalled):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            if self._clock is None and not self._busy():
                self._start()
            self._received += len(data)
            super().data_received(data)
            if self._clock is None:
                return
            if self._whole and self._busy():
                self._clock.cancel()
                self._clock = None
            elif self._in_head and self._received > _HEAD_MOST:
                self._head = self._received
                self.send_400_response("")

        def on_message_begin(self) -> None:
            self._whole, self._in_head, self._head = False, True, 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_head:
                return  # behind the body; nobody reads it, and there may be any number
            self._head += len(name) + len(value)
            if self._head > _HEAD_MOST:
                raise ValueError
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._whole = True
            super().on_message_complete()

        def eof_received(self) -> bool:  # type: ignore[override]
            """A client that has said everything may still read its answers."""
            self._ended = self._whole and self._busy()
            if self._ended:
                self.scope["ended"] = True  # type: ignore[typeddict-unknown-key]
            return self._ended

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._ended and not self._busy():
                self.transport.close()

        def send_400_response(self, msg: str) -> None:
            if self._head > _HEAD_MOST:
                self._refuse(431, "headers_too_long", f"A request has at most {_HEAD_MOST} bytes of headers.")
            else:
                self._refuse(400, "invalid_http", msg)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(_STALLED_S, self._end)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _start(self) -> None:
            self._began, self._received = self.loop.time(), 0
            self._clock = self.loop.call_later(header_s, self._look)

        def _idle(self) -> bool:
            """Whether nothing of a request has come since the last one was answered."""
            return not self._busy() and (self._whole or not self._received)

        def _busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _look(self) -> None:
            """After the time for headers, and then each second of a body that somebody waits for."""
            self._clock = None
            seconds = self.loop.time() - self._began
            in_time = self._received >= body_rate * (seconds - header_s)
            if self._busy() and not self._in_head and in_time:
                self._clock = self.loop.call_later(1.0, self._look)
            elif not self._whole:
                self._end()

        def _refuse(self, status: int, code: str, message: str) -> None:
            body = json.dumps({"error": {"code": code, "message": message}})
            head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            head += "retry-after: 1\r\n" if status == 503 else ""
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
            self.transport.close()

        def _end(self) -> None:
            if not self.transport.is_closing():
                self.transport.abort()

    return Patient
