"""Checkpoints: equal states are equal bytes, a cut stream goes on exactly, and no failure loses the previous state."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from melon.data.interactions import Interactions
from melon.errors import CheckpointError, LearningError
from melon.learning import checkpoint
from melon.learning.manifest import Manifest, digest_of, read_manifest
from melon.learning.tensorfiles import FolderWriter, read_tensors
from melon.learning.updater import Updater
from melon.models.blend.recommender import Blend
from melon.models.bpr import BPR
from melon.models.losses import BPRLoss
from melon.models.ncf import NCF
from melon.strategies.default import Default
from melon.strategies.eals import EALS
from melon.stream.batch import batch_of
from melon.stream.history import History
from melon.stream.split import batches
from melon.types import Ints

SIZE, BATCHES = 32, 6
RECOMMENDERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "bpr": (BPR, {"dim": 4}),
    "ncf": (NCF, {"dim": 3, "layers": (4, 4)}),
    "blend": (Blend, {"dim": 4, "head_units": 3, "slots": 5}),
    "blend with transitions": (Blend, {"dim": 4, "head_units": 3, "slots": 5, "transitions": True}),
}
STRATEGIES = {
    "sgd": (Default, {"optimizer": "sgd", "lr": 0.3}),
    "adam_lazy": (Default, {"optimizer": "adam_lazy", "lr": 0.01}),
    "eals": (EALS, {"optimizer": "adam_lazy", "lr": 0.01}),
}


def stream(n: int = SIZE * BATCHES - 5, seed: int = 0) -> Interactions:
    generator = np.random.default_rng(seed)
    users = np.array([f"user {k}" for k in generator.integers(0, 40, n)], dtype=object)
    items = generator.integers(0, 30, n)
    return Interactions.from_ids(users, items, np.arange(n))


def make(recommender: str = "bpr", strategy: str = "adam_lazy", **kwargs: Any) -> Updater:
    kind, settings = RECOMMENDERS[recommender]
    how, step = STRATEGIES[strategy]
    return Updater(kind(settings, seed=3), how(step, seed=4), seed=5, **kwargs)


def run(updater: Updater, log: Interactions, first: int = 0, last: int | None = None) -> Updater:
    for start, stop in list(batches(0, len(log), SIZE))[first:last]:
        updater.learn(batch_of(log, start, stop))
    return updater


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(folder: Path, updater: Updater, tmp: Path) -> bool:
    checkpoint.save(tmp, updater)
    return content(folder) == content(tmp)


class TestResuming:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    @pytest.mark.parametrize("recommender", RECOMMENDERS)
    def test_a_stream_cut_anywhere_ends_in_the_same_bytes(
        self, tmp_path: Path, recommender: str, strategy: str
    ) -> None:
        log, learned = stream(), 0
        through = make(recommender, strategy)
        for table in through.recommender.tables.values():
            table.half_life = 50.0
        for cut in (0, 1, 3, BATCHES - 1, BATCHES):
            checkpoint.save(tmp_path / f"cut {cut}", run(through, log, learned, cut))
            learned = cut
        whole = content(tmp_path / f"cut {BATCHES}")
        for cut in (0, 1, 3, BATCHES - 1, BATCHES):
            resumed = run(checkpoint.load(tmp_path / f"cut {cut}").updater, log, cut)
            checkpoint.save(tmp_path / f"cut {cut}", resumed)
            assert content(tmp_path / f"cut {cut}") == whole

    def test_float64_stays_float64(self, tmp_path: Path) -> None:
        updater = Updater(BPR({"dim": 4}, dtype=np.float64), Default())
        checkpoint.save(tmp_path, run(updater, stream()))
        assert checkpoint.load(tmp_path).updater.recommender.tables["item_bias"].dtype == np.float64

    def test_what_the_caller_adds_comes_back(self, tmp_path: Path) -> None:
        extra = {"position": 7, "name": "größe", "nested": {"list": [1, 2.5, None, True]}}
        arrays = {"ranks": np.array([1.5, 2.0]), "none": np.empty((0, 3), dtype=np.int32), "one": np.array(5)}
        checkpoint.save(tmp_path, make(), extra=extra, arrays=arrays)
        saved = checkpoint.load(tmp_path)
        assert saved.extra == extra
        assert saved.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            assert saved.arrays[name].dtype == array.dtype
            assert np.array_equal(saved.arrays[name], array)
            assert saved.arrays[name].shape == array.shape

    def test_a_recommender_with_streaming_state(self, tmp_path: Path) -> None:
        updater = Updater(Counting({"dim": 4}), Default())
        checkpoint.save(tmp_path, run(updater, stream()))
        loaded = checkpoint.load(tmp_path, recommender=Counting).updater.recommender
        assert isinstance(loaded, Counting)
        assert loaded.seen == len(stream())

    def test_a_large_table_is_held_twice_at_most(self, tmp_path: Path) -> None:
        code = """
