"""The functions of `melon.kernels.lanes` for numba: a line is one LLVM vector, which becomes registers of the CPU.

Compilers turn loops over arrays into vector instructions, but keep no array in registers while another loop runs
around it. With a type of its own a line stays there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from melon.kernels.lanes import LANES

_VECTOR, _WORD = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
_ZEROS, _UNDEFINED = ir.Constant(_VECTOR, [0.0] * LANES), ir.Constant(_VECTOR, ir.Undefined)
_FIRST = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
#: A product and a sum become one instruction where the CPU has it.
_FUSED = ("contract",)
#: Threads see each other's writes in one order.
_ORDER = "seq_cst"
#: A function of the system.
_MAKE_WAY = "SwitchToThread" if os.name == "nt" else "sched_yield"

_Emit = Callable[[Any, Any, Any, Any], Any]


class _LaneLine(types.Type):
    """64 numbers."""

    def __init__(self) -> None:
        super().__init__("line of 64 numbers")


_LINE = _LaneLine()


@register_model(_LaneLine)
class _LaneLineModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _VECTOR)  # type: ignore[no-untyped-call]  # numba is typed in parts


def _place(context: Any, builder: Any, of: Any, table: Any, row: Any, column: Any) -> Any:
    """The address of table[row, column]."""
    array = context.make_array(of)(context, builder, table)
    length = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(row, length), column)])


def _numbers(context: Any, builder: Any, of: Any, table: Any, row: Any, tile: Any) -> Any:
    """The address of a line."""
    column = builder.mul(tile, ir.Constant(_WORD, LANES))
    return builder.bitcast(_place(context, builder, of, table, row, column), _VECTOR.as_pointer())


@intrinsic
def nothing(typing: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _ZEROS

    return _LINE(), emit


@intrinsic
def loaded(typing: Any, table: Any, row: Any, tile: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_numbers(context, builder, signature.args[0], *given), align=4)

    return _LINE(table, types.int64, types.int64), emit


@intrinsic
def stored(typing: Any, line: Any, table: Any, row: Any, tile: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[0], _numbers(context, builder, signature.args[1], *given[1:]), align=4)
        return context.get_dummy_value()

    return types.void(line, table, types.int64, types.int64), emit


def _everywhere(builder: Any, number: Any) -> Any:
    one = builder.insert_element(_UNDEFINED, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, _UNDEFINED, _FIRST)


@intrinsic
def scaled(typing: Any, line: Any, factor: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fmul(given[0], _everywhere(builder, given[1]), flags=_FUSED)

    return _LINE(line, types.float32), emit


@intrinsic
def times(typing: Any, line: Any, other: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fmul(*given, flags=_FUSED)

    return _LINE(line, other), emit


@intrinsic
def total_of(typing: Any, line: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        total, lanes = given[0], LANES
        while lanes > 1:  # halves are added until one number is left
            lanes //= 2
            halves = (
                builder.shuffle_vector(
                    total, total, ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(at, at + lanes)))
                )
                for at in (0, lanes)
            )
            total = builder.fadd(*halves)
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float32(line), emit


@intrinsic
def added(typing: Any, line: Any, other: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fadd(*given, flags=_FUSED)

    return _LINE(line, other), emit


@intrinsic
def plus(typing: Any, line: Any, factors: Any, i: Any, j: Any, table: Any, row: Any, tile: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        factor = builder.load(_place(context, builder, signature.args[1], *given[1:4]))
        numbers = builder.load(_numbers(context, builder, signature.args[4], *given[4:]), align=4)
        product = builder.fmul(_everywhere(builder, factor), numbers, flags=_FUSED)
        return builder.fadd(given[0], product, flags=_FUSED)

    return _LINE(line, factors, types.int64, types.int64, table, types.int64, types.int64), emit


@intrinsic
def open_lanes(typing: Any, line: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.bitcast(builder.fcmp_unordered(">", given[0], _ZEROS), _WORD)

    return types.uint64(line), emit


@intrinsic
def masked(typing: Any, line: Any, mask: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        bits = builder.bitcast(given[1], ir.VectorType(ir.IntType(1), LANES))
        return builder.select(bits, given[0], _ZEROS)

    return _LINE(line, types.uint64), emit


@intrinsic
def lowest(typing: Any, mask: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


def _number(context: Any, builder: Any, of: Any, numbers: Any, at: Any) -> Any:
    return builder.gep(context.make_array(of)(context, builder, numbers).data, [at])


@intrinsic
def seen(typing: Any, numbers: Any, at: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load_atomic(_number(context, builder, signature.args[0], *given), _ORDER, 8)

    return types.int64(numbers, types.int64), emit


@intrinsic
def put(typing: Any, numbers: Any, at: Any, number: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store_atomic(given[2], _number(context, builder, signature.args[0], *given[:2]), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(numbers, types.int64, types.int64), emit


@intrinsic
def replaced(typing: Any, numbers: Any, at: Any, old: Any, new: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _number(context, builder, signature.args[0], *given[:2])
        return builder.extract_value(builder.cmpxchg(place, *given[2:], _ORDER, _ORDER), 1)

    return types.boolean(numbers, *[types.int64] * 3), emit


@intrinsic
def counted(typing: Any, numbers: Any, at: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _number(context, builder, signature.args[0], *given)
        builder.atomic_rmw("add", place, ir.Constant(_WORD, 1), _ORDER)
        return context.get_dummy_value()

    return types.void(numbers, types.int64), emit


@intrinsic
def made_way(typing: Any) -> tuple[Any, _Emit]:
    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        function = cgutils.get_or_insert_function(builder.module, kind, _MAKE_WAY)  # type: ignore[no-untyped-call]
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), emit
