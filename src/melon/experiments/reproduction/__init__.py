"""`melon reproduce`: the paper's experiment, from raw files or prepared streams to a report."""
