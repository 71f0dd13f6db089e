"""Everything that prints to a terminal: tables, progress, views."""
