"""`melon reproduce`: the experiment of the MeLON paper (AAAI 2022), from raw files to a report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from melon.atomic import write_text
from melon.data.files import load_stream, side_car
from melon.data.prepare import prepare
from melon.errors import DataError, require_plots, unknown_name
from melon.fitting.config import read_config
from melon.lab.bench import bench_streams, files_about, tuned_elsewhere
from melon.lab.report import report_folders
from melon.lab.terminal import BenchProgress, show_bench, show_preparation
from melon.progress import say
from melon.strategies.registry import STRATEGIES
from melon.types import Plain

#: Packed files are read as they are; archives of several files (.tar) have to be unpacked first.
_PACKED = r"(\.gz|\.zip)?"


@dataclass(frozen=True)
class DatasetSource:
    """A dataset of the paper: its split, its stream, its raw files (the first pattern that fits), how to get it.

    Beside a pattern stand the columns of its files, where they have no usual names.
    """

    name: str
    split: str
    stream: str
    patterns: Mapping[str, Mapping[str, Any]]
    how: str
    stand_ins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """Where a dataset is: raw files to prepare, or a stream that stands in for it."""

    wanted: DatasetSource
    raw: tuple[Path, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    prepared: Path | None = None

    @property
    def stream(self) -> str:
        """The stream's name in the bench."""
        return self.prepared.name.removesuffix(".parquet") if self.prepared else self.wanted.stream


def _amazon(name: str, split: str, stream: str, category: str) -> DatasetSource:
    patterns: Mapping[str, Mapping[str, Any]] = {
        rf"ratings_{category}\.csv{_PACKED}": {"user": "1", "item": "2", "time": "4"},
        rf"{category}\.csv{_PACKED}": {"item": "1", "user": "2", "time": "4"},
        rf"(reviews_)?{category}\.json{_PACKED}": {},
    }
    how = (
        f"ratings_{category}.csv of 2014 (https://jmcauley.ucsd.edu/data/amazon/) or {category}.csv of 2018 "
        "(https://nijianmo.github.io/amazon/), the ratings only"
    )
    return DatasetSource(name, split, stream, patterns, how)


WANTED = (
    DatasetSource(
        "Adressa",
        "0.95,0.005,0.045",
        "adressa",
        {rf"201701\d\d{_PACKED}": {"item": "id"}, rf"adressa.*\.jsonl?{_PACKED}": {"item": "id"}},
        "the light version of one week (one_week.tar.gz) from https://reclab.idi.ntnu.no/dataset/, unpacked: seven "
        "files named 20170101 to 20170107",
        ("news_globo",),
    ),
    _amazon("Amazon Book", "0.95,0.005,0.045", "amazon_book", "Books"),
    _amazon("Amazon Electronics", "0.9,0.01,0.09", "amazon_electronics", "Electronics"),
    _amazon("Amazon Grocery", "0.8,0.02,0.18", "amazon_grocery", "Grocery_and_Gourmet_Food"),
    DatasetSource(
        "Yelp",
        "0.95,0.005,0.045",
        "yelp",
        {rf"(yelp_academic_dataset_)?review\.json{_PACKED}": {}},
        "yelp_academic_dataset_review.json from https://www.yelp.com/dataset, unpacked",
    ),
)


def look(folder: Path) -> tuple[list[Found], list[DatasetSource]]:
    """What a folder and those in it hold of the five (raw files before prepared streams), and what is missing."""
    files = sorted(path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_file())
    datasets, missing = [], []
    for wanted in WANTED:
        raw, columns = next(
            ((some, columns) for pattern, columns in wanted.patterns.items() if (some := _matching(files, pattern))),
            ((), {}),
        )
        names = (wanted.stream, *wanted.stand_ins)
        prepared = next((path for name in names if (path := folder / f"{name}.parquet").is_file()), None)
        if raw:
            datasets.append(Found(wanted, raw, columns))
        elif prepared is not None:
            datasets.append(Found(wanted, prepared=prepared))
        else:
            missing.append(wanted)
    return datasets, missing


def _matching(files: list[Path], pattern: str) -> tuple[Path, ...]:
    """Files of that name in one folder: copies in several would count everything twice."""
    alike = [path for path in files if re.fullmatch(pattern, path.name)]
    return tuple(path for path in alike if path.parent == alike[0].parent)


#: The paper drops users and items with fewer interactions (docs/methods.md 5.1).
_FEWEST = 20


#: Each strategy as published, training its recommender itself; and all meta-trained through the stream, from the same
#: pre-trained rows. A preset is meant for the strategies that have it: Default and eALS have no second form.
FORMS: dict[str, Plain] = {
    "published": {"preset": "paper", "pretrain": "own", "recommender_settings": {"init": "paper"}},
    "stream": {"preset": "stream"},
}
#: How often the published form passes over the training part. The paper makes 100 passes with either recommender; a
#: step of MeLON on ncf takes a second.
EPOCHS = {"bpr": 100, "ncf": 3}


