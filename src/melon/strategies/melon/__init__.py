"""MeLON's meta-model: from an interaction and a parameter to the rate at which one teaches the other."""
