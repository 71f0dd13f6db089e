"""Raw files, read as interactions."""
