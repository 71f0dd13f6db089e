"""`melon advise` on the screen: a line for each cell, then the table and the sentences, or JSON."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table as RichTable

from melon.advice.judging import Advice, difference_text, method_text
from melon.bench.grid import Outcome, Task
from melon.console import say, say_aside
from melon.evaluation.ranking import metrics
from melon.progress import Progress
from melon.terminal.bench_view import outcome_text


class AdviceProgress(Progress):
    """A line for each cell, with the time that is left."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + 60 * minutes

    def started(self, job: Task) -> None:
        say_aside(f"{job.config.recommender} {job.config.strategy} …")

    def ended(self, outcome: Outcome) -> None:
        config = outcome.task.config
        left = max(self._until - time.monotonic(), 0)
        say_aside(f"{config.recommender} {config.strategy}: {outcome_text(outcome)}  ({left:.0f} s left)")


def show_advice(advice: Advice, *, as_json: bool) -> None:
    """On the screen, or as JSON."""
    if as_json:
        Console(soft_wrap=True).print_json(json.dumps(advice.plain(), allow_nan=False))
        return
    first, last = (datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M") for moment in advice.span)
    say(f"The last {advice.recent:,} of {advice.interactions:,} interactions of {advice.stream}, {first} to {last}.")
    after = f"{advice.judged:,} that came after{', repeats left out' if advice.without_repeats else ''}"
    say(f"Settings were chosen on their earlier part; these figures are about {after}.")
    Console(soft_wrap=True).print(_table(advice))
    for line in advice.sentences():
        say(line)


def _table(advice: Advice) -> RichTable:
    table = RichTable("", "HR@5", "NDCG@10", f"over {advice.verdict.reference.name}", "ms a batch")
    for method in sorted(advice.methods, key=lambda method: -method.hit_rate):
        scores, against = metrics(method.rank), advice.verdict.challengers.get(method.name)
        mark = " *" if advice.verdict.better.get(method.name) else ""
        table.add_row(
            method_text(method.name),
            f"{scores['HR@5']:.3f}",
            f"{scores['NDCG@10']:.3f}",
            f"{difference_text(against)}{mark}" if against else "",
            f"{method.update_ms:.1f}" if method.name in advice.chosen else "",
        )
    table.caption = "95 % intervals from resampling users; * better, corrected for the number of comparisons"
    return table
