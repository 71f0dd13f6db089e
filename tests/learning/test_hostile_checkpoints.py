"""Checkpoints of a stranger: arrays that no model can have are refused before compiled code sees them."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from melon.errors import CheckpointError, LearningError
from melon.fitting.auto import SETTINGS
from melon.learning.manifest import digest_of
from melon.learning.model import LiveModel
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.strategies.default import Default

Case = tuple[str, str, str]  # part of the manifest, tensor, change
MODELS: dict[str, Any] = {
    "bpr": lambda: Updater(BPR({"dim": 3}), Default({"optimizer": "adam_lazy", "half_life": 50.0})),
    "blend": lambda: Updater(Blend({"dim": 3, "slots": 6, "head_units": 3, **SETTINGS}), Default()),
}
CHANGES: dict[str, Any] = {
    "cut": lambda t: t[:-1].copy() if t.ndim else None,
    "empty": lambda t: t[:0] if t.ndim else np.empty(0, t.dtype),
    "one row more": lambda t: np.concatenate([t, t[-1:]]) if len(t.shape) and len(t) else None,
    "narrower": lambda t: t[..., :-1].copy() if t.ndim > 1 else None,
    "flat": lambda t: t.reshape(-1) if t.ndim > 1 else t.reshape(1, -1),
    "negative": lambda t: _with(t, -7),
    "large": lambda t: _with(t, 1_000_000),
    "largest": lambda t: _with(
        t, np.finfo(t.dtype).max if np.issubdtype(t.dtype, np.floating) else np.iinfo(t.dtype).max
    ),
    "not a number": lambda t: _with(t, float("nan")) if np.issubdtype(t.dtype, np.floating) else None,
    "of another type": lambda t: t.astype(np.int64 if np.issubdtype(t.dtype, np.floating) else np.float64),
    "wider type": lambda t: t.astype({"float32": "float64", "int32": "int64"}.get(t.dtype.name, "int16")),
    "backwards": lambda t: t[::-1].copy() if t.ndim else None,
}


def _with(tensor: Any, value: float) -> Any:
    if not tensor.size or tensor.dtype == np.uint8:
        return None
    changed = tensor.copy()
    changed.reshape(-1)[-1] = value
    return changed


def events(count: int, seed: int) -> tuple[list[str], list[int], list[int]]:
    rng = np.random.default_rng(seed)
    return [f"u{n}" for n in rng.integers(0, 12, count)], rng.integers(0, 15, count).tolist(), list(range(count))


def use(model: LiveModel) -> list[Any]:
    """All that a model can be asked for, with compiled kernels and without."""
    users, items, times = events(30, 1)
    model.learn_events(users, items, [time + 1_000 for time in times], batch_size=10)
    lists: list[Any] = [model.recommend(["u1", "u2", "nobody"], 4, filter_seen=seen) for seen in (True, False)]
    return [*lists, model.similar_items([items[0]], 3), model.score(["u1"], items).tolist()]


def parts_of(manifest: dict[str, Any]) -> dict[str, str]:
    return {**manifest["state"], **{f"table {table['name']}": table["file"] for table in manifest["tables"]}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, make in MODELS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        model = LiveModel(make())
        model.learn_events(*events(200, 0), batch_size=20)
        model.save(folders[name], {})
    return folders


def cases(folder: Path) -> list[Case]:
    parts = parts_of(json.loads((folder / "manifest.json").read_text()))
    return [
        (part, name, change) for part, file in parts.items() for name in load_file(folder / file) for change in CHANGES
    ]


def changed(folder: Path, case: Case, target: Path) -> bool:
    """A copy of a checkpoint with one tensor changed and every hash as it should be; False where nothing changes."""
    part, name, change = case
    manifest = json.loads((folder / "manifest.json").read_text())
    file = parts_of(manifest)[part]
    tensors = load_file(folder / file)
    new = CHANGES[change](tensors[name])
    if new is None or (new.dtype == tensors[name].dtype and np.array_equal(new, tensors[name])):
        return False
    shutil.copytree(folder, target, dirs_exist_ok=True)
    save_file({**tensors, name: np.ascontiguousarray(new)}, target / "new.safetensors")
    content = (target / "new.safetensors").read_bytes()
    renamed = f"{hashlib.sha256(content).hexdigest()}.safetensors"
    (target / "new.safetensors").rename(target / renamed)
    text = json.dumps(manifest).replace(file, renamed)
    manifest = json.loads(text)
    manifest["files"][renamed] = len(content)
    (target / "manifest.json").write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))
    return True


def try_all(folder: Path, chosen: list[Case], tmp_path: Path) -> Iterator[tuple[Case, str]]:
    for number, case in enumerate(chosen):
        target = tmp_path / str(number)
        if not changed(folder, case, target):
            continue
        try:
            model, _ = LiveModel.load(target)
        except CheckpointError:
            yield case, "refused"
        else:
            # Numbers that a table may well hold, but with which nothing can be computed.
            with contextlib.suppress(LearningError):
                use(model)
            yield case, "taken"
        shutil.rmtree(target)


#: What may be different in a model that works: numbers within their range.
HARMLESS = {"negative", "large", "largest", "backwards"}
#: And what another history could have left: a pair that was never met, an id of nobody, an item nobody took.
POSSIBLE = {
    ("history", "seen", "cut"),
    ("arrays", "users.str_offsets", "one row more"),
    ("streaming_state", "own.item_repeats", "one row more"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_of_hostile_arrays(name: str, saved: dict[str, Path], tmp_path: Path) -> None:
    every = cases(saved[name])
    chosen = [every[n] for n in np.random.default_rng(2).choice(len(every), 24, replace=False)]
    for case, outcome in try_all(saved[name], chosen, tmp_path):
        assert outcome == "refused" or case[2] in HARMLESS or case in POSSIBLE, case


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["python", "numba"])
@pytest.mark.parametrize("name", MODELS)
def test_every_hostile_array(
    name: str, kernel: str, saved: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MELON_KERNEL", kernel)
    outcomes = dict(try_all(saved[name], cases(saved[name]), tmp_path))
    assert len(outcomes) > 200
    taken = {case for case, outcome in outcomes.items() if outcome == "taken" and case[2] not in HARMLESS}
    assert not taken - POSSIBLE


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ring", ["users.ring", "items.ring"])
def test_a_ring_without_rows_is_refused(name: str, ring: str, saved: dict[str, Path], tmp_path: Path) -> None:
    """With compiled kernels this wrote past the end of an array."""
    assert changed(saved[name], ("history", ring, "empty"), tmp_path)
    with pytest.raises(CheckpointError, match=r"'ring' is int32 of shape \(0, 50\) instead of int32 of \d+ × 50"):
        LiveModel.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({("recommender", "settings", "dim"): 4_000}, "disagree about the table 'user_factors'"),
        ({("recommender", "settings", "dim"): 10**9}, "dim = 1000000000 is not valid"),
        (
            {("recommender", "settings", "dim"): 4_000, **{("tables", n, "dim"): 4_000 for n in range(2)}},
            "has 12 × 4000 numbers in a",
        ),
        ({("tables", 0, "rows"): 10**9}, "has 1000000000 × 3 numbers in a file of"),
        ({("recommender", "settings", "head_units"): 4_000}, "disagree about the table 'head_"),
        ({("recommender", "settings", "slots"): 10**9}, "slots = 1000000000 is not valid"),
    ],
)
def test_a_manifest_cannot_ask_for_more_memory_than_its_files_hold(
    changes: dict[tuple[Any, ...], int], reason: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(saved["blend"], tmp_path, dirs_exist_ok=True)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for (*path, name), value in changes.items():
        part = manifest
        for step in path:
            part = part[step]
        part[name] = value
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))
    with pytest.raises(CheckpointError, match=reason):
        LiveModel.load(tmp_path)


def test_an_unchanged_copy_is_the_same_model(saved: dict[str, Path], tmp_path: Path) -> None:
    for name, folder in saved.items():
        one, _ = LiveModel.load(folder)
        shutil.copytree(folder, tmp_path / name)
        other, _ = LiveModel.load(tmp_path / name)
        assert use(one) == use(other)
