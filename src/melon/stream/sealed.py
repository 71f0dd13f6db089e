"""A stream whose test part stays shut until everything that is chosen has been chosen."""

from __future__ import annotations

from melon.data.interactions import Interactions
from melon.errors import StreamError
from melon.stream.split import Parts


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
