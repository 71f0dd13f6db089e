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

import numpy.typing as npt
import torch
from torch import Tensor

from melon import __version__
from melon.errors import CheckpointError, MelonError
from melon.learning.tensorfiles import FolderWriter, locked, read_tensors
from melon.learning.updater import FadingClock, Updater
from melon.recommenders.base import Recommender, usable_device
from melon.recommenders.registry import RECOMMENDERS
from melon.registry import Registry
from melon.strategies.base import Strategy
from melon.strategies.registry import STRATEGIES
from melon.stream.history import History
from melon.tables import Moment, Table

FORMAT, VERSION = "melon-checkpoint", 2
MANIFEST = "manifest.json"

Array = npt.NDArray[Any]
PathLike = str | os.PathLike[str]


class RecommenderFactory(Protocol):
    """Makes the recommender of a checkpoint; a `Recommender` class is one."""

    def __call__(
        self, settings: Mapping[str, Any], /, *, seed: int, dtype: torch.dtype, device: str
    ) -> Recommender: ...


class StrategyFactory(Protocol):
    """Makes the strategy of a checkpoint; a `Strategy` class is one."""

    def __call__(self, settings: Mapping[str, Any], /, *, seed: int) -> Strategy: ...


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: an updater that goes on where it stopped, and what its owner added."""

    updater: Updater
    extra: dict[str, Any]
    arrays: dict[str, Array]


def save(
    folder: PathLike,
    updater: Updater,
    *,
    time: int | None = None,
    extra: Mapping[str, Any] | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> None:
    """Write the updater, and whatever `extra` (JSON) and `arrays` the caller adds, as the folder's one state.

    `time` is the time of the stream that the model has reached, by default that of the last batch. If anything fails
    or the process dies, the folder still holds the state that was saved before.
    """
    target = Path(folder)
    recommender = updater.recommender
    moment = updater.moment(recommender.clock.now if time is None else time)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with locked(target, exclusive=True):
            _refuse_foreign(target)
            # One table at a time, so that no more than one is ever held twice.
            with FolderWriter(target) as writing:
                tables = [_write_table(writing, updater, table, moment) for table in recommender.tables.values()]
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
                    **_configuration(updater, moment),
                    "tables": tables,
                    "state": state,
                    "files": writing.sizes,
                    "extra": dict(extra or {}),
                }
                writing.commit(MANIFEST, _json(manifest))
    except OSError as error:
        why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise CheckpointError(
            f"the model could not be saved in {target}: {why}. What the folder held before is still whole; "
            "mend the cause or choose another folder, and save again."
        ) from error


def load(
    folder: PathLike,
    *,
    recommender: RecommenderFactory | None = None,
    strategy: StrategyFactory | None = None,
    expect_recommender: str | None = None,
    expect_strategy: str | None = None,
    device: str = "cpu",
) -> Saved:
    """The state that `save` wrote, every byte of it verified.

    A recommender or strategy that no registry knows is made by the `recommender` or `strategy` given: a class, or
    anything that is called like one.
    """
    source = Path(folder)
    usable_device(device)
    with locked(source, exclusive=False):
        manifest = read_manifest(source)
        for kind, expected, made in (
            ("recommender", expect_recommender, recommender),
            ("strategy", expect_strategy, strategy),
        ):
            _expect(source, kind, manifest[kind]["name"], expected)
            _expect(source, kind, manifest[kind]["name"], getattr(made, "name", None))
        try:
            return _restore(source, manifest, recommender, strategy, device)
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointError(f"the checkpoint {source} cannot be read: {error}.") from error
        except MelonError as error:
            raise CheckpointError(
                f"the checkpoint {source} does not fit this version of melon ({__version__}; it was saved by "
                f"{manifest['melon']}): {error}"
            ) from error
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint {source} is damaged: its manifest and its tensors contradict each other ({error!r})."
            ) from error


def read_manifest(folder: PathLike) -> dict[str, Any]:
    """What a checkpoint says about itself, without reading its tensors."""
    source = Path(folder)
    path = source / MANIFEST
    if not source.exists():
        raise CheckpointError(f"there is no checkpoint {source}: the folder does not exist.")
    if not path.is_file():
        raise CheckpointError(f"{source} holds no checkpoint: there is no {MANIFEST} in it.")
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint's manifest: {error}.") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by melon; point to a folder that `save` made.")
    version = manifest.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        way_out = "upgrade melon to read it" if newer else "save the model again with this version of melon"
        raise CheckpointError(
            f"{source} has checkpoint format {version!r}, and this melon ({__version__}) reads {VERSION}; {way_out}."
        )
    needed = {"melon", "recommender", "strategy", "updater", "tables", "state", "files", "extra"}
    missing = sorted(needed - manifest.keys())
    if missing:
        raise CheckpointError(f"{path} is damaged: {', '.join(missing)} is missing from it.")
    return manifest


def _configuration(updater: Updater, moment: Moment) -> dict[str, Any]:
    recommender, strategy = updater.recommender, updater.strategy
    # Counted in interactions, the clock is the number of events so far, which the history knows.
    clock = moment.now if updater.fading_clock == "seconds" else None
    return {
        "recommender": {
            "name": recommender.name,
            "settings": recommender.settings.plain(),
            "loss": type(recommender.loss).__qualname__,
            "seed": recommender.seed,
            "dtype": str(recommender.dtype).removeprefix("torch."),
        },
        "strategy": {"name": strategy.name, "settings": strategy.settings.plain(), "seed": strategy.seed},
        "updater": {"seed": updater.seed, "fading_clock": updater.fading_clock, "clock": clock},
    }


def _write_table(writing: FolderWriter, updater: Updater, table: Table, moment: Moment) -> dict[str, Any]:
    kept = {key: state.state() for key, state in updater.row_state.get(table.spec.name, {}).items()}
    tensors = table.state() | {f"{key}/{part}": tensor for key, state in kept.items() for part, tensor in state.items()}
    return {
        **_shape(table),
        "rows": table.rows,
        "half_life": moment.half_lives.get(table.spec.name),
        "row_state": sorted(kept),
        "file": writing.add(tensors),
    }


def _shape(table: Table) -> dict[str, Any]:
    return {"name": table.spec.name, "role": table.spec.role, "kind": table.spec.kind, "dim": table.spec.dim}


def _restore(
    source: Path,
    manifest: Mapping[str, Any],
    recommender_factory: RecommenderFactory | None,
    strategy_factory: StrategyFactory | None,
    device: str,
) -> Saved:
    config, state = manifest["recommender"], manifest["state"]
    make_recommender = recommender_factory or _registered(source, RECOMMENDERS, config["name"])
    dtype = getattr(torch, config["dtype"])
    recommender: Recommender = make_recommender(config["settings"], seed=config["seed"], dtype=dtype, device=device)
    _check_recommender(source, manifest, recommender)
    config = manifest["strategy"]
    make_strategy = strategy_factory or _registered(source, STRATEGIES, config["name"])
    settings_type = getattr(make_strategy, "settings_type", None)
    settings = config["settings"] if settings_type is None else settings_type.renamed(config["settings"])
    strategy: Strategy = make_strategy(settings, seed=config["seed"])
    _expect(source, "strategy", config["name"], strategy.name)

    def tensors(name: str) -> dict[str, Tensor]:
        return read_tensors(source, name, manifest["files"])

    def arrays(name: str) -> dict[str, Array]:
        return {key: tensor.clone().numpy() for key, tensor in tensors(name).items()}

    history = History.from_state(arrays(state["history"]))
    fading_clock: FadingClock = manifest["updater"]["fading_clock"]
    updater = Updater(recommender, strategy, history, seed=manifest["updater"]["seed"], fading_clock=fading_clock)
    moment = manifest["updater"]["clock"]
    recommender.clock.now = history.events if moment is None else moment
    for saved in manifest["tables"]:
        table, kept = recommender.tables[saved["name"]], updater.row_state.get(saved["name"], {})
        if sorted(kept) != saved["row_state"]:
            raise CheckpointError(
                f"{source} keeps {saved['row_state']} for each row of {saved['name']!r}, but {strategy.name!r} "
                f"needs {sorted(kept)}: it was saved with another version of the strategy."
            )
        rows = tensors(saved["file"])
        table.restore(rows)
        table.half_life = saved["half_life"]
        for key, state_table in kept.items():
            prefix = f"{key}/"
            parts = {name.removeprefix(prefix): held for name, held in rows.items() if name.startswith(prefix)}
            state_table.restore(parts)
    recommender.restore_streaming_state(arrays(state["streaming_state"]))
    strategy.recall({key: tensor.clone().to(device) for key, tensor in tensors(state["memory"]).items()})
    return Saved(updater, manifest["extra"], arrays(state["arrays"]))


def _registered(source: Path, registry: Registry, name: str) -> Any:
    try:
        return registry[name].load()
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


def _check_recommender(source: Path, manifest: Mapping[str, Any], made: Recommender) -> None:
    config = manifest["recommender"]
    _expect(source, "recommender", config["name"], made.name)
    loss = type(made.loss).__qualname__
    if loss != config["loss"]:
        raise CheckpointError(
            f"{source} was saved with the loss {config['loss']}, and this recommender has {loss}; load with "
            "recommender=… making one with that loss."
        )
    saved = [{key: table[key] for key in ("name", "role", "kind", "dim")} for table in manifest["tables"]]
    declared = [_shape(table) for table in made.tables.values()]
    for table in declared + saved:
        if table not in saved or table not in declared:
            raise CheckpointError(
                f"{source} and the recommender {made.name!r} disagree about the table {table['name']!r}: "
                "it was saved with another version of the recommender."
            )


def _refuse_foreign(target: Path) -> None:
    path = target / MANIFEST
    if not path.exists():
        return
    try:
        manifest = json.loads(path.read_bytes())
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by melon and will not be overwritten; choose another folder.")


def _json(manifest: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"what is saved beside the tensors must be plain, finite JSON: {error}.") from error
