"""Choosing: search, selection window, pre-trained states, `auto`."""
