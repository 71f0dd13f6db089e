"""Writes kernels out as text for numba: constants become numbers, marked loops are unrolled, registers get names.

Kernels are ordinary Python that also runs as it stands, slowly. Compilers keep numbers in registers only where each has
a name of its own, so what is marked with `unrolled` and `registers` is written out before numba sees it. docs/kernel.md
explains what it buys.
"""

from __future__ import annotations

import ast
import copy
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

#: Widths are rounded up to multiples of this, so that most settings meet the same compiled kernel.
STEP = 20

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def unrolled(count: int) -> range:
    """Mark of a loop: `for i in unrolled(n)` is written out n times, with i as a number."""
    return range(count)


def registers() -> Any:
    """Mark of a local: with `x = registers()`, x[i, j] becomes a local variable of its own, x_i_j."""
    return {}


def padded(width: int) -> int:
    """The number of units that are computed for a width: those beyond it have zero weights and add exactly nothing."""
    return -(-width // STEP) * STEP


def sized(layout: ModuleType, width: int) -> ast.Module:
    """The constants of a layout for a padded width."""
    assigned = [each for each in ast.parse(inspect.getsource(layout)).body if isinstance(each, ast.Assign)]
    for statement in assigned:
        if ast.unparse(statement.targets[0]) == "WIDTH":
            statement.value = ast.Constant(width)
    return ast.fix_missing_locations(ast.Module(list(assigned), []))


def numbers(constants: ast.Module) -> dict[str, int]:
    """The values of assigned constants, by name."""
    values: dict[str, int] = {}
    for statement in constants.body:
        assert isinstance(statement, ast.Assign)
        values[ast.unparse(statement.targets[0])] = _value(statement.value, values)
    return values


def written(
    title: str,
    modules: Sequence[ModuleType],
    entries: Sequence[str],
    sizes: str = "",
    constants: Mapping[str, int] = MappingProxyType({}),
    *,
    exact: bool = False,
    plain: bool = False,
) -> str:
    """The text of some modules of kernels, those that build on others last; `entries` are called from Python.

    With `plain` the text is for Python itself.
    """
    decorators = "exact_entry as entry, exact_part as part" if exact else "entry, part"
    parts = [
        f'"""{title}, written by melon\'s kernel generator; changes here are lost."""',
        "import math",
        "import numpy as np",
        "" if plain else f"from melon.kernels.build import {decorators}",
        sizes,
    ]
    for module in modules:
        for statement in ast.parse(inspect.getsource(module)).body:
            if isinstance(statement, ast.FunctionDef):
                kind = "entry" if statement.name in entries else "part"
                parts.append(ast.unparse(_written_out(statement, constants, "" if plain else kind)))
            elif isinstance(statement, ast.Assign):
                parts.append(ast.unparse(statement))
    return "\n\n".join(parts) + "\n"


def _written_out(function: ast.FunctionDef, constants: Mapping[str, int], kind: str) -> ast.FunctionDef:
    function = _Unroller(constants).visit(function)
    for argument in function.args.args:
        argument.annotation = None
    function.returns = None
    function.decorator_list = [ast.Name(kind)] if kind else []
    return ast.fix_missing_locations(function)


class _Unroller(ast.NodeTransformer):
    def __init__(self, constants: Mapping[str, int]) -> None:
        self._constants = constants
        self._registers: set[str] = set()
        self._numbers: dict[str, int] = {}

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        names = [each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        if all(_calls(value, "registers") for value in values):
            self._registers.update(names)
            return None
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST | Sequence[ast.AST]:
        if not _calls(node.iter, "unrolled"):
            return self.generic_visit(node)
        assert isinstance(node.iter, ast.Call)
        assert isinstance(node.target, ast.Name)
        statements: list[ast.AST] = []
        for number in range(self._number(node.iter.args[0])):
            self._numbers[node.target.id] = number
            for statement in copy.deepcopy(node.body):
                written = self.visit(statement)
                statements += written if isinstance(written, list) else [written]
        del self._numbers[node.target.id]
        return statements

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not (isinstance(node.value, ast.Name) and node.value.id in self._registers):
            return self.generic_visit(node)
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return ast.Name("_".join([node.value.id, *(str(self._number(place)) for place in places)]), node.ctx)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self._numbers[node.id]) if node.id in self._numbers else node

    def _number(self, expression: ast.expr) -> int:
        """The value of an expression of constants and numbers of unrolled loops."""
        return _value(expression, {**self._constants, **self._numbers})


def _value(expression: ast.expr, names: Mapping[str, int]) -> int:
    """The value of an expression of whole numbers, names, +, -, * and //."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, int):
        return expression.value
    if isinstance(expression, ast.Name):
        return names[expression.id]
    if isinstance(expression, ast.BinOp) and type(expression.op) in _ARITHMETIC:
        left, right = (_value(side, names) for side in (expression.left, expression.right))
        return _ARITHMETIC[type(expression.op)](left, right)
    raise TypeError(f"the kernel generator cannot work out {ast.unparse(expression)!r}")


def _calls(expression: ast.expr, name: str) -> bool:
    return isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == name
