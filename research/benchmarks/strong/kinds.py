"""The peers by name: which settings are tried on the selection window, and how each one is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Protocol

from torch import nn

from melon.data.interactions import Interactions
from melon.evaluation.ranking import selection_score
from strong.als import RefittedALS, StreamingALS
from strong.ease import EASE
from strong.gru4rec import GRU4Rec
from strong.mixture import Peer, Stretch
from strong.sasrec import SASRec
from strong.sequence import SequencePeer

#: How often networks are judged, when they are stopped, and how long they may be trained, in epochs.
EVERY, PATIENCE, MOST, LONG_MOST = 4, 1, 32, 12
#: On streams longer than this, an epoch is a part of the log (see strong.sequence), and there are fewer trials.
LONG = 500_000
TRAININGS = [{"lr": 2e-3, "dropout": dropout} for dropout in (0.2, 0.5)]
ONLINE = [{"replays": 4, "reach": 5_000, "lr": lr} for lr in (3e-3, 1e-2)]


#: A score on the window, the settings with the number of epochs, and the peer.
Best = tuple[float, Any, SequencePeer]


class Kind(Protocol):
    """A peer with its variants."""

    #: What may be done to a score before popularity is added.
    shapes: tuple[str, ...]
    #: Whether another seed makes another peer; else it only draws other candidates.
    seeded: bool

    def trials(self, log: Interactions, start: int, window: Stretch) -> Iterator[tuple[str, Any, Peer]]:
        """Variant, settings and peer, trained on the events before `start`."""

    def make(self, log: Interactions, start: int, variant: str, settings: Any, seed: int) -> Peer:
        """A peer as it was chosen."""


class Closed:
    """A peer that is solved rather than trained: every point of its grid is a trial."""

    shapes, seeded = ("as it is", "logarithm"), False

    def __init__(
        self,
        variant: str,
        build: Callable[[Interactions, int, Any], Peer],
        grid: list[Any],
        beyond: list[Any],
        slower: int = 1,
    ) -> None:
        self._variant, self._build, self._grid, self._slower = variant, build, grid, slower
        self._beyond = beyond

    def wider(self) -> Closed:
        """The same with points beyond the edges of its grid instead: what the grid may have missed."""
        return Closed(self._variant, self._build, self._beyond, [], self._slower)

    def trials(self, log: Interactions, start: int, window: Stretch) -> Iterator[tuple[str, Any, Peer]]:
        every = {"every": self._slower * batches_between_refits(log)} if self._variant == "refitted" else {}
        for point in self._grid[:: 3 if len(log) > LONG else 1]:
            yield self._variant, point | every, self._build(log, start, point | every)

    def make(self, log: Interactions, start: int, variant: str, settings: Any, seed: int) -> Peer:
        return self._build(log, start, settings)


class Trained:
    """A network: trained until it gets no better on the window, then frozen or updated with each batch."""

    shapes, seeded = ("as it is",), True

    def __init__(self, encoder: Callable[[float], nn.Module]) -> None:
        self._encoder, self._made = encoder, dict[Any, SequencePeer]()

    def trials(self, log: Interactions, start: int, window: Stretch) -> Iterator[tuple[str, Any, Peer]]:
        long = len(log) > LONG
        trained = [self._trained(log, start, window, settings) for settings in (TRAININGS[:1] if long else TRAININGS)]
        _, settings, peer = max(trained, key=lambda each: each[0])
        yield "frozen", settings, peer.deployed()
        for online in ONLINE:
            yield "online", {**settings, "online": online}, peer.deployed(online)

    def _trained(self, log: Interactions, start: int, window: Stretch, settings: Any) -> Best:
        """The best score, its settings with the number of epochs, and the peer as it was then."""
        peer = self._new(log, start, settings, 0)
        best, stale = (float("-inf"), settings, peer), 0
        for epochs in range(EVERY, (LONG_MOST if len(log) > LONG else MOST) + 1, EVERY):
            peer.train(EVERY)
            score = selection_score(window.ranks(window.follow(peer.deployed())))
            print(f"  {settings}, {epochs} epochs: {score:.4f}", flush=True)
            stale = stale + 1 if score <= best[0] else 0
            if score > best[0]:
                best = score, {**settings, "epochs": epochs}, peer.kept()
            if stale >= PATIENCE:
                break
        return best

    def make(self, log: Interactions, start: int, variant: str, settings: Any, seed: int) -> Peer:
        key = log.sha256, start, settings["dropout"], settings["epochs"], seed
        if key not in self._made:
            self._made = {key: self._new(log, start, settings, seed)}
            self._made[key].train(settings["epochs"])
        return self._made[key].deployed(settings.get("online"))

    def _new(self, log: Interactions, start: int, settings: Any, seed: int) -> SequencePeer:
        return SequencePeer(self._encoder, log.n_items, (log.users[:start], log.items[:start]), settings, seed)


def batches_between_refits(log: Interactions) -> int:
    """Closed forms are solved again every so many batches, by what it costs."""
    return 16 if len(log) > LONG else 1 if log.n_items < 2_000 else 2 if log.n_items < 5_000 else 4


def _past(log: Interactions, start: int) -> Any:
    return log.users[:start], log.items[:start]


KINDS: Mapping[str, Kind] = {
    "ease": Closed(
        "refitted",
        lambda log, start, settings: EASE(log.n_items, _past(log, start), settings),
        [*({"l2": l2, "last": 20} for l2 in (100.0, 300.0, 1_000.0)), {"l2": 300.0, "last": None}],
        [{"l2": 30.0, "last": 20}, {"l2": 3_000.0, "last": 20}, {"l2": 1_000.0, "last": None}],
        slower=2,
    ),
    "als": Closed(
        "refitted",
        lambda log, start, settings: RefittedALS(_past(log, start), settings),
        [
            {"factors": factors, "alpha": alpha, "l2": l2}
            for factors, alpha, l2 in product((64,), (10.0, 40.0), (3.0, 10.0, 30.0, 100.0))
        ],
        [{"factors": 64, "alpha": alpha, "l2": l2} for alpha, l2 in ((40.0, 300.0), (100.0, 100.0), (100.0, 300.0))],
    ),
    "ials": Closed(
        "streaming",
        lambda log, start, settings: StreamingALS(_past(log, start), settings),
        [
            {"dim": dim, "missing": missing, "reg": reg}
            for dim, missing, reg in product((32, 64), (0.01, 0.03), (0.01, 0.03))
        ],
        [
            {"dim": dim, "missing": missing, "reg": reg}
            for dim, missing, reg in ((64, 0.003, 0.03), (64, 0.01, 0.1), (64, 0.03, 0.1), (128, 0.01, 0.03))
        ],
    ),
    "sasrec": Trained(SASRec),
    "gru4rec": Trained(GRU4Rec),
}
