"""Raw files become interactions: readers, preparation, ids and synthetic streams."""