import resource, sys, numpy as np
from melon.learning import checkpoint
from melon.learning.manifest import Manifest, digest_of, read_manifest
from melon.learning.updater import Updater
from melon.models.bpr import BPR
from melon.strategies.default import Default
updater = Updater(BPR({"dim": 64, "init": "default"}), Default())
rows = 400_000
for spec, table in zip(updater.recommender.specs, updater.recommender.tables.values()):
    table.spec = spec.__class__(spec.name, spec.role, spec.kind, spec.dim)  # zeros: quick to make
    table.grow(rows, np.arange(rows))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint.save(sys.argv[1], updater)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown / 1024)
"""
        grown = float(subprocess.check_output([sys.executable, "-c", code, str(tmp_path)], timeout=300))
        one_table = 400_000 * (64 * 4 + 8) / 2**20
        assert grown < 1.3 * one_table


class Counting(BPR):
    """A recommender with state beyond its tables; not in any registry."""

    name = "counting"
    seen = 0

    def observe(self, users: Ints, items: Ints, times: Ints, past: History) -> None:
        self.seen += len(users)

    def streaming_state(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"seen": np.array([self.seen])}

    def restore_streaming_state(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.seen = int(state["seen"][0])


class Own(Default):
    """A strategy that is not in any registry."""

    name = "own"


class OwnLoss(BPRLoss):
    """A loss that settings cannot name."""


class TestFiles:
    def test_the_format_is_safetensors_and_names_are_hashes(self, tmp_path: Path) -> None:
        import hashlib

        checkpoint.save(tmp_path, run(make(), stream()))
        files = [path for path in tmp_path.iterdir() if path.suffix == ".safetensors"]
        manifest = read_manifest(tmp_path).model_dump()
        assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", *manifest["files"]}
        for path in files:
            assert path.stem == hashlib.sha256(path.read_bytes()).hexdigest()
            assert path.stat().st_size == manifest["files"][path.name]
        factors = next(table for table in manifest["tables"] if table["name"] == "item_factors")
        tensors = load_file(tmp_path / factors["file"])
        assert tensors["values"].shape == (factors["rows"], 4)
        assert tensors["moment_1/values"].shape == (factors["rows"], 4)

    @given(
        st.dictionaries(
            st.text(max_size=5),
            hnp.arrays(
                st.sampled_from([np.bool_, np.uint8, np.int16, np.int32, np.int64, np.float32, np.float64]),
                hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
            ),
            max_size=4,
        )
    )
    @settings(max_examples=40)
    def test_any_arrays_round_trip(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        import tempfile

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            writer = FolderWriter(folder)
            file = writer.add(arrays)
            back = read_tensors(folder, file, writer.sizes)
            assert back.keys() == arrays.keys()
            for key, array in arrays.items():
                assert back[key].dtype == array.dtype
                assert back[key].tobytes() == array.tobytes()
                assert tuple(back[key].shape) == array.shape

    def test_files_of_the_previous_state_are_removed_and_strangers_are_not(self, tmp_path: Path) -> None:
        updater = make()
        checkpoint.save(tmp_path, run(updater, stream(), 0, 2))
        before = set(read_manifest(tmp_path).files)
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / f".melon-{'0' * 32}.tmp").write_text("left by a killed save")
        checkpoint.save(tmp_path, run(updater, stream(), 2, 4))
        after = set(read_manifest(tmp_path).files)
        assert before != after
        assert {path.name for path in tmp_path.iterdir()} == {"manifest.json", "notes.txt", *after}


def touching(limit: int, monkeypatch: pytest.MonkeyPatch, failure: int) -> list[str]:
    """Let the write step number `limit` fail; returns the list of steps as they happen."""
    steps: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def step(*args: Any) -> Any:
            steps.append(name)
            if len(steps) - 1 == limit:
                raise OSError(failure, os.strerror(failure))
            return real(*args)

        monkeypatch.setattr(f"melon.learning.tensorfiles.os.{name}", step)

    for name in ("write", "fsync", "replace"):
        wrap(name)
    return steps


class TestFailures:
    @pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO])
    def test_a_save_that_fails_at_any_step_leaves_the_previous_state(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int
    ) -> None:
        folder, log = tmp_path / "model", stream()
        updater = run(make(), log, 0, 2)
        checkpoint.save(folder, updater)
        before = content(folder)
        run(updater, log, 2, 3)
        for limit in range(200):
            with monkeypatch.context() as patch:
                steps = touching(limit, patch, failure)
                try:
                    checkpoint.save(folder, updater)
                except CheckpointError as error:
                    said = str(error)
                else:
                    break
            assert str(folder) in said
            assert ("the disk is full" in said) == (failure == errno.ENOSPC)
            if content(folder)["manifest.json"] == before["manifest.json"]:
                assert content(folder) == before  # nothing is left behind, not even the new tensors
            checkpoint.load(folder)
        else:
            pytest.fail("the save never got through")
        assert {"write", "fsync", "replace"} == set(steps)
        assert limit == len(steps) > 20
        assert same(folder, updater, tmp_path / "again")

    def test_a_first_save_that_fails_leaves_no_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            touching(9, patch, errno.ENOSPC)
            with pytest.raises(CheckpointError, match="disk is full"):
                checkpoint.save(tmp_path, make())
        assert not list(tmp_path.iterdir())
        with pytest.raises(CheckpointError, match=r"no manifest\.json"):
            checkpoint.load(tmp_path)

    def test_ctrl_c_in_the_middle_of_a_save(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        updater = run(make(), stream(), 0, 2)
        checkpoint.save(tmp_path, updater)
        before = content(tmp_path)
        run(updater, stream(), 2)

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("melon.learning.tensorfiles.os.fsync", stop)
            with pytest.raises(KeyboardInterrupt):
                checkpoint.save(tmp_path, updater)
        assert content(tmp_path) == before

    def test_a_real_limit_on_file_sizes(self, tmp_path: Path) -> None:
        import resource

        updater = run(make(), stream(), 0, 2)
        checkpoint.save(tmp_path / "model", updater)
        before, later = content(tmp_path / "model"), run(updater, stream(), 2)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
        try:
            with pytest.raises(CheckpointError, match="the model could not be saved in"):
                checkpoint.save(tmp_path / "model", later)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert content(tmp_path / "model") == before

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_kill_at_any_moment_leaves_one_of_the_two_states(self, tmp_path: Path) -> None:
        # Children of one small process are killed: first just before each of the write steps, then at any time.
        code = """
