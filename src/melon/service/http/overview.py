"""What the console shows, for everybody: the service over a window, what it learns now, and what rises and falls.

Many consoles may be open: each answer is made once and shared for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic_core import to_json

from melon.errors import MelonError
from melon.learning.model import LiveModel
from melon.learning.rate_matrix import RateCells, batch_rates, evenly_spaced
from melon.service.activity import Activity, ActivitySample, apart, more, quantile
from melon.service.backend import Backend
from melon.service.config import FORMER
from melon.service.http.errors import answers
from melon.service.http.shapes import LearningOut, OverviewOut, TrendsOut
from melon.service.http.strict import Route, needs, ready_backend
from melon.service.learner.challenger import compared_by
from melon.service.learner.quality import (
    LISTED,
    MODELS,
    PARTS,
    added,
    anytime_difference,
    between,
    mean_interval,
    shares,
)
from melon.service.learner.replay_state import typed
from melon.service.log.base import CONTROLS, LoggedStep, LogId, StoredEvent
from melon.service.log.events import LogReader
from melon.service.log.steps import StepReader
from melon.service.metrics import FRESHNESS_BOUNDS, LATENCY_BOUNDS, quality_between, told
from melon.stream.batch import Batch

router = APIRouter(route_class=Route, tags=["service"])

#: Seconds for which an answer is shared: of the overview, and of what takes a look into the model.
_SHARED_S, _LOOKED_S = 2.0, 10.0
#: Batches over which the way of an event is told.
_RECENT = 20
#: What was recorded before a moment stands after this many seconds; so many results of such looks are remembered.
_SETTLED_S, _REMEMBERED = 10.0, 5_000
#: Interactions and columns of the learning-rate matrix that is sent, at most.
_LINES, _COLUMNS = 32, 64
#: Items in each of the lists of what rises and falls.
_TRENDS = 8
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Window = Annotated[str, Query(pattern=r"^[1-9][0-9]{0,5}[smhd]$", description="Such as 15m, 1h or 7d.")]
EventPart = Literal["all", "organic", "recommended", "repeats"]
Made = TypeVar("Made")
#: A path, and its query as it was sent.
Address = tuple[str, bytes]


def seconds_of(window: str) -> int:
    """The seconds of a window such as 15m."""
    return int(window[:-1]) * _SECONDS[window[-1]]


class Settled:
    """What was worked out about moments that are past: it stays as it is, so later answers take it from here."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], Any] = {}

    def get(self, name: tuple[Hashable, ...], settled: bool, make: Callable[..., Made], *given: Any) -> Made:
        """What `make` gives for `given`; it is remembered if nothing can change it any more."""
        made: Made | None = self._known.get(name)
        if made is None:
            made = make(*given)
            if settled and made is not None:
                if len(self._known) >= _REMEMBERED:
                    self._known.pop(next(iter(self._known)), None)
                self._known[name] = made
        return made


class Sharing:
    """Answers by address, each made once and given to everybody who asks in the next moments."""

    def __init__(self) -> None:
        self.settled = Settled()
        self._made: dict[Address, tuple[float, asyncio.Future[bytes]]] = {}
        #: Answers are made one after another, so that many different ones cost others no more than one does.
        self._turn = asyncio.Lock()

    def under_way(self, address: Address) -> asyncio.Future[bytes] | None:
        """The answer that others at this address get or wait for now."""
        until, future = self._made.get(address, (0.0, None))
        return future if future is not None and _counts_still(until, future, time.monotonic()) else None

    async def get(
        self, request: Request, seconds: float, make: Callable[[], Awaitable[Any]], *, looks: bool = False
    ) -> Response:
        """The answer, which `make` makes in its turn; one that looks into the model waits in the queue of lists."""
        address = address_of(request.scope)
        future = self.under_way(address)
        if future is None:
            now, future = time.monotonic(), asyncio.ensure_future(self._encoded(make, looks))
            self._made = {one: made for one, made in self._made.items() if _counts_still(*made, now)}
            self._made[address] = now + seconds, future
        # One who leaves must not end what others wait for.
        return Response(await asyncio.shield(future), media_type="application/json")

    async def _encoded(self, make: Callable[[], Awaitable[Any]], looks: bool) -> bytes:
        async with contextlib.nullcontext() if looks else self._turn:
            return to_json(await make(), inf_nan_mode="null")


