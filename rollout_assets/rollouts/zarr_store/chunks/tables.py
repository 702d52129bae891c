"""What a table of a rollout store is: row-aligned columns with their dtypes, shapes and dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

SelectedDims = Mapping[str, int]
"""Sizes behind the symbols of a row shape: H, W (depth raster), P (crop points), A (widest shell)."""


@dataclass(frozen=True)
class Column:
    """One array of a table; the first axis is the row.

    ``row_shape`` may hold symbols (``"H"``), resolved per store. ``dictionary`` names where an id's string lies.
    ``pad`` is what the training view holds beyond a state's last candidate.
    ``added``: stores of other writers may lack it and are read without it.
    """

    name: str
    dtype: str
    row_shape: tuple[int | str, ...] = ()
    dictionary: str | None = None
    pad: float | int | bool | None = None
    added: bool = False

    def resolve(self, dims: SelectedDims) -> tuple[int, ...]:
        """The shape of one row in a store with these dimensions."""
        return tuple(dims[part] if isinstance(part, str) else part for part in self.row_shape)

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The exact stored dtype."""
        return np.dtype(self.dtype)

    @property
    def is_float(self) -> bool:
        """Whether NaN is a legal value."""
        return self.numpy_dtype.kind == "f"


@dataclass(frozen=True)
class Table:
    """Row-aligned columns of one group. ``key`` is its dense row id, if it has one of its own."""

    name: str
    columns: tuple[Column, ...]
    key: str | None
    codec: Literal["rows", "view", "raster"] = "rows"
    rasters: tuple[str, ...] = ()
    doc: str = ""

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in stored order."""
        return tuple(column.name for column in self.columns)

    def path(self, column: str) -> str:
        """The array path of a column."""
        return f"{self.name}/{self[column].name}"

    def codec_of(self, column: str) -> Literal["rows", "view", "raster"]:
        """How a column's chunks are compressed."""
        return "raster" if column in self.rasters else self.codec

    def part(self, names: Collection[str]) -> Table:
        """This table with only some of its columns."""
        return replace(self, columns=tuple(column for column in self.columns if column.name in names))

    @property
    def without_rasters(self) -> Table:
        """This table without its rasters."""
        return self.part([name for name in self.names if name not in self.rasters])
