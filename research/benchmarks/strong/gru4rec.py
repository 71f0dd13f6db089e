"""GRU4Rec (Hidasi et al., 2016): a recurrent network over the user's last 50 items."""

from __future__ import annotations

from torch import Tensor, nn

from strong.sequence import DIM

HIDDEN = 100


class GRU4Rec(nn.Module):
    """One layer of gated recurrent units, and a linear one back to the size of an item's row."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.units, self.output = nn.GRU(DIM, HIDDEN, batch_first=True), nn.Linear(HIDDEN, DIM)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor) -> Tensor:
        states: Tensor = self.output(self.dropout(self.units(rows)[0]))
        return states