def address_of(scope: Mapping[str, Any]) -> Address:
    return scope["path"], scope["query_string"]


def _counts_still(until: float, future: asyncio.Future[bytes], now: float) -> bool:
    if not future.done():
        return True
    return now <= until and not future.cancelled() and future.exception() is None


@router.get("/v1/overview", response_model=OverviewOut, responses=answers(), **needs("read"))
async def overview(
    request: Request,
    window: Window = "1h",
    points: Annotated[int, Query(ge=2, le=240, description="Points of each series.")] = 60,
    part: Annotated[EventPart, Query(description="The events that the series of quality are about.")] = "all",
) -> Response:
    """Status, quality and series of a window, with what happened in it: everything that the console's charts show."""
    backend: Backend = request.app.state.backend
    activity: Activity = request.app.state.activity
    seconds = seconds_of(window)

    async def make() -> dict[str, Any]:
        now = time.time()
        # Points end at whole steps of the clock, so that what was read for one that is past serves the next answer too.
        step = seconds / points
        last = math.floor(now / step)
        edges = [*(number * step for number in range(last - points + 1, last + 1)), now]
        status = await backend.status()
        learned = await backend.from_steps(lambda steps: _learned(settled, steps, edges, part), None)
        # An empty state may end at any moment: it is not remembered.
        learned = learned or _learned(Settled(), None, edges, part)
        moments = [learned.pop("began"), *edges]
        beside = await backend.reading(lambda: compared_by(backend.settings.folder, moments, settled.get))
        for name, (totals, until) in beside.items():
            _challenged(settled, learned, name, totals, moments, until, part)
        learned["annotations"] = sorted(
            [*learned["annotations"], *backend.marks(edges[0])], key=lambda mark: float(mark["time"])
        )
        stages = await backend.from_steps(lambda steps: _stages(steps, activity), _stages(None, activity))
        return {
            "now": now,
            "window_s": float(seconds),
            "part": part,
            "status": status,
            "time": edges[1:],
            **learned,
            **_process(settled, activity, edges, now),
            "stages_ms": stages,
        }

    sharing: Sharing = request.app.state.sharing
    settled = sharing.settled
    return await sharing.get(request, _SHARED_S, make)


@router.get("/v1/learning", response_model=LearningOut, responses=answers(), **needs("read"))
async def learning(request: Request) -> Response:
    """The last batch: how much it moved, and the learning rates that its events have by the model as it is now."""
    backend = ready_backend(request)

    async def make() -> dict[str, Any]:
        step: LoggedStep | None = await backend.from_steps(_last_batch, None)
        if step is None:
            return {"batch": None, "note": "No batch has been learned yet."}
        stored = await backend.from_log(lambda log: list(log.events(step.first, step.last)))
        some = [stored[n] for n in evenly_spaced(len(stored), _LINES)]
        rates, note = await backend.coalescer.look(lambda model, _: _rates(model, some))
        names = ("events", "loss", "moved", "predict_ms", "learn_ms")
        about = {name: _finite(step.about.get(name)) for name in names}
        return {"batch": step.number, "done": step.done, **about, "rates": rates, "note": note}

    sharing: Sharing = request.app.state.sharing
    return await sharing.get(request, _LOOKED_S, make, looks=True)


@router.get("/v1/trends", response_model=TrendsOut, responses=answers(), **needs("read"))
async def trends(
    request: Request,
    events: Annotated[int, Query(ge=10, le=10_000, description="Events compared with as many before.")] = 2_000,
) -> Response:
    """Which items are taken clearly more often, or less often, than just before."""
    backend: Backend = request.app.state.backend
    sharing: Sharing = request.app.state.sharing
    return await sharing.get(request, _LOOKED_S, lambda: backend.from_log(lambda log: _trends(log, events)))


