"""What MeLON's rates follow after meta-training, drawn: by role and stream. Test parts are not read.

    python research/benchmarks/rates.py docs/images/rates.svg
    FADING=1 python research/benchmarks/rates.py rates-with-time decay.svg amazon_grocery yelp

BPR as in `meta-training.py`, seed 0. Each line is a role: its rate as a multiple of the plain step from which meta-training
started, while one input moves and the others stay at their medians over the meta-training stream.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from meta_training import CONFIGS, STREAMS, recorded_meta_training, state_of

from accuracy import DATA
from melon.data.files import load_stream
from melon.evaluation.labels import SOFT
from melon.fitting.config import CellConfig, read_config
from melon.fitting.plan import EvaluationProtocol, Plan
from melon.fitting.selection import Selection
from melon.kernels.threads import use_threads
from melon.lab.figures import drawn
from melon.strategies.melon.linear import MeLON
from melon.strategies.melon.rates import KNOTS
from melon.stream.split import split
from melon.types import Floats

#: Role, its table, the slot of its touches (user, item taken, item drawn), colour, dashes.
ROLES = (
    ("user", "user_factors", 0, "#1f7a4d", "-"),
    ("item taken, vector", "item_factors", 1, "#2e6fdb", "-"),
    ("item taken, bias", "item_bias", 1, "#2e6fdb", ":"),
    ("item drawn, vector", "item_factors", 2, "#d9622b", "-"),
    ("item drawn, bias", "item_bias", 2, "#d9622b", ":"),
)
AGES, IDLES = np.geomspace(1, 1_000, 9), np.geomspace(1, 100_000, 9)
LOSSES = np.concatenate([[0.01], np.exp(KNOTS), [5.0]])
INPUTS = (("interactions so far", AGES), ("interactions since its last touch", IDLES), ("loss", LOSSES))


class StreamTrained:
    """A strategy after meta-training on one stream, and what its touches usually look like."""

    def __init__(self, stream: str) -> None:
        folder = CONFIGS / "half_life" if os.environ.get("HALF_LIVES") else CONFIGS
        config = CellConfig(**read_config(folder / f"{stream}-bpr-melon.toml"))
        log = load_stream(DATA / f"{stream}.parquet")
        parts = split(log, config.split)
        plan = Plan("bpr", protocol=EvaluationProtocol(0))
        selection = Selection(log.head(parts.validation_stop), parts, plan)
        start = state_of(plan, selection.before_window, config.pretrain_settings, f"bpr-{stream}-0-window.safetensors")
        self.settings = config.fixed
        strategy = selection.at_window(MeLON, self.settings, start).strategy
        assert isinstance(strategy, MeLON)
        self.rates = strategy.rates
        inputs = recorded_meta_training(selection, MeLON(self.settings), start).draws[0].inputs
        self.usual: Floats = np.median(inputs, axis=0)  # slots × columns

    def curve(self, table: str, slot: int, place: int, values: Floats) -> Floats:
        """Rates over the plain step while input `place` takes these values."""
        columns, losses = np.repeat(self.usual[slot][None, None], len(values), axis=0), np.full(len(values), 0.5)
        if place == 0:
            columns[:, 0, 0], columns[:, 0, 1] = np.log1p(values) / 3 - 1, 0
        elif place == 1:
            columns[:, 0, 2] = np.log1p(values) / 10
        else:
            losses = values
        role = (self.rates.roles.other if slot == 2 else self.rates.roles.first)[table]
        found: Floats = self.rates.rates(columns, torch.from_numpy(losses), [role])[:, 0].numpy() / self.settings["lr"]
        return found


def draw(figure: Any, streams: dict[str, StreamTrained]) -> None:
    panels = figure.subplots(len(INPUTS), len(streams), sharey=True, squeeze=False)
    for place, (label, values) in enumerate(INPUTS):
        for column, (stream, stream_trained) in enumerate(streams.items()):
            panel = panels[place][column]
            for name, table, slot, colour, dashes in ROLES:
                panel.plot(
                    values,
                    stream_trained.curve(table, slot, place, values),
                    dashes,
                    color=colour,
                    linewidth=1.2,
                    label=name,
                )
            panel.set(xscale="log", yscale="log", xlabel=label if column == 0 else "", ylim=(0.02, 20))
            panel.minorticks_off()
            panel.axhline(1, color=SOFT.light, linewidth=0.5)
            if place == 0:
                panel.set_title(stream, fontsize=8.5)
        panels[place][0].set_ylabel("rate / plain step")
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5)


def main(path: str, names: list[str]) -> None:
    use_threads(1)
    streams = {name: StreamTrained(name) for name in names or STREAMS}
    picture = drawn("rates", 6.2, lambda figure: draw(figure, streams), 2.1 * len(streams) + 0.6)
    Path(path).write_text(smaller(picture.svg), encoding="utf-8")


def smaller(svg: str) -> str:
    """The same picture in fewer bytes: one decimal, no metadata, no indents."""
    plain = re.sub(r"\s*<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    rounded = re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number.group()):.1f}", plain)
    return re.sub(r"\n\s*", "\n", rounded)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
