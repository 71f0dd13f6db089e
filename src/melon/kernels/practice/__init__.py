"""Practice of a factorised score as compiled loops: through a whole stream, and back (docs/methods.md 4.12)."""
