"""Two stores, or parts of them, compared value by value: rows by what they are about, never by their row ids.

Row ids are a store's own business. A chain is known by its rollout id, a step by its index in it, a view by its index
in the shell; a source row by its sample key, a target by its source and id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rollout_assets.errors import StoreError
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.open_store import decoded_series
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import STEPS, TABLES

_CHAINS = ("rollouts", "lineage", "steps", "candidates", "candidate_diagnostics", "selected_depth")
COMPARED = tuple(TABLES[name] for name in ("sources", "targets", *_CHAINS))
"""Tables that are compared; ``q_h`` is derived from them and the validator holds it against them."""

LOCAL_COLUMNS = frozenset(
    {
        "source_row_id",
        "target_row_id",
        "rollout_row_id",
        "step_row_id",
        "candidate_row_id",
        "selected_candidate_row_id",
        "chain_id",
        "rollout_id",
    }
)
"""Columns that name rows of the same store, or are part of a row's name; ``rollout_id`` ends with the chain."""

DIFFERENCES = {
    "table": pl.String,
    "column": pl.String,
    "what": pl.String,
    "rows": pl.Int64,
    "compared": pl.Int64,
    "max_abs_difference": pl.Float64,
    "first": pl.String,
    "value_a": pl.String,
    "value_b": pl.String,
}
"""Columns of ``StoreDiff.differences``. ``what`` is ``value``, ``only_in_a``, ``only_in_b`` or ``shape``."""

_RASTER_ROWS = 64


@dataclass(frozen=True, eq=False)
class StoreDiff:
    """What was compared and what differs: one row per column, with how often, how much, and where first."""

    a: str
    b: str
    rows_compared: dict[str, int]
    differences: pl.DataFrame

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.differences.is_empty()


@dataclass(frozen=True, eq=False)
class StorePart:
    """Some rows of a store: those of chosen chains, targets and sources, or all of them."""

    reader: RolloutZarrStoreReader
    rows: Mapping[str, NDArray[np.int64]]
    names: Mapping[str, pl.Series]

    @classmethod
    def whole(cls, reader: RolloutZarrStoreReader) -> StorePart:
        """Every row."""
        sources, targets, rollouts = (np.arange(reader.num_rows(table)) for table in ("sources", "targets", "rollouts"))
        return cls.of(reader, sources, targets, rollouts)

    @classmethod
    def of(
        cls,
        reader: RolloutZarrStoreReader,
        sources: NDArray[np.int64],
        targets: NDArray[np.int64],
        rollouts: NDArray[np.int64],
    ) -> StorePart:
        """The given rows, and the steps and candidates of the given chains."""
        owner = reader.array(STEPS.path("rollout_row_id"))
        sizes = reader.array(STEPS.path("num_candidates")).astype(np.int64)
        ends = np.cumsum(sizes)
        steps = np.flatnonzero(np.isin(owner, rollouts))
        starts = (ends - sizes)[steps]
        candidates = np.repeat(starts - (np.cumsum(sizes[steps]) - sizes[steps]), sizes[steps]) + np.arange(
            sizes[steps].sum()
        )
        depth = steps if reader.attributes.get("selected_depth_enabled") else steps[:0]
        rows = {"sources": sources, "targets": targets, "rollouts": rollouts, "lineage": rollouts, "steps": steps}
        rows |= {"candidates": candidates, "candidate_diagnostics": candidates, "selected_depth": depth}
        return cls(reader, rows, _names(reader, rows, sizes))

    def column(self, table: Table, name: str, at: NDArray[np.int64]) -> NDArray[Any]:
        """Stored values of a column; ``at`` picks among this part's rows."""
        rows = self.rows[table.name][at]
        first, last = int(rows.min()), int(rows.max()) + 1
        values = self.reader.array(table.path(name), first, last)
        return values if last - first == len(rows) and (np.diff(rows) == 1).all() else values[rows - first]

    def strings(self, table: Table, name: str, ids: NDArray[Any]) -> NDArray[np.object_]:
        """What ids of a dictionary column stand for; None where not given."""
        dictionary = table[name].dictionary
        assert dictionary is not None
        return decoded_series(name, ids, self.reader.dictionaries[dictionary]).to_numpy().astype(object)


def diff_stores(
    a: RolloutZarrStoreReader, b: RolloutZarrStoreReader, *, tolerance: float = 0.0, depth: bool = True
) -> StoreDiff:
    """Compare two stores row by row and column by column: rows, masks, labels, lineage, depth.

    Floats may differ by ``tolerance * max(1, |a|, |b|)``; NaN equals NaN. ``depth=False`` leaves rasters out.
    """
    if tolerance < 0:
        raise StoreError(f"tolerance must be >= 0, got {tolerance}")
    return compare_parts(StorePart.whole(a), StorePart.whole(b), tolerance=tolerance, depth=depth)


