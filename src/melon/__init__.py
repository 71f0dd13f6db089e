"""melon: a recommender that keeps up with its users.

Heavy libraries are imported when something here is first used, so `import melon` is quick.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melon.errors import MelonError
    from melon.estimator import Melon, load
    from melon.evaluator import evaluate

# With huge pages a step on a million scattered rows costs what one on ten thousand does. torch reads this variable when
# it first allocates memory, so it is set before; a value that is set already stays.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
__all__ = ["Melon", "MelonError", "__version__", "evaluate", "load"]

_HOMES = {
    "Melon": "melon.estimator",
    "MelonError": "melon.errors",
    "evaluate": "melon.evaluator",
    "load": "melon.estimator",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'melon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
