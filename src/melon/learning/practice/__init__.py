"""Practice through a whole stream: rates learn from the quality of all later predictions (docs/methods.md 4.12)."""
