"""Where cells run: in processes of this machine, or on a Ray cluster. Both run the same function on the same inputs."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import MissingExtraError, SettingsError
from melon.experiments.grid import Outcome, Task, run_task, work_of
from melon.experiments.work import Work

_GONE = 0.5  # seconds that a process may take to end by itself
_RETRIES = 3
_ANSWERS = 10.0  # seconds in which a cluster must answer


def environment(threads: int) -> dict[str, str]:
    """What a process is told before it loads torch, so that processes side by side do not fight for cores."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    task: Task | None = None


class LocalExecutor:
    """Processes on this machine. One that dies takes its own cell down and is replaced."""

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, jobs: int, threads: int) -> None:
        self.workers, self._streams, self._folder, self._threads = jobs, streams, folder, threads
        self._context = mp.get_context("spawn")
        self._pool: list[_Worker] = []

    def submit(self, task: Task) -> None:
        free = next((worker for worker in self._pool if worker.task is None), None) or self._hire()
        free.task = task
        free.pipe.send(task)

    def outcome(self, patience: float) -> Outcome | None:
        busy = {worker.pipe: worker for worker in self._pool if worker.task is not None}
        for pipe in wait(list(busy), patience):
            worker = busy[pipe]  # type: ignore[index]
            task = worker.task
            assert task is not None
            try:
                ended: Outcome = worker.pipe.recv()
            except (EOFError, OSError):
                self._pool.remove(worker)
                worker.process.join(_GONE)
                ended = Outcome(task, problem=f"its process ended early ({_manner(worker.process.exitcode)}).")
            worker.task = None
            return ended
        return None

    def stop(self) -> None:
        for worker in self._pool:
            worker.pipe.close()
            worker.process.terminate()
            worker.process.join(_GONE)
            if worker.process.is_alive():
                worker.process.kill()
        self._pool.clear()

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, dict(self._streams), self._folder), daemon=True, name="melon cell"
        )
        with _told(environment(self._threads)):
            process.start()
        theirs.close()
        self._pool.append(_Worker(process, ours))
        return self._pool[-1]


def _serve(pipe: Connection, streams: Mapping[str, Path], folder: Path) -> None:
    """The life of a worker: a task in, an outcome out, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of the process that started us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    load = cache(load_stream)
    while True:
        try:
            task: Task = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_safely(task, lambda task=task: load(streams[task.stream]), work_of(folder, task)))


def _safely(task: Task, log: Any, work: Work) -> Outcome:
    """An outcome whatever happens, our own mistakes included."""
    try:
        return run_task(task, log(), work)
    except Exception:
        return Outcome(task, problem=traceback.format_exc())


def _end_with_parent() -> None:
    """A worker whose parent was killed has nobody to tell its result."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _told(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _manner(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}; the machine may have run out of memory"
    return f"exit code {code}"


class RayExecutor:
    """Tasks on a Ray cluster. Streams travel once, through the object store; a lost worker's cell is run again.

    Nodes need no common disk: the work of a foundation travels as bytes, and comes back here so that a bench that is
    started again has it.
    """

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, address: str, threads: int) -> None:
        self._ray = ray = _import_ray()
        self._folder = folder
        _require_cluster(address)
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": environment(threads)},
            )
        except (ConnectionError, OSError, ValueError, RuntimeError) as problem:
            raise SettingsError(f"no Ray cluster at {address!r}: {str(problem).partition(chr(10))[0]}") from None
        self.workers = max(int(ray.cluster_resources().get("CPU", 1)) // threads, 1)
        self._logs = {name: ray.put(load_stream(path)) for name, path in streams.items()}
        self._bases: dict[str, Any] = {}
        self._running: dict[Any, tuple[Task, Any]] = {}
        self._remote = ray.remote(num_cpus=threads, num_returns=2, max_retries=_RETRIES)(_run_remotely)

    def submit(self, task: Task) -> None:
        if task.group not in self._bases:
            self._bases[task.group] = self._ray.put(_files(self._folder / task.group))
        outcome, made = self._remote.remote(task, self._logs[task.stream], self._bases[task.group])
        self._running[outcome] = (task, made)

    def outcome(self, patience: float) -> Outcome | None:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=patience)
        if not ready:
            return None
        task, made = self._running.pop(ready[0])
        try:
            ended: Outcome = self._ray.get(ready[0])
            if task.lays_foundation:
                files: dict[str, bytes] = self._ray.get(made)
                self._bases[task.group] = made
                _write(files, self._folder / task.group)
        except self._ray.exceptions.RayError as problem:
            return Outcome(task, problem=f"its worker was lost {_RETRIES} times: {problem}")
        return ended

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _run_remotely(task: Task, log: Interactions, base: Mapping[str, bytes]) -> tuple[Outcome, dict[str, bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="melon-cell-"))
    try:
        _write(base, folder / task.group)
        ended = _safely(task, lambda: log, work_of(folder, task))
        return ended, _files(folder / task.group) if task.lays_foundation else {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    """The finished files of a folder."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".part"}


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        unfinished = folder / f"{name}.part"
        unfinished.write_bytes(content)
        os.replace(unfinished, folder / name)


def _require_cluster(address: str) -> None:
    """Tell at once that nobody listens at an address, where Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # `auto`, or a form that Ray itself looks at
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS).close()
    except OSError as problem:
        raise SettingsError(f"no Ray cluster at {address!r}: {problem.strerror or problem}.") from None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("--ray", "ray") from None
    return ray