def compare_parts(a: StorePart, b: StorePart, *, tolerance: float = 0.0, depth: bool = True) -> StoreDiff:
    """Compare two parts of stores as ``diff_stores`` compares two stores."""
    lines: list[dict[str, Any]] = []
    compared: dict[str, int] = {}
    for table in COMPARED:
        in_a, in_b = _aligned(a.names[table.name], b.names[table.name])
        compared[table.name] = len(in_a)
        lines += _unmatched(table, a, in_a, "only_in_a") + _unmatched(table, b, in_b, "only_in_b")
        if len(in_a):
            lines += [line for line in _columns(table, a, b, in_a, in_b, tolerance, depth) if line is not None]
    return StoreDiff(a.reader.location, b.reader.location, compared, pl.DataFrame(lines, schema=DIFFERENCES))


def _names(
    reader: RolloutZarrStoreReader, rows: Mapping[str, NDArray[np.int64]], sizes: NDArray[np.int64]
) -> dict[str, pl.Series]:
    """What each row of each table is about, as a string or, for the long tables, as (chain, step, view) packed."""
    sources = reader.table("sources", columns=("sample_key_id",), decode=True)["sample_key_id"]
    targets = reader.table("targets", columns=("source_row_id", "target_id"), decode=True)
    chains = reader.table("rollouts", columns=("rollout_id",), decode=True)["rollout_id"]
    steps = reader.table("steps", columns=("rollout_row_id", "step_index"))
    owner = targets["source_row_id"].set(targets["source_row_id"] < 0, None)
    of_target = pl.DataFrame([sources.gather(owner), targets["target_id"]]).select(
        pl.concat_str(pl.all(), separator=" ", ignore_nulls=True)
    )
    of_step = pl.DataFrame([chains.gather(steps["rollout_row_id"]).alias("chain"), steps["step_index"]])
    starts = np.cumsum(sizes) - sizes
    candidates = rows["candidates"]
    step_of = np.searchsorted(starts + sizes, candidates, side="right")
    of_candidate = of_step[step_of].with_columns(pl.Series("view", candidates - starts[step_of]))
    chain_names = chains.gather(rows["rollouts"])
    return {
        "sources": sources.gather(rows["sources"]),
        "targets": of_target.to_series().gather(rows["targets"]),
        "rollouts": chain_names,
        "lineage": chain_names,
        "steps": of_step[rows["steps"]].to_struct("key"),
        "candidates": of_candidate.to_struct("key"),
        "candidate_diagnostics": of_candidate.to_struct("key"),
        "selected_depth": of_step[rows["selected_depth"]].to_struct("key"),
    }


