"""SASRec (Kang and McAuley, 2018): causal self-attention over the user's last 50 items."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strong.sequence import DIM, LONGEST

BLOCKS, HEADS = 2, 2


class SASRec(nn.Module):
    """Learned places, then blocks of causal attention and a small network for each token."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.places = nn.Parameter(0.02 * torch.randn(LONGEST, DIM))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(BLOCKS))
        self.last = nn.LayerNorm(DIM)

    def forward(self, rows: Tensor) -> Tensor:
        states = rows + self.places[: rows.shape[1]]
        for block in self.blocks:
            states = block(states)
        normal: Tensor = self.last(states)
        return normal


class Block(nn.Module):
    """Attention to the tokens so far, then two layers; both added to what came in."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.inputs, self.output = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.layers = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        lines, size, _ = states.shape
        parts = self.inputs(self.before(states)).view(lines, size, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        states = states + self.dropout(self.output(seen.transpose(1, 2).reshape(lines, size, DIM)))
        return states + self.dropout(self.layers(self.between(states)))
