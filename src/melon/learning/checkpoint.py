"""A model as one state on disk: tensors named by their content, and a manifest that is replaced last.

`manifest.json` says what the state is and names its `*.safetensors` files by their SHA-256. A save writes new tensors
beside the old ones and then replaces the manifest in one step, so whatever interrupts it leaves the previous state
whole. Nothing here depends on when or how often a state was saved: equal states are equal bytes.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from melon import __version__
from melon.errors import CheckpointError, MelonError, MissingExtraError
from melon.learning.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    Manifest,
    check_tables,
    read_manifest,
    shape_of,
    write_manifest,
)
from melon.learning.tensorfiles import FolderWriter, locked, read_tensors
from melon.learning.updater import Updater
from melon.models.base import Recommender
from melon.models.registry import RECOMMENDERS
from melon.registry import Registry
from melon.strategies.base import Strategy
from melon.strategies.registry import STRATEGIES
from melon.stream.history import History
from melon.stream.saved import MOST, require, saved_array
from melon.tables import Table, TableSpec
from melon.types import AnyArray

PathLike = str | os.PathLike[str]


class RecommenderFactory(Protocol):
    """Makes the recommender of a checkpoint; a `Recommender` class is one."""

    def __call__(self, settings: Mapping[str, Any], /, *, seed: int, dtype: npt.DTypeLike) -> Recommender: ...


class StrategyFactory(Protocol):
    """Makes the strategy of a checkpoint; a `Strategy` class is one."""

    def __call__(self, settings: Mapping[str, Any], /, *, seed: int) -> Strategy: ...


@dataclass(frozen=True)
class SavedUpdater:
    """What a checkpoint holds: an updater that goes on where it stopped, and what its owner added."""

    updater: Updater
    extra: dict[str, Any]
    arrays: dict[str, AnyArray]


def save(
    folder: PathLike,
    updater: Updater,
    *,
    extra: Mapping[str, Any] | None = None,
    arrays: Mapping[str, AnyArray] | None = None,
) -> None:
    """Write the updater, and whatever `extra` (JSON) and `arrays` the caller adds, as the folder's one state.

    If anything fails or the process dies, the folder still holds the state that was saved before.
    """
    target = Path(folder)
    recommender = updater.recommender
    half_lives = updater.moment().half_lives
    try:
        target.mkdir(parents=True, exist_ok=True)
        with locked(target, exclusive=True):
            _refuse_foreign(target)
            # One table at a time, so that no more than one is ever held twice.
            with FolderWriter(target) as writing:
                tables = [_write_table(writing, updater, table, half_lives) for table in recommender.tables.values()]
                state = {
                    "streaming_state": writing.add(recommender.streaming_state()),
                    "memory": writing.add(updater.strategy.memory()),
                    "history": writing.add(updater.history.state()),
                    "arrays": writing.add(arrays or {}),
                }
                manifest = {
                    "format": FORMAT,
                    "version": VERSION,
                    "melon": __version__,
                    **_configuration(updater),
                    "tables": tables,
                    "state": state,
                    "files": writing.sizes,
                    "extra": dict(extra or {}),
                }
                writing.commit(MANIFEST, write_manifest(manifest))
    except OSError as error:
        why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise CheckpointError(
            f"the model could not be saved in {target}: {why}. The folder is unchanged; "
            "remove the cause or choose another folder, and save again."
        ) from error


def load(
    folder: PathLike,
    *,
    recommender: RecommenderFactory | None = None,
    strategy: StrategyFactory | None = None,
) -> SavedUpdater:
    """The state that `save` wrote, every byte of it verified.

    A recommender or strategy that no registry knows is made by the `recommender` or `strategy` given: a class, or
    anything that is called like one.
    """
    source = Path(folder)
    with locked(source, exclusive=False):
        manifest = read_manifest(source)
        for kind, factory in (("recommender", recommender), ("strategy", strategy)):
            _expect(source, kind, getattr(manifest, kind).name, getattr(factory, "name", None))
        try:
            return _restore(source, manifest, recommender, strategy)
        except OSError as error:
            raise CheckpointError(f"the checkpoint {source} cannot be read: {error}.") from error
        except CheckpointError as error:
            if str(source) in str(error):
                raise
            raise CheckpointError(f"the checkpoint {source} is damaged: {error}") from error
        except MissingExtraError:
            raise
        except MelonError as error:
            raise CheckpointError(
                f"the checkpoint {source} does not fit this version of melon ({__version__}; it was saved by "
                f"{manifest.melon}): {error}"
            ) from error
        except Exception as error:
            # Whatever a recommender or strategy of one's own says about a state that it cannot be in.
            raise CheckpointError(
                f"the checkpoint {source} is damaged: its manifest and its tensors contradict each other ({error!r})."
            ) from error


def _configuration(updater: Updater) -> dict[str, Any]:
    recommender, strategy = updater.recommender, updater.strategy
    return {
        "recommender": {
            "name": recommender.name,
            "settings": recommender.settings.plain(),
            "loss": type(recommender.loss).__qualname__,
            "seed": recommender.seed,
            "dtype": recommender.dtype.name,
        },
        "strategy": {"name": strategy.name, "settings": strategy.settings.plain(), "seed": strategy.seed},
        "updater": {"seed": updater.seed},
    }


def _write_table(
    writing: FolderWriter, updater: Updater, table: Table, half_lives: Mapping[str, float]
) -> dict[str, Any]:
    row_state = {key: state.state() for key, state in updater.row_state.get(table.spec.name, {}).items()}
    tensors = table.state() | {
        f"{key}/{part}": tensor for key, state in row_state.items() for part, tensor in state.items()
    }
    return {
        **shape_of(table.spec),
        "rows": table.rows,
        "half_life": half_lives.get(table.spec.name),
        "row_state": sorted(row_state),
        "file": writing.add(tensors),
    }


def _restore(
    source: Path,
    manifest: Manifest,
    recommender_factory: RecommenderFactory | None,
    strategy_factory: StrategyFactory | None,
) -> SavedUpdater:
    about = manifest.recommender
    make_recommender = recommender_factory or _registered(source, RECOMMENDERS, about.name)
    if isinstance(make_recommender, type) and issubclass(make_recommender, Recommender):
        # Before anything is allocated: settings cannot ask for more than the tensors that are there.
        check_tables(source, manifest, make_recommender.declared(about.settings))
    recommender: Recommender = make_recommender(about.settings, seed=about.seed, dtype=np.dtype(about.dtype))
    _check_recommender(source, manifest, recommender)
    name, settings = manifest.strategy.name, manifest.strategy.settings
    make_strategy = strategy_factory or _registered(source, STRATEGIES, name, settings.get("form"))
    strategy: Strategy = make_strategy(settings, seed=manifest.strategy.seed)
    _expect(source, "strategy", name, strategy.name)

    def arrays(name: str) -> dict[str, AnyArray]:
        return {key: np.array(array) for key, array in read_tensors(source, name, manifest.files).items()}

    history, state = History.from_state(arrays(manifest.state.history)), manifest.state
    updater = Updater(recommender, strategy, history, seed=manifest.updater.seed)
    recommender.clock.now = history.events
    for saved in manifest.tables:
        row_state = updater.row_state.get(saved.name, {})
        if sorted(row_state) != saved.row_state:
            raise CheckpointError(
                f"{source} keeps {saved.row_state} for each row of {saved.name!r}, but {strategy.name!r} "
                f"needs {sorted(row_state)}: it was saved with another version of the strategy."
            )
        _restore_table(saved.rows, recommender.tables[saved.name], row_state, arrays(saved.file))
        recommender.tables[saved.name].half_life = saved.half_life
    _check_rows(recommender, history)
    recommender.restore_streaming_state(arrays(state.streaming_state))
    _recall(strategy, arrays(state.memory))
    return SavedUpdater(updater, manifest.extra, arrays(state.arrays))


def _restore_table(rows: int, table: Table, row_state: Mapping[str, Table], tensors: Mapping[str, AnyArray]) -> None:
    """Restore a table and the state that the strategy keeps for its rows, if they are what these can be."""
    _check_rows_of(table.spec, tensors, table.dtype, rows)
    require(table.spec.role != "shared" or rows == table.spec.rows, f"{table.spec.name!r} and its {rows} rows")
    table.restore({part: tensors[part] for part in ("values", "touched")})
    for key, state_table in row_state.items():
        prefix, spec = f"{key}/", state_table.spec
        parts = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        stored = len(parts.get("values", ()))
        require(stored == rows if spec.role == "shared" else stored <= rows, f"{spec.name!r} has {stored} rows")
        _check_rows_of(spec, parts, table.dtype, stored)
        state_table.restore(parts)


def _check_rows_of(spec: TableSpec, tensors: Mapping[str, AnyArray], dtype: npt.DTypeLike, rows: int) -> None:
    values = tensors.get("values")
    if values is None or values.dtype != dtype or values.shape != (rows, spec.dim) or not np.isfinite(values).all():
        raise CheckpointError(f"the saved rows of {spec.name!r} are not {rows} × {spec.dim} finite numbers of {dtype}.")
    saved_array(tensors, "touched", np.int64, (rows,), least=0, most=MOST)


def _check_rows(recommender: Recommender, history: History) -> None:
    """Every user and item of the history has a row in each table of its role."""
    for role, seen in (("user", history.of_users.rows), ("item", history.of_items.rows)):
        counts = {table.rows for table in recommender.tables.values() if table.spec.role == role}
        require(len(counts) <= 1, f"tables have {sorted(counts)} rows of {role}s")
        require(not counts or seen <= min(counts), f"{seen} {role}s were seen, and {sorted(counts)} have rows")


def _recall(strategy: Strategy, memory: Mapping[str, AnyArray]) -> None:
    """Give a strategy its memory back, if it is of the form that this strategy's memory has."""
    own = strategy.memory()
    for name, tensor in memory.items():
        if np.issubdtype(tensor.dtype, np.floating):
            require(bool(np.isfinite(tensor).all()), f"{name!r} of the strategy's memory is not finite")
        else:
            counts = bool(((tensor >= 0) & (tensor <= MOST)).all())
            require(counts, f"{name!r} of the strategy's memory is out of range")
        same = name not in own or (own[name].shape, own[name].dtype) == (tensor.shape, tensor.dtype)
        require(same, f"{name!r} of the strategy's memory is {tensor.dtype} of shape {tuple(tensor.shape)}")
    strategy.recall(memory)
    shapes = {name: tensor.shape for name, tensor in strategy.memory().items()}
    require(shapes == {name: tensor.shape for name, tensor in memory.items()}, "the strategy's memory and its settings")


