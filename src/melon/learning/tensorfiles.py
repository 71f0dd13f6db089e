"""A folder of tensor files named by their content: written whole or not at all, and verified when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from melon.errors import CheckpointError
from melon.types import AnyArray

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where only one process should use a folder at a time
    fcntl = None  # type: ignore[assignment]

_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_TEMPORARY = re.compile(r"\.melon-[0-9a-f]{32}\.tmp")
_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
_CHUNK = 1 << 24


class FolderWriter:
    """Adds tensor files to a folder. They count when `commit` has replaced the file that names them.

    Leaving the block without a commit takes back what was added; leaving it after one removes what nothing names.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[str, int] = {}
        self._temporary: Path | None = None
        self._added: list[Path] = []
        self._committed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            if self._temporary:
                self._temporary.unlink(missing_ok=True)
            if not self._committed:
                for path in self._added:
                    path.unlink(missing_ok=True)
            elif error is None:
                self._sweep()

    def add(self, tensors: Mapping[str, AnyArray]) -> str:
        """Write tensors as one file and return its name, which is the SHA-256 of its bytes."""
        digest = hashlib.sha256()
        with self._file() as descriptor:
            size = 0
            for piece in pieces(tensors):
                digest.update(piece)
                _write(descriptor, piece)
                size += len(piece)
        final = self.path / f"{digest.hexdigest()}.safetensors"
        if not final.exists():
            self._added.append(final)
        self._move(final)
        self.sizes[final.name] = size
        return final.name

    def commit(self, name: str, content: bytes) -> None:
        """Put `content` in the place of the file `name`: from this moment on, what was added counts."""
        with self._file() as descriptor:
            _write(descriptor, content)
        # The tensors' names must be on disk before anything refers to them.
        _sync(self.path)
        # Said beforehand: an interruption must never take back tensors that the new file may already name.
        self._committed = True
        try:
            self._move(self.path / name)
        except OSError:
            self._committed = False
            raise
        _sync(self.path)

    @contextlib.contextmanager
    def _file(self) -> Iterator[int]:
        self._temporary = self.path / f".melon-{uuid.uuid4().hex}.tmp"
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _move(self, final: Path) -> None:
        assert self._temporary is not None
        os.replace(self._temporary, final)
        self._temporary = None

    def _sweep(self) -> None:
        for path in list(self.path.iterdir()):
            stale = _NAME.fullmatch(path.name) and path.name not in self.sizes
            if stale or _TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def tensor_file(folder: Path, name: str, sizes: Mapping[str, int]) -> Path:
    """The path of a tensor file that the manifest names, if it is there and as large as the manifest says."""
    if not _NAME.fullmatch(name) or name not in sizes:
        raise CheckpointError(f"the manifest of {folder} names {name!r}, which is not one of its tensor files.")
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"the checkpoint {folder} is incomplete: {name} is missing; copy the whole folder again.")
    size = path.stat().st_size
    if size != sizes[name]:
        raise CheckpointError(
            f"the checkpoint {folder} is damaged: {name} has {size} bytes instead of {sizes[name]}; copy it again."
        )
    return path


def read_tensors(folder: Path, name: str, sizes: Mapping[str, int]) -> dict[str, AnyArray]:
    """The tensors of one file, after its bytes were found to be those that its name promises."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = tensor_file(folder, name, sizes)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if f"{digest}.safetensors" != name:
        raise CheckpointError(
            f"the checkpoint {folder} is damaged: the bytes of {name} have changed since they were written; "
            "copy it again."
        )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a file of tensors: {error}.") from error


@contextlib.contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep a writer of this folder apart from its readers and from other writers, where the system knows locks."""
    if fcntl is None or not folder.is_dir():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have none
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def pieces(tensors: Mapping[str, AnyArray]) -> Iterator[bytes | memoryview]:
    """A safetensors file, piece by piece and without copying: header length, header, then the tensors.

    Sorted by size of number and by name, as the format's own writer does, so that the bytes depend on nothing else.
    """
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    names = sorted(plain, key=lambda name: (-plain[name].itemsize, name))
    header, end = {}, 0
    for name in names:
        tensor = plain[name]
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        if plain[name].nbytes:
            yield plain[name].reshape(-1).view(np.uint8).data


def _plain(name: str, array: AnyArray) -> AnyArray:
    if array.dtype.name not in _CODES:
        raise CheckpointError(f"the array {name!r} holds {array.dtype} and cannot be saved; use plain numbers.")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _write(descriptor: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view[:_CHUNK]) :]


def _sync(folder: Path) -> None:
    """Make the names in a folder last; some systems do that by themselves and refuse to be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
