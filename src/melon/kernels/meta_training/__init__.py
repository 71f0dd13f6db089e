"""Meta-training of a factorised score as compiled kernels: through a whole stream, and back (docs/methods.md 4.12)."""