def _registered(source: Path, registry: Registry, name: str, form: object = None) -> Any:
    try:
        return registry[name].load(form)
    except MissingExtraError:
        raise
    except MelonError as error:
        raise CheckpointError(
            f"{source} was saved with the {registry.kind} {name!r}, which is not installed here; install its package, "
            f"or load with {registry.kind}=… naming its class."
        ) from error


def _expect(source: Path, kind: str, saved: str, expected: str | None) -> None:
    if expected is not None and saved != expected:
        raise CheckpointError(
            f"{source} was saved with the {kind} {saved!r}, not with {expected!r}; ask for {saved!r}, or name the "
            "folder of another checkpoint."
        )


def _check_recommender(source: Path, manifest: Manifest, recommender: Recommender) -> None:
    about = manifest.recommender
    _expect(source, "recommender", about.name, recommender.name)
    loss = type(recommender.loss).__qualname__
    if loss != about.loss:
        raise CheckpointError(
            f"{source} was saved with the loss {about.loss}, and this recommender has {loss}; load with "
            "recommender=… making one with that loss."
        )
    check_tables(source, manifest, recommender.specs)


def _refuse_foreign(target: Path) -> None:
    path = target / MANIFEST
    if not path.exists():
        return
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by melon and will not be overwritten; choose another folder.")