def _learned(settled: Settled, steps: StepReader | None, edges: Sequence[float], part: EventPart) -> dict[str, Any]:
    """What the learner recorded: quality and events of each point, the whole window's quality, and what happened."""
    past, found = time.time() - _SETTLED_S, list[LoggedStep | None]([None] * len(edges))
    if steps is not None:
        found = [settled.get(("step", one), one <= past, steps.since, one) for one in edges]
    points = [
        settled.get(("point", part, *ends), ends[1] <= past, _learned_point, pair, ends, part)
        for pair, ends in zip(itertools.pairwise(found), itertools.pairwise(edges), strict=True)
    ]
    return {
        "quality": quality_between(found[0], found[-1]),
        "series": _measured([point["series"] for point in points]),
        "list_series": _measured([point["list_series"] for point in points]),
        "learned_s": [point["learned_s"] for point in points],
        **({"began": 0.0, "since_start": {}} if steps is None else _since_start(steps, found[-1], part)),
        "annotations": [] if steps is None else _annotations(steps, edges[0]),
    }


def _learned_point(
    steps: tuple[LoggedStep | None, LoggedStep | None], ends: tuple[float, float], part: EventPart
) -> dict[str, Any]:
    earlier, later = ({} if step is None else step.totals for step in steps)
    counts = between(later, earlier)
    whole = counts.get("lists", {}).get("all", {})
    return {
        "series": {name: _point(_part(counts.get(name, {}), part)) for name in MODELS},
        "list_series": {name: _point(whole.get(name, {})) for name in LISTED},
        "learned_s": None if steps[1] is None else _round(counts.get("events", 0) / (ends[1] - ends[0])),
    }


def _since_start(steps: StepReader, last: LoggedStep | None, part: EventPart) -> dict[str, Any]:
    """How far the served model is ahead of each baseline since it began, with intervals that hold at all times."""
    switches = steps.switches()
    began = switches[-1] if switches else None
    counts = {} if last is None else between(last.totals, began.totals if began else {})
    ahead = {name: _surely(_part(counts.get(name, {}), part)) for name in MODELS if name != "served"}
    return {
        "began": (began and began.done) or 0.0,
        "since_start": {name: one for name, one in ahead.items() if one is not None},
    }


def _surely(counts: Mapping[str, Any]) -> dict[str, Any] | None:
    ahead = anytime_difference(counts)
    if ahead is None:
        return None
    mean, low, high = (round(value, 5) for value in ahead)
    return {"HR@10": mean, "interval": [low, high], "ranked": counts["ranked"]}


def _challenged(
    settled: Settled,
    learned: dict[str, Any],
    name: str,
    totals: Sequence[Mapping[str, Any]],
    moments: Sequence[float],
    until: float,
    part: EventPart,
) -> None:
    """Add a challenger to what the learner recorded; its first totals are those of when the served model began."""
    began, *totals = totals
    first, *edges = moments
    points = [
        settled.get((name, first, part, *ends), ends[1] <= until, _challenger_point, pair, part)
        for pair, ends in zip(itertools.pairwise(totals), itertools.pairwise(edges), strict=True)
    ]
    learned["series"] |= _measured([{name: sampled} for sampled, _ in points])
    learned["list_series"] |= _measured([{name: listed} for _, listed in points])
    whole = between(totals[-1], totals[0])
    if name in learned["series"]:
        learned["quality"]["models"][name] = told(whole)
    for track, one in whole.get("lists", {}).items():
        learned["quality"]["lists"][track][name] = told({PARTS[0]: one})
    ahead = _surely(_part(between(totals[-1], began), part))
    if ahead is not None:
        learned["since_start"][name] = ahead


def _challenger_point(
    totals: tuple[Mapping[str, Any], Mapping[str, Any]], part: EventPart
) -> tuple[dict[str, Any], dict[str, Any]]:
    counts = between(totals[1], totals[0])
    return _point(_part(counts, part)), _point(counts.get("lists", {}).get("all", {}))