def _aligned(a: pl.Series, b: pl.Series) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the rows that both have, in the order of ``a``."""
    left, right = _keys(a), _keys(b)
    if left.equals(right):
        return np.arange(len(a)), np.arange(len(b))
    joined = left.with_row_index("in_a").join(
        right.with_row_index("in_b"), on=left.columns, how="inner", nulls_equal=True, maintain_order="left"
    )
    return joined["in_a"].to_numpy().astype(np.int64), joined["in_b"].to_numpy().astype(np.int64)


def _keys(names: pl.Series) -> pl.DataFrame:
    return names.struct.unnest() if names.dtype == pl.Struct else names.alias("name").to_frame()


def _unmatched(table: Table, part: StorePart, matched: NDArray[np.int64], what: str) -> list[dict[str, Any]]:
    names = part.names[table.name]
    alone = np.ones(len(names), np.bool_)
    alone[matched] = False
    missing = np.flatnonzero(alone)
    if not len(missing):
        return []
    counts = {"rows": len(missing), "compared": len(matched)}
    return [{"table": table.name, "column": "", "what": what, **counts, "first": place(names, int(missing[0]))}]


def _columns(
    table: Table,
    a: StorePart,
    b: StorePart,
    in_a: NDArray[np.int64],
    in_b: NDArray[np.int64],
    tolerance: float,
    depth: bool,
) -> Iterator[dict[str, Any] | None]:
    for column in table.names:
        if column in LOCAL_COLUMNS or (column in table.rasters and not depth):
            continue
        if missing := _missing_in(table, column, a, b):
            yield None if missing == "both" else _only_in(table, column, missing, len(in_a))
            continue
        block = _RASTER_ROWS if column in table.rasters else len(in_a)
        tally = _Tally(table.name, column, len(in_a))
        for start in range(0, len(in_a), block):
            at = slice(start, start + block)
            left, right = a.column(table, column, in_a[at]), b.column(table, column, in_b[at])
            if table[column].dictionary is not None:
                left, right = a.strings(table, column, left), b.strings(table, column, right)
            tally.add(left, right, start, tolerance)
        yield tally.line(a.names[table.name], in_a)


def _missing_in(table: Table, column: str, a: StorePart, b: StorePart) -> str:
    """``a``, ``b`` or ``both``: which stores lack a column that this package adds to the schema; "" for none."""
    path = table.path(column)
    absent = [name for name, part in (("a", a), ("b", b)) if table[column].added and not part.reader.has(path)]
    return "both" if len(absent) == 2 else "".join(absent)


def _only_in(table: Table, column: str, missing: str, rows: int) -> dict[str, Any]:
    what = "only_in_b" if missing == "a" else "only_in_a"
    return {"table": table.name, "column": column, "what": what, "rows": rows, "compared": 0}


@dataclass
class _Tally:
    """Differences of one column, added up over blocks of rows; its fields are the columns of ``DIFFERENCES``."""

    table: str
    column: str
    compared: int
    rows: int = 0
    max_abs_difference: float | None = None
    first: int = -1
    what: str = "value"
    value_a: str = ""
    value_b: str = ""

    def add(self, a: NDArray[Any], b: NDArray[Any], start: int, tolerance: float) -> None:
        if a.dtype != b.dtype or a.shape != b.shape:
            shapes = (f"{a.dtype}{list(a.shape[1:])}", f"{b.dtype}{list(b.shape[1:])}")
            self._note(np.ones(len(a), np.bool_), start, *shapes, "shape")
            return
        if _same_bits(a, b):
            return
        wrong = ~_same(a, b, tolerance)
        if wrong.any():
            differs: NDArray[np.bool_] = np.asarray(wrong.reshape(len(wrong), -1).any(axis=1))
            at = int(np.argmax(differs))
            self._note(differs, start, *_shown(a[at], b[at], wrong[at]), "value")
            if a.dtype.kind in "iuf":
                gaps = np.abs(a[wrong].astype(np.float64) - b[wrong].astype(np.float64))
                widest = float(gaps[np.isfinite(gaps)].max(initial=0.0))
                self.max_abs_difference = max(widest, self.max_abs_difference or 0.0)

    def _note(self, differs: NDArray[np.bool_], start: int, value_a: str, value_b: str, what: str) -> None:
        if self.first < 0:
            self.first = start + int(np.argmax(differs))
            self.value_a, self.value_b, self.what = value_a, value_b, what
        self.rows += int(differs.sum())

    def line(self, names: pl.Series, rows: NDArray[np.int64]) -> dict[str, Any] | None:
        if not self.rows:
            return None
        return vars(self) | {"first": place(names, int(rows[self.first]))}


def _same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    if a.dtype == object:
        return False
    raw = f"u{a.dtype.itemsize}"
    return bool((np.ascontiguousarray(a).view(raw) == np.ascontiguousarray(b).view(raw)).all())


def _same(a: NDArray[Any], b: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    """Elementwise; NaN equals NaN, floats within the tolerance are the same."""
    same: NDArray[np.bool_] = np.asarray(a == b, np.bool_)
    if a.dtype.kind != "f":
        return same
    same |= np.isnan(a) & np.isnan(b)
    if tolerance > 0:
        left, right = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            same |= np.abs(left - right) <= tolerance * np.maximum(1.0, np.maximum(np.abs(left), np.abs(right)))
    return same


def place(names: pl.Series, row: int) -> str:
    """Where a row is, for people: ``00000003-target-00-oracle_greedy-000000 step 1 view 17``."""
    key = names[row]
    if not isinstance(key, Mapping):
        return str(key)
    view = f" view {key['view']}" if "view" in key else ""
    return f"{key['chain']} step {key['step_index']}{view}"


def _shown(a: Any, b: Any, wrong: Any) -> tuple[str, str]:
    """Both values; of vectors and rasters the first part that differs."""
    if np.ndim(a) == 0:
        return _text(a), _text(b)
    at = int(np.argmax(np.ravel(wrong)))
    return f"[{at}] {_text(np.ravel(a)[at])}", f"[{at}] {_text(np.ravel(b)[at])}"


def _text(value: Any) -> str:
    plain = value.item() if isinstance(value, np.generic) else value
    return f"{plain:.9g}" if isinstance(plain, float) else str(plain)