import random, signal, sys, time
sys.path.insert(0, sys.argv[2])
from test_checkpoint import *
os.fsync = lambda handle: None  # what a killed process has written is there; only a power cut needs the disk
folder, log = Path(sys.argv[1]) / "model", stream()
old, new = run(make(), log, 0, 2), run(make(), log)
checkpoint.save(folder.with_name("old"), old)
checkpoint.save(folder.with_name("new"), new)
manifests = {name: (folder.with_name(name) / "manifest.json").read_bytes() for name in ("old", "new")}

def check():
    checkpoint.load(folder)
    now = (folder / "manifest.json").read_bytes()
    assert now in manifests.values()
    return now == manifests["new"]

def child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def killed_at(limit):
    count = 0
    def wrap(real):
        def step(*args):
            nonlocal count
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return real(*args)
        return step
    for name in ("open", "write", "replace", "unlink"):  # between these, nothing in the folder changes
        setattr(os, name, wrap(getattr(os, name)))
    checkpoint.save(folder, new)

def forever():
    while True:
        for updater in (new, old):
            checkpoint.save(folder, updater)

reached = []
for limit in range(200):
    checkpoint.save(folder, old)
    _, status = os.waitpid(child(lambda: killed_at(limit)), 0)
    reached.append(check())
    if not os.WIFSIGNALED(status):
        break