def _part(parts: Mapping[str, Any], part: EventPart) -> Mapping[str, Any]:
    counts: Mapping[str, Any] = {}
    for name in PARTS if part == "all" else (part,):
        counts = added(counts, parts.get(name, {}))
    return counts


def _measured(points: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, list[Any]]]:
    """A series of each model of which something was ranked, from the points of all."""
    return {
        name: {key: [point[name][key] for point in points] for key in points[0][name]}
        for name in points[0]
        if any(point[name]["ranked"] for point in points)
    }


def _point(counts: Mapping[str, Any]) -> dict[str, Any]:
    values = shares(counts)
    point: dict[str, Any] = {"ranked": counts.get("ranked", 0)}
    for name in ("HR@10", "NDCG@10"):
        ends = mean_interval(counts, name) or (None, None)
        point |= {name: _round(values.get(name)), f"{name} low": _round(ends[0]), f"{name} high": _round(ends[1])}
    return point


def _annotations(steps: StepReader, since: float) -> list[dict[str, Any]]:
    """Starts of the learner, quarantined batches, and everything else that is no plain batch, in order of time."""
    marks = [
        {"time": epoch["started"], "kind": "start", "text": "the learner started"}
        for epoch in steps.epochs()
        if epoch["started"] >= since
    ]
    for step in steps.marked(since):
        kind = "quarantined" if step.status == "quarantined" else step.kind
        text = f"batch {step.number} was quarantined" if kind == "quarantined" else _told(step)
        marks.append({"time": step.done or step.planned, "kind": kind, "text": text})
    return sorted(marks, key=lambda mark: mark["time"])


def _told(step: LoggedStep) -> str:
    if step.kind not in CONTROLS:
        return "another model is served"
    name = step.about.get("challenger")
    if name is not None and not step.switched:
        return f"challenger {name} was not promoted"
    return CONTROLS[step.kind].text + (f": {name}" if name not in (None, FORMER) else "")


def _process(settled: Settled, activity: Activity, edges: Sequence[float], now: float) -> dict[str, Any]:
    """What this process did at each point: posts, lists, latency, freshness and lag; and the window's histogram."""
    samples = activity.at(edges, activity.sample(now))
    points = [
        settled.get(("process", *ends), ends[1] <= now - _SETTLED_S, _between, *pair)
        for pair, ends in zip(itertools.pairwise(samples), itertools.pairwise(edges), strict=True)
    ]
    first, last = samples[0], samples[-1]
    spent = [] if last is None else apart(more(last.freshness, None if first is None else first.freshness))
    names = ("posted_s", "lists_s", "p50_ms", "p99_ms", "fresh_p50_s", "fresh_p95_s", "lag")
    return {
        "process": {name: [point.get(name) for point in points] for name in names},
        "freshness": {"bounds_s": list(FRESHNESS_BOUNDS), "events": spent},
    }


def _between(earlier: ActivitySample | None, later: ActivitySample | None) -> dict[str, Any]:
    if later is None:
        return {}
    point: dict[str, Any] = {"lag": later.lag}
    gap = later.time - earlier.time if earlier is not None else 0.0
    if earlier is None or gap <= 0:
        return point
    waited = more(later.list_seconds, earlier.list_seconds)
    aged = more(later.freshness, earlier.freshness)
    point["posted_s"] = _round((later.posted - earlier.posted) / gap)
    point["lists_s"] = _round((later.lists - earlier.lists) / gap)
    for share, name in ((0.5, "p50_ms"), (0.99, "p99_ms")):
        point[name] = _round(quantile(LATENCY_BOUNDS, waited, share), 1000.0)
    for share, name in ((0.5, "fresh_p50_s"), (0.95, "fresh_p95_s")):
        point[name] = _round(quantile(FRESHNESS_BOUNDS, aged, share))
    return point


