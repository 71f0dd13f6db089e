"""melon: a recommender that keeps up with its users.

Heavy libraries are imported when something here is first used, so `import melon` is quick.
"""

import os
from typing import TYPE_CHECKING

from melon.lazy import exports

if TYPE_CHECKING:
    from melon.client import AsyncClient, Client
    from melon.errors import MelonError
    from melon.estimator import Melon, load
    from melon.evaluator import evaluate

# With huge pages a step on a million scattered rows costs what one on ten thousand does. torch reads this variable when
# it first allocates memory, so it is set before; a value that is set already stays.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Melon", "MelonError", "__version__", "evaluate", "load"]

__getattr__, _names = exports(
    __name__,
    {
        "AsyncClient": "melon.client",
        "Client": "melon.client",
        "Melon": "melon.estimator",
        "MelonError": "melon.errors",
        "evaluate": "melon.evaluator",
        "load": "melon.estimator",
    },
)


def __dir__() -> list[str]:
    return sorted({*_names(), "__version__"})
