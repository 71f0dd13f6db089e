"""Counts the modules and lines of `src` by room, as the table of docs/design.md has them.

python research/size.py            print the table
python research/size.py --write    write it into docs/design.md
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "service, client": "log, learner, replicas, HTTP, rules, keys, clients",
    "kernels": "everything that numba compiles",
    "strategies": "update strategies; MeLON in two forms",
    "models, tables": "recommenders, streaming state, the owner of rows",
    "learning": "updater, heads, meta-training, model, checkpoints, deltas, rate matrices",
    "fitting": "one path from a log to a model: plan, search, selection window",
    "evaluation, evaluator": "ranks, metrics, the prequential loop, comparisons, one result",
    "lab, demo": "bench, report, figures, the paper's experiment",
    "data": "raw files, ids, interactions, synthetic streams",
    "stream": "batches, splits, histories, negatives, candidates, draws",
    "cli": "commands",
    "testing, checks": "conformance checks for plug-ins",
}


def table() -> str:
    """Rooms down; modules and lines across."""
    counts: dict[str, list[int]] = {}
    for path in sorted((ROOT / "src" / "melon").rglob("*.py")):
        parts = path.relative_to(ROOT / "src" / "melon").parts
        top = parts[0].removesuffix(".py")
        room = next((name for name in ROOMS if top in name.split(", ")), "everything else")
        of_room = counts.setdefault(room, [0, 0])
        of_room[0] += 1
        of_room[1] += len(path.read_text(encoding="utf-8").splitlines())
    counts["in all"] = [sum(each[column] for each in counts.values()) for column in (0, 1)]
    about = {**ROOMS, "everything else": "estimator, registry, settings, errors, progress, files", "in all": ""}
    rows = [f"| {_code(room)} | {counts[room][0]} | {counts[room][1]:,} | {about[room]} |" for room in about]
    return "\n".join(["| part | modules | lines | what it is |", "|---|---|---|---|", *rows])


def _code(room: str) -> str:
    return ", ".join(f"`{name}`" for name in room.split(", ")) if room in ROOMS else room


if __name__ == "__main__":
    if "--write" in sys.argv:
        page = ROOT / "docs" / "design.md"
        text = page.read_text(encoding="utf-8")
        found = re.search(r"\| part \| modules \|.*?\n\n", text, re.DOTALL)
        assert found is not None, "docs/design.md has no table of parts"
        page.write_text(text.replace(found.group(), table() + "\n\n"), encoding="utf-8")
    print(table())
