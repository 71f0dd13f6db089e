"""HTTP, version 1: the only part of melon that knows FastAPI."""
