"""Runs on recorded streams: one cell, grids of cells, and their records."""
