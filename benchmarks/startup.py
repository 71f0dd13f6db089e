"""Start-up: seconds of `melon --help` and of `import melon`, and which heavy libraries they load.

python benchmarks/startup.py

Each is a process of its own, bare Python beside it; CPU and wall-clock seconds, medians of several turns. Goal for
`melon --help`: under 0.5 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np

HEAVY = ("torch", "numpy", "polars", "pyarrow", "pandas", "safetensors", "pydantic", "matplotlib", "rich")
HELP = "import sys; sys.argv = ['melon', '--help']\nfrom melon.cli import main\ntry: main()\nexcept SystemExit: pass\n"
TELL = f"import json, sys; sys.stderr.write(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
WORDS = {
    "python (bare)": [sys.executable, "-c", ""],
    "import melon": [sys.executable, "-c", "import melon"],
    "melon --help": [sys.executable, "-m", "melon", "--help"],
    "melon evaluate --help": [sys.executable, "-m", "melon", "evaluate", "--help"],
}
CODE = {
    "import melon": "import melon\n",
    "melon --help": HELP,
    "melon evaluate --help": HELP.replace("'--help'", "'evaluate', '--help'"),
}


def seconds(words: list[str]) -> tuple[float, float]:
    """CPU and wall-clock seconds of one process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def loaded(code: str) -> list[str]:
    """Which heavy libraries some code loads."""
    done = subprocess.run([sys.executable, "-c", code + TELL], check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stderr)
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7)
    asked = parser.parse_args()
    print(f"Python {sys.version.partition(' ')[0]}, {os.cpu_count()} cores, medians of {asked.turns} turns")
    print(f"{'':24}{'CPU s':>8}{'wall s':>8}   loads")
    times = {name: np.array([seconds(words) for _ in range(asked.turns)]) for name, words in WORDS.items()}
    for name, taken in times.items():
        cpu, wall = np.median(taken, axis=0)
        heavy = ", ".join(loaded(CODE[name])) if name in CODE else ""
        print(f"{name:24}{cpu:8.2f}{wall:8.2f}   {heavy or 'nothing heavy'}")


if __name__ == "__main__":
    main()
