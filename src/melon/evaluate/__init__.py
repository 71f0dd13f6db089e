"""Evaluation: ranks that nothing flatters, the prequential loop, and choices made without the test part."""
