"""The learner and its replicas: exact restarts, exact copies, batches quarantined, people forgotten, refusals."""

import dataclasses
import os
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_scenes import LOG, PAIRINGS, clean_replay, learn_all, saved_model, settings, stream, wait_until

from melon.errors import CheckpointError, LearningError, LogError
from melon.learning.deltas import state_digest
from melon.learning.model import LiveModel, forget
from melon.service.config import ServeSettings
from melon.service.learner.fitting import Fitter
from melon.service.learner.guard import ENOUGH, Alarms, Guard, Promise, Watch, unknown_ids
from melon.service.learner.loop import Learner, run_learner
from melon.service.learner.quality import PARTS, SQUARES, between, shares
from melon.service.learner.replaying import verify
from melon.service.learner.start import warm_up
from melon.service.log.base import Event
from melon.service.log.checkpoints import Checkpoints
from melon.service.log.events import EventLog, LogReader
from melon.service.log.steps import StepReader
from melon.service.metrics import quality_between
from melon.service.replica import Replica
from melon.stream.pairs import pair_keys

USERS = [f"u{n}" for n in range(60)]


def answers(model: LiveModel) -> list[Any]:
    return [(one.source, one.items) for one in model.recommend(USERS, 7)]


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_replica_learner_and_replay_are_the_same_bytes(pairing: str, tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model", pairing), tmp_path / "live"
    events = stream(600)
    with EventLog(folder, LOG) as log, Replica(folder) as replica:
        log.append(events[:200])
        with Learner(settings(folder, model)) as learner:
            learn_all(learner)
            replica.load()
            assert replica.follow()
            log.append(events[200:330])
            log.forget("u2").result()
            log.append(events[330:400])
            learn_all(learner)
            replica.follow()  # before the deltas that know u2 are dropped
            learner.save(wait=True)
            log.append(events[400:450])
            learn_all(learner)  # behind the checkpoint: a restart has to take these steps again
        replica.follow()
        with Learner(settings(folder, model, batch_most=25)) as learner:
            assert learner.position == replica.position
            log.append(events[450:])
            learn_all(learner)
            replica.follow()
            copy, digest = clean_replay(folder)
            assert digest == learner.position.digest == replica.position.digest
            assert state_digest(copy) == state_digest(learner.replay.model)
            with replica.reading() as (held, position):
                assert position.offset == log.offset
                assert state_digest(held, answering=True) == state_digest(copy, answering=True)
                assert answers(held) == answers(learner.replay.model)
            assert replica.wait_for(log.offset, 0.0)
            assert not replica.wait_for(log.offset + 1, 0.01)
            assert replica.reloads == {"start": 1}


def test_lists_of_replicas_that_started_at_different_moments_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two stages, too, whose candidates are few here: whoever asked for lists before, and alone or in company."""
    for name, number in (("FROM", 0), ("OFFERED", 5), ("MET", 5)):
        monkeypatch.setattr(f"melon.models.blend.catalogue.{name}", number)
    model, folder = saved_model(tmp_path / "model", "blend in two stages"), tmp_path / "live"
    events = stream(600)
    with (
        EventLog(folder, LOG) as log,
        Replica(folder) as old,
        Replica(folder) as young,
        Learner(settings(folder, model)) as learner,
    ):
        old.load()
        for first in range(0, 500, 25):
            log.append(events[first : first + 25])
            learn_all(learner)
            old.follow()
            with old.reading() as (held, _):
                answers(held)
        learner.save(wait=True)
        young.load()
        log.append(events[500:])
        learn_all(learner)
        for replica in (old, young):
            replica.follow()
        copy, _ = clean_replay(folder)
        with old.reading() as (one, position), young.reading() as (other, same):
            assert position == same == learner.position
            expected = answers(one)
            alone = [(told.source, told.items) for user in USERS for told in other.recommend([user], 7)]
            assert alone == expected == answers(other) == answers(learner.replay.model) == answers(copy)


def test_every_step_is_recorded_and_no_batch_passes_a_control(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log:
        log.append(stream(50))
        log.control("resume", {}).result()
        log.append(stream(30, seed=4))
        log.append([Event("u1", "i1", type="impression", use="store"), Event(7, "i1")])
        with Learner(settings(folder, model)) as learner:
            learn_all(learner)
        with StepReader(folder) as steps:
            taken = [(step.kind, step.first, step.last, step.about.get("events")) for step in steps.after(0)]
            last = steps.last()
    assert taken == [("events", 1, 40, 40), ("events", 41, 50, 10), ("resume", 51, 51, None), ("events", 52, 83, 30)]
    assert last is not None
    assert last.about["odd"] == 1  # an integer among texts stays in the log, and nobody can learn it
    assert last.totals["events"] == 80
    ranked = last.totals["served"]["organic"]["ranked"] + last.totals["served"]["repeats"]["ranked"]
    assert ranked + last.totals["cold"] + last.totals["unranked"] == 80
    assert 0 < shares(last.totals["served"]["organic"])["HR@10"] <= 1
    assert last.totals["frozen"]["organic"]["ranked"] == last.totals["popular"]["organic"]["ranked"] > 0
    assert between(last.totals, last.totals)["events"] == 0


def test_time_never_runs_back(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log:
        log.append([Event("u1", "i1", 90_000), Event("u2", "i2", 10), Event("u1", "i3", 90_001)])
        with Learner(settings(folder, model)) as learner:
            learn_all(learner)
            assert learner.replay.model.last_time == 90_001
            assert learner.replay.model.late == 1


def test_events_that_wait_for_a_compiler_are_an_alarm_until_it_is_done() -> None:
    said = list[dict[str, str]]()

    class Slow:
        def warm_up(self) -> None:
            wait_until(lambda: bool(said))

    warm_up(Slow(), Alarms(said.append), patience=0.01)  # type: ignore[arg-type]
    assert [[text.split(",")[0] for text in texts.values()] for texts in said] == [
        ["the learner compiles its kernels"],
        [],
    ]


def test_alarms_of_a_learner_that_was_killed_are_over(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG):
        with Learner(settings(folder, model)) as learner:
            learner.book.state(alarms='["it is late"]')
        with Learner(settings(folder, model)) as learner:
            assert learner.book.alarms() == []


def test_live_quality_is_paired_and_has_exact_ranks_of_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("melon.service.learner.quality.SAMPLED", 1)
    monkeypatch.setattr("melon.service.learner.quality._SHARE", 1e9)
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log, Learner(settings(folder, model, negatives=5)) as learner:
        log.append(stream(240))
        learn_all(learner)
        totals = learner.book.last().totals  # type: ignore[union-attr]
        for baseline in ("frozen", "popular"):
            for kind in PARTS:
                served, other = totals["served"][kind], totals[baseline][kind]
                assert served["ranked"] == other["ranked"]
                assert served["HR@10"] - other["HR@10"] == other["won@10"] - other["lost@10"]
        told = quality_between(None, learner.book.last())
        assert 0.9 < told["lists"]["sampled"] <= 1
        for track, names in (
            ("all", {"served", "frozen", "popular", "own"}),
            ("first", {"served", "frozen", "popular"}),
        ):
            assert set(told["lists"][track]) == names
            for one in told["lists"][track].values():
                assert one["ndcg_interval"][0] <= one["NDCG@10"] <= one["ndcg_interval"][1]
                assert 0 < one["HR@10"] < 1
        low, high = told["models"]["popular"]["served_ahead"]["interval"]
        assert low <= told["models"]["popular"]["served_ahead"]["HR@10"] <= high
        live, events = learner.replay.model, stream(6, seed=77)
        log.append(events)
        batch = learner.replay.events(241, 246)
        counts = learner.quality.measure(live, batch)
        seen = live.updater.history.seen
        expected, hits, owns = 0, 0, 0
        for event in batch.stored:
            user, item = int(live.users.rows([event.user])[0]), int(live.items.rows([event.item])[0])
            if min(user, item) < 0:
                continue
            own = Counter(live.updater.history.of_users.recent(np.array([user])).partners[0].tolist())
            popular = live.popular.read(np.arange(live.updater.history.known_items))[:, 0]
            better = [n for n in range(len(popular)) if (own[n], popular[n]) > (own[item], popular[item])]
            owns += len(better) < 10
            if seen.contains(pair_keys(np.array([user]), np.array([item])))[0]:
                continue
            scores = live.updater.score_catalogue(np.array([user]), live.updater.history.known_items, live.last_time)[0]
            free = [n for n in range(len(scores)) if not seen.contains(pair_keys(np.array([user]), np.array([n])))[0]]
            expected, hits = expected + 1, hits + (sum(scores[n] > scores[item] for n in free) < 10)
        first = counts["lists"]["first"]["served"]
        assert (first["ranked"], first["HR@10"]) == (expected, hits)
        assert counts["lists"]["all"]["own"]["HR@10"] == owns


def test_old_measurements_are_thinned_and_replays_stay_exact(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log, Learner(settings(folder, model, batch_most=10)) as learner:
        log.append(stream(400))
        learn_all(learner)
        book, last = learner.book, learner.book.last()
        assert last is not None
        book._db._connection.execute("UPDATE steps SET done = 60 * number / 4.0")  # four steps in a minute
        book.thin(60 * 9.0)
        assert [step.number for step in book.after(0) if step.totals] == [
            3,
            7,
            11,
            15,
            19,
            23,
            27,
            31,
            35,
            *range(36, 41),
        ]
        assert (book.since(60 * 5.0), book.done_by(60 * 5.0)) == (book.step(19), book.step(20))
        book.thin(60 * 10.0)
        assert [step.number for step in book.after(35) if step.totals] == [39, 40]
        assert last.totals == book.step(40).totals  # type: ignore[union-attr]
        copy, digest = clean_replay(folder)
        assert digest == learner.position.digest
        assert state_digest(copy) == state_digest(learner.replay.model)


class TestGuard:
    def test_a_batch_that_cannot_be_learned_is_quarantined_and_can_be_retried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG) as log, Replica(folder) as replica:
            log.append(stream(120))
            with Learner(settings(folder, model)) as learner:
                learner.step()
                with monkeypatch.context() as broken:
                    broken.setattr(
                        "melon.learning.updater.Updater.learn",
                        lambda *_: (_ for _ in ()).throw(LearningError("the loss is not finite")),
                    )
                    learner.step()
                learn_all(learner)
                (quarantined,) = learner.book.quarantined()
                assert (quarantined.number, quarantined.first, quarantined.last) == (2, 41, 80)
                assert "not finite" in str(quarantined.reason)
                assert "quarantined" in learner.book.alarms()[0]
                events = learner.replay.model.updater.history.events
                assert events == 150 + 120  # its past is known, its rows are not taught
                log.control("retry", {"batch": 2}).result()
                log.control("retry", {"batch": 1}).result()  # nothing to retry: a step that does nothing
                learn_all(learner)
                assert learner.replay.model.updater.history.events == events
                assert not learner.book.quarantined()
                replica.load()
                replica.follow()
                copy, digest = clean_replay(folder)
                assert digest == learner.position.digest == replica.position.digest
                assert state_digest(copy) == state_digest(learner.replay.model)

    def test_a_batch_that_moves_rows_too_far_is_undone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG) as log:
            log.append(stream(500))
            with Learner(settings(folder, model, batch_most=20)) as learner:
                for _ in range(22):
                    learner.step()
                with monkeypatch.context() as broken:
                    broken.setattr("melon.learning.updater.Updater.moved", property(lambda self: 1e6))
                    learner.step()
                learn_all(learner)
                (quarantined,) = learner.book.quarantined()
                assert quarantined.number == 23
                assert "20 times the usual" in str(quarantined.reason)
                copy, digest = clean_replay(folder)
                assert digest == learner.position.digest
                assert state_digest(copy) == state_digest(learner.replay.model)

    def test_head_and_meta_parameters_are_measured_like_rows(self) -> None:
        past = [{"moved": 1.0, "head": 2.0, "memory": None}] * ENOUGH
        for about, word in (
            ({"head": 41.0}, "shared parameters"),
            ({"head": float("nan")}, "shared"),
            ({"moved": 21.0}, "rows"),
        ):
            assert word in str(Guard(20.0, past).judge(about))
        assert Guard(20.0, past).judge({"moved": 19.0, "head": 39.0, "memory": 1e9}) is None
        assert Guard(0.0, past).judge({"moved": 1e9}) is None

    def test_a_baseline_that_is_better_for_an_hour_is_an_alarm(self, tmp_path: Path) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG), Learner(settings(folder, model, quality_events=100)) as learner:
            texts: list[dict[str, str]] = []
            watch = Watch(learner.settings, learner.log, learner.book, Alarms(texts.append))
            watch.quality({"popular": {"organic": {"ranked": 99, "won@10": 0, "lost@10": 99}}})  # too few
            watch.quality({"popular": {"organic": {"ranked": 400, "won@10": 10, "lost@10": 12}}})  # too near
            assert not texts
            watch.quality({"frozen": {"organic": {"ranked": 400, "won@10": 10, "lost@10": 60}}})
            assert "worse than the model as it was deployed: HR@10 -0.125 (-0.1" in texts[-1]["quality frozen"]
            watch.quality({"frozen": {"organic": {"ranked": 500, "won@10": 60, "lost@10": 60}}})
            assert texts[-1] == {}

    def test_quality_below_the_selection_windows_is_an_alarm(self) -> None:
        def counts(hits: float, gains: float, ranked: int = 4_000) -> dict[str, Any]:
            one = {"ranked": ranked, "HR@5": hits * ranked, "NDCG@10": gains * ranked, SQUARES: gains * ranked}
            return {"served": {"organic": one}, "lists": {"all": {"served": one}, "first": {"served": one}}}

        assert Promise.of({}) is None
        among, lists = (
            Promise.of({"estimator": {"window_score": 0.8, "strategy": name}}) for name in ("melon", "auto")
        )
        assert among is not None
        assert lists is not None
        assert among.broken(counts(0.45, 0.35), 1_000) is None
        assert "HR@5 + NDCG@10 is at most 0.6" in str(among.broken(counts(0.3, 0.3), 1_000))
        assert among.broken(counts(0.3, 0.3, 900), 1_000) is None  # too few
        assert lists.broken(counts(0.0, 0.75), 1_000) is None
        assert "whole lists is at most 0.6" in str(lists.broken(counts(0.9, 0.6), 1_000))

    def test_a_jump_in_unknown_ids_is_an_alarm(self) -> None:
        past = {"events": 50_000, "cold": 1_000, "newcomers": 20_000}
        assert unknown_ids({"events": 2_000, "cold": 50, "newcomers": 900}, past, 1_000) is None
        assert "unknown items" in str(unknown_ids({"events": 2_000, "cold": 200, "newcomers": 900}, past, 1_000))
        assert "unknown users" in str(unknown_ids({"events": 2_000, "cold": 40, "newcomers": 1_900}, past, 1_000))
        assert unknown_ids({"events": 900, "cold": 900}, past, 1_000) is None
        assert unknown_ids({"events": 2_000, "cold": 2_000}, {}, 1_000) is None

    def test_too_many_in_a_row_stop_learning_until_somebody_resumes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG) as log:
            log.append(stream(100))
            some = settings(folder, model, batch_most=10, stop_after=3)
            with Learner(some) as learner:
                monkeypatch.setattr(
                    "melon.learning.updater.Updater.learn",
                    lambda *_: (_ for _ in ()).throw(ValueError("a fault of ours")),
                )
                learn_all(learner)
                assert learner.position.offset == 30
                assert any("learning waits" in alarm for alarm in learner.book.alarms())
            monkeypatch.undo()
            with Learner(some) as learner:
                assert not learner.step()
                log.control("resume", {}).result()
                learn_all(learner)
                assert learner.position.offset == 101

    def test_learning_goes_on_by_itself_in_small_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG) as log, Learner(settings(folder, model, stop_after=2, resume_s=0.5)) as learner:
            log.append(stream(200))
            with monkeypatch.context() as broken:
                broken.setattr("melon.learning.updater.Updater.learn", lambda *_: 1 / 0)
                learn_all(learner)
            assert learner.position.offset == 80
            wait_until(learner.step)
            learn_all(learner)
            sizes = [step.last - step.first + 1 for step in learner.book.after(0)]
            assert sizes == [40, 40, *[5] * ENOUGH, 20]
            assert learner.book.alarms() == [] or "quarantined" in learner.book.alarms()[0]
            assert not any("learning waits" in alarm for alarm in learner.book.alarms())

    def test_forgetting_passes_a_learner_that_waits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG) as log, Learner(settings(folder, model, stop_after=2)) as learner:
            log.append(stream(160))
            with monkeypatch.context() as broken:
                broken.setattr("melon.learning.updater.Updater.learn", lambda *_: 1 / 0)
                learn_all(learner)
                assert learner.position.offset == 80
                offset = log.forget("u3").result()
                log.append(stream(50, start=160))
                learn_all(learner)
                assert learner.position.offset == offset
                assert learner.replay.model.users.rows(["u3"])[0] == -1
            assert not learner.step()  # and it waits again
            learner.save(wait=True)
            wait_until(lambda: log._db._connection.execute("SELECT erased FROM controls").get == 2)

    def test_one_busy_user_stops_nothing(self, tmp_path: Path) -> None:
        """Nine events in ten are of one user: without a bound, the guard quarantines one batch after another."""
        rng, folder = np.random.default_rng(0), tmp_path / "live"
        users = ["bot" if rng.random() < 0.9 else f"u{rng.integers(400)}" for _ in range(6_000)]
        events = [Event(user, f"i{int(rng.random() ** 2 * 800)}", 1_000 + n) for n, user in enumerate(users)]
        some = settings(folder, None, batch_most=256, negatives=0)
        with EventLog(folder, LOG) as log, Learner(some) as learner:
            for start in range(0, 6_000, 300):
                log.append(events[start : start + 300])
                learn_all(learner)
            steps = list(learner.book.after(0))
            assert learner.position.offset == 6_000
            assert {step.status for step in steps} == {"learned"}
            taken = [Counter(users[step.first - 1 : step.last])["bot"] for step in steps]
            assert max(taken) == 64


def test_a_fit_that_fails_is_not_tried_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "live"
    with EventLog(folder, LOG) as log, Learner(settings(folder, None, fit_after=10)) as learner:
        log.append(stream(40))
        learn_all(learner)
        begun: list[int] = []

        def fail(fitter: Fitter, offset: int, *_: object) -> None:
            begun.append(offset)
            fitter._process = subprocess.Popen(["false"])

        monkeypatch.setattr(Fitter, "begin", fail)
        for _ in range(40):
            learner.consider_fitting()
            time.sleep(0.02)
        assert begun == [40]
        assert any("tried again in 10 s" in alarm for alarm in learner.book.alarms())
        learner._fitter._not_before = 0.0
        learner.consider_fitting()
        assert begun == [40, 40]


def test_thousands_of_unlearned_people_fit_into_a_command(tmp_path: Path) -> None:
    fitter = Fitter(ServeSettings(data=tmp_path))
    fitter.begin(10, "cold", {f"forgotten-{n:040}": n for n in range(5_000)})
    assert fitter._process is not None
    assert fitter._process.wait(120) == 1  # it has started, and found no log
    assert "begin" not in str(fitter.result())
    assert fitter.problem is not None


def test_a_log_keeps_what_it_is_told_to(tmp_path: Path) -> None:
    """A checkpoint is the new beginning; what is left verifies, replays and starts again."""
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    some = settings(folder, model, keep_events=300, dedup_days=0)
    with EventLog(folder, some) as log, Learner(some) as learner:
        for start in range(0, 1_000, 100):
            log.append(stream(100, start=start))
            learn_all(learner)
            learner.save(wait=True)
        wait_until(lambda: learner.log.wanted() == 700)
        learner.save(wait=True)
        begin = learner.book.begin()
        wait_until(lambda: learner.log.first() == min(begin, 700) + 1)
        log.append(stream(50, start=1_000))
        learn_all(learner)
        learner.save(wait=True)
        assert learner.book.bases() == [Checkpoints(folder).numbers()[0]]
        assert next(learner.book.after(0)).number > 1
        copy, digest = clean_replay(folder)
        assert digest == learner.position.digest
    assert "the bytes are those" in list(verify(folder))[-1]
    with Learner(some) as learner:
        assert learner.position.digest == digest
        assert state_digest(learner.replay.model) == state_digest(copy)


def content(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_forgotten_person_is_in_no_file(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    person, events = "visitor-4711-secret", stream(120)
    mine = [dataclasses.replace(one, user=person, event_id=f"{person}/{n}") for n, one in enumerate(events[:9])]
    with EventLog(folder, LOG) as log:
        log.append([*events, *mine])
        log.put_facts([("i1", {"owner": person, "price": 3})]).result()
        with Learner(settings(folder, model)) as learner:
            learn_all(learner)
            learner.save(wait=True)
            assert person.encode() in content(folder)
            offset = log.forget(person).result()
            log.append(events[:1])
            learn_all(learner)
            learner.save(wait=True)
            wait_until(lambda: person.encode() not in content(folder))
            assert learner.replay.model.users.rows([person])[0] == -1
            log.append([Event(person, "i2", event_id="new life")])
            learn_all(learner)
            copy, digest = clean_replay(folder)
            assert digest == learner.position.digest
            assert state_digest(copy) == state_digest(learner.replay.model)
        with LogReader(folder) as reader:
            assert [one.offset for one in reader.of_user(person, 99)] == [log.offset]
            assert {item: body for item, _, body in reader.facts()}["i1"] == {"owner": None, "price": 3}
            assert reader.last()[1] == 120 + 9 + 0 + 1
            control = reader.control_after(offset - 1)
            assert control is not None
            assert str(control.body["user"]).startswith("forgotten-")
            assert len(reader.of_user(str(control.body["user"]), 99)) == 9


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_forgetting_right_after_a_restart_gives_the_same_bytes(tmp_path: Path, pairing: str) -> None:
    model, folder = saved_model(tmp_path / "model", pairing), tmp_path / "live"
    with EventLog(folder, LOG) as log:
        log.append(stream(100))
        with Learner(settings(folder, model)) as learner:
            learn_all(learner)
            learner.save(wait=True)
            log.forget("u3").result()
            log.append(stream(30, start=100))
            learn_all(learner)
            digest = learner.position.digest
        with Learner(settings(folder, model)) as learner:  # takes the last steps again, from the checkpoint
            assert learner.position.digest == digest
            assert learner.book.alarms() == []


@pytest.mark.parametrize("start", ["deployed", "cold"])
def test_a_person_is_unlearned(tmp_path: Path, start: str) -> None:
    """The model is what it would be had the person never come."""
    model = saved_model(tmp_path / "model") if start == "deployed" else None
    person, folder, other, events = "u3", tmp_path / "live", tmp_path / "other", stream(200)
    never = [one for one in events if one.user != person]
    assert len(never) < len(events)
    with EventLog(folder, LOG) as log, Learner(settings(folder, model)) as learner, Replica(folder) as replica:
        replica.load()
        log.append(events[:160])
        learn_all(learner)
        offset = log.forget(person, unlearn=True).result()
        log.append([one for one in events[160:] if one.user != person])
        learn_all(learner)
        learner.save(wait=True)
        wait_until(lambda: len(learner.log.to_unlearn()) == 1)

        def unlearned() -> bool:
            learner.consider_fitting()
            return learner.book.unlearned() >= offset

        wait_until(unlearned, 600)
        replica.follow()
        assert replica.position == learner.position
        copy, digest = clean_replay(folder)
        assert digest == learner.position.digest
        without = learner.replay.model
        assert state_digest(copy) == state_digest(without)
        assert Checkpoints(folder).numbers() == [learner.position.batch]
        batches = [
            sum(not str(one.user).startswith("forgotten-") for one in learner.log.events(step.first, step.last))
            for step in learner.book.after(0)
            if step.kind == "events"
        ]
    with EventLog(other, LOG) as log, Learner(settings(other, model)) as learner:
        twin = learner.replay.model
        if start == "deployed":
            assert forget(twin, person, "nobody") is not None
        for count in batches:
            log.append(never[:count])
            never = never[count:]
            learn_all(learner)
        assert twin.recommend(["u1", "u2"], 9) == without.recommend(["u1", "u2"], 9)
        assert np.array_equal(twin.score(["u1"], ["i1"]), without.score(["u1"], ["i1"]))


@pytest.mark.slow
def test_who_was_unlearned_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another person is unlearned, when a batch that was quarantined is retried, and after a restart."""
    folder, events = tmp_path / "live", stream(120)
    with EventLog(folder, LOG) as log:
        with Learner(settings(folder, None)) as learner:
            log.append(events)
            with monkeypatch.context() as broken:
                broken.setattr("melon.learning.updater.Updater.learn", lambda *_: 1 / 0)
                learner.step()
            learn_all(learner)
            (quarantined,) = learner.book.quarantined()
            people = [str(one.user) for one in learner.log.events(quarantined.first, quarantined.last)]
            for person in (people[0], people[1]):
                offset = log.forget(person, unlearn=True).result()
                learn_all(learner)
                learner.save(wait=True)
                count = len(learner.log.to_unlearn())
                wait_until(lambda count=count: len(learner.log.to_unlearn()) == count + 1)  # type: ignore[misc]

                def unlearned(offset: int = offset) -> bool:
                    learner.consider_fitting()
                    return learner.book.unlearned() >= offset

                wait_until(unlearned, 600)
            log.control("retry", {"batch": quarantined.number}).result()
            learn_all(learner)
            names = [str(control.body["pseudonym"]) for control in learner.log.to_unlearn()]
            assert learner.replay.model.users.rows(names).tolist() == [-1, -1]
            before = learner.position
        with Learner(settings(folder, None)) as learner:
            assert learner.position == before
            assert not learner.book.alarms()
            copy, digest = clean_replay(folder)
            assert digest == before.digest
            assert state_digest(copy) == state_digest(learner.replay.model)


class TestRefusals:
    def test_two_learners_on_one_log(self, tmp_path: Path) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with (
            EventLog(folder, LOG),
            Learner(settings(folder, model)),
            pytest.raises(LogError, match=r"has a learner already: process \d+"),
        ):
            Learner(settings(folder, model))

    def test_a_log_of_another_model_names_both(self, tmp_path: Path) -> None:
        first, second = saved_model(tmp_path / "first"), saved_model(tmp_path / "second", events=140)
        folder = tmp_path / "live"
        with EventLog(folder, LOG):
            Learner(settings(folder, first)).__exit__(None, None, None)
            with pytest.raises(LogError, match=r"belongs to the model .*first.*not to .*second"):
                Learner(settings(folder, second))

    def test_files_of_another_log_name_both(self, tmp_path: Path) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        with EventLog(folder, LOG) as log, Learner(settings(folder, model)):
            first = log.log_id
        for path in folder.glob("events.db*"):
            path.unlink()
        with EventLog(folder, LOG) as log, pytest.raises(LogError, match=f"{log.log_id}.*{first}"):
            Learner(settings(folder, model))

    @pytest.mark.parametrize(
        ("break_it", "message"),
        [
            (lambda folder: (folder / "manifest.json").unlink(), "holds no checkpoint"),
            (lambda folder: (folder / "manifest.json").write_text("{}"), "not written by melon"),
            (
                lambda folder: (folder / "manifest.json").write_text('{"format": "melon-checkpoint", "version": 99}'),
                "upgrade melon",
            ),
            (lambda folder: folder.rename(folder.with_name("gone")), "does not exist"),
        ],
    )
    def test_a_model_that_is_missing_foreign_or_newer(self, tmp_path: Path, break_it: Any, message: str) -> None:
        model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
        break_it(model)
        with EventLog(folder, LOG), pytest.raises(CheckpointError, match=message):
            Learner(settings(folder, model))
        with EventLog(folder, LOG), pytest.raises(CheckpointError):  # the lock was let go
            Learner(settings(folder, model))


def test_a_write_that_fails_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no room")

    with EventLog(tmp_path / "live", LOG) as log:
        log.append(stream(60))
        with Learner(settings(tmp_path / "live", saved_model(tmp_path / "model"))) as learner:
            learn_all(learner)
            with monkeypatch.context() as broken:
                broken.setattr(Checkpoints, "write", fail)
                learner.save(wait=True)
            assert learner.position.batch not in learner.checkpoints.numbers()
            assert any("no room" in text for text in learner.book.alarms())
            learner.save(wait=True)
            assert learner.position.batch in learner.checkpoints.numbers()
            assert learner.book.alarms() == []


def test_what_is_written_is_the_model_when_saving_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning goes on while a thread writes; no process is forked."""
    online_continuation, write = threading.Event(), Checkpoints.write

    def late(*given: Any) -> None:
        assert online_continuation.wait(60)
        write(*given)

    monkeypatch.setattr(Checkpoints, "write", late)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process with threads was forked"))
    with EventLog(tmp_path / "live", LOG) as log:
        online_continuation.set()
        log.append(stream(60))
        with Learner(settings(tmp_path / "live", saved_model(tmp_path / "model"))) as learner:
            learn_all(learner)
            position, digest = learner.position, state_digest(learner.replay.model)
            online_continuation.clear()
            learner.save()
            log.append(stream(60, seed=4))
            learn_all(learner)
            assert learner.position.batch > position.batch
            online_continuation.set()
            learner._saved(wait=True)
            saved = learner.checkpoints.load(position.batch)
            assert (saved.position, state_digest(saved.model)) == (position, digest)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log:
        for part in range(5):
            log.append(stream(40, seed=part))
            with Learner(settings(folder, model)) as learner:
                learn_all(learner)
                learner.save(wait=True)
                position, digest = learner.position, state_digest(learner.replay.model)
        checkpoints = Checkpoints(folder)
        assert checkpoints.numbers() == [0, 3, 4, 5]  # the newest three, and the one where replays begin
        next(checkpoints.path(5).glob("*.safetensors")).write_bytes(b"damaged")
        with Learner(settings(folder, model)) as learner:
            assert learner.position == position
            assert state_digest(learner.replay.model) == digest


def test_a_replica_that_falls_behind_or_finds_other_bytes_loads_a_checkpoint(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    some = settings(folder, model, keep_deltas_bytes=1)
    with EventLog(folder, LOG) as log, Learner(some) as learner, Replica(folder) as replica:
        replica.load()
        log.append(stream(200))
        learn_all(learner)  # no delta but the last is kept
        assert not replica.follow()
        learner.save(wait=True)
        assert replica.follow()
        assert replica.position == learner.position
        assert replica.reloads["gap"] == 1
        log.append(stream(30, seed=5))
        learn_all(learner)
        learner.feed._rows("UPDATE deltas SET content = zeroblob(40)")
        replica.follow()
        assert replica.position.offset == 200
        learner.save(wait=True)
        replica.follow()
        assert replica.position == learner.position


def test_a_replica_of_a_step_that_was_lost_takes_the_one_that_came_instead(tmp_path: Path) -> None:
    model, folder = saved_model(tmp_path / "model"), tmp_path / "live"
    with EventLog(folder, LOG) as log, Replica(folder) as replica:
        log.append(stream(60))
        with Learner(settings(folder, model, batch_most=40)) as learner:
            learn_all(learner)
            replica.load()
            replica.follow()
            lost = learner.position
            learner.book._rows("DELETE FROM steps WHERE number = 2")  # as a power cut does: it was not synced
            learner._saved_offset = lost.offset
        log.append(stream(5, seed=5))
        with Learner(settings(folder, model, batch_most=40)) as learner:
            learn_all(learner)
            assert (learner.position.batch, learner.position.offset) == (lost.batch, 65)
            assert replica.position == lost
            replica.follow()
            replica.follow()
            assert replica.position == learner.position


def test_a_cold_service_fits_its_own_log_and_switches(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    some = settings(folder, None, fit_after=250, fit_budget=0)
    with EventLog(folder, LOG) as log, Replica(folder) as replica:
        log.append(stream(300))
        with Learner(some) as learner:
            replica.load()
            learn_all(learner)
            learner.consider_fitting()
            log.append(stream(50, seed=8))
            learn_all(learner)  # while the fit runs

            def switched() -> bool:
                learner.consider_fitting()
                return learner.position.version != "cold"

            wait_until(switched, 600)
            assert learner.position.version == "fit-300"
            assert learner.replay.model.updater.history.events == 350
            log.append(stream(30, seed=9))
            learn_all(learner)
            replica.follow()
            assert replica.position == learner.position
            assert replica.reloads["switch"] == 1
        with Learner(some) as learner:
            assert learner.position == replica.position
            copy, digest = clean_replay(folder)
            assert digest == learner.position.digest
            assert state_digest(copy) == state_digest(learner.replay.model)


def test_a_cold_start_and_the_process(tmp_path: Path) -> None:
    folder, stop = tmp_path / "live", threading.Event()
    process = threading.Thread(target=run_learner, args=(settings(folder, None, batch_every_ms=10), stop))
    process.start()
    with EventLog(folder, LOG) as log, Replica(folder) as replica:
        replica.load()
        replica.start()
        assert log.append(stream(100)).accepted == 100
        assert replica.wait_for(100, 60.0)
        with replica.reading() as (held, position):
            assert held.recommend(["u1"], 3)[0].source == "model"
            assert position.version == "cold"
        stop.set()
        process.join(60)
        assert not process.is_alive()
    assert Checkpoints(folder).position(Checkpoints(folder).numbers()[-1])[0].offset == 100
    with EventLog(folder, LOG), Learner(settings(folder, None)) as learner:
        assert learner.position.offset == 100
        assert np.isfinite(learner.replay.model.score(["u1"], ["i1"])[0])
