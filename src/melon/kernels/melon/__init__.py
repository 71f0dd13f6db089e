"""MeLON's rates as compiled kernels: the rate model, and the published pair function (docs/kernel.md)."""
