"""What the MeLON paper (AAAI 2022) published, typed in once: docs/methods.md 5.1 and tables 6.1 to 6.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

METRICS = ("HR@5", "HR@10", "HR@20", "NDCG@5", "NDCG@10", "NDCG@20")
#: Strategies in the paper's order and spelling.
PAPER_NAMES = {
    "default": "Default",
    "eals": "eALS",
    "mwnet": "MWNet",
    "metasgd": "MetaSGD",
    "s2meta": "S2Meta",
    "sml": "SML",
    "melon": "MeLON",
}
Number = tuple[float, float]


@dataclass(frozen=True)
class PaperDataset:
    """A line of the paper's table of datasets; shares in percent."""

    name: str
    users: int
    items: int
    interactions: int
    cold_users: int
    split: tuple[float, float, float]
    test_batches: int


DATASETS = {
    each.name: each
    for each in (
        PaperDataset("Adressa", 29_589, 1_457, 1_191_114, 0, (95, 0.5, 4.5), 210),
        PaperDataset("Amazon Book", 80_464, 98_663, 3_357_109, 18, (95, 0.5, 4.5), 591),
        PaperDataset("Amazon Electronics", 9_316, 17_935, 238_458, 1, (90, 1, 9), 84),
        PaperDataset("Amazon Grocery", 1_233, 1_433, 29_782, 1, (80, 2, 18), 21),
        PaperDataset("Yelp", 60_543, 74_249, 2_880_520, 0, (95, 0.5, 4.5), 507),
    )
}
CATEGORIES = ("Amazon Book", "Amazon Electronics", "Amazon Grocery")

# Table 6.1, in the order of METRICS; thousandths, as "value±standard error".
_RESULTS = {
    ("Adressa", "ncf"): {
        "default": "334±7 407±9 502±17 283±5 306±6 330±7",
        "eals": "664±6 750±6 826±4 542±4 570±4 589±3",
        "mwnet": "325±9 392±10 480±14 276±7 297±7 319±8",
        "metasgd": "275±0 406±2 686±2 229±0 270±0 340±0",
        "s2meta": "276±16 396±39 548±62 221±8 260±15 298±21",
        "melon": "863±4 954±0 982±0 626±11 656±10 664±10",
    },
    ("Adressa", "bpr"): {
        "default": "292±2 359±2 422±1 250±1 272±1 288±1",
        "eals": "443±8 520±11 613±16 371±6 396±7 419±8",
        "mwnet": "289±1 356±1 421±8 248±1 269±1 285±0",
        "metasgd": "276±2 405±2 686±2 230±1 271±1 340±1",
        "s2meta": "278±15 401±37 559±60 223±7 262±14 302±20",
        "sml": "270±1 330±2 399±1 235±1 255±1 272±1",
        "melon": "877±4 958±1 983±0 671±7 698±6 705±5",
    },
    ("Amazon", "ncf"): {
        "default": "168±1 244±2 359±6 115±1 140±1 168±1",
        "eals": "219±9 323±14 462±19 148±6 182±7 216±8",
        "mwnet": "169±2 247±5 366±10 116±1 142±2 171±3",
        "metasgd": "151±3 214±5 317±6 104±2 125±3 150±2",
        "s2meta": "292±5 390±7 497±10 192±3 224±4 250±4",
        "melon": "324±40 519±34 807±14 225±31 287±28 360±20",
    },
    ("Amazon", "bpr"): {
        "default": "246±2 339±3 457±3 172±2 202±2 231±1",
        "eals": "327±2 425±2 542±1 238±2 270±2 299±1",
        "mwnet": "244±1 339±2 456±3 171±1 201±1 231±1",
        "metasgd": "148±2 214±5 314±5 103±1 123±2 148±1",
        "s2meta": "270±29 367±37 474±40 178±1 209±21 237±216",
        "sml": "220±1 307±1 409±1 153±1 181±1 207±0",
        "melon": "363±16 506±13 650±7 248±12 294±11 330±9",
    },
    ("Yelp", "ncf"): {
        "default": "659±1 816±2 923±2 477±1 528±1 555±2",
        "eals": "618±9 781±14 901±1 438±6 491±7 521±1",
        "mwnet": "658±2 818±5 926±3 475±1 527±2 555±2",
        "metasgd": "207±3 309±5 433±18 136±2 169±3 200±5",
        "s2meta": "393±5 525±7 654±113 277±3 320±4 351±86",
        "melon": "779±10 923±3 980±6 563±27 610±24 624±20",
    },
    ("Yelp", "bpr"): {
        "default": "600±3 766±4 883±5 426±2 480±2 509±2",
        "eals": "677±3 831±3 922±2 488±2 538±2 562±2",
        "mwnet": "603±1 771±1 890±1 428±0 483±0 513±0",
        "metasgd": "209±0 321±3 451±1 137±0 174±1 206±2",
        "s2meta": "208±1 323±1 471±2 137±0 174±1 211±1",
        "sml": "478±0 614±0 720±0 338±0 382±0 409±0",
        "melon": "619±17 779±16 886±11 439±14 491±14 519±12",
    },
}


