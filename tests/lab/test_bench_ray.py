"""`--ray` on a real cluster of several nodes on this machine, one of which is killed on the way."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_bench import OPTIONS, records_of

from commands import Run

ray = pytest.importorskip("ray", reason="needs melon-recommender[ray]")

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that runs nothing itself, and two nodes of one core each."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    yield made, nodes
    made.shutdown()


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    from melon.demo import write_synthetic

    write_synthetic("flip", tmp_path / "flip.parquet", 2_000, 0)
    return tmp_path / "flip.parquet"


def command(stream: Path, out: Path, *more: str) -> list[str]:
    which = ["--strategies", "eals,metasgd", "--seeds", "3", *OPTIONS]
    return [sys.executable, "-m", "melon", "bench", str(stream), *which, "--out", str(out), *more]


def test_a_cluster_that_loses_a_node_gives_the_records_of_local_processes(
    cluster: Any, stream: Path, tmp_path: Path
) -> None:
    whole, nodes = cluster
    out = tmp_path / "on ray"
    process = subprocess.Popen(command(stream, out, "--ray", whole.address), stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 300
    while not list(out.glob("*-*.json")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)  # the next cells are running by now
    assert process.poll() is None, "the bench was over before a node could be killed"
    whole.remove_node(nodes[0], allow_graceful=False)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    local = tmp_path / "here"
    assert subprocess.run(command(stream, local), capture_output=True, check=False).returncode == 0
    assert records_of(out) == records_of(local)
    assert len(records_of(out)) == 3 * 3 + 1


def test_no_cluster_is_a_clear_error(stream: Path, tmp_path: Path, run: Run) -> None:
    ended = run("bench", stream, "--strategies", "eals", "--out", tmp_path / "runs", "--ray", "127.0.0.1:1")
    assert ended.code == 2
    assert "no Ray cluster at '127.0.0.1:1'" in ended.said
