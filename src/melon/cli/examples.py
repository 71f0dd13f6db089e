"""Examples of every command, shown at the end of its --help."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "data prepare": (
        "melon data prepare ratings.csv.gz --out stream.parquet",
        "melon data prepare clicks.csv --user reader --item article --time clicked_at --out stream.parquet",
    ),
    "data info": ("melon data info stream.parquet",),
    "data synthetic": ("melon data synthetic news --events 20000 --out stream.parquet",),
    "advise": ("melon advise stream.parquet --minutes 10",),
    "evaluate": (
        "melon evaluate stream.parquet --json result.json --html result.html",
        "melon evaluate stream.parquet --recommender bpr --strategy melon --set most_rate=0.6",
    ),
    "bench": (
        "melon bench stream.parquet --strategies default,eals,melon --seeds 3 --jobs 2 --out runs/first",
        "melon bench a.parquet b.parquet --recommenders bpr,ncf --split a=0.8,0.02,0.18 --out runs/second",
    ),
    "tune": ("melon tune stream.parquet --strategy melon --trials 40 --jobs 2 --out tuned.toml",),
    "report": ("melon report runs/first", "melon report runs/first runs/second --out both"),
    "reproduce": ("melon reproduce --data raw/ --dry-run", "melon reproduce --data raw/ --quick"),
    "pretrain": (
        "melon pretrain stream.parquet --out model/",
        "melon pretrain stream.parquet --recommender bpr --strategy melon --budget 16 --out model/",
    ),
    "recommend": ("melon recommend model/ --user 42", "melon recommend model/ --user ann --user bob --k 5 --json"),
    "similar": ("melon similar model/ --item 1193 --k 5",),
    "learn": (
        "melon learn model/ new.csv",
        "melon learn model/ monday.csv tuesday.csv --user visitor --item page --time at --out newer/",
    ),
    "explain": ("melon explain model/ stream.parquet --out rates.png",),
    "demo": ("melon demo --out demo",),
}


def epilog(command: str) -> str | None:
    """The end of a command's help: its examples, one to a line."""
    lines = EXAMPLES.get(command)
    return "\n".join(["Examples:", "", *lines]) if lines else None
