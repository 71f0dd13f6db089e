"""Where the cells of a bench run: processes of this machine, or a Ray cluster; same code, same inputs."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from melon.atomic import replacing
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import MissingExtraError, SettingsError
from melon.evaluation.work import Work

if TYPE_CHECKING:
    from melon.lab.bench import CellOutcome, Task

_RETRIES = 3
_ANSWERS = 10.0  # seconds in which a cluster must answer


class Executor(ABC):
    """Runs cells somewhere. What the first cell of a group made is given to the others. Leaving its block ends all."""

    workers: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Start a cell, or queue it."""

    @abstractmethod
    def outcome(self, patience: float) -> CellOutcome | None:
        """The outcome of the next cell that has ended, or None after `patience` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """End what is running."""


def executor_for(streams: Mapping[str, Path], folder: Path, *, jobs: int, ray: str | None, threads: int) -> Executor:
    """What `--jobs` and `--ray` ask for; the folder keeps the work that cells share."""
    if jobs < 1:
        raise SettingsError(f"jobs = {jobs} is too few: it must be at least 1.")
    if ray is not None:
        return RayExecutor(streams, folder, address=ray, threads=threads)
    return LocalExecutor(streams, folder, jobs=jobs, threads=threads)


def environment(threads: int) -> dict[str, str]:
    """Environment variables of a process before it loads torch, so that processes do not compete for cores."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}


def _run(task: Task, log: Interactions, folder: Path) -> CellOutcome:
    """An outcome whatever happens, our own mistakes included."""
    try:
        shared = folder / task.group
        return task.run(log, Work(shared) if task.shared else Work(folder / task.key, base=shared))
    except Exception:
        return task.lost(traceback.format_exc())


class LocalExecutor(Executor):
    """Processes on this machine, each a pool of its own: one that dies takes its own cell down and is replaced."""

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, jobs: int, threads: int) -> None:
        self.workers, self._streams, self._folder, self._threads = jobs, dict(streams), folder, threads
        self._free: list[ProcessPoolExecutor] = []
        self._running: dict[Future[CellOutcome], tuple[Task, ProcessPoolExecutor]] = {}
        self._context: Any = mp.get_context("forkserver" if sys.platform == "linux" else "spawn")
        self._context.set_forkserver_preload(["melon.evaluation.cell"])

    def submit(self, task: Task) -> None:
        variables = environment(self._threads)
        pool = self._free.pop() if self._free else ProcessPoolExecutor(1, self._context, _start, (variables,))
        with _environment(variables):
            future = pool.submit(_run_here, task, self._streams[task.stream], self._folder)
        self._running[future] = task, pool

    def outcome(self, patience: float) -> CellOutcome | None:
        ended, _ = wait(self._running, patience, FIRST_COMPLETED)
        if not ended:
            return None
        future = ended.pop()
        task, pool = self._running.pop(future)
        try:
            result = future.result()
        except BrokenProcessPool:
            pool.shutdown(wait=False)
            return task.lost("its process ended early; the machine may have run out of memory.")
        self._free.append(pool)
        return result

    def stop(self) -> None:
        for pool in (*self._free, *(pool for _, pool in self._running.values())):
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
        self._free.clear()
        self._running.clear()


_stream = cache(load_stream)


def _run_here(task: Task, stream: Path, folder: Path) -> CellOutcome:
    return _run(task, _stream(stream), folder)


def _start(variables: Mapping[str, str]) -> None:
    """A worker leaves Ctrl-C to the process that started it, and ends with it."""
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for processes that are started inside."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class RayExecutor(Executor):
    """Tasks on a Ray cluster; a lost worker's cell is run again.

    Nodes need no common disk: streams and shared work travel through the object store, and shared work comes back here.
    """

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, address: str, threads: int) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtraError("--ray", "ray") from None
        self._ray: Any = ray
        self._folder = folder
        _require_cluster(address)
        variables = {"env_vars": environment(threads)}
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=variables)
        except (ConnectionError, OSError, ValueError, RuntimeError) as problem:
            raise SettingsError(f"no Ray cluster at {address!r}: {str(problem).partition(chr(10))[0]}") from None
        self.workers = max(int(ray.cluster_resources().get("CPU", 1)) // threads, 1)
        self._logs = {name: ray.put(load_stream(path)) for name, path in streams.items()}
        self._shared: dict[str, Any] = {}
        self._running: dict[Any, tuple[Task, Any]] = {}
        self._remote = ray.remote(num_cpus=threads, num_returns=2, max_retries=_RETRIES)(_run_remotely)

    def submit(self, task: Task) -> None:
        if task.group not in self._shared:
            self._shared[task.group] = self._ray.put(_files(self._folder / task.group))
        outcome, files = self._remote.remote(task, self._logs[task.stream], self._shared[task.group])
        self._running[outcome] = task, files

    def outcome(self, patience: float) -> CellOutcome | None:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=patience)
        if not ready:
            return None
        task, files = self._running.pop(ready[0])
        try:
            ended: CellOutcome = self._ray.get(ready[0])
            if task.shared:
                self._shared[task.group] = files
                _write(self._ray.get(files), self._folder / task.group)
        except self._ray.exceptions.RayError as problem:
            return task.lost(f"its worker was lost {_RETRIES} times: {problem}")
        return ended

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _run_remotely(task: Task, log: Interactions, shared: Mapping[str, bytes]) -> tuple[CellOutcome, dict[str, bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="melon-cell-"))
    try:
        _write(shared, folder / task.group)
        ended = _run(task, log, folder)
        return ended, _files(folder / task.group) if task.shared else {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    """The finished files of a folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path.read_bytes() for path in paths if path.suffix != ".part"}


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        with replacing(folder / name) as unfinished:
            unfinished.write_bytes(content)


def _require_cluster(address: str) -> None:
    """Raise at once if nothing listens at an address; Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # `auto`, or a form that Ray itself looks at
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS).close()
    except OSError as problem:
        raise SettingsError(f"no Ray cluster at {address!r}: {problem.strerror or problem}.") from None