def _numbers(text: str) -> dict[str, Number]:
    pairs = (each.split("±") for each in text.split())
    return {name: (int(v) / 1000, int(e) / 1000) for name, (v, e) in zip(METRICS, pairs, strict=True)}


#: Table 6.1: (dataset, recommender) → strategy → metric → (mean, standard error over 5 seeds). SML has no NCF.
RESULTS: Mapping[tuple[str, str], Mapping[str, Mapping[str, Number]]] = {
    where: {name: _numbers(text) for name, text in rows.items()} for where, rows in _RESULTS.items()
}

#: Table 6.2: the ablation, BPR, HR@5.
ABLATION: Mapping[str, Mapping[str, Number]] = {
    "Adressa": {"melon_i": (0.293, 0.003), "melon_p": (0.278, 0.015), "melon": (0.877, 0.004)},
    "Amazon": {"melon_i": (0.248, 0.002), "melon_p": (0.269, 0.029), "melon": (0.363, 0.016)},
    "Yelp": {"melon_i": (0.605, 0.001), "melon_p": (0.208, 0.000), "melon": (0.619, 0.017)},
}

_TIMED = ("default", "eals", "mwnet", "metasgd", "sml", "s2meta", "melon")
#: Table 6.3: elapsed milliseconds per online batch on an Nvidia Titan RTX; None is the paper's N/A.
ELAPSED_MS: Mapping[tuple[str, str], Mapping[str, int | None]] = {
    ("Adressa", "ncf"): dict(zip(_TIMED, (11, 11, 23, 22, None, 317, 257), strict=True)),
    ("Adressa", "bpr"): dict(zip(_TIMED, (11, 11, 12, 14, 163, 112, 76), strict=True)),
    ("Amazon", "ncf"): dict(zip(_TIMED, (10, 10, 26, 22, None, 2922, 263), strict=True)),
    ("Amazon", "bpr"): dict(zip(_TIMED, (9, 9, 14, 12, 130, 1630, 72), strict=True)),
    ("Yelp", "ncf"): dict(zip(_TIMED, (8, 8, 16, 18, None, 3345, 258), strict=True)),
    ("Yelp", "bpr"): dict(zip(_TIMED, (7, 7, 8, 11, 51, 431, 41), strict=True)),
}

_STANDS_IN = {
    "news_globo": "Adressa",
    "adressa": "Adressa",
    "amazon_book": "Amazon Book",
    "amazon_electronics": "Amazon Electronics",
    "amazon_grocery": "Amazon Grocery",
    "yelp": "Yelp",
}


def paper_dataset(stream: str) -> PaperDataset | None:
    """The paper's dataset that a stream stands in for, by its name."""
    name = stream.lower().removesuffix("_unfiltered")
    return DATASETS[_STANDS_IN[name]] if name in _STANDS_IN else None


def paper_table(stream: str) -> str | None:
    """Under which name the paper's result tables have it: the three Amazon categories are one line there."""
    dataset = paper_dataset(stream)
    if dataset is None:
        return None
    return "Amazon" if dataset.name in CATEGORIES else dataset.name
