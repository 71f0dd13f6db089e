"""`melon advise`: which strategy fits a stream, from a quick run on its most recent part."""