def _stages(steps: StepReader | None, activity: Activity) -> dict[str, float | None]:
    """Medians of an event's way: waiting to be learned, being learned, and until this process serves it."""
    ways = []
    for batch in list(activity.batches)[-_RECENT:] if steps is not None else ():
        step = steps.step(batch.number) if steps is not None else None
        if step is not None and step.done is not None:
            ways.append((step.planned - batch.arrived, step.done - step.planned, batch.applied - step.done))
    names = ("waits", "learned", "served")
    return {
        name: _round(max(median(way[n] for way in ways), 0.0), 1000.0) if ways else None for n, name in enumerate(names)
    }


def _last_batch(steps: StepReader) -> LoggedStep | None:
    newest = steps.newest(_RECENT)
    return next((step for step in newest if step.kind == "events" and step.about.get("events")), None)


def _rates(model: LiveModel, stored: Sequence[StoredEvent]) -> tuple[dict[str, Any] | None, str]:
    """The learning-rate matrix of events that the model knows, made small; nothing of the model changes."""
    updater = model.updater
    if not updater.strategy.explains_rates:
        return None, f"Strategy {updater.strategy.name!r} has no learning-rate matrix: its step is no sum of rates."
    users = _known_rows(model, "user", [event.user for event in stored])
    items = _known_rows(model, "item", [event.item for event in stored])
    known = (users >= 0) & (items >= 0)
    users, items = users[known], items[known]
    if not len(users):
        return None, "The model does not know the users and items of the last batch yet."
    keys = np.zeros(len(users), dtype=np.int64)  # all of them have rows
    times = np.full(len(users), model.last_time)
    clock, now = updater.recommender.clock, updater.recommender.clock.now
    try:
        cells = batch_rates(updater, Batch(updater.history.events, users, items, times, keys, keys), 0, "").rows
    except MelonError as problem:
        return None, str(problem)
    finally:
        clock.now = now
    return _small(cells), ""


def _known_rows(model: LiveModel, role: Literal["user", "item"], ids: list[LogId]) -> Any:
    """Rows of ids; -1 where the model has none."""
    book = model.users if role == "user" else model.items
    rows = np.array([-1 if one is None else int(book.rows([one])[0]) for one in typed(book, ids)])
    return np.where(rows < model.rows_of(role), rows, -1)


def _small(cells: RateCells) -> dict[str, Any]:
    """A matrix of few columns: of each group of parameters evenly spaced ones, at least one."""
    total = sum(width for _, width in cells.groups)
    chosen, groups, start = list[int](), [], 0
    for name, width in cells.groups:
        columns = evenly_spaced(width, max(_COLUMNS * width // max(total, 1), 1))
        chosen += [start + column for column in columns]
        groups.append({"name": name, "columns": len(columns), "of": width})
        start += width
    rates = cells.rates[:, chosen]
    return {
        "values": [[float(f"{value:.4g}") for value in line] for line in rates.tolist()],
        "losses": [float(f"{value:.4g}") for value in cells.losses.tolist()],
        "groups": groups,
        "least": float(cells.rates.min()),
        "mean": float(cells.rates.mean()),
        "most": float(cells.rates.max()),
    }


def _trends(log: LogReader, events: int) -> dict[str, Any]:
    """Items whose share of the last events differs most from that of as many before, in standard errors."""
    last = log.last()[0]
    events = min(events, last // 2)
    now, before = log.taken(last - events, last), log.taken(last - 2 * events, last - events)
    later, earlier = sum(now.values()), sum(before.values())
    lines: list[dict[str, Any]] = []
    for item in {*now, *before} if later and earlier else ():
        one, other = now.get(item, 0), before.get(item, 0)
        share = (one + other) / (later + earlier)
        error = math.sqrt(share * (1 - share) * (1 / later + 1 / earlier))
        score = (one / later - other / earlier) / error if error else 0.0
        lines.append({"item": item, "now": one, "before": other, "z": round(score, 2)})
    lines.sort(key=lambda line: (line["z"], str(line["item"])))
    return {
        "events": later,
        "before": earlier,
        "rising": [line for line in lines[::-1] if line["z"] >= 2][:_TRENDS],
        "falling": [line for line in lines if line["z"] <= -2][:_TRENDS],
    }


def _round(value: float | None, times: float = 1.0) -> float | None:
    return None if value is None else round(value * times, 5)


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
