"""Measuring: ranks, metrics, the prequential loop, comparisons, simple rivals."""
