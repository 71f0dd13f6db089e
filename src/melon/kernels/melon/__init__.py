"""MeLON's pair function and interaction side as compiled kernels, and as PyTorch sees them (docs/kernel.md)."""
