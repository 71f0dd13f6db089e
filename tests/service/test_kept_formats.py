"""Formats are kept: files that earlier versions wrote are read, and the service goes on with them."""

import json
import tarfile
from pathlib import Path

import pytest
from service_scenes import LOG, learn_all, settings, stream

from melon.service.learner.loop import Learner
from melon.service.learner.replaying import verify
from melon.service.log.backup import restore
from melon.service.log.events import FORMAT, EventLog, LogReader
from melon.service.log.steps import StepReader

FIXTURES = Path(__file__).parent / "fixtures"


def test_this_format_has_a_fixture() -> None:
    assert (FIXTURES / f"format-{FORMAT}.tar.xz").stat().st_size < 100_000


@pytest.mark.parametrize("archive", sorted(FIXTURES.glob("*.tar.xz")), ids=lambda path: path.name)
def test_what_was_written_is_read(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "backup" / "expected.json").read_text())
    folder = tmp_path / "live"
    assert restore(tmp_path / "backup", folder).backup.offset == expected["offset"]
    with LogReader(folder) as log, StepReader(folder) as steps:
        assert log.last() == (expected["offset"], expected["events"])
        assert {item: body for item, _, body in log.facts()}["i1"]["categories"] == ["news"]
        assert [event.item for event in log.hidden()] == ["i3"]
        kinds = {step.kind for step in steps.after(0)}
        assert {"events", "forget", "retry", "resume", "promote"} <= kinds
        assert steps.last().number == expected["step"]  # type: ignore[union-attr]
    with EventLog(folder, LOG) as log, Learner(settings(folder, None)) as learner:
        model = learner.replay.model
        assert model.updater.strategy.name == expected["strategy"]
        assert (len(model.users), len(model.items)) == (expected["users"], expected["items"])
        assert model.score(["u1", "u2"], ["i1", "i2"]).tolist() == pytest.approx(expected["scores"], abs=1e-4)
        assert log.append(stream(30, seed=5, start=110)).duplicates == 30
        log.append(stream(20, seed=6, start=140))
        learn_all(learner)
        assert learner.position.offset == expected["offset"] + 20
        exact = not learner.book.named_alarms().get("replay")
    if exact:  # on another kind of machine the bytes of a replay may differ, and an alarm says so
        assert list(verify(folder))
