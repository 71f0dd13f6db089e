"""Chronological parts of a stream, the test part shut until all choices are made, and the mini-batches inside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from melon.errors import StreamError

if TYPE_CHECKING:
    from melon.data.interactions import Interactions

BATCH_SIZE = 256
DEFAULT_SPLIT = (0.95, 0.005, 0.045)
PARTS = ("training", "validation", "test")
# docs/methods.md 5.7: whatever is learned or chosen uses the end of the training part.
WINDOW_SHARE, WINDOW_MOST, WINDOW_LEARN_SHARE = 0.2, 25_000, 0.6
#: So many windows before it, at most, on which heads are trained, too.
EARLIER_WINDOWS = 2


@dataclass(frozen=True)
class Parts:
    """Where the training, validation and test parts of a stream begin and end (event numbers)."""

    train_stop: int
    validation_stop: int
    stop: int

    @property
    def window_start(self) -> int:
        """Where the selection window begins; it ends with the training part."""
        return self.train_stop - min(int(self.train_stop * WINDOW_SHARE), WINDOW_MOST)

    @property
    def earlier_windows(self) -> list[tuple[int, int]]:
        """Windows before that one, oldest first: each by the same rule, WINDOW_MOST interactions at most with it."""
        stop, room, windows = self.window_start, WINDOW_MOST - (self.train_stop - self.window_start), []
        for _ in range(EARLIER_WINDOWS):
            size = min(int(stop * WINDOW_SHARE), room)
            if size < BATCH_SIZE:
                break
            windows.append((stop - size, stop))
            stop, room = stop - size, room - size
        return windows[::-1]

    @property
    def judged_from(self) -> int:
        """From here to the end of validation, settings are compared; before it, learned parts are trained."""
        return self.window_start + int((self.train_stop - self.window_start) * WINDOW_LEARN_SHARE)


def parse_split(text: str) -> tuple[float, float, float]:
    """`0.95,0.005,0.045` as three shares."""
    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3:
        raise StreamError(f"split {text!r} must be three shares such as 0.95,0.005,0.045 (training, validation, test).")
    return shares


def split(interactions: Interactions, shares: tuple[float, float, float]) -> Parts:
    """Cut by count in time order."""
    if any(not math.isfinite(share) or share <= 0 for share in shares) or not math.isclose(
        sum(shares), 1, abs_tol=1e-6
    ):
        raise StreamError(f"split {shares} must be three positive shares that add up to 1.")
    n = len(interactions)
    cuts = [round(n * shares[0]), round(n * (shares[0] + shares[1]))]
    bounds = [0, *cuts, n]
    for part, start, stop in zip(PARTS, bounds, bounds[1:], strict=False):
        if stop <= start:
            raise StreamError(
                f"the split {shares} of {n} interactions leaves the {part} part empty; "
                "use a longer stream or other shares (--split)."
            )
    return Parts(cuts[0], cuts[1], n)


def batches(start: int, stop: int, size: int = BATCH_SIZE) -> Iterator[tuple[int, int]]:
    """Event ranges of a part's mini-batches; the last may be short."""
    if size < 1:
        raise StreamError(f"a batch of {size} interactions is not possible; use at least 1 (--batch-size).")
    while start < stop:
        end = min(start + size, stop)
        yield start, end
        start = end


class SealedStream:
    """Gives out what comes before the test part; the rest only against a record of the choices that were made."""

    def __init__(self, log: Interactions, parts: Parts) -> None:
        self._log, self.parts = log, parts
        self.before_test = log.head(parts.validation_stop)
        self.training = log.head(parts.train_stop)

    def open(self, choices: object) -> Interactions:
        """The whole log. `choices` is what was settled without it."""
        if choices is None:
            raise StreamError("the test part is read only after all choices have been made; none were given.")
        return self._log
