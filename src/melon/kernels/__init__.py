"""Compiled loops (numba), and the policy that says when they are used."""
