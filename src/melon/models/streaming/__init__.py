"""Streaming state: what is counted while interactions come in, in O(batch), and read as of now."""
