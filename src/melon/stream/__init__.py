"""Time: batches in order, what was seen before them, and the random draws that belong to each event."""
