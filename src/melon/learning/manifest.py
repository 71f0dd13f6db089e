"""The manifest of a checkpoint: what the state is and which files hold it, typed, and protected by a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from melon import __version__
from melon.errors import CheckpointError
from melon.learning.tensorfiles import tensor_file
from melon.stream.saved import MOST, require
from melon.tables import TableSpec

FORMAT, VERSION = "melon-checkpoint", 3
MANIFEST = "manifest.json"

_Size = Annotated[int, Field(ge=0, le=MOST)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _RecommenderFields(_Strict):
    name: str
    settings: dict[str, Any]
    loss: str
    seed: int
    dtype: Literal["float32", "float64"]


class _StrategyFields(_Strict):
    name: str
    settings: dict[str, Any]
    seed: int


class _UpdaterFields(_Strict):
    seed: int
    # Earlier folders of this format name the clock, of which there is one now.
    decay_clock: Literal["interactions"] = "interactions"
    clock: None = None


class _TableFields(_Strict):
    name: str
    role: Literal["user", "item", "shared"]
    kind: Literal["embedding", "bias", "weight"]
    dim: _Size
    rows: _Size
    half_life: Annotated[float, Field(gt=0)] | None
    row_state: list[str]
    file: str


class _StateFields(_Strict):
    streaming_state: str
    memory: str
    history: str
    arrays: str


class Manifest(_Strict):
    """Everything that a manifest says."""

    format: Literal["melon-checkpoint"]
    version: int
    melon: str
    recommender: _RecommenderFields
    strategy: _StrategyFields
    updater: _UpdaterFields
    tables: list[_TableFields]
    state: _StateFields
    files: dict[str, _Size]
    extra: dict[str, Any]
    digest: str


def read_manifest(folder: Path) -> Manifest:
    """What a checkpoint says about itself, without reading its tensors; every value is of the type it must have."""
    path = folder / MANIFEST
    if not folder.exists():
        raise CheckpointError(f"there is no checkpoint {folder}: the folder does not exist.")
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no checkpoint: there is no {MANIFEST} in it.")
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint's manifest: {error}.") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by melon; point to a folder that `save` made.")
    version = values.get("version")
    if version != VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > VERSION
        way_out = "upgrade melon to read it" if newer else "save the model again with this version of melon"
        raise CheckpointError(
            f"{folder} has checkpoint format {version!r}, and this melon ({__version__}) reads {VERSION}; {way_out}."
        )
    try:
        manifest = Manifest.model_validate(values)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "it is nested too deep"}
        place = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(f"{path} is damaged: {place}: {first['msg']}.") from None
    if manifest.digest != digest_of(values):
        raise CheckpointError(
            f"{path} is damaged: it has changed since it was written. Copy the whole folder again, or save the model "
            "again."
        )
    return manifest


def check_tables(source: Path, manifest: Manifest, specs: Sequence[TableSpec]) -> None:
    """The tables of the manifest are those that the recommender declares, and their files are large enough for them."""
    name = manifest.recommender.name
    saved = [table.model_dump(include={"name", "role", "kind", "dim"}) for table in manifest.tables]
    declared = [shape_of(spec) for spec in specs]
    if len(saved) != len(declared):
        raise CheckpointError(f"{source} names a table of {name!r} twice or not at all.")
    for table in declared + saved:
        if table not in saved or table not in declared:
            raise CheckpointError(
                f"{source} and the recommender {name!r} disagree about the table {table['name']!r}: it was saved with "
                "another version of the recommender."
            )
    fixed = {spec.name: spec.rows for spec in specs if spec.role == "shared"}
    for entry in manifest.tables:
        rows = fixed.get(entry.name, entry.rows)
        held = tensor_file(source, entry.file, manifest.files).stat().st_size
        require(rows * entry.dim <= held, f"{entry.name!r} has {rows} × {entry.dim} numbers in a file of {held} bytes")


def shape_of(spec: TableSpec) -> dict[str, Any]:
    """A table as a manifest describes it."""
    return {"name": spec.name, "role": spec.role, "kind": spec.kind, "dim": spec.dim}


def write_manifest(values: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest, its digest among them; equal values are equal bytes."""
    plain = as_json(values)
    complete = {**plain, "digest": digest_of(plain)}
    return json.dumps(complete, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def digest_of(values: Mapping[str, Any]) -> str:
    """SHA-256 of everything but the digest itself, in one canonical form."""
    rest = {name: value for name, value in values.items() if name != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def as_json(value: Any, place: str = "") -> Any:
    """A value as JSON can hold it: numbers of numpy become plain ones; what is not finite or no JSON is an error."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping):
        return {_key(name, place): as_json(held, f"{place}.{name}".lstrip(".")) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(held, f"{place}[{number}]") for number, held in enumerate(value)]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and np.isfinite(value)):
        return value
    raise CheckpointError(f"{place} = {value!r} cannot be saved: it must be plain, finite JSON.")


def _key(name: object, place: str) -> str:
    if not isinstance(name, str):
        raise CheckpointError(f"{place} has the name {name!r}, which cannot be saved: names must be texts.")
    return name
