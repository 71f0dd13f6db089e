"""melon: a recommender that learns while it is used.

Heavy libraries are imported when something here is first used, so `import melon` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melon.client import AsyncClient, Client
    from melon.errors import MelonError
    from melon.estimator import Melon, load
    from melon.evaluator import evaluate

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Melon", "MelonError", "__version__", "evaluate", "load"]

_HOMES = {
    "AsyncClient": "melon.client",
    "Client": "melon.client",
    "Melon": "melon.estimator",
    "MelonError": "melon.errors",
    "evaluate": "melon.evaluator",
    "load": "melon.estimator",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
