"""`melon tune`: settings searched on the selection window."""
