"""The production step of MeLON and its ablations against the slow twin, number by number in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from melon_scenes import FAMILY, KINDS, recommender_of, strategy_of
from melon_twin import Twin

from melon.learning.step import Offered
from melon.learning.updater import Updater
from melon.stream.batch import Batch

USERS, ITEMS = 7, 9
SEES = {"melon": ("interaction", "parameter"), "melon_i": ("interaction",), "melon_p": ("parameter",)}


def world(kind: str, name: str, settings: dict[str, Any]) -> tuple[Updater, list[tuple[int, int]]]:
    """Rows and meta-parameters of ordinary size, a short past, and users and items without any."""
    recommender = recommender_of(kind)
    recommender.grow(USERS, np.arange(USERS), ITEMS, np.arange(ITEMS))
    strategy = strategy_of(name, **settings)
    updater = Updater(recommender, strategy, seed=7)
    generator = torch.Generator().manual_seed(13)

    def noise(like: torch.Tensor) -> torch.Tensor:
        return 0.5 * torch.randn(like.shape, generator=generator, dtype=like.dtype)

    for table in recommender.tables.values():
        values = torch.from_numpy(table.everything())
        table.scatter(np.arange(table.rows), (values + noise(values)).numpy())
    with torch.no_grad():
        for value in strategy.parameters().values():
            value.add_(noise(value))
    rng = np.random.default_rng(2)
    past = [(int(u), int(i)) for u, i in zip(rng.integers(0, 5, 14), rng.integers(0, 6, 14), strict=True)]
    updater.history.append(*(np.array(column) for column in zip(*past, strict=True)))
    return updater, past


# A repeated user, a repeated pair, items that are taken and negatives, user 5 and 6 and item 7 and 8 without a past.
BATCH = [(0, [1, 3]), (1, [2, 1]), (0, [4, 2]), (0, [1, 8]), (5, [7, 0]), (6, [2, 5])]


def negatives(pairs: list[tuple[int, int]]) -> list[tuple[int, list[int]]]:
    return [(user, [item, (item + 1 + n % 7) % ITEMS]) for n, (user, item) in enumerate(pairs)]


def offered(examples: list[tuple[int, list[int]]]) -> Offered:
    return Offered(np.array([user for user, _ in examples]), np.array([items for _, items in examples]))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("melon", {}),
    ("melon", {"forgetting": False}),
    ("melon", {"cold": "current"}),
    ("melon_i", {}),
    ("melon_p", {}),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else None)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_twins(kind: str, name: str, settings: dict[str, Any]) -> None:
    updater, past = world(kind, name, settings)
    strategy = updater.strategy
    assert isinstance(strategy, FAMILY[name])
    ours = strategy.settings
    phi = {key: value.detach().clone().requires_grad_() for key, value in strategy.parameters().items()}
    twin = Twin(
        kind,
        {key: torch.from_numpy(table.state()["values"]) for key, table in updater.recommender.tables.items()},
        phi,
        past,
        forgetting=ours.forgetting,
        sees=SEES[name],
    )
    last = negatives(twin.last([(user, items[0]) for user, items in BATCH], ours.cold))
    adam = torch.optim.Adam(phi.values(), lr=ours.meta_lr)
    meta_loss = twin.meta_loss(twin.update(last), BATCH)
    meta_loss.backward()
    gradients = {
        key: torch.zeros_like(value) if value.grad is None else value.grad.clone() for key, value in phi.items()
    }
    adam.step()
    wanted = twin.update(BATCH)

    seen: dict[str, Any] = {}
    plain = strategy.meta_gradient

    def spy(*given: Any) -> Any:
        seen["gradients"], seen["loss"] = plain(*given)
        return seen["gradients"], seen["loss"]

    strategy.meta_gradient = spy  # type: ignore[method-assign]
    users, items = np.array([u for u, _ in BATCH]), np.array([i[0] for _, i in BATCH])
    now = offered(BATCH)
    updater.step(now, offered(last), Batch(len(past), users, items, np.arange(len(BATCH)), users, items))

    assert float(seen["loss"]) == pytest.approx(float(meta_loss.detach()), rel=1e-10)
    for key, gradient in gradients.items():
        torch.testing.assert_close(seen["gradients"][key], gradient, rtol=1e-8, atol=1e-13, msg=key)
        torch.testing.assert_close(strategy.parameters()[key], phi[key], rtol=1e-7, atol=1e-10, msg=key)
    for key, table in updater.recommender.tables.items():
        np.testing.assert_allclose(table.everything(), wanted[key].detach(), rtol=1e-9, atol=1e-12, err_msg=key)