assert reached == sorted(reached) and not reached[0] and reached[-1]
generator = random.Random(0)
for _ in range(8):
    pid = child(forever)
    time.sleep(generator.uniform(0, 0.05))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    check()
checkpoint.save(folder, new)
assert content(folder) == content(folder.with_name("new"))
print("whole", len(reached))
"""
        run_python = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
        said = subprocess.run(run_python, capture_output=True, text=True, timeout=300, check=False)
        assert said.stdout.startswith("whole"), said.stderr

    def test_what_is_no_json_is_refused_before_anything_changes(self, tmp_path: Path) -> None:
        updater = make()
        checkpoint.save(tmp_path, updater)
        before = content(tmp_path)
        for wrong in ({"x": object()}, {"x": float("nan")}):
            with pytest.raises(CheckpointError, match="plain, finite JSON"):
                checkpoint.save(tmp_path, updater, extra=wrong)
        with pytest.raises(CheckpointError, match="'names' holds object"):
            checkpoint.save(tmp_path, updater, arrays={"names": np.array(["a"], dtype=object)})
        assert content(tmp_path) == before

    def test_a_file_in_the_place_of_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "model").write_text("a file")
        with pytest.raises(CheckpointError, match="could not be saved"):
            checkpoint.save(tmp_path / "model", make())

    def test_a_foreign_manifest_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
        with pytest.raises(CheckpointError, match="will not be overwritten"):
            checkpoint.save(tmp_path, make())
        assert content(tmp_path) == {"manifest.json": b'{"name": "a web app"}'}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "model", run(make(), stream()))
    return tmp_path / "model"


def edit(folder: Path, change: Mapping[str, Any]) -> None:
    """Change what the manifest says, as somebody would who knows about its digest."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text()) | change
    path.write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))


