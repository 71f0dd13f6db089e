"""A recorded stream replayed into `melon serve`: does it stay within memory, handles and files?

    python benchmarks/service_soak.py STREAM.parquet [--events N] [--rate 400] [--max-pairs 500000] [--fit-after 20000]

Starts cold, posts events in hundreds beside lists, as fast as they are learned (at most 5,000 wait) or at a stated
rate, and repeats the stream, later in time, until N events are learned. On the way the service fits a model on its own
log and switches. Each line has the events learned, resident megabytes of learner and API process, their open files and
threads, the megabytes of each part of the folder, and live quality. At the end the log is verified by a replay.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars

import melon


def processes(supervisor: int) -> dict[str, int]:
    """Learner and API process by role."""
    words = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(supervisor)]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return {role: int(pid) for pid, role in re.findall(r"^\s*(\d+) .*melon\.service\.supervisor (\w+) ", listed, re.M)}


def held(pid: int) -> dict[str, int]:
    """Resident megabytes, open files and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = {name: int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "Threads")}  # type: ignore[index]
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {"MB": values["VmRSS"] >> 10, "files": files, "threads": values["Threads"]}


def sizes(folder: Path) -> dict[str, float]:
    """Megabytes of the folder's parts."""
    parts: dict[str, float] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).parts[0]
        if path.is_file():
            parts[name] = parts.get(name, 0.0) + path.stat().st_size / 1e6
    return {name: round(size, 1) for name, size in sorted(parts.items()) if size >= 0.1}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("stream", type=Path)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--seconds", type=float, default=3600.0)
    arguments.add_argument("--rate", type=float, default=float("inf"), help="events a second, at most")
    arguments.add_argument("--max-pairs", type=int, default=500_000)
    arguments.add_argument("--fit-after", type=int, default=20_000)
    given = arguments.parse_args()
    stream = polars.read_parquet(given.stream)
    users, items, times = (stream[name].to_list() for name in stream.columns[:3])
    length, span = len(users), times[-1] - times[0] + 1

    with tempfile.TemporaryDirectory(prefix="melon-soak-") as home:
        folder = Path(home) / "live"
        settings = [f"max_pairs={given.max_pairs}", f"fit_after={given.fit_after}", "checkpoint_s=30"]
        words = ["serve", "--data", folder, "--port", "0", *(f"--set={one}" for one in settings)]
        said = Path(home) / "said"
        with said.open("w") as out:
            command = [sys.executable, "-m", "melon", *map(str, words)]
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        while not (found := re.search(r"serving on (http://\S+?);", said.read_text())):
            if process.poll() is not None:
                raise SystemExit(said.read_text())
            time.sleep(0.2)
        with melon.Client(found[1], deadline=300.0) as client:
            started, sent, shown = time.monotonic(), 0, 0.0
            while sent < given.events and time.monotonic() < started + given.seconds:
                events = []
                for place in range(sent, min(sent + 500, given.events)):
                    again, n = divmod(place, length)
                    moment = times[n] + again * span
                    events.append(
                        {"user": str(users[n]), "item": str(items[n]), "time": moment, "event_id": str(place)}
                    )
                client.record_many(events)
                sent += len(events)
                client.recommend(str(users[sent % length]))
                time.sleep(max(0.0, started + sent / given.rate - time.monotonic()))
                while client.status()["lag"] > 5_000:
                    time.sleep(0.05)
                if time.monotonic() >= shown + 20.0:
                    shown = time.monotonic()
                    look(client, process.pid, folder, time.monotonic() - started)
            while client.status()["lag"]:
                time.sleep(0.1)
            look(client, process.pid, folder, time.monotonic() - started)
            models = client.quality("7d")["models"].items()
            print({name: (told["HR@10"], told["ranked"]) for name, told in models}, flush=True)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        print({"stopped": process.returncode, "folder": sizes(folder)}, flush=True)
        subprocess.run([sys.executable, "-m", "melon", "log", "verify", folder], check=True)


def look(client: melon.Client, supervisor: int, folder: Path, seconds: float) -> None:
    """One line."""
    status, alive = client.status(), processes(supervisor)
    row: dict[str, object] = {
        "s": round(seconds),
        "events": status["log"]["events"],
        **{role: held(pid) for role, pid in alive.items()},
        "folder": sizes(folder),
        "users": status["users"],
        "items": status["items"],
        "model": f"{status['model']['recommender']} {status['model']['version']}",
        "HR@10": status["quality"]["HR@10"],
        "fresh p95": status["freshness_s"]["p95"],
        "alarms": status["alarms"],
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
