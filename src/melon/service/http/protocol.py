"""Connections that end clients who are too slow: for headers, for a body, or in taking an answer."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Base
except ImportError:  # httptools is not built for this platform
    _Base = H11Protocol  # type: ignore[assignment, misc]

#: A client that takes nothing of an answer for so long is gone.
_STALLED_S = 30.0


def patient_protocol(header_s: float, body_rate: float, head_most: int = 32 << 10) -> type[asyncio.Protocol]:
    """uvicorn's protocol with a clock: `header_s` for a request's headers, `body_rate` bytes a second for its body."""

    class Patient(_Base):
        _received = 0
        _began = 0.0
        _clock: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._clock, self._stalled):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._clock is None and (self.cycle is None or self.cycle.response_complete):
                self._start()
            self._received += len(data)
            super().data_received(data)
            if self._clock is None:
                return
            if self._answering():
                self._clock.cancel()
                self._clock = None
            elif not self._in_body() and self._received > head_most:
                self._end()

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

        def _in_body(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body

        def _answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

        def _look(self) -> None:
            """After the time for headers, and then each second of a body."""
            self._clock = None
            seconds = self.loop.time() - self._began
            if self._in_body() and self._received >= body_rate * (seconds - header_s):
                self._clock = self.loop.call_later(1.0, self._look)
            elif not self._answering():
                self._end()

        def _end(self) -> None:
            if self.transport is not None and not self.transport.is_closing():
                self.transport.abort()

    return Patient
