"""Learning: the only code that writes rows, from single batches to pre-training and checkpoints."""
