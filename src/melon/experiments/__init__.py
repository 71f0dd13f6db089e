"""Experiments: one evaluated cell, its record, tables and pages. Only here: plotting."""
