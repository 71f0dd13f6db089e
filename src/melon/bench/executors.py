"""Jobs on streams, and where they run: processes of this machine, or a Ray cluster; same code, same inputs."""

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from melon.atomic import replacing
from melon.bench.work import Work
from melon.data.files import load_stream
from melon.data.interactions import Interactions
from melon.errors import MissingExtraError, SettingsError

Ended = TypeVar("Ended")
Ended_co = TypeVar("Ended_co", covariant=True)
_PATIENCE = 1.0  # seconds between two calls of `waiting`
_GONE = 0.5  # seconds that a process may take to end by itself
_RETRIES = 3
_ANSWERS = 10.0  # seconds in which a cluster must answer


class PoolJob(Protocol[Ended_co]):
    """Something to run on a stream that the executor knows by its name.

    Jobs of one group share the work of the one that lays their foundation, and start after it.
    """

    @property
    def key(self) -> str:
        """A name that no other job has."""

    @property
    def group(self) -> str:
        """The name of the work that it shares."""

    @property
    def stream(self) -> str:
        """The name of the stream."""

    @property
    def lays_foundation(self) -> bool:
        """Whether it makes what others of its group start from."""

    @property
    def keeps_work(self) -> bool:
        """Whether what it has done so far is kept, so that it can go on after its worker died."""

    def run(self, log: Interactions, work: Work) -> Ended_co:
        """Run in this process; an expected problem becomes an outcome."""

    def lost(self, problem: str) -> Ended_co:
        """The outcome where its worker died."""


class Executor(ABC, Generic[Ended]):
    """Runs jobs somewhere. What a foundation made stays with the executor and is given to the jobs that follow.

    Leaving its block ends what is running.
    """

    workers: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @abstractmethod
    def submit(self, job: PoolJob[Ended]) -> None:
        """Start a job, or queue it."""

    @abstractmethod
    def outcome(self, patience: float) -> Ended | None:
        """The outcome of the next job that has ended, or None after `patience` seconds."""

    @abstractmethod
    def stop(self) -> None:
        """End what is running."""


def drive(
    executor: Executor[Ended],
    supply: Callable[[], PoolJob[Ended] | None],
    waiting: Callable[[], None],
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Ended]:
    """A job for every worker as long as `supply` has one; outcomes come as jobs end.

    `waiting` is called about once a second. Where there is `enough`, what is still running is given up.
    """
    running = 0
    while not enough():
        while running < executor.workers and (job := supply()) is not None:
            executor.submit(job)
            running += 1
        if not running:
            return
        ended = executor.outcome(_PATIENCE)
        if ended is None:
            waiting()
            continue
        running -= 1
        yield ended


def work_of(folder: Path, job: PoolJob[Ended]) -> Work:
    """Where a job finds the work of its foundation, and keeps its own if that is worth keeping."""
    shared = folder / job.group
    if job.lays_foundation:
        return Work(shared)
    return Work(folder / job.key if job.keeps_work else None, base=shared)


