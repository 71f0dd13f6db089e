"""`python -m melon.cli`."""

from melon.cli import main

if __name__ == "__main__":
    main()
