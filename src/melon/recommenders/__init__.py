"""Recommenders score (user, item) pairs and say what each interaction teaches about the rows it touches."""
