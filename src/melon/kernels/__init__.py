"""Kernels that numba compiles, the policy that loads them, and how they are compiled and kept on disk.

A kernel module is ordinary Python on plain arrays and runs as it stands, slowly; `build` compiles it. The rest of melon
uses `policy`: `load`, `warm_up` and `require_compiled`.
"""
