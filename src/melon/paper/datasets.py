"""The paper's five datasets: what their raw files are called, what stands in for them, and where they are to be had."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from melon.paper.published import DATASETS, PaperDataset

#: Packed files are read as they are; archives of several files (.tar) have to be unpacked first.
_PACKED = r"(\.gz|\.zip)?"


@dataclass(frozen=True)
class Wanted:
    """One dataset: its stream's name, raw files by pattern (the first that fits is taken), and how to get them."""

    paper: PaperDataset
    stream: str
    format: str
    patterns: tuple[str, ...]
    how: str
    stand_ins: tuple[str, ...] = ()

    @property
    def split(self) -> str:
        """As `--split` writes it."""
        return ",".join(f"{share / 100:g}" for share in self.paper.split)


@dataclass(frozen=True)
class Found:
    """Where a dataset is: raw files to prepare, or a stream that stands in for it."""

    wanted: Wanted
    raw: tuple[Path, ...] = ()
    prepared: Path | None = None

    @property
    def stream(self) -> str:
        """The stream's name in the bench."""
        return self.prepared.name.removesuffix(".parquet") if self.prepared else self.wanted.stream


def _amazon(paper: str, stream: str, category: str) -> Wanted:
    names = (
        rf"ratings_{category}\.csv",
        rf"{category}\.csv",
        rf"reviews_{category}\.json",
        rf"{category}\.json",
    )
    how = (
        f"ratings_{category}.csv of 2014 (https://jmcauley.ucsd.edu/data/amazon/) or {category}.csv of 2018 "
        "(https://nijianmo.github.io/amazon/), the ratings only"
    )
    return Wanted(DATASETS[paper], stream, "amazon", tuple(name + _PACKED for name in names), how)


WANTED = (
    Wanted(
        DATASETS["Adressa"],
        "adressa",
        "adressa",
        (rf"201701\d\d{_PACKED}", rf"adressa.*\.jsonl?{_PACKED}"),
        "the light version of one week (one_week.tar.gz) from https://reclab.idi.ntnu.no/dataset/, unpacked: seven "
        "files named 20170101 to 20170107",
        ("news_globo",),
    ),
    _amazon("Amazon Book", "amazon_book", "Books"),
    _amazon("Amazon Electronics", "amazon_electronics", "Electronics"),
    _amazon("Amazon Grocery", "amazon_grocery", "Grocery_and_Gourmet_Food"),
    Wanted(
        DATASETS["Yelp"],
        "yelp",
        "yelp",
        (rf"yelp_academic_dataset_review\.json{_PACKED}", rf"review\.json{_PACKED}"),
        "yelp_academic_dataset_review.json from https://www.yelp.com/dataset, unpacked",
    ),
)


def look(folder: Path) -> tuple[list[Found], list[Wanted]]:
    """What a folder and those in it hold of the five (raw files before prepared streams), and what is missing."""
    files = sorted(path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file())
    datasets, missing = [], []
    for wanted in WANTED:
        raw = next((some for pattern in wanted.patterns if (some := _matching(files, pattern))), ())
        names = (wanted.stream, *wanted.stand_ins)
        prepared = next((path for name in names if (path := folder / f"{name}.parquet").is_file()), None)
        if raw:
            datasets.append(Found(wanted, raw))
        elif prepared is not None:
            datasets.append(Found(wanted, prepared=prepared))
        else:
            missing.append(wanted)
    return datasets, missing


def _matching(files: list[Path], pattern: str) -> tuple[Path, ...]:
    """Files of that name in one folder: copies in several would count everything twice."""
    alike = [path for path in files if re.fullmatch(pattern, path.name)]
    return tuple(path for path in alike if path.parent == alike[0].parent)
