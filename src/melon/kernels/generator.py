"""Writes kernels out as one module of text for numba.

Kernels are ordinary Python that also runs as it stands, slowly. The modules that are compiled together become one
file, so that numba keeps what it compiled beside it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from types import ModuleType


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
    decorators = "exact_entry as entry, exact_part as part" if exact else "entry, part"
    decorators = "entry, inlined_part as part" if inlined else decorators
    parts = [
        f'"""{title}, written by melon\'s kernel generator; changes here are lost."""',
        "import math",
        "import numpy as np",
        "" if plain else f"from melon.kernels.build import {decorators}",
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
