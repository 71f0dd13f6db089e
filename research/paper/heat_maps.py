"""Heat maps of MeLON's learning rates in the last full batch of the test part, for every record of `melon reproduce`.

python research/paper/heat_maps.py runs/paper data/     # runs MeLON's cells once more; report/heat-FORM-STREAM-….png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from melon.data.files import load_stream
from melon.evaluation.cell import Cell
from melon.evaluation.predictors import Predictor
from melon.evaluation.prequential import Tally
from melon.evaluation.record import read_json
from melon.fitting.config import CellConfig
from melon.lab.figures import draw_rates
from melon.learning.rate_matrix import batch_rates
from melon.learning.updater import Updater
from melon.progress import say
from melon.stream.batch import Batch
from melon.stream.split import batches

_FIELDS = CellConfig.__dataclass_fields__


class WatchedCell(Cell):
    """A cell that draws its strategy's rates for the last full batch, just before that batch is learned."""

    target: Path

    def _stream(self, name: str, predictor: Predictor, *given: Any) -> Tally:
        if name == "strategy" and isinstance(predictor, Updater):
            sizes = batches(self.parts.validation_stop, self.parts.stop, self.config.batch_size)
            last = max(sizes, key=lambda batch: (batch[1] - batch[0], batch[0]))[0]
            learn = predictor.learn

            def watched(batch: Batch) -> float:
                if batch.first_event == last:
                    shown = batch_rates(predictor, batch, last, "the last full batch of the test part")
                    draw_rates(shown, self.target)
                return learn(batch)

            predictor.learn = watched  # type: ignore[assignment,method-assign]
        return super()._stream(name, predictor, *given)


def main(folder: Path, data: Path) -> None:
    """Draw one map for each record of MeLON in the folder of a reproduction, whose streams are in `data`."""
    for path in sorted(folder.glob("*-*/*-melon.json")):
        record = read_json(path)
        asked = {name: value for name, value in record["config"]["asked"].items() if name in _FIELDS}
        config = CellConfig(**{**asked, "split": tuple(asked["split"])})
        cell = WatchedCell(load_stream(data / f"{record['dataset']['path']}.parquet"), config)
        cell.target = folder / "report" / f"heat-{path.parent.name}-{path.stem}.png"
        cell.target.parent.mkdir(parents=True, exist_ok=True)
        cell.run()
        say(f"wrote {cell.target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
