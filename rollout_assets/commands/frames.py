"""Polars frames on a terminal: as a table that fits, as JSON, or as CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_assets.commands.terminal import print_table
from rollout_assets.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, all columns, instead of a table.")]

TABLE_ROWS = 40
"""Rows that a table shows without --limit."""


def show_frame(
    title: str,
    frame: pl.DataFrame,
    columns: Sequence[str] | None,
    as_json: bool,
    as_csv: bool,
    limit: int | None = None,
) -> None:
    """All columns as JSON or CSV, or the named ones as a table of at most ``limit`` rows (40 by default)."""
    if as_json and as_csv:
        raise ConfigError("--json and --csv exclude each other; give one of them")
    rows = frame if limit is None else frame.head(limit)
    if as_json:
        lines = [{name: plain(value) for name, value in row.items()} for row in rows.iter_rows(named=True)]
        typer.echo(json.dumps(lines, indent=2))  # without colours: a store may have a million rows
    elif as_csv:
        typer.echo(_flat(rows).write_csv(), nl=False)
    else:
        shown = rows.select(columns or rows.columns)
        if limit is None:
            shown = shown.head(TABLE_ROWS)
        count = f"{frame.height:,} rows"
        if shown.height < frame.height:
            count = f"first {shown.height:,} of {count}; --limit, --json or --csv for more"
        rows_shown = [tuple(map(cell, row)) for row in shown.rows()]
        print_table(f"{title} ({count})", [heading(name) for name in shown.columns], rows_shown)


HEADINGS = {
    "step_index": "step",
    "shell_index": "view",
    "selection_probabilities": "p",
    "selected_probability": "p",
    "probability_mean": "mean p",
    "target_root_gain": "gain",
    "marginal_target_root_gain": "gain",
    "cumulative_target_root_gain": "total gain",
    "target_semidense_support_count": "points",
    "target_selection_score": "score",
    "target_selection_rank": "rank",
    "target_class_name": "class",
    "motion_step_length_m": "step m",
    "mesh_distance_m": "mesh m",
    "target_distance_m": "target m",
    "num_valid_candidates": "valid",
    "invalid_fraction": "refused share",
    "effective_sample_fraction": "effective sample",
}
"""Columns whose own name is too long for a table."""


def heading(column: str) -> str:
    """A column's name in words, so that a narrow table can break it."""
    if column in HEADINGS:
        return HEADINGS[column]
    return column.replace("_row_id", " row").removesuffix("_mask").replace("root_gain", "gain").replace("_", " ")


def show_records(title: str, values: Mapping[str, Any]) -> None:
    """A table of names and values."""
    print_table(title, ("what", "value"), [(name, cell(plain(value))) for name, value in values.items()])


def cell(value: Any) -> Any:
    """A value as a table shows it; row ids and counts stay numbers."""
    if isinstance(value, float):
        return None if math.isnan(value) else f"{value:.4g}"
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, default=str)
    return value


def plain(value: Any) -> Any:
    """A value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [plain(part) for part in value]
    return value


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns of vectors as JSON text, because CSV has no place for them."""
    import polars as pl

    nested = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Array | pl.List)]
    texts = [pl.Series(name, [json.dumps(plain(list(v))) for v in frame[name].to_list()], pl.String) for name in nested]
    return frame.with_columns(texts)
