"""Shapes of requests and answers; the OpenAPI is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from melon.service.config import MOST_CANDIDATES, MOST_K, MOST_USERS
from melon.service.rules.request import Rules, WireId

RawTime = StrictStr | StrictInt | StrictFloat
StrictScalar = StrictBool | StrictInt | StrictFloat | StrictStr
Text = Annotated[StrictStr, Field(min_length=1, max_length=256)]
K = Annotated[int, Field(ge=1, le=MOST_K)]
#: Attributes of an item.
MOST_ATTRIBUTES = 100
#: How long a request may wait for an offset.
MOST_WAIT_MS = 10_000


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EventIn(_Request):
    """One interaction. Without a time it happened now; without a type it is a view."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"user": "u17", "item": "i23", "time": "2026-11-16T18:05:02Z", "type": "view", "event_id": "c0ffee"}
            ]
        }
    )
    user: WireId
    item: WireId
    time: RawTime | None = None
    type: Text = "view"
    event_id: Text | None = Field(None, description="The same id is stored once, however often it is posted.")
    recommendation: Text | None = Field(None, description="The id of the list that the item was taken from.")


class Refused(_Answer):
    index: int
    message: str


class Accepted(_Answer):
    """Events that are durable now and will be learned within a second."""

    accepted: int = Field(examples=[1])
    duplicates: int = Field(0, description="Events whose id was stored before with the same content.")
    conflicting: int = Field(0, description="Events whose id was stored before with other content; not stored.")
    offset: int = Field(description="Give it as `after` to get a list that knows these events.", examples=[184467])
    refused: list[Refused] | None = Field(None, description="With `partial=true`, the events that are not valid.")


class ListsIn(_Request):
    """Lists for many users, or for a visitor who is not known: then `history` has the items of the visit."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"users": ["u17"], "k": 10, "rules": {"exclude": ["i5"], "diversity": 0.2}}]}
    )
    users: Annotated[list[WireId], Field(max_length=MOST_USERS)] = []
    k: Annotated[StrictInt, Field(ge=1, le=MOST_K)] = 10
    filter_seen: StrictBool = True
    after: Annotated[StrictInt, Field(ge=0)] | None = None
    wait_ms: Annotated[StrictInt, Field(ge=0, le=MOST_WAIT_MS)] = 300
    candidates: Annotated[list[WireId], Field(min_length=1, max_length=MOST_CANDIDATES)] | None = Field(
        None, description="Rank these items only."
    )
    history: Annotated[list[WireId], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Items of a visitor without an id, oldest first."
    )
    rules: Rules = Rules()


class ItemOut(_Answer):
    item: str | int
    score: float | None = Field(description="Scores of one list compare with each other and with nothing else.")
    why: str = Field(description="model, popular, history, similar, boosted, pinned or shown before.")


class ModelOut(_Answer):
    """Which model answered: `version` names the one that was deployed, `batch` counts its updates."""

    version: str
    recommender: str
    strategy: str
    batch: int
    offset: int
    challenger: str | None = Field(None, description="The challenger that answered, for users who get its lists.")


class _List(_Answer):
    source: Literal["model", "popular", "history", "similar"]
    items: list[ItemOut]
    filtered: dict[str, int] = Field(description="How many items may not be listed, by reason.")


class ResultOut(_List):
    user: str | int | None
    recommendation: str | None = Field(description="Send it with the events that follow from this list.")
    batch: int


class ListOut(_List):
    """One list."""

    user: str | int | None = None
    recommendation: str | None = None
    model: ModelOut
    stale: bool = Field(False, description="The model had not reached `after` within `wait_ms`.")
    ms: float


class ListsOut(_Answer):
    """Lists in the order of the users."""

    results: list[ResultOut]
    model: ModelOut
    stale: bool = False
    ms: float


class FactsIn(_Request):
    """Facts about an item; null is the same as nothing. Unavailable and expired items are in no list.

    A `PATCH` changes the facts that it names, and attributes one by one; null removes one.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"categories": ["news"], "owner": "u3", "attributes": {"price": 9.5, "lang": "de"}}]
        }
    )
    categories: Annotated[list[Text], Field(max_length=100)] | None = None
    available: StrictBool | None = None
    owner: WireId | None = None
    published: RawTime | None = None
    expires: RawTime | None = None
    attributes: (
        Annotated[
            dict[Text, StrictScalar | Annotated[list[StrictScalar], Field(max_length=100)] | None],
            Field(max_length=MOST_ATTRIBUTES),
        ]
        | None
    ) = None


class ItemIn(FactsIn):
    item: WireId


class FactsOut(_Answer):
    item: str | int
    categories: list[str]
    available: bool
    owner: str | None
    published: float | None
    expires: float | None
    attributes: dict[str, Any]


class Stored(_Answer):
    stored: int
    version: int = Field(description="The version of all items' facts.")


class EventOut(_Answer):
    offset: int
    item: str | int
    time: int
    type: str
    use: Literal["learn", "hide", "store"]
    event_id: str | None


