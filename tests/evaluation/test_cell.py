"""One cell: the record of the design, the same candidates for all, and the test part shut until the choice is made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melon.data.interactions import Interactions
from melon.errors import LearningError, SettingsError, StreamError
from melon.evaluation.baselines import BASELINES
from melon.evaluation.cell import Cell, CellResult
from melon.evaluation.lists import TRACKS
from melon.evaluation.ranking import LIST_METRICS, metrics
from melon.evaluation.ranking import METRICS as ALL_METRICS
from melon.evaluation.work import Work
from melon.fitting import fit as fit_module
from melon.fitting.config import CellConfig
from melon.fitting.fit import Fitting
from melon.fitting.selection import Selection
from melon.progress import Progress
from melon.stream.split import SealedStream

METRICS = list(ALL_METRICS)
#: docs/design.md, "Result format"; "ranks" is added where the file is written.
SHAPE: dict[str, Any] = {
    "dataset": ["path", "sha256", "users", "items", "interactions", "split"],
    "recommender": str,
    "strategy": str,
    "preset": str,
    "pretrain": str,
    "half_life": None,
    "seed": int,
    "epochs": int,
    "version": str,
    "config": ["asked", "chosen"],
    "protocol": ["candidates", "negatives", "ties", "batch_size", "threads"],
    "lists": ["all", "first_time"],
    "nearest": str,
    "metrics": METRICS,
    "without_repeats": METRICS,
    "left_out": int,
    "baselines": ["frozen", "popularity", "recent_popularity", *BASELINES, "default"],
    "tie_rate": float,
    "interactions_evaluated": int,
    "cold": ["users"],
    "warm": METRICS,
    "step": ["moved", "default", "relative"],
    "update_ms": ["median", "mean", "p95"],
    "score_ms": ["median"],
    "pretrain_s": float,
    "peak_rss_mb": int,
    "batches": list,
}

MakeConfig = Callable[..., CellConfig]
Timeless = Callable[[dict[str, Any]], str]


@pytest.fixture(scope="module")
def eals(flips: Interactions, small: MakeConfig) -> CellResult:
    return Cell(flips, small(strategy="eals")).run("some/stream.parquet")


def test_the_record_has_the_shape_of_the_design(eals: CellResult, flips: Interactions) -> None:
    record = eals.record
    for key, wanted in SHAPE.items():
        assert key in record, key
        if isinstance(wanted, list):
            assert set(wanted) <= record[key].keys(), key
        elif wanted is not None:
            assert type(record[key]) is wanted, key
        else:
            assert record[key] is None, key
    assert record.keys() - SHAPE.keys() == {"baseline_batches"}
    assert set(record["batches"][0]) == {"t", "n", "HR@5", "NDCG@10", "update_ms"}
    for name, found in record["baselines"].items():
        assert set(METRICS) <= found.keys(), name
    assert "half_life" in record["baselines"]["recent_popularity"]
    assert record["dataset"] == {
        "path": "some/stream.parquet",
        "sha256": flips.sha256,
        "users": 30,
        "items": 40,
        "interactions": 1_000,
        "split": [0.7, 0.05, 0.25],
    }
    json.dumps(record, allow_nan=False)


def test_the_ranks_of_every_evaluated_event_are_kept(eals: CellResult, flips: Interactions) -> None:
    ranks, record = eals.ranks, eals.record
    assert ranks["event"].tolist() == list(range(750, 1_000))
    assert record["interactions_evaluated"] == 250
    assert record["left_out"] == 0
    assert ranks["user"].tolist() == flips.users[750:].tolist()
    assert ranks["item"].tolist() == flips.items[750:].tolist()
    assert record["metrics"] == metrics(ranks["rank"])
    for name, found in record["baselines"].items():
        assert {key: found[key] for key in METRICS} == metrics(ranks[f"rank_{name}"]), name


def test_repeats_cold_and_warm_are_told_apart(eals: CellResult, flips: Interactions) -> None:
    record, rank = eals.record, eals.ranks["rank"]
    had: set[tuple[int, int]] = set()
    repeat = []
    for pair in zip(flips.users.tolist(), flips.items.tolist(), strict=True):
        repeat.append(pair in had)
        had.add(pair)
    again = np.array(repeat[750:])
    assert eals.ranks["repeat"].tolist() == again.tolist()
    assert 0 < again.sum() < len(again)
    assert record["without_repeats"] == metrics(rank[~again])
    known = set(flips.users[:700].tolist())
    cold = np.array([user not in known for user in flips.users[750:].tolist()])
    assert eals.ranks["cold"].tolist() == cold.tolist()
    assert record["warm"] == metrics(rank[~cold])


def test_cold_users_have_metrics_of_their_own(small: MakeConfig) -> None:
    rng, when = np.random.default_rng(0), np.arange(900)
    log = Interactions.from_ids(rng.integers(0, 5 + when // 10), rng.integers(0, 30, 900), when)
    result = Cell(log, small()).run()
    known = int(log.users[:630].max()) + 1
    cold = log.users[result.ranks["event"]] >= known
    assert 0 < cold.sum() < len(cold)
    users = np.unique(log.users[675:])
    assert result.record["cold"] == {"users": float((users >= known).mean()), **metrics(result.ranks["rank"][cold])}
    assert result.record["warm"] == metrics(result.ranks["rank"][~cold])


def test_batches_add_up(eals: CellResult) -> None:
    batches = eals.record["batches"]
    assert [batch["n"] for batch in batches] == [64, 64, 64, 58]
    assert [batch["t"] for batch in batches] == [0, 1, 2, 3]
    weighted = sum(batch["HR@5"] * batch["n"] for batch in batches) / 250
    assert weighted == pytest.approx(eals.record["metrics"]["HR@5"])
    assert all(len(line) == 4 for line in eals.record["baseline_batches"].values())


def test_the_same_seed_gives_the_same_record(
    eals: CellResult, flips: Interactions, small: MakeConfig, timeless: Timeless
) -> None:
    again = Cell(flips, small(strategy="eals")).run("some/stream.parquet")
    other = Cell(flips, small(strategy="eals", seed=1)).run("some/stream.parquet")
    assert timeless(again.record) == timeless(eals.record) != timeless(other.record)
    assert all(again.ranks[name].tobytes() == array.tobytes() for name, array in eals.ranks.items())
    assert other.record["metrics"] != eals.record["metrics"]


def test_all_strategies_face_the_same_candidates(eals: CellResult, flips: Interactions, small: MakeConfig) -> None:
    default = Cell(flips, small()).run()
    for name in ("rank_popularity", "rank_recent_popularity", "rank_frozen", "rank_default"):
        assert default.ranks[name].tobytes() == eals.ranks[name].tobytes(), name
    ncf = Cell(flips, small(recommender="ncf", recommender_settings={"dim": 4, "layers": (6,)}, budget=1)).run()
    assert ncf.ranks["rank_popularity"].tobytes() == eals.ranks["rank_popularity"].tobytes()


def test_default_beside_itself_is_the_tuned_baseline(flips: Interactions, small: MakeConfig) -> None:
    result = Cell(flips, small()).run()
    assert result.ranks["rank"].tobytes() == result.ranks["rank_default"].tobytes()
    assert result.record["config"]["chosen"].keys() == {"pretrain", "default", "recent_popularity", *BASELINES}


def test_what_is_fixed_is_not_searched(flips: Interactions, small: MakeConfig) -> None:
    result = Cell(flips, small(strategy="eals", settings={"lr": 0.05, "w_new": 2.0}, budget=3)).run()
    trials = result.record["config"]["chosen"]["eals"]["trials"]
    assert {(trial["settings"]["lr"], trial["settings"]["w_new"]) for trial in trials} == {(0.05, 2.0)}
    others = result.record["config"]["chosen"]["default"]["trials"]
    assert len({trial["settings"]["lr"] for trial in others}) > 1


# The key property: the test part is not read before the choice is made.


class Shut(Exception):
    """The test part was looked at too early."""


class Guarded(np.ndarray[Any, Any]):
    """An array whose tail may be cut off but not read while `shut`; whatever is computed from it is a plain array."""

    shut = True

    def __getitem__(self, key: Any) -> Any:
        plain = np.asarray(self)
        if type(self).shut and not (isinstance(key, slice) and key.stop is not None and key.stop <= 750):
            raise Shut(f"[{key}]")
        return plain[key]

    def __array_ufunc__(self, *given: Any, **more: Any) -> Any:
        raise Shut("arithmetic")

    def __array_function__(self, *given: Any, **more: Any) -> Any:
        raise Shut("a function of the whole array")

    def max(self, *given: Any, **more: Any) -> Any:
        raise Shut("max")


def guarded(log: Interactions) -> Interactions:
    """The log with columns that give out the first 750 events only, and the whole of themselves never."""
    columns = (column.view(Guarded) for column in (log.users, log.items, log.times))
    return Interactions(*columns, log.user_ids, log.item_ids)


def test_the_guard_guards(flips: Interactions) -> None:
    log = guarded(flips)
    assert log.head(750).items.tolist() == flips.items[:750].tolist()
    for read in (
        lambda: log.head(751),
        lambda: log.items[760],
        log.items.max,
        lambda: log.users + 1,
        lambda: log.n_users,
        lambda: log.n_items,
        lambda: log.repeats,
        lambda: log.known_items,
    ):
        with pytest.raises(Shut):
            read()


def test_no_event_of_the_test_part_is_read_before_the_choice(
    flips: Interactions, small: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Cell(flips, small(strategy="eals")).choose()
    guard = Cell(guarded(flips), small(strategy="eals"))
    assert json.dumps(guard.choose()) == json.dumps(wanted)

    # The run itself reads it only through `open`, and that is called when everything is chosen and refitted.
    calls: list[str] = []

    def told(name: str, owner: Any) -> None:
        method = getattr(owner, name)

        def spy(*given: Any, **more: Any) -> Any:
            calls.append(f"{name} begins")
            found = method(*given, **more)
            calls.append(f"{name} ends")
            return found

        monkeypatch.setattr(owner, name, spy)

    told("choose", Cell)
    told("pretrained", Fitting)
    told("open", SealedStream)
    with pytest.raises(Shut):
        Cell(guarded(flips), small(strategy="eals")).run()
    assert calls == ["choose begins", "choose ends", "pretrained begins", "pretrained ends", "open begins", "open ends"]


def test_another_test_part_changes_no_choice(flips: Interactions, small: MakeConfig) -> None:
    """Garbage of another length on other items behind event 750; the shares are adapted so that the cuts stay."""
    rng, extra = np.random.default_rng(1), 90
    other = Interactions.from_ids(
        np.concatenate([flips.user_ids[flips.users[:750]], rng.integers(10**6, 10**7, extra)]),
        np.concatenate([flips.item_ids[flips.items[:750]], rng.integers(10**6, 10**7, extra)]),
        np.concatenate([flips.times[:750], flips.times[749] + rng.integers(0, 10**9, extra).cumsum()]),
    )
    n = len(other)
    one = Cell(flips, small(strategy="eals"))
    two = Cell(other, small(strategy="eals", split=(700 / n, 50 / n, extra / n)))
    assert (one.parts.train_stop, one.parts.validation_stop) == (two.parts.train_stop, two.parts.validation_stop)
    first, second = one.choose(), two.choose()
    assert json.dumps(first) == json.dumps(second)
    fitted = [cell.fitting.pretrained(first).tables for cell in (one, two)]
    for name, state in fitted[0].items():
        assert all(t.tobytes() == fitted[1][name][part].tobytes() for part, t in state.items())


def test_the_seal_opens_only_for_choices(flips: Interactions, small: MakeConfig) -> None:
    sealed = Cell(flips, small())._sealed
    with pytest.raises(StreamError, match="only after all choices"):
        sealed.open(None)
    assert len(sealed.before_test) == 750
    assert len(sealed.training) == 700
    assert sealed.before_test.n_items == int(flips.items[:750].max()) + 1
    assert sealed.open({}) is flips


# Ways to run.


@pytest.mark.parametrize("mode", ["catalogue", "full-log", "known"])
def test_candidate_modes(mode: str, flips: Interactions, small: MakeConfig) -> None:
    record = Cell(flips, small(candidates=mode)).run().record
    assert record["protocol"]["candidates"] == mode
    assert record["interactions_evaluated"] + record["left_out"] == 250


def test_known_candidates_leave_out_what_a_zero_count_would_give_away(small: MakeConfig) -> None:
    rng, when = np.random.default_rng(4), np.arange(1_000)
    log = Interactions.from_ids(rng.integers(0, 30, 1_000), rng.integers(0, 25 + when // 8), when)
    result = Cell(log, small(candidates="known")).run()
    cuts = range(750, 1_000, 64)
    aside = sum(
        int(log.items[event] >= log.items[:cut].max() + 1) for cut in cuts for event in range(cut, min(cut + 64, 1_000))
    )
    assert result.record["left_out"] == aside > 0
    assert result.record["interactions_evaluated"] == 250 - aside == len(result.ranks["rank"])
    assert len(result.ranks["rank_popularity"]) == 250 - aside


def test_lists(flips: Interactions, small: MakeConfig) -> None:
    result = Cell(flips, small()).run()
    lists, ranks = result.record["lists"], result.ranks
    for track in TRACKS:
        judged = ranks[f"list_{track}"][~np.isnan(ranks[f"list_{track}"])]
        assert metrics(judged, LIST_METRICS).items() <= lists[track].items()
        assert lists[track]["events"] == len(judged)
        assert lists[track]["new"] == np.isinf(judged).sum()
        assert judged[np.isfinite(judged)].max() <= 40
        assert 0 < lists[track]["coverage"] <= 1
        for name, found in result.record["baselines"].items():
            assert found["lists"][track].keys() == lists[track].keys()
            assert f"list_{track}_{name}" in ranks
    assert lists["all"]["events"] == 250
    assert lists["first_time"]["events"] == (~ranks["repeat"]).sum() < 250
    assert result.record["nearest"] in ("recent_popularity", *BASELINES)
    without = Cell(flips, small(lists=False)).run()
    assert without.record["lists"] is None
    assert without.record["metrics"] == result.record["metrics"]


def test_own_pretraining_leaves_the_baselines_as_they_are(
    eals: CellResult, flips: Interactions, small: MakeConfig
) -> None:
    own = Cell(flips, small(strategy="eals", pretrain="own")).run()
    for name in ("rank_popularity", "rank_frozen", "rank_default"):
        assert own.ranks[name].tobytes() == eals.ranks[name].tobytes(), name
    assert own.ranks["rank"].tobytes() != eals.ranks["rank"].tobytes()
    assert own.record["pretrain"] == "own"


@pytest.mark.parametrize("half_life", ["auto", 200.0])
def test_half_life_is_told(half_life: str | float, flips: Interactions, small: MakeConfig) -> None:
    record = Cell(flips, small(half_life=half_life)).run().record
    chosen = record["config"]["chosen"]["default"]["settings"]
    assert record["half_life"] == chosen["half_life"]
    assert half_life in ("auto", record["half_life"])


def test_a_preset_is_fixed(flips: Interactions, small: MakeConfig) -> None:
    record = Cell(flips, small(preset="paper", recommender_settings={"dim": 4, "init": "paper"})).run().record
    chosen = record["config"]["chosen"]["default"]
    assert chosen["settings"]["optimizer"] == "adam_dense"
    assert chosen["trials"] == []
    assert record["preset"] == "paper"


def test_a_pairing_that_does_not_exist_is_refused_before_any_work(
    flips: Interactions, small: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Selection, "pretraining", None)
    monkeypatch.setattr(fit_module, "refit", None)
    with pytest.raises(SettingsError, match=r"'metasgd' has nothing to update.*Use it with the strategy 'default'"):
        Cell(flips, small(strategy="metasgd", recommender="ials", recommender_settings={}))


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        ({"settings": {"lrr": 1}}, SettingsError, "unknown setting of strategy 'default' 'lrr'. Did you mean 'lr'"),
        ({"settings": {"lr": -1}}, SettingsError, "lr = -1"),
        ({"recommender_settings": {"dim": 0}}, SettingsError, "dim = 0"),
        ({"pretrain_settings": {"l2": -1}}, SettingsError, "l2 = -1"),
        ({"pretrain_settings": {"x": 1}}, SettingsError, "unknown setting of pre-training"),
        ({"negatives": 40}, StreamError, "40 items, too few for 40 negatives"),
        ({"split": (0.9999, 0.00005, 0.00005)}, StreamError, "leaves the validation part empty"),
        ({"split": (0.9, 0.2, 0.1)}, StreamError, "add up to 1"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_before_any_work(
    more: dict[str, Any], kind: type[Exception], message: str, flips: Interactions, small: MakeConfig
) -> None:
    with pytest.raises(kind, match=message):
        Cell(flips, small(**more))


@pytest.mark.parametrize("side", ["user", "item"])
def test_one_user_or_one_item_is_refused(side: str, small: MakeConfig) -> None:
    when = np.arange(500)
    columns = {"user": when % 20, "item": when % 30} | {side: np.zeros(500, dtype=np.int64)}
    log = Interactions.from_ids(columns["user"], columns["item"], when)
    with pytest.raises(StreamError, match=f"has 1 {side}; an evaluation needs at least two"):
        Cell(log, small())


def test_a_short_stream_falls_back_to_defaults_and_says_so(flips: Interactions, small: MakeConfig) -> None:
    notes: list[str] = []

    class Told(Progress):
        def note(self, text: str) -> None:
            notes.append(text)

    result = Cell(flips.head(120), small(negatives=10, epochs=None, settings={"lr": 0.05}), Told()).run()
    assert any("too few for a selection window" in note for note in notes)
    record = result.record
    assert record["config"]["chosen"]["default"] == {
        "settings": {"half_life": None, "lr": 0.05},
        "score": None,
        "trials": [],
    }
    assert record["epochs"] == 60
    assert record["interactions_evaluated"] == 30
    capped = Cell(flips.head(120), small(negatives=10, epochs=3)).run().record
    assert capped["epochs"] == 3


def test_a_model_that_leaves_the_finite_numbers_is_an_error(flips: Interactions, small: MakeConfig) -> None:
    with pytest.raises(LearningError, match="smaller"):
        Cell(flips, small(settings={"lr": 1e6, "optimizer": "sgd", "reduction": "sum"})).run()


def test_a_catalogue_that_its_users_know_is_told_early(flips: Interactions, small: MakeConfig) -> None:
    """Nobody has so many items left; strategies that meta-train do so on fewer."""
    notes: list[str] = []

    class Told(Progress):
        def note(self, text: str) -> None:
            notes.append(text)

    config = small(negatives=39, strategy="melon", budget=1, settings={"passes": 1})
    record = Cell(flips, config, Told()).run().record
    assert notes[0].startswith("almost nothing can be ranked")
    assert notes[0].endswith("of 40 items left, and 39 are asked for; lower --negatives")
    assert record["interactions_evaluated"] == 0


# What was finished is kept.


class Stops(Progress):
    """Presses Ctrl-C at the n-th call."""

    def __init__(self, at: int) -> None:
        self.calls, self.at = 0, at

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt

    def stage(self, name: str) -> None:
        self._count()

    def note(self, text: str) -> None:
        self._count()

    def tick(self, text: str) -> None:
        self._count()

    def batch(self, *given: Any) -> None:
        self._count()


@pytest.mark.parametrize(
    ("pretrain", "every"), [("shared", 4), ("own", 7), pytest.param("shared", 1, marks=pytest.mark.slow)]
)
def test_stopped_anywhere_and_resumed_gives_the_same_record(
    pretrain: str, every: int, flips: Interactions, small: MakeConfig, timeless: Timeless, tmp_path: Path
) -> None:
    config = small(strategy="eals", pretrain=pretrain, budget=1, epochs=1, batch_size=128)
    counter = Stops(-1)
    straight = Cell(flips, config, counter).run("here")
    wanted = timeless(straight.record)
    assert counter.calls > 25
    for at in range(1, counter.calls + 1, every):
        folder = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            Cell(flips, config, Stops(at), Work(folder)).run("here")
        resumed = Cell(flips, config, Progress(), Work(folder)).run("here")
        assert timeless(resumed.record) == wanted, at
        assert all(resumed.ranks[name].tobytes() == array.tobytes() for name, array in straight.ranks.items())


def test_what_was_finished_is_not_done_again(flips: Interactions, small: MakeConfig, tmp_path: Path) -> None:
    stages: list[str] = []

    class Told(Progress):
        def stage(self, name: str) -> None:
            stages.append(name)
            if name == "streaming recent_popularity":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Cell(flips, small(), Told(), Work(tmp_path)).run()
    done, stages[:] = list(stages), []

    class Quiet(Progress):
        def stage(self, name: str) -> None:
            stages.append(name)

    Cell(flips, small(), Quiet(), Work(tmp_path)).run()
    assert done[-1] == stages[0] == "streaming recent_popularity"
    assert stages == [f"streaming {name}" for name in ("recent_popularity", *BASELINES, "default")]


def test_cells_of_one_stream_share_their_work(flips: Interactions, small: MakeConfig, timeless: Timeless) -> None:
    stages: list[str] = []

    class Told(Progress):
        def stage(self, name: str) -> None:
            stages.append(name)

    work = Work()
    Cell(flips, small(), Told(), work).run("here")
    stages.clear()
    shared = Cell(flips, small(strategy="eals"), Told(), work).run("here")
    assert stages == ["choosing settings of eals", "streaming eals"]
    alone = Cell(flips, small(strategy="eals")).run("here")
    assert timeless(shared.record) == timeless(alone.record)


def test_a_blend_runs_from_the_window_to_the_record(flips: Interactions, small: MakeConfig) -> None:
    config = small(
        recommender="blend",
        strategy="eals",
        budget=1,
        retrain_every=120,
        recommender_settings={"dim": 6, "slots": 16, "head_negatives": 5},
    )
    record = Cell(flips, config).run().record
    baselines = record["baselines"]
    assert baselines.keys() == {"frozen", "popularity", "recent_popularity", *BASELINES, "retrained", "default"}
    assert baselines["default"]["HR@5"] != baselines["frozen"]["HR@5"]
    assert set(LIST_METRICS) < record["lists"]["first_time"].keys()
    assert record["config"]["asked"]["retrain_every"] == 120


def test_meta_training_of_a_head_is_kept_with_the_work(flips: Interactions, small: MakeConfig, tmp_path: Path) -> None:
    config = small(recommender="blend", budget=1, recommender_settings={"dim": 6, "slots": 16, "head_negatives": 5})
    whole = Cell(flips, config, work=Work(tmp_path)).run().record
    again = Cell(flips, config, work=Work(tmp_path)).run().record
    assert (tmp_path / "meta-training-default.safetensors").exists()
    assert whole["metrics"] == again["metrics"]
    assert whole["metrics"] == Cell(flips, config).run().record["metrics"]
