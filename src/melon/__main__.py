"""`python -m melon` is the `melon` command."""

from melon.cli import main

if __name__ == "__main__":
    main()
