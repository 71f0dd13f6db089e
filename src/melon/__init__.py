"""melon: a recommender that keeps up with its users.

Heavy libraries are imported when something here is first used, so `import melon` is quick.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from melon.errors import MelonError
    from melon.estimator import Melon, load

# Rows of large tables are read here and there: with huge pages a step on a million rows costs what one on ten thousand
# does. torch looks at this when it first allocates, so it has to be said before; whoever set it otherwise is heard.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
__all__ = ["Melon", "MelonError", "__version__", "load"]

_HOMES = {"Melon": "melon.estimator", "load": "melon.estimator", "MelonError": "melon.errors"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'melon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
