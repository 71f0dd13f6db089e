"""The kernel modules: which files are compiled together, and which of their functions are called from Python.

Kernels are ordinary Python that also runs as it stands, slowly. The modules that are compiled together are written out
as one file, so that numba keeps what it compiled beside it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

from melon.kernels import (
    arithmetic,
    baselines,
    best,
    blend_head,
    blend_inputs,
    blend_lists,
    factor,
    ials,
    meta_training,
    neighbours,
    own_items,
    profiles,
    quantised,
    seen,
    stream,
)
from melon.kernels.melon import online, pairs, rates
from melon.kernels.types import Signature, doubled, signatures


@dataclass(frozen=True)
class KernelModule:
    """Kernels that are compiled together.

    `modules` stand in the order in which they build on each other, and `signatures` are those of the functions that are
    called from Python; `also` are more types of the same ones. `exact` keeps floating-point operations in order;
    with `inlined`, no kernel calls another.
    What `takes` long to compile says so.
    """

    title: str
    modules: tuple[ModuleType, ...]
    signatures: dict[str, Signature]
    also: dict[str, Signature] = field(default_factory=dict)
    exact: bool = False
    inlined: bool = False
    takes: str = ""

    def text(self) -> str:
        """All kernels as one module for numba."""
        return _written(self.title, self.modules, tuple(self.signatures), exact=self.exact, inlined=self.inlined)


#: Parts become text of their callers: handing many arrays over can cost more than the work on them.
INLINED = """FAST, _decorated, entry

from functools import partial

part = partial(_decorated, options=FAST, forceinline=True)"""


def _written(title: str, modules: Sequence[ModuleType], entries: Sequence[str], *, exact: bool, inlined: bool) -> str:
    """The text of some modules of kernels for numba, those that build on others last."""
    decorators = "exact_entry as entry, exact_part as part" if exact else INLINED if inlined else "entry, part"
    parts = [
        f'"""{title}, written by melon\'s kernel generator; changes here are lost."""',
        "import math",
        "import numpy as np",
        f"from melon.kernels.build import {decorators}",
    ]
    for module in modules:
        for statement in ast.parse(inspect.getsource(module)).body:
            if isinstance(statement, ast.FunctionDef):
                kind = "entry" if statement.name in entries else "part"
                parts.append(ast.unparse(_decorated(statement, kind)))
            elif isinstance(statement, ast.Assign):
                parts.append(ast.unparse(statement))
    return "\n\n".join(parts) + "\n"


def _decorated(function: ast.FunctionDef, kind: str) -> ast.FunctionDef:
    """The function without types, for numba has its own."""
    for argument in function.args.args:
        argument.annotation = None
    function.returns = None
    function.decorator_list = [ast.Name(kind)]
    return ast.fix_missing_locations(function)


MODULES = {
    "stream": KernelModule(
        "the kernels of a stream",
        (seen, stream),
        signatures(
            *(stream.remember, stream.find, stream.place, stream.contains, stream.append, stream.negatives),
            *(stream.head_lines, stream.candidates),
        ),
        exact=True,
    ),
    "neighbours": KernelModule(
        "the kernels of neighbours",
        (neighbours,),
        signatures(neighbours.count_items, neighbours.meetings, neighbours.meet),
        exact=True,
    ),
    "factor": KernelModule(
        "the kernels of a factorised score",
        (factor,),
        signatures(factor.pairwise_batches, factor.scores, factor.plain_step),
    ),
    "meta_training": KernelModule(
        "the kernels of meta-training",
        (arithmetic, factor, rates, meta_training),
        signatures(meta_training.forward, meta_training.backward),
        takes="about half a minute",
    ),
    "rates": KernelModule(
        "the kernels of learned rates",
        (arithmetic, factor, rates, online),
        signatures(online.line_facts, online.rated_step),
        inlined=True,
    ),
    "lists": KernelModule(
        "the kernels of lists",
        (arithmetic, seen, best, quantised, blend_head, own_items, profiles, blend_lists),
        signatures(
            *(best.products, best.counted, best.top, best.count_better, best.decayed, best.most_counted),
            *(quantised.quantise, quantised.quantised_scan, blend_lists.all_items, blend_lists.shortlist),
        ),
        doubled(signatures(best.top, best.count_better)),
    ),
    "baselines": KernelModule(
        "the kernels of simple list methods",
        (baselines,),
        signatures(
            *(baselines.chain, baselines.own_column, baselines.met_column, baselines.session_column),
            *(baselines.add_column, baselines.pick_column, baselines.join_columns, baselines.rank_mixtures),
        ),
        exact=True,
    ),
    "own_items": KernelModule(
        "the kernels of users' own items",
        (own_items,),
        signatures(own_items.take_own, own_items.pick_own, own_items.own_inputs, own_items.own_of_user),
        exact=True,
    ),
    "ials": KernelModule(
        "the kernels of implicit ALS", (ials,), signatures(ials.last_partners, ials.solve, ials.follow)
    ),
    "blend": KernelModule(
        "the kernels of the blend's inputs and head",
        (factor, neighbours, blend_head, blend_inputs),
        signatures(
            *(blend_head.head_columns, blend_head.head_step, blend_head.head_scores),
            *(blend_inputs.inputs, blend_inputs.row_inputs),
        ),
    ),
    "profiles": KernelModule(
        "the kernels of profiles",
        (profiles,),
        signatures(
            *(profiles.take, profiles.match, profiles.prepare),
            *(profiles.preferences, profiles.write_preferences, profiles.follow_preferences),
        ),
    ),
    "pairs": KernelModule(
        "the kernels of MeLON as published", (arithmetic, pairs), signatures(pairs.pair_rates, pairs.pair_rates_back)
    ),
}
