"""MeLON's online step (docs/methods.md 3.0.2–3.0.5, 4.2–4.7), one scalar at a time: slow and plainly right.

It knows numbers, lists and automatic differentiation; it shares no code with melon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Row = tuple[str, int | None]  # a table and a row of it; None for all of a shared table
ROLES = {"user_factors": "user", "user_gmf": "user", "user_mlp": "user", "user_bias": "user"}
ROLES |= {"item_factors": "item", "item_gmf": "item", "item_mlp": "item", "item_bias": "item"}
NODES = {"bpr": (["user_factors"], ["item_factors"]), "ncf": (["user_gmf", "user_mlp"], ["item_gmf", "item_mlp"])}


def score(theta: dict[str, Tensor], user: int, item: int) -> Tensor:
    """2.1 and 2.2."""
    biases = theta["user_bias"][user, 0] + theta["item_bias"][item, 0]
    if "user_factors" in theta:
        return theta["user_factors"][user] @ theta["item_factors"][item] + biases
    hidden = torch.cat([theta["user_mlp"][user], theta["item_mlp"][item]])
    for layer in sorted(name for name in theta if name.startswith("layer_")):
        hidden = torch.relu(theta[layer] @ hidden)
    product = theta["user_gmf"][user] * theta["item_gmf"][item]
    return product @ theta["product"][0] + hidden @ theta["output"][0] + biases


def loss_of(theta: dict[str, Tensor], user: int, items: list[int]) -> Tensor:
    taken, other = items
    return torch.nn.functional.softplus(score(theta, user, other) - score(theta, user, taken))


def pre(value: float) -> list[float]:
    """4.5."""
    if abs(value) >= math.exp(-10):
        return [math.log(abs(value) + 1e-8) / 10, float((value > 0) - (value < 0))]
    return [-1.0, math.exp(10) * value]


@dataclass(frozen=True)
class Twin:
    """Recommender, meta-parameters and the past. `sees` has the inputs that are kept: interaction, parameter."""

    kind: str
    theta: dict[str, Tensor]
    phi: dict[str, Tensor]
    events: list[tuple[int, int]]
    forgetting: bool = True
    slope: float = 0.01
    sees: tuple[str, ...] = ("interaction", "parameter")

    def last(self, batch: list[tuple[int, int]], cold: str) -> list[tuple[int, int]]:
        """B_last (3.0.2): the user's previous item for each occurrence, then the item's previous user."""
        found = []
        for user, item in batch:
            before = [i for u, i in self.events if u == user]
            if before or cold == "current":
                found.append((user, before[-1] if before else item))
        for user, item in batch:
            before = [u for u, i in self.events if i == item]
            if before or cold == "current":
                found.append((before[-1] if before else user, item))
        return found

    def node(self, role: str, row: int) -> Tensor:
        tables = NODES[self.kind][0 if role == "user" else 1]
        return torch.cat([self.theta[table][row] for table in tables])

    def extended(self, role: str, row: int) -> Tensor:
        """4.2, 4.3: attention over all past partners, which are at most ten in these tests."""
        own = self.node(role, row)
        partners = [i if role == "user" else u for u, i in self.events if (u if role == "user" else i) == row]
        assert len(partners) <= 10
        nodes = [self.node("item" if role == "user" else "user", partner) for partner in partners]
        attention = self.phi[f"{role}.attention"][0]
        gathered = torch.zeros_like(attention[: len(attention) - len(own)])
        if nodes:
            scores = [attention @ torch.cat([own, node]) for node in nodes]
            scores = [torch.where(each > 0, each, self.slope * each) for each in scores]
            total = sum(torch.exp(each) for each in scores)
            for each, node in zip(scores, nodes, strict=True):
                gathered = gathered + torch.exp(each) / total * node
        weight, bias = self.phi[f"{role}.extend"], self.phi[f"{role}.extend.bias"]
        return torch.relu(weight @ torch.cat([own, gathered]) + bias)

    def interaction(self, user: int, item: int) -> Tensor:
        """4.4: h_x from the user and the item taken."""
        both = torch.cat([self.extended("user", user), self.extended("item", item)])
        hidden = self.phi["interaction.1"] @ both + self.phi["interaction.1.bias"]
        return torch.relu(hidden)

    def rates(self, h_x: Tensor | None, loss: float, theta: float, gradient: float) -> tuple[Tensor, Tensor]:
        """4.5, 4.6: w and f of one (interaction, parameter)."""
        logits = self.phi["head.bias"][:, 0]
        if h_x is not None:
            logits = logits + self.phi["head.interaction"] @ h_x
        if "parameter" in self.sees:
            features = torch.tensor([*pre(loss), *pre(gradient), theta], dtype=torch.float64)
            hidden = self.phi["role.1"] @ features + self.phi["role.1.bias"]
            hidden = torch.relu(hidden)
            hidden = torch.relu(self.phi["role.2"] @ hidden + self.phi["role.2.bias"])
            logits = logits + self.phi["head.role"] @ hidden
        return torch.sigmoid(logits[0]), torch.sigmoid(logits[1])

    def evidence(self, user: int, items: list[int]) -> tuple[float, dict[Row, Tensor]]:
        """L_x, and its gradient on every row that it touches; the user's bias has none and stays (4.9, row 25)."""
        free = {name: value.clone().requires_grad_() for name, value in self.theta.items()}
        loss = loss_of(free, user, items)
        loss.backward()
        touched: dict[Row, Tensor] = {}
        for name, value in free.items():
            if name == "user_bias":
                continue
            assert value.grad is not None
            if name not in ROLES:
                touched[name, None] = value.grad
            else:
                for row in [user] if ROLES[name] == "user" else items:
                    touched[name, row] = value.grad[row]
        return float(loss.detach()), touched

    def update(self, examples: list[tuple[int, list[int]]]) -> dict[str, Tensor]:
        """3.0.5: θ'_m = f̄_m θ_m − Σ_x w g, differentiable in φ."""
        n = len(examples)
        evidence = [self.evidence(user, items) for user, items in examples]
        touches: dict[Row, list[int]] = {}
        for x, (_, touched) in enumerate(evidence):
            for row in touched:
                touches.setdefault(row, []).append(x)
        mean_loss = sum(loss for loss, _ in evidence) / n
        h = [self.interaction(u, items[0]) if "interaction" in self.sees else None for u, items in examples]
        new = {name: [list(row) for row in value] for name, value in self.theta.items()}
        for (table, row), interactions in touches.items():
            shared = row is None
            place = range(len(self.theta[table])) if shared else [row]
            for line in place:
                for column in range(self.theta[table].shape[1]):
                    theta = float(self.theta[table][line, column])

                    def gradient(x: int, table=table, row=row, line=line, column=column) -> float:
                        held = evidence[x][1][table, row]
                        return float(held[line, column] if row is None else held[column])

                    c = len(interactions)
                    step, kept = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
                    if "interaction" in self.sees:
                        for x in interactions:
                            w, f = self.rates(h[x], evidence[x][0], theta, gradient(x))
                            step, kept = step + w * gradient(x), kept + f / c
                    else:  # MeLON_P: what the batch says of the parameter as a whole (4.8)
                        total = sum(gradient(x) for x in interactions)
                        w, kept = self.rates(None, mean_loss, theta, total / c)
                        step = w * total
                    if not self.forgetting:
                        kept = torch.ones((), dtype=torch.float64)
                    new[table][line][column] = kept * theta - step
        return {name: torch.stack([torch.stack(row) for row in rows]) for name, rows in new.items()}

    def meta_loss(self, provisional: dict[str, Tensor], examples: list[tuple[int, list[int]]]) -> Tensor:
        """Step 4: the mean loss of B_t after the provisional step."""
        return torch.stack([loss_of(provisional, user, items) for user, items in examples]).mean()
