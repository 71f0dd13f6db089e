"""What a factorised score p_u · q_i + b_u + b_i teaches: per-interaction gradients in closed form (METHODS.md 2.1)."""

from __future__ import annotations

from torch import Tensor

from melon.recommenders.evidence import Examples, Gradient, RowGradient, Values
from melon.recommenders.factor_kernel import quick_evidence
from melon.recommenders.losses import Loss


def factor_scores(values: Values, users: Tensor, items: Tensor) -> Tensor:
    """Differentiable p_u · q_i + b_i, and b_u where users have a bias."""
    scores = (values["user_factors"][users] * values["item_factors"][items]).sum(-1) + values["item_bias"][items, 0]
    return scores + values["user_bias"][users, 0] if "user_bias" in values else scores


def factor_evidence(
    loss: Loss, values: Values, examples: Examples, *, per_branch: bool = False
) -> tuple[Tensor, list[Gradient]]:
    """Losses, and gradients on the rows of users and items."""
    users, items = examples.users, examples.items
    quick = None if per_branch else quick_evidence(loss, values, examples)
    if quick is not None:
        losses, slopes, to_user, to_items = quick
        return losses, [
            RowGradient("user_factors", users[:, None], to_user.unsqueeze(1)),
            RowGradient("item_factors", items, to_items),
            RowGradient("item_bias", items, slopes.unsqueeze(-1)),
        ]
    factors, offered = values["user_factors"][users], values["item_factors"][items]
    # Many short products: multiplying and adding up is several times quicker than a batched matrix product.
    scores = (offered * factors.unsqueeze(1)).sum(-1) + values["item_bias"][items, 0]
    with_bias = "user_bias" in values
    losses, slopes = loss.slopes(scores + values["user_bias"][users] if with_bias else scores)
    branches = users[:, None].expand_as(items) if per_branch else users[:, None]
    to_user = slopes.unsqueeze(-1) * offered
    if not per_branch:
        to_user = to_user.sum(1, keepdim=True)
    gradients: list[Gradient] = [
        RowGradient("user_factors", branches, to_user),
        RowGradient("item_factors", items, slopes.unsqueeze(-1) * factors.unsqueeze(1)),
        RowGradient("item_bias", items, slopes.unsqueeze(-1)),
    ]
    if with_bias and per_branch:
        gradients.append(RowGradient("user_bias", branches, slopes.unsqueeze(-1)))
    elif with_bias and not loss.shift_invariant:
        gradients.append(RowGradient("user_bias", branches, slopes.sum(-1)[:, None, None]))
    return losses, gradients
