"""What a process of the service needs: it ends with the one that started it, and logs lines of JSON."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque

#: Set once this process does its work: what ends it from then on may be gone when it is started again.
began = threading.Event()
#: Lines are written together: seconds that they wait at most, and how many may wait.
_LINES_S, _LINES_MOST = 0.1, 10_000
_PR_SET_PDEATHSIG = 1


def until_signalled() -> threading.Event:
    """What is set when this process is asked to end (SIGTERM, SIGINT)."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def die_with(parent: int) -> None:
    """Have this process end at once when its parent does: the port and the log are free for the next one."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before this was asked
        sys.exit(0)


def log_as_json() -> None:
    """Log lines of this process as JSON on standard error, written by a thread: a reader that stalls stops nobody."""
    lines = LogLines()
    lines.setFormatter(JsonLines())
    atexit.register(lines.flush)
    threading.Thread(target=lines.run, name="log lines", daemon=True).start()
    logging.basicConfig(handlers=[lines], level=os.environ.get("MELON_LOG_LEVEL", "INFO").upper(), force=True)


class LogLines(logging.Handler):
    """Lines that wait to be written together; beyond a number they are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[logging.LogRecord] = deque()
        self._writing = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) < _LINES_MOST:
            self._waiting.append(record)

    def flush(self) -> None:
        """Write what waits."""
        with self._writing:
            texts = [f"{self.format(self._waiting.popleft())}\n" for _ in range(len(self._waiting))]
            if texts:
                with contextlib.suppress(OSError, ValueError):  # nobody reads any more
                    sys.stderr.write("".join(texts))
                    sys.stderr.flush()

    def run(self) -> None:
        while True:
            time.sleep(_LINES_S)
            self.flush()


class JsonLines(logging.Formatter):
    """Log records as JSON, one to a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)
