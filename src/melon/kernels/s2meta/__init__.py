"""The cell of S2Meta as compiled loops, and as PyTorch sees it (docs/kernel.md)."""
