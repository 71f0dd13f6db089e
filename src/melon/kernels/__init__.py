"""Compiled loops (numba), the policy that says when they are used, and how they are compiled and kept on disk.

A kernel module is ordinary Python on plain arrays and runs as it stands, slowly; `build` compiles it. The rest of melon
uses `policy`: `compiled`, `load` and `warm_up`.
"""
