"""MeLON's pair function and interaction side as compiled loops, and as PyTorch sees them (docs/kernel.md)."""
