"""The tuned configs that come with the repository: each one says all about its cell, and nothing else."""

import re
from pathlib import Path

from melon.fitting.config import CellConfig, read_config
from melon.strategies.registry import ALL_STRATEGIES, STRATEGIES, space_of

FOLDER = Path(__file__).parents[2] / "research" / "configs"
CONFIGS = sorted(FOLDER.glob("*.toml"))
FOLDERS = {"half_life": 10, "blend": 8}
STREAMS = {"news_globo", "amazon_grocery", "amazon_electronics", "amazon_book", "yelp"}


def test_every_config_settles_its_cell() -> None:
    assert len(CONFIGS) == 90
    others = {name: sorted((FOLDER / name).glob("*.toml")) for name in FOLDERS}
    assert {name: len(paths) for name, paths in others.items()} == FOLDERS
    for path in (*CONFIGS, *(path for paths in others.values() for path in paths)):
        require_settled(path)


def require_settled(path: Path) -> None:
    told = read_config(path)
    config = CellConfig(**told)
    assert path.stem.removesuffix(f"-{config.recommender}-{config.strategy}") in STREAMS
    entry = STRATEGIES[config.strategy]
    settings = {**entry.preset(config.preset), **config.settings}
    assert space_of(config.strategy, settings).axes.keys() <= config.fixed.keys()
    assert config.pretrain_settings.keys() == {"l2", "epochs"}
    entry.make(settings)
    text = path.read_text(encoding="utf-8")
    stream = path.stem.partition("-")[0]
    assert re.search(rf"^# {stream}: [\d,]+ interactions, sha256 [0-9a-f]{{64}}$", text, re.MULTILINE)
    if text.startswith("# melon tune"):
        assert text.startswith(f"# melon tune data/{stream}.parquet --recommender {config.recommender} ")
    elif config.half_life == "off":  # meta-training starts at a plain step that was tuned
        default = CellConfig(**read_config(FOLDER / f"{stream}-{config.recommender}-default.toml"))
        assert config.settings.items() <= default.settings.items()
        assert config.budget == default.budget
    else:
        start = {"bpr": "# The best of 42 plain steps with time decay", "blend": "# A usual step and half-life"}
        assert text.startswith(start[config.recommender])


def test_strategies_of_a_stream_have_the_same_budget_and_pretraining() -> None:
    groups: dict[str, list[tuple[str, CellConfig]]] = {}
    for path in CONFIGS:
        config = CellConfig(**read_config(path))
        groups.setdefault(path.stem.rpartition("-")[0], []).append((path.name, config))
    for name, found in groups.items():
        assert {config.strategy for _, config in found} == set(ALL_STRATEGIES), name
        for key in ("budget", "split", "pretrain_settings", "epochs"):
            assert len({str(getattr(config, key)) for _, config in found}) == 1, (name, key)
