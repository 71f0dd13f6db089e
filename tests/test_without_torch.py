"""PyTorch is an extra: what runs by default runs where it cannot be imported, and what needs it names the extra."""

import subprocess
import sys

#: Makes `import torch` fail, as where it is not installed.
_HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import tempfile
import numpy as np
import polars as pl
import melon
from melon.data.synthetic import synthetic_stream

log = synthetic_stream("flip", n_users=40, n_items=60, n_events=1_000, seed=1)
frame = pl.DataFrame({"user": log.users, "item": log.items, "time": log.times})
"""
_AUTO = """
model = melon.Melon(budget=1, epochs=2, progress=False).fit(frame.head(800))
model.partial_fit(frame.tail(200))
before = model.recommend([1, 2], k=3)
with tempfile.TemporaryDirectory() as folder:
    model.save(folder)
    assert melon.load(folder).recommend([1, 2], k=3) == before
"""
_EVALUATE = """
for recommender, strategy, settings, budget in (
    ("bpr", "default", {}, 1),
    ("bpr", "eals", {}, 0),
    ("bpr", "melon", {"passes": 2, "half_life": 500.0}, 1),
    ("bpr", "mwnet", {"form": "stream", "passes": 2}, 0),
    ("bpr", "metasgd", {"form": "stream", "passes": 2}, 0),
    ("ials", "default", {}, 0),
):
    result = melon.evaluate(
        frame, recommender=recommender, strategy=strategy, split=(0.7, 0.1, 0.2), budget=budget, epochs=2, negatives=15,
        settings=settings, progress=False, lists=recommender == "ials",
    )
    assert result.record["interactions_evaluated"], recommender
"""
_CHECKS = """
from functools import partial
from melon.models.bpr import BPR
from melon.strategies.default import Default
from melon.testing import check_pairing, check_recommender

report = check_pairing(partial(BPR, {"dim": 4}), Default, exempt={"finite_after_many_batches": "long"})
assert "untouched_rows_stay" in report.passed, report
assert "torch" in report.not_applicable["learning_rates_explain_the_update"], report
assert "catalogue_matches_score" in check_recommender(partial(BPR, {"dim": 4})).passed
"""
_REFUSED = """
from melon.errors import MelonError

for given in {given}:
    try:
        melon.Melon(**given, budget=0, epochs=1, progress=False).fit(frame)
    except MelonError as refusal:
        assert "pip install 'melon-recommender[torch]'" in str(refusal), refusal
    else:
        raise AssertionError(given)
import melon.models

try:
    melon.models.TorchRecommender
except MelonError as refusal:
    assert "melon.models.TorchRecommender needs the extra 'torch'" in str(refusal), refusal
"""
_NEEDS_IT = [
    {"recommender": "ncf", "strategy": "default"},
    {"recommender": "bpr", "strategy": "s2meta"},
    {"recommender": "bpr", "strategy": "sml"},
    {"recommender": "bpr", "strategy": "default", "settings": {"optimizer": "adam_lazy"}},
    {"recommender": "bpr", "strategy": "default", "recommender_settings": {"loss": "bce"}},
]


def _run(*parts: str) -> None:
    end = "\nassert 'torch' not in sys.modules"
    code = "".join([_HIDE, *parts, end])
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_auto_learns_lists_saves_and_loads() -> None:
    _run(_AUTO)


def test_recommenders_and_strategies_are_evaluated() -> None:
    _run(_EVALUATE)


def test_checks_run_and_what_needs_it_names_the_extra() -> None:
    _run(_CHECKS, _REFUSED.format(given=_NEEDS_IT))


def test_the_service_is_imported() -> None:
    _run("import melon.service.learner.loop, melon.service.replica, melon.service.http.app, melon.cli\n")
