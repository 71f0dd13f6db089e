"""The suites of kernels: which modules are compiled together, and which of their functions are called from Python."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from types import ModuleType

from melon.kernels import (
    arithmetic,
    besides,
    best,
    factor,
    generator,
    ials,
    lessons,
    likeness,
    lists,
    neighbours,
    network,
    pretrain,
    products,
    profiles,
    rough,
    shortlist,
    stream,
)
from melon.kernels.melon import attention, layout, rows, shared, tiles
from melon.kernels.practice import backward, forms, forward
from melon.kernels.s2meta import cells
from melon.kernels.types import Signature


@dataclass(frozen=True)
class Suite:
    """Kernels that are compiled together.

    `modules` stand in the order in which they build on each other, and `signatures` are those of the functions that are
    called from Python; `also` are more types of the same ones. `exact` keeps floating-point operations in order.
    `layout` holds constants that depend on a width. What `takes` long to compile says so.
    """

    title: str
    modules: tuple[ModuleType, ...]
    signatures: dict[str, Signature]
    also: dict[str, Signature] = field(default_factory=dict)
    exact: bool = False
    layout: ModuleType | None = None
    takes: str = ""

    def text(self, width: int = 0) -> str:
        """Everything that is compiled, as one module."""
        title = f"{self.title}, {width} units" if width else self.title
        if self.layout is None:
            return generator.written(title, self.modules, tuple(self.signatures), exact=self.exact)
        sized = generator.sized(self.layout, width)
        constants = generator.numbers(sized)
        return generator.written(title, self.modules, tuple(self.signatures), ast.unparse(sized), constants)


SUITES = {
    "stream": Suite("the loops of a stream", (stream,), stream.SIGNATURES, exact=True),
    "neighbours": Suite("the loops of neighbours", (neighbours,), neighbours.SIGNATURES, exact=True),
    "factor": Suite("the loops of a factorised score", (factor,), factor.SIGNATURES),
    "practice": Suite(
        "the loops of practice",
        (forms, forward, backward),
        forms.SIGNATURES,
        takes="about a quarter of a minute",
    ),
    "pretrain": Suite("the loops of pre-training", (pretrain,), pretrain.SIGNATURES),
    "network": Suite(
        "the loops of NCF's pre-training",
        (pretrain, products, network),
        network.SIGNATURES,
        takes="about a third of a minute",
    ),
    "lists": Suite(
        "the loops of lists",
        (best, rough, lists, besides, shortlist),
        {
            **best.SIGNATURES,
            **rough.SIGNATURES,
            **lists.SIGNATURES,
            **besides.SIGNATURES,
            **shortlist.SIGNATURES,
        },
        best.DOUBLES_TOO,
    ),
    "ials": Suite("the loops of implicit ALS", (ials,), ials.SIGNATURES),
    "lessons": Suite("the loops of the blend's head", (factor, neighbours, lessons), lessons.SIGNATURES),
    "profiles": Suite("the loops of profiles", (profiles, likeness), {**profiles.SIGNATURES, **likeness.SIGNATURES}),
    "melon": Suite(
        "the pair kernel of MeLON",
        (arithmetic, tiles, rows, shared, attention),
        {**rows.SIGNATURES, **shared.SIGNATURES, **attention.SIGNATURES},
        layout=layout,
        takes="about half a minute",
    ),
    "s2meta": Suite("the cell of S2Meta", (arithmetic, cells), cells.SIGNATURES, takes="about a quarter of a minute"),
}