class TestRefusals:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="does not exist"):
            checkpoint.load(tmp_path / "nowhere")

    def test_no_manifest(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            checkpoint.load(tmp_path)

    def test_a_truncated_manifest(self, saved: Path) -> None:
        path = saved / "manifest.json"
        whole = path.read_bytes()
        for length in (0, 1, len(whole) // 2, len(whole) - 3):
            path.write_bytes(whole[:length])
            with pytest.raises(CheckpointError, match="cannot be read"):
                checkpoint.load(saved)

    def test_other_formats(self, saved: Path) -> None:
        edit(saved, {"version": 99})
        with pytest.raises(CheckpointError, match=r"format 99.*upgrade melon"):
            checkpoint.load(saved)
        edit(saved, {"version": 0})
        with pytest.raises(CheckpointError, match="format 0"):
            checkpoint.load(saved)

    def test_every_file_is_verified(self, saved: Path) -> None:
        for name in read_manifest(saved).files:
            path = saved / name
            whole = path.read_bytes()
            path.write_bytes(whole[:-1])
            with pytest.raises(CheckpointError, match=f"damaged: {name} has {len(whole) - 1} bytes"):
                checkpoint.load(saved)
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            with pytest.raises(CheckpointError, match=f"the bytes of {name} have changed"):
                checkpoint.load(saved)
            path.unlink()
            with pytest.raises(CheckpointError, match=f"{name} is missing"):
                checkpoint.load(saved)
            path.write_bytes(whole)
        checkpoint.load(saved)

    def test_a_manifest_cannot_point_outside_its_folder(self, saved: Path) -> None:
        manifest = read_manifest(saved).model_dump()
        edit(saved, {"state": manifest["state"] | {"memory": "../../secret.safetensors"}})
        with pytest.raises(CheckpointError, match="not one of its tensor files"):
            checkpoint.load(saved)

    def test_parts_that_contradict_each_other(self, saved: Path) -> None:
        manifest = read_manifest(saved).model_dump()
        edit(saved, {"state": manifest["state"] | {"history": manifest["state"]["memory"]}})
        with pytest.raises(CheckpointError, match=r"is damaged: the saved state has no 'counts'"):
            checkpoint.load(saved)
        edit(saved, {"state": {}})
        with pytest.raises(CheckpointError, match=r"state\.streaming_state: Field required"):
            checkpoint.load(saved)
        (saved / "manifest.json").write_text('{"format": "melon-checkpoint", "version": 3}')
        with pytest.raises(CheckpointError, match="is damaged: melon: Field required"):
            checkpoint.load(saved)

    def test_settings_that_this_version_does_not_know(self, saved: Path) -> None:
        manifest = read_manifest(saved).model_dump()
        edit(saved, {"strategy": manifest["strategy"] | {"settings": {"warp": 9}}})
        with pytest.raises(CheckpointError, match=r"does not fit this version.*warp"):
            checkpoint.load(saved)

    def test_another_recommender_or_strategy_than_expected(self, saved: Path) -> None:
        with pytest.raises(CheckpointError, match="saved with the recommender 'bpr', not with 'ncf'"):
            checkpoint.load(saved, recommender=NCF)
        with pytest.raises(CheckpointError, match="saved with the strategy 'default', not with 'eals'"):
            checkpoint.load(saved, strategy=EALS)

    def test_classes_that_no_registry_knows(self, tmp_path: Path) -> None:
        checkpoint.save(tmp_path, run(Updater(Counting({"dim": 4}), Own()), stream()))
        with pytest.raises(CheckpointError, match="recommender 'counting', which is not installed"):
            checkpoint.load(tmp_path)
        with pytest.raises(CheckpointError, match="strategy 'own', which is not installed"):
            checkpoint.load(tmp_path, recommender=Counting)
        loaded = checkpoint.load(tmp_path, recommender=Counting, strategy=Own).updater
        assert isinstance(loaded.strategy, Own)

    def test_another_loss(self, tmp_path: Path) -> None:
        checkpoint.save(tmp_path, Updater(BPR({"dim": 4}, loss=OwnLoss()), Default()))
        with pytest.raises(CheckpointError, match="with the loss OwnLoss"):
            checkpoint.load(tmp_path)

        def factory(settings: Mapping[str, Any], /, **kwargs: Any) -> BPR:
            return BPR(settings, loss=OwnLoss(), **kwargs)

        assert isinstance(checkpoint.load(tmp_path, recommender=factory).updater.recommender.loss, OwnLoss)

    def test_another_row_state_or_other_tables(self, saved: Path) -> None:
        manifest = read_manifest(saved).model_dump()
        edit(saved, {"strategy": manifest["strategy"] | {"settings": {"optimizer": "sgd"}}})
        with pytest.raises(CheckpointError, match="another version of the strategy"):
            checkpoint.load(saved)
        edit(saved, {"recommender": manifest["recommender"] | {"settings": {"dim": 5}}})
        with pytest.raises(CheckpointError, match="disagree about the table 'user_factors'"):
            checkpoint.load(saved)


class TestManifest:
    def test_what_has_changed_is_noticed(self, saved: Path) -> None:
        path = saved / "manifest.json"
        manifest = json.loads(path.read_text())
        for part, change in (
            ("updater", {"seed": 7}),
            ("recommender", {"seed": 7}),
            ("strategy", {"settings": manifest["strategy"]["settings"] | {"lr": 0.5}}),
        ):
            path.write_text(json.dumps(manifest | {part: manifest[part] | change}))
            with pytest.raises(CheckpointError, match="it has changed since it was written"):
                checkpoint.load(saved)
        path.write_text(json.dumps(manifest))  # the same in other white space
        checkpoint.load(saved)
        del manifest["digest"]
        path.write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match="digest: Field required"):
            checkpoint.load(saved)

    def test_one_flipped_bit_never_goes_unnoticed(self, saved: Path) -> None:
        path = saved / "manifest.json"
        whole, rng = path.read_bytes(), np.random.default_rng(0)
        for place, bit in zip(rng.integers(0, len(whole), 200), rng.integers(0, 8, 200), strict=True):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            path.write_bytes(bytes(flipped))
            try:
                loaded = read_manifest(saved)
            except CheckpointError:
                continue
            assert loaded.model_dump() == Manifest.model_validate(json.loads(whole)).model_dump()

    @pytest.mark.parametrize(
        "text",
        ["[" * 100_000, '{"a":' * 100_000, "", "null", "{}", '{"format": "melon-checkpoint", "version": true}', "\xff"],
    )
    def test_what_is_no_manifest_is_refused(self, saved: Path, text: str) -> None:
        (saved / "manifest.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(CheckpointError):
            checkpoint.load(saved)
        if text != "\xff" and "version" not in text:
            with pytest.raises(CheckpointError, match="was not written by melon"):
                checkpoint.save(saved, make())

    def test_values_of_the_wrong_type_are_refused(self, saved: Path) -> None:
        manifest = json.loads((saved / "manifest.json").read_text())
        strange: list[Any] = [None, True, -1, 1.5, 1e400, "x", [], {}, [[1]], {"a": 1}, 2**70]

        def places(part: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
            names = part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
            return [path, *(place for name in names for place in places(part[name], (*path, name)))]

        chosen = [
            place for place in places(manifest) if place and place[0] not in ("extra", "format", "digest", "melon")
        ]
        for number, place in enumerate(chosen):
            for value in strange[number % 3 :: 3]:
                changed = json.loads(json.dumps(manifest))
                parent = changed
                for name in place[:-1]:
                    parent = parent[name]
                if parent[place[-1]] == value:
                    continue
                parent[place[-1]] = value
                edit(saved, changed)
                # A setting may well have another value of its type, and then it may be one that learns nothing.
                with contextlib.suppress(CheckpointError, LearningError):
                    run(checkpoint.load(saved).updater, stream(40, seed=3))
        edit(saved, manifest)
        checkpoint.load(saved)

    def test_numbers_of_numpy_are_saved_as_plain_ones(self, tmp_path: Path) -> None:
        updater = Updater(BPR({"dim": 4}, seed=np.int64(3)), Default({"lr": np.float32(0.5)}), seed=np.int64(2))
        checkpoint.save(
            tmp_path, run(updater, stream()), extra={"a": np.int64(1), "b": (np.float32(0.5), np.bool_(True))}
        )
        saved = checkpoint.load(tmp_path)
        assert saved.extra == {"a": 1, "b": [0.5, True]}
        assert saved.updater.recommender.seed == 3

    def test_what_json_cannot_hold_is_named(self, tmp_path: Path) -> None:
        for extra, message in (
            ({"a": {"minutes": float("inf")}}, r"extra\.a\.minutes = inf cannot be saved"),
            ({"a": [1, {2}]}, r"extra\.a\[1\] = \{2\}"),
            ({"a": {1: 2}}, r"extra\.a has the name 1"),
        ):
            with pytest.raises(CheckpointError, match=message):
                checkpoint.save(tmp_path, make(), extra=extra)
