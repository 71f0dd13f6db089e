"""What smaller live batches would bring on a stream, and what they would cost, measured on the selection window."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from melon.evaluation.prequential import Tally, prequential
from melon.evaluation.ranking import hits
from melon.fitting.selection import Selection
from melon.learning.updater import Updater
from melon.stream.candidates import Candidates
from melon.types import Ints, Plain

#: Sizes that are tried beside the protocol's own.
SMALLER = (64, 16)
#: At most this many interactions are judged at each size, which bounds the time that it takes.
MOST_JUDGED = 8_192
#: A batch must span this many time stamps on average: within one stamp the order is the file's, not the world's.
_LEAST_STAMPS = 2.0
_DAY = 86_400


def sizes_worth_trying(times: Ints, usual: int) -> tuple[int, ...]:
    """Sizes below the usual one at which the stream's own order decides; none where all time stamps are whole days."""
    if not len(times) or not (times % _DAY).any():
        return ()
    events_per_stamp = len(times) / len(np.unique(times))
    return tuple(size for size in SMALLER if size < usual and size >= _LEAST_STAMPS * events_per_stamp)


def measure_live_batches(selection: Selection, updater: Updater) -> Plain:
    """HR@5 and CPU milliseconds for each interaction at several sizes, from one updater before the judged part.

    Settings stay as they are. Nothing is measured, and the result is empty, where no smaller size says anything. The
    updater itself learns nothing.
    """
    log, parts, protocol = selection.log, selection.parts, selection.protocol
    first = parts.judged_from
    last = min(parts.validation_stop, first + MOST_JUDGED)
    smaller = sizes_worth_trying(log.times[first:last], protocol.batch_size)
    if not smaller:
        return {}
    candidates = Candidates(log, mode=protocol.candidates, seed=protocol.seed, count=protocol.negatives)
    sizes, usual = [], None
    for size in (protocol.batch_size, *smaller):
        copied, tally, began = deepcopy(updater), Tally(), time.process_time()
        for point in prequential(copied, log, candidates, first, last, batch_size=size):
            tally.add(point)
        spent = 1e3 * (time.process_time() - began) / (last - first)
        hit = hits(tally.rank)
        usual = hit if usual is None else usual
        gain = hit - usual
        error = float(gain.std() / len(gain) ** 0.5)
        sizes.append({"size": size, "HR@5": float(hit.mean()), "gain": float(gain.mean()), "se": error, "ms": spent})
    return {"interactions": last - first, "sizes": sizes}


def live_batch_line(measured: Mapping[str, Any] | None) -> str | None:
    """One line on what was measured; None where nothing was."""
    if not measured:
        return None
    usual, *smaller = measured["sizes"]
    comparisons = "; ".join(
        f"{each['size']} at a time {each['gain']:+.3f} (± {each['se']:.3f}) for {each['ms'] / usual['ms']:.1f} times "
        "the CPU time"
        for each in smaller
    )
    return (
        f"smaller live batches would change HR@5, which is {usual['HR@5']:.3f} with {usual['size']} interactions at a "
        f"time: {comparisons} (the same settings, {measured['interactions']:,} interactions of the selection window)."
    )