class HistoryOut(_Answer):
    """A user's events, newest first; `next` continues the list as `before`."""

    user: str | int
    events: list[EventOut]
    next: int | None


class Job(_Answer):
    """Something that happens at its place in the stream; it is done when the model has reached `offset`."""

    job: str
    offset: int
    done: bool


class SimilarOut(_Answer):
    item: str | int
    similarity: float


class ExplainOut(_Answer):
    """Why the model ranks an item where it does."""

    user: str | int
    item: str | int
    score: float
    parts: dict[str, float]
    rank: int = Field(description="Place among all items, those that the user has had included.")
    items: int
    popularity_rank: int
    seen: bool
    because: list[SimilarOut] = Field(description="The user's last items that are most similar to this one.")
    user_events: list[int] = Field(description="Offsets of the last events that moved the user's row, newest first.")
    item_events: int = Field(description="How often the item was taken.")
    model: ModelOut


class LogOut(_Answer):
    events: int
    offset: int
    writable: bool


class StatusOut(BaseModel):
    """The service in one look."""

    log: LogOut
    model: ModelOut | None
    quality: dict[str, float | None]
    freshness_s: dict[str, float | None]
    quarantined: int
    lag: int
    alarms: list[str]
    alarm_names: list[str] = Field(description="The name of each alarm, as in the operator's page.")
    remedies: list[str] = Field(description="What to do about each alarm.")
    challengers: dict[str, dict[str, Any]] = Field(
        description="Models that learn beside it: whether each runs, its lag, and the users who get its lists."
    )
    learner: dict[str, bool | int] = Field(description="Whether the learner runs, and how often it was started.")
    users: int
    items: int
    batch_size: dict[str, Any] = Field(
        description="Size of the last batches, and the size that the model was tuned at."
    )
    reloads: dict[str, int]
    served: dict[str, int]
    uptime_s: float


class QualityOut(BaseModel):
    """Prequential quality in a window: each event was ranked among 99 others before it was learned.

    `models` has the served model, a frozen one and recent popularity; `parts` tells organic events, those that the
    service recommended itself, and repeats apart. `interval` and `ndcg_interval` are 95 % intervals of HR@10 and
    NDCG@10, and `served_ahead` what the served model has more HR@10 than a baseline on these events. `lists` has exact
    ranks in whole lists for a sample of events (`sampled`: its share): `all` items, and for `first`-time pairs the
    items that the user had not had; `own` lists the user's own items by how often they were taken, then popular ones.
    """

    window_s: float
    models: dict[str, dict[str, Any]]
    lists: dict[str, Any]
    events: int
    cold_events: float = Field(description="Share of events on items that nobody had taken before.")
    unranked: int


class OverviewOut(BaseModel):
    """A window in equal steps: `time` has the end of each (Unix seconds), and every series has a value for each step.

    `series` has HR@10 and NDCG@10 of each model with their 95 % intervals, `ranked` the events behind them, and
    `list_series` the same of whole lists of all items, on a sample. `process` is what the answering process did since
    it started. `freshness` counts events by the seconds from acknowledged to served (the last count is above all
    bounds), `stages_ms` has medians of the parts of that way. `since_start` is how far the served model is ahead of
    each baseline since it began, with 95 % intervals that hold at all times at once, however often one looks.
    `annotations` say what happened when.
    """

    now: float
    window_s: float
    part: str
    status: StatusOut
    time: list[float]
    quality: dict[str, Any]
    series: dict[str, dict[str, list[float | None]]]
    list_series: dict[str, dict[str, list[float | None]]]
    learned_s: list[float | None]
    process: dict[str, list[float | None]]
    freshness: dict[str, list[float]]
    stages_ms: dict[str, float | None]
    since_start: dict[str, dict[str, Any]]
    annotations: list[dict[str, str | float]]


class LearningOut(BaseModel):
    """The last batch. `rates` is its learning-rate matrix, interactions × parameters, as the model is now.

    Some interactions and columns stand for all of them; `groups` says whose parameters the columns are. It is null
    where the strategy has no such matrix, and `note` says why.
    """

    batch: int | None
    note: str
    done: float | None = None
    events: float | None = None
    loss: float | None = None
    moved: float | None = None
    predict_ms: float | None = None
    learn_ms: float | None = None
    rates: dict[str, Any] | None = None


class TrendsOut(BaseModel):
    """Items whose share of the last events is at least two standard errors (`z`) from that of the events before."""

    events: int
    before: int
    rising: list[dict[str, Any]]
    falling: list[dict[str, Any]]


class BatchOut(BaseModel):
    batch: int
    first: int
    last: int
    status: str
    reason: str | None
    planned: float


class BatchesOut(_Answer):
    batches: list[BatchOut]


class Health(_Answer):
    status: Literal["ok", "not_ready"]
    why: str | None = None
    lists: Literal["model", "popular"] | None = Field(
        None, description="What lists are made from: popular items while kernels are compiled."
    )