@dataclass(frozen=True)
class Reproduction:
    """How much of the experiment is run, and where; `epochs` are those of the published form."""

    data: Path
    out: Path
    forms: str
    recommenders: str
    strategies: str
    seeds: int
    epochs: int | None
    options: Plain
    configs: Path
    jobs: int
    ray: str | None
    dry_run: bool

    def check(self) -> None:
        """Raise where a strategy or a form does not exist."""
        for name in () if self.strategies == "all" else self.strategies.split(","):
            STRATEGIES[name]
        for name in self.forms.split(","):
            if name not in FORMS:
                raise unknown_name("form", name, FORMS)


def reproduce(request: Reproduction) -> int:
    """`melon reproduce`; the exit code says whether every cell came through."""
    request.check()
    if not request.dry_run:
        require_plots("the report of melon reproduce")
    if not request.data.is_dir():
        raise DataError(f"there is no folder {request.data}; give the folder of the paper's datasets with --data.")
    datasets, missing = look(request.data)
    _show(request.data, datasets, missing)
    if not datasets:
        raise DataError(f"{request.data} holds none of the paper's datasets; give their folder with --data.")
    if request.dry_run:
        return 0
    streams = {dataset.stream: _stream(dataset, request.out) for dataset in datasets}
    splits = [f"{dataset.stream}={dataset.wanted.split}" for dataset in datasets]
    configs = request.out / "configs"
    for folder in (request.configs, request.configs / "stream"):  # of two files about a cell, the second stays
        _take(folder, streams, configs)
    taken = files_about(configs, streams)
    say(
        f"through the stream, settings of {len(taken)} cells come from {configs}; what is open is chosen on the "
        "selection window"
        if taken
        else "settings are chosen on the selection window"
    )
    codes, folders = [], []
    for form, recommender in product(request.forms.split(","), request.recommenders.split(",")):
        own, options = form == "published", {"lists": False, **FORMS[form], **request.options}
        if own:
            options["epochs"] = request.epochs or EPOCHS.get(recommender, EPOCHS["bpr"])
        folders.append(request.out / f"{form}-{recommender}")
        result = bench_streams(
            list(streams.values()),
            options,
            recommenders=recommender,
            strategies=request.strategies,
            seeds=request.seeds,
            splits=splits,
            configs=[configs] if taken and not own else [],
            jobs=request.jobs,
            ray=request.ray,
            out=folders[-1],
            progress=BenchProgress(),
        )
        codes.append(show_bench(result))
    say(report_folders(folders, request.out / "report").summary)
    say(f"the paper's claims, judged for both forms: python research/paper/claims.py {request.out} (in a clone)")
    return max(codes)


def _stream(dataset: Found, out: Path) -> Path:
    """A stream that exists already, or one that is prepared now; the same raw files are prepared once."""
    if dataset.prepared is not None:
        return dataset.prepared
    target = out / "data" / f"{dataset.stream}.parquet"
    if _is_of(target, dataset.raw):
        say(f"{target} exists already")
        return target
    say(f"preparing {dataset.wanted.name} from {', '.join(path.name for path in dataset.raw)}")
    report = prepare(list(dataset.raw), out=target, min_interactions=_FEWEST, **dataset.columns)
    show_preparation(report, target)
    return target


def _is_of(stream: Path, raw: Sequence[Path]) -> bool:
    about = side_car(stream, "json")
    if not (stream.exists() and about.exists()):
        return False
    sources = json.loads(about.read_text(encoding="utf-8")).get("sources", [])
    return [(source["name"], source["bytes"]) for source in sources] == [
        (path.name, path.stat().st_size) for path in raw
    ]


def _take(folder: Path, streams: Mapping[str, Path], target: Path) -> None:
    """Copy the configs that were tuned on these very streams, so that the folder of the records says what was used.

    Settings of a strategy's look-ahead are not those of its form through the stream.
    """
    fingerprint = cache(lambda stream: load_stream(streams[stream]).sha256)
    for stream, path in files_about(folder, streams):
        if "stream" in STRATEGIES[path.stem.rpartition("-")[2]].presets and read_config(path).get("preset") != "stream":
            continue
        if tuned_elsewhere(path, fingerprint(stream)):
            say(f"{path} was tuned on other data and is not used")
        else:
            write_text(target / path.name, path.read_text(encoding="utf-8"))


def _show(folder: Path, datasets: Sequence[Found], missing: Sequence[DatasetSource]) -> None:
    for dataset in datasets:
        where = dataset.prepared or ", ".join(str(path) for path in dataset.raw)
        verb = "stands in for" if dataset.prepared else "is"
        say(f"{where} {verb} {dataset.wanted.name}; split {dataset.wanted.split}")
    for wanted in missing:
        say(f"{wanted.name} is not in {folder}: get {wanted.how}")
