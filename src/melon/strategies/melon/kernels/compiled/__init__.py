"""The pair function compiled by numba. docs/kernel.md explains it; nothing outside imports this before it is chosen."""
