"""What is about one publication: its numbers, its claims, its experiment."""
