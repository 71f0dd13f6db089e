"""Meta-training through a whole stream: by the quality of all later predictions (docs/methods.md 4.12)."""
