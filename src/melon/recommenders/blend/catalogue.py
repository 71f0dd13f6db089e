"""Scores of the whole catalogue: what depends on items alone is computed once, the rest user by user."""

from __future__ import annotations

from torch import Tensor

from melon.recommenders.blend.features import ITEM_FEATURES, PAIR_FEATURES
from melon.recommenders.blend.head import BlendHead
from melon.recommenders.blend.inputs import ACTIVE_ITEM, INPUTS
from melon.recommenders.evidence import Values

_BIAS, _DOT, _ACTIVE_DOT = (INPUTS.index(name) for name in ("bias", "dot", "active_dot"))
_ITEM = [_BIAS, *(INPUTS.index(name) for name in ITEM_FEATURES)]
_ACTIVE_ITEM = [INPUTS.index(f"active_{name}") for name in ACTIVE_ITEM]
_ACTIVE_COLUMNS = [1 + ITEM_FEATURES.index(name) for name in ACTIVE_ITEM]
_PAIR = [INPUTS.index(name) for name in PAIR_FEATURES]
_ACTIVE_PAIR = INPUTS.index("active_neighbours")


class CatalogueScorer:
    """The head over all items. An input that is a user's activity times an item's feature is linear in the activity,
    so the hidden layer's part that items bring along is a sum of two tables.
    """

    def __init__(self, head: BlendHead, values: Values, bias: Tensor, columns: Tensor) -> None:
        self._linear, self._hidden, shift, self._output = head.folded(values)
        self._pair = [*_PAIR, *range(len(INPUTS), len(self._linear))]
        items = columns.new_empty((len(bias), len(_ITEM)))
        items[:, 0], items[:, 1:] = bias, columns
        active = items[:, _ACTIVE_COLUMNS]
        self._units = (items @ self._hidden[:, _ITEM].T).add_(shift)
        self._active_units = active @ self._hidden[:, _ACTIVE_ITEM].T
        self._trust = head.trust
        self._sums = self._trust * bias + items @ self._linear[_ITEM] - self._linear @ head.centre
        self._active_sums = active @ self._linear[_ACTIVE_ITEM]

    def of_user(self, dot: Tensor, pairs: Tensor, active: float) -> Tensor:
        """Scores of all items for one user: its dot products, the features of pairs (items × features), activity."""
        units = self._units + active * self._active_units
        units.addr_(dot, self._hidden[:, _DOT] + active * self._hidden[:, _ACTIVE_DOT])
        hidden, linear = self._hidden[:, self._pair].clone(), self._linear[self._pair].clone()
        hidden[:, 0] += active * self._hidden[:, _ACTIVE_PAIR]
        linear[0] += active * self._linear[_ACTIVE_PAIR]
        units.addmm_(pairs, hidden.T)
        sums = self._sums + active * self._active_sums + pairs @ linear
        sums += dot * (self._trust + self._linear[_DOT] + active * self._linear[_ACTIVE_DOT])
        return sums.addmv_(units.relu_(), self._output)
