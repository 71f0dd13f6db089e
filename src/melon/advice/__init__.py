"""`melon advise`: which strategy fits a stream."""
