"""The blend: rows, streaming counts and neighbours, and a small head that learns how far to trust each."""
