"""Optional dependencies, checked before hours are spent."""

from __future__ import annotations

from melon.errors import MissingExtraError


def require_plots(purpose: str) -> None:
    """Raise now if nothing can be drawn here; `purpose` begins the message."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise MissingExtraError(purpose, "plots") from None


def require_serving(purpose: str) -> None:
    """Raise now if no service can be run here."""
    try:
        import apsw  # noqa: F401
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError(purpose, "serve") from None
