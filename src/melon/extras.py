"""Optional dependencies, checked before hours are spent."""

from __future__ import annotations

from melon.errors import MissingExtraError


def require_plots(purpose: str) -> None:
    """Raise now if nothing can be drawn here; `purpose` begins the message."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise MissingExtraError(purpose, "plots") from None
