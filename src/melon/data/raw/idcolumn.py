"""One raw column of ids: integers where all are, which is quick, and else texts behind small codes."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from melon.data.raw.sources import RawFile
from melon.errors import DataError


@dataclass(frozen=True)
class IdColumn:
    """How a raw file's users or items are read."""

    file: RawFile
    role: str
    categories: pl.Categories
    dtype: pl.DataType

    def text(self) -> pl.Expr:
        """The ids as texts; null where there is none."""
        expr = pl.col(self.role)
        if self.dtype.is_integer():
            return expr.cast(pl.String)
        if self.dtype in (pl.String, pl.Categorical, pl.Enum):
            expr = expr.cast(pl.String)
            return pl.when(expr.str.len_bytes() > 0).then(expr)
        if self.dtype.is_float():
            # A column of whole numbers with gaps often comes as floats; what is not whole is no id.
            whole = expr.is_finite() & (expr == expr.floor())
            return pl.when(whole).then(expr).cast(pl.Int64, strict=False).cast(pl.String)
        column = getattr(self.file.layout.columns, self.role)
        raise DataError(
            f"{self.file.name}: column {column!r} has type {self.dtype} and cannot be the {self.role}; "
            f"ids are integers or texts. Name another column with --{self.role}."
        )

    def number(self) -> pl.Expr:
        """The ids as integers; null where one is not written in the plain way, as "07" or "+7" are not."""
        text = self.text()
        if self.dtype.is_integer():
            return pl.col(self.role).cast(pl.Int64, strict=False)
        padded = text.str.starts_with("0") & (text.str.len_bytes() > 1)
        odd = padded | text.str.starts_with("+") | text.str.starts_with("-0")
        return pl.when(~odd).then(text.cast(pl.Int64, strict=False))

    def code(self) -> pl.Expr:
        """The ids as categories."""
        return self.text().cast(pl.Categorical(self.categories))

    def quick(self, sample: pl.DataFrame) -> pl.Expr:
        """Integers if the first rows have nothing else."""
        return self.code() if self._others(sample.lazy()) or self._texts() else self.number()

    def checked(self, frame: pl.DataFrame) -> pl.Series:
        """The column of the frame, read again as texts if an id was found that is no integer."""
        column = frame[self.role]
        if column.dtype == pl.Int64 and column.null_count() and self._others(self.file.scan):
            return self.file.scan.select(self.code()).collect(engine="streaming").to_series()
        return column

    def _texts(self) -> bool:
        # Only Parquet says whether an id is a text; elsewhere digits are taken for a number.
        return self.file.layout.kind == "parquet" and not (self.dtype.is_integer() or self.dtype.is_float())

    def _others(self, frame: pl.LazyFrame) -> bool:
        other = (self.text().is_not_null() & self.number().is_null()).any()
        return bool(frame.select(other).collect(engine="streaming").item())
