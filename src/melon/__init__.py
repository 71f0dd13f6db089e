"""melon: a recommender that keeps up with its users.

Heavy libraries are imported when something here is first used, so `import melon` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melon.errors import MelonError
    from melon.estimator import Melon, load

__version__ = "0.1.0"
__all__ = ["Melon", "MelonError", "__version__", "load"]

_HOMES = {"Melon": "melon.estimator", "load": "melon.estimator", "MelonError": "melon.errors"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'melon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
