"""How many functions of melon one call enters: a plain step, a `partial_fit`, a list, both, a CSV file.

Counts by `sys.setprofile`, after a first call that loads and compiles; a comprehension counts with its function.
Runs on old versions too, so that walks can be compared (docs/design.md, "Two walks"): run it with their interpreter.

    .venv/bin/python benchmarks/walks.py            # -v lists the functions
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import melon
from melon.data.prepare import prepare

EVENTS, BATCH, USERS, ITEMS = 3_000, 256, 200, 150


def count(what: str, call: Callable[[], Any]) -> None:
    """Run the call and print what it entered."""
    entered: dict[tuple[str, str], int] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        _, inside, module = code.co_filename.partition("/melon/")
        if event == "call" and inside and not code.co_name.startswith("<"):
            entered[module, code.co_qualname] = entered.get((module, code.co_qualname), 0) + 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    modules = {module for module, _ in entered}
    print(f"{what:<34} {len(entered):>3} functions in {len(modules):>2} modules, {sum(entered.values()):>3} calls")
    if "-v" in sys.argv:
        for (module, name), calls in entered.items():
            print(f"    {module} {name} × {calls}")


def main() -> None:
    rng = np.random.default_rng(0)
    log = [(int(rng.integers(USERS)), int(rng.zipf(1.5) % ITEMS), 1_500_000_000 + n) for n in range(EVENTS)]
    model = melon.Melon("bpr", "default", budget=0, epochs=1).fit(log)

    def events(later: int) -> list[tuple[int, int, int]]:
        return [(user, item, time + later) for user, item, time in log[:BATCH]]

    learned: list[Any] = []
    updater = model._model.updater  # type: ignore[union-attr]
    name = "learn_undoable" if hasattr(updater, "learn_undoable") else "learn"
    learn = getattr(updater, name)
    setattr(updater, name, lambda batch, *rest, **named: (learned.append(batch), learn(batch, *rest, **named))[1])
    for n in range(1, 4):
        model.partial_fit(events(n * EVENTS))
    delattr(updater, name)
    batch = replace(learned[-1], first_event=updater.history.events)
    updater.learn(batch)
    batch = replace(batch, first_event=updater.history.events)
    count("Updater.learn(256 interactions)", lambda: updater.learn(batch))
    count("partial_fit(256 interactions)", lambda: model.partial_fit(events(5 * EVENTS)))
    model.recommend([log[0][0]])
    model.partial_fit([(*log[0][:2], 1_600_000_000)])
    count("recommend, right after an event", lambda: model.recommend([log[0][0]]))
    count("256 events, then the next list", lambda: model.partial_fit(events(10**9)).recommend([log[0][0]]))
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "log.csv"
        raw.write_text("user,item,time\n" + "".join(f"{user},{item},{time}\n" for user, item, time in log))
        prepare(raw, out=Path(folder) / "first.parquet")
        count("prepare(a CSV file)", lambda: prepare(raw, out=Path(folder) / "second.parquet"))


if __name__ == "__main__":
    main()
