"""The recipes of CONTRIBUTING.md that no other test follows: a metric, a route."""

import subprocess
import sys

import pytest
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from documentation import http_reference
from melon.service.http import items
from melon.service.http.errors import answers
from melon.service.http.recommendations import ItemPath
from melon.service.http.strict import Route, needs, ready_backend

_METRIC = """
from functools import partial
from melon.evaluation import ranking

# The line in the source: METRICS is part of LIST_METRICS, and other modules read both when they are imported.
for metrics in (ranking.METRICS, ranking.LIST_METRICS):
    metrics["MRR@7"] = partial(ranking.reciprocals, cut=7)

import melon
from melon.data.synthetic import synthetic_stream
log = synthetic_stream("news", n_events=1_500, seed=0)
few = dict(split=(0.7, 0.1, 0.2), budget=0, epochs=1, negatives=20, lists=False, progress=False)
result = melon.evaluate(log, "bpr", "default", **few)
assert 0 < result.metrics["MRR@7"] < 1
assert "MRR@7" in result.table().columns
assert "MRR@7" in result._repr_html_()
assert "MRR@7" in result.to_latex()
assert result.compare("popularity", "MRR@7").p_value <= 1
"""


def test_a_metric_is_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", _METRIC], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_route_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    class Takers(BaseModel):
        takers: int

    router = APIRouter(route_class=Route, tags=["items"])

    @router.get("/v1/items/{item}/takers", response_model=Takers, responses=answers(404), **needs("read"))
    async def takers(request: Request, item: ItemPath) -> JSONResponse:
        """How many users have taken an item."""
        ready_backend(request)
        return JSONResponse({"takers": 0})

    monkeypatch.setattr(items.router, "routes", [*items.router.routes, *router.routes])
    text = http_reference()
    assert "### GET /v1/items/{item}/takers" in text
    assert "How many users have taken an item. Scope: `read`." in text
