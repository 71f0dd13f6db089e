"""Writes kernels out as one module of text for numba.

Kernels are ordinary Python that also runs as it stands, slowly. The modules that are compiled together become one
file, so that numba keeps what it compiled beside it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from types import ModuleType

#: Parts become text of their callers: handing many arrays over can cost more than the work on them.
INLINED = """FAST, _decorated, entry

from functools import partial

part = partial(_decorated, options=FAST, forceinline=True)"""


def written(
    title: str,
    modules: Sequence[ModuleType],
    entries: Sequence[str],
    *,
    exact: bool = False,
    inlined: bool = False,
    plain: bool = False,
) -> str:
    """The text of some modules of kernels, those that build on others last; `entries` are called from Python.

    With `plain` the text is for Python itself.
    """
    decorators = "from melon.kernels.build import " + (
        "exact_entry as entry, exact_part as part" if exact else INLINED if inlined else "entry, part"
    )
    parts = [
        f'"""{title}, written by melon\'s kernel generator; changes here are lost."""',
        "import math",
        "import numpy as np",
        "" if plain else decorators,
    ]
    for module in modules:
        for statement in ast.parse(inspect.getsource(module)).body:
            if isinstance(statement, ast.FunctionDef):
                kind = "entry" if statement.name in entries else "part"
                parts.append(ast.unparse(_decorated(statement, "" if plain else kind)))
            elif isinstance(statement, ast.Assign):
                parts.append(ast.unparse(statement))
    return "\n\n".join(parts) + "\n"


def _decorated(function: ast.FunctionDef, kind: str) -> ast.FunctionDef:
    """The function without types, for numba has its own."""
    for argument in function.args.args:
        argument.annotation = None
    function.returns = None
    function.decorator_list = [ast.Name(kind)] if kind else []
    return ast.fix_missing_locations(function)