def environment(threads: int) -> dict[str, str]:
    """Environment variables of a process before it loads torch, so that processes do not compete for cores."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}


@dataclass
class _Worker(Generic[Ended]):
    process: Any
    pipe: Connection
    job: PoolJob[Ended] | None = None


class LocalExecutor(Executor[Ended]):
    """Processes on this machine. One that dies takes its own job down and is replaced."""

    def __init__(self, streams: Mapping[str, Path], folder: Path, *, jobs: int, threads: int) -> None:
        self.workers, self._streams, self._folder, self._threads = jobs, streams, folder, threads
        self._context = _context()
        self._pool: list[_Worker[Ended]] = []

    def submit(self, job: PoolJob[Ended]) -> None:
        free = next((worker for worker in self._pool if worker.job is None), None) or self._hire()
        free.job = job
        free.pipe.send(job)

    def outcome(self, patience: float) -> Ended | None:
        busy = {worker.pipe: worker for worker in self._pool if worker.job is not None}
        for pipe in wait(list(busy), patience):
            worker = busy[pipe]  # type: ignore[index]
            job = worker.job
            assert job is not None
            try:
                ended: Ended = worker.pipe.recv()
            except (EOFError, OSError):
                self._pool.remove(worker)
                worker.process.join(_GONE)
                ended = job.lost(f"its process ended early ({_manner(worker.process.exitcode)}).")
            worker.job = None
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

    def _hire(self) -> _Worker[Ended]:
        ours, theirs = self._context.Pipe()
        with _environment(environment(self._threads)):
            given = (theirs, dict(self._streams), self._folder, dict(os.environ))
            process = self._context.Process(target=_serve, args=given, daemon=True, name="melon job")
            process.start()
        theirs.close()
        self._pool.append(_Worker(process, ours))
        return self._pool[-1]


def _context() -> Any:
    """How processes are started: forked from one that has loaded torch and computed nothing, where that can be done."""
    context: Any = mp.get_context("forkserver" if sys.platform == "linux" else "spawn")
    context.set_forkserver_preload(["melon.bench.cell"])
    return context


def _serve(pipe: Connection, streams: Mapping[str, Path], folder: Path, variables: Mapping[str, str]) -> None:
    """A worker's loop: a job in, an outcome out, until the pipe is closed."""
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    load = cache(load_stream)
    while True:
        try:
            job: PoolJob[Any] = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_safely(job, lambda job=job: load(streams[job.stream]), folder))  # type: ignore[misc]


def _safely(job: PoolJob[Ended], log: Callable[[], Interactions], folder: Path) -> Ended:
    """An outcome whatever happens, our own mistakes included."""
    try:
        return job.run(log(), work_of(folder, job))
    except Exception:
        return job.lost(traceback.format_exc())


def _end_with_parent() -> None:
    """End a worker whose parent was killed: no process is left to take its result."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
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


def _manner(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}; the machine may have run out of memory"
    return f"exit code {code}"


class RayExecutor(Executor[Ended]):
    """Tasks on a Ray cluster. Streams travel once, through the object store; a lost worker's job is run again.

    Nodes need no common disk: the work of a foundation travels as bytes, and comes back here so that a command that
    is started again has it.
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
        self._running: dict[Any, tuple[PoolJob[Ended], Any]] = {}
        self._remote = ray.remote(num_cpus=threads, num_returns=2, max_retries=_RETRIES)(_run_remotely)

    def submit(self, job: PoolJob[Ended]) -> None:
        if job.group not in self._bases:
            self._bases[job.group] = self._ray.put(_files(self._folder / job.group))
        outcome, made_files = self._remote.remote(job, self._logs[job.stream], self._bases[job.group])
        self._running[outcome] = (job, made_files)

    def outcome(self, patience: float) -> Ended | None:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=patience)
        if not ready:
            return None
        job, made_files = self._running.pop(ready[0])
        try:
            ended: Ended = self._ray.get(ready[0])
            if job.lays_foundation:
                files: dict[str, bytes] = self._ray.get(made_files)
                self._bases[job.group] = made_files
                _write(files, self._folder / job.group)
        except self._ray.exceptions.RayError as problem:
            return job.lost(f"its worker was lost {_RETRIES} times: {problem}")
        return ended

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()


def _run_remotely(job: PoolJob[Ended], log: Interactions, base: Mapping[str, bytes]) -> tuple[Ended, dict[str, bytes]]:
    folder = Path(tempfile.mkdtemp(prefix="melon-job-"))
    try:
        _write(base, folder / job.group)
        ended = _safely(job, lambda: log, folder)
        return ended, _files(folder / job.group) if job.lays_foundation else {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> dict[str, bytes]:
    """The finished files of a folder."""
    if not folder.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".part"}


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


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("--ray", "ray") from None
    return ray


def executor_for(
    streams: Mapping[str, Path], folder: Path, *, jobs: int, ray: str | None, threads: int
) -> Executor[Any]:
    """What `--jobs` and `--ray` ask for; the folder keeps the work that jobs share."""
    if jobs < 1:
        raise SettingsError(f"jobs = {jobs} is too few: it must be at least 1.")
    if ray is not None:
        return RayExecutor(streams, folder, address=ray, threads=threads)
    return LocalExecutor(streams, folder, jobs=jobs, threads=threads)
