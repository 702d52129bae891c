"""What the selected views see: summaries over every stored raster, and one small picture for a preview.

Rasters are the bulk of a store, so they are decoded in blocks and never held together. Stored depths are not negative,
so the bit patterns of float16 order as the depths do, and counting works on integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rollout_assets.errors import StoreError
from rollout_assets.geometry.poses import Float32
from rollout_assets.inspection.context import require_row, step_span
from rollout_assets.rollouts.zarr_store.chunks.arrays import decoding_threads
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import ABSENT, SELECTED_DEPTH

FAR_SHARE = 0.95
"""A pixel at this share of the far limit or beyond counts as far: the view looks into nothing."""


@dataclass(frozen=True, eq=False)
class SelectedDepthPreview:
    """One downsampled raster. depth_m: (h, w) float32, NaN where there is no depth."""

    step_row_id: int
    candidate_row_id: int
    depth_m: Float32
    stride: int
    valid_fraction: float
    full_size_hw: tuple[int, int]


def selected_depth_summary_rows(
    reader: RolloutZarrStoreReader,
    limit: int | None = 128,
    rollout_row_id: int | None = None,
    step_row_id: int | None = None,
) -> pl.DataFrame:
    """Return bounded summaries for persisted selected-action depth rasters.

    Per step: size and intrinsics of the image, its pixels and how many are valid, share of valid and of far pixels,
    least, mean, median and greatest valid depth (null when there is none). ``limit`` steps, spread evenly over the
    store, or over a chain's steps; None for all. Only these rasters are read. A store without depth has no rows.
    """
    steps = step_span(reader, rollout_row_id, step_row_id)
    with_depth = _depth_rows(reader)
    rows = _spread(with_depth[(with_depth >= steps.start) & (with_depth < steps.stop)], limit)
    far_m = _far_m(reader)

    def summarise(start: int, stop: int, rows: NDArray[np.int64]) -> list[dict[str, Any]]:
        depth = reader.row_array(SELECTED_DEPTH.path("depth_m")).read(start, stop, threads=False)
        valid = reader.row_array(SELECTED_DEPTH.path("valid_mask")).read(start, stop, threads=False)
        return [_summary(row, depth[row - start], valid[row - start], far_m) for row in rows.tolist()]

    frame = pl.DataFrame(_over_blocks(reader, rows, summarise), schema=_SUMMARY)
    owner = reader.table("steps", columns=("step_row_id", "rollout_row_id", "step_index", "selected_candidate_row_id"))
    return owner.join(_cameras(reader, rows), on="step_row_id", how="inner", maintain_order="left").join(
        frame, on="step_row_id", how="inner", maintain_order="left"
    )


def _cameras(reader: RolloutZarrStoreReader, rows: NDArray[np.int64]) -> pl.DataFrame:
    """Size and intrinsics of the images of some steps."""
    columns = {"step_row_id": pl.Series(rows, dtype=pl.Int64)}
    for stored, (names, dtype) in _CAMERA.items():
        values = reader.array(SELECTED_DEPTH.path(stored))[rows] if len(rows) else np.zeros((0, 2))
        columns |= {name: pl.Series(values[:, axis], dtype=dtype) for axis, name in enumerate(names)}
    return pl.DataFrame(columns)


def selected_depth_extremes(reader: RolloutZarrStoreReader, limit: int | None = None) -> pl.DataFrame:
    """Per step with a selected view: the share of its pixels that are valid, and the share of those that are far.

    Every raster by default, at the speed of decoding; ``limit`` looks at so many, spread evenly. A pixel without depth
    is stored as 0, so the mask need not be read.
    """
    rows = _spread(_depth_rows(reader), limit)
    far_bits = np.float16(_far_m(reader)).view(np.uint16)

    def measure(start: int, stop: int, rows: NDArray[np.int64]) -> list[tuple[int, int, int, int]]:
        depth = reader.row_array(SELECTED_DEPTH.path("depth_m")).read(start, stop, threads=False)
        bits = depth.view(np.uint16)
        farthest = bits.max(axis=(1, 2))  # most images see nothing far, and then need no counting
        return [
            (
                row,
                int(np.count_nonzero(bits[row - start])),
                int(np.count_nonzero(bits[row - start] >= far_bits)) if farthest[row - start] >= far_bits else 0,
                bits[0].size,
            )
            for row in rows.tolist()
        ]

    schema = dict.fromkeys(("step_row_id", "valid", "far", "pixels"), pl.Int64)
    frame = pl.DataFrame(_over_blocks(reader, rows, measure), schema=schema, orient="row")
    return frame.select(
        "step_row_id",
        (pl.col("valid") / pl.col("pixels")).alias("valid_fraction"),
        pl.when(pl.col("valid") > 0).then(pl.col("far") / pl.col("valid")).alias("far_fraction"),
    )


def selected_depth_preview(
    reader: RolloutZarrStoreReader, step_row_id: int, max_size: int = 96
) -> SelectedDepthPreview:
    """Return one downsampled selected-depth payload for Plotly app previews.

    Every n-th pixel, so that neither side is longer than ``max_size``; only this step's chunk is read.
    """
    if max_size < 1:
        raise StoreError(f"max_size must be >= 1, got {max_size}")
    require_row(reader, "steps", step_row_id)
    if not reader.attributes.get("selected_depth_enabled"):
        raise StoreError(f"{reader.location}: keeps no selected depth")
    row = reader.columns(SELECTED_DEPTH, SELECTED_DEPTH.names, step_row_id, step_row_id + 1)
    if row["candidate_row_id"][0] == ABSENT:
        raise StoreError(f"{reader.location}: step {step_row_id} selected nothing, so it has no depth")
    depth, valid = row["depth_m"][0].astype(np.float32), row["valid_mask"][0]
    height, width = depth.shape
    stride = -(-max(height, width) // max_size)
    shown = np.where(valid, depth, np.nan)[::stride, ::stride].astype(np.float32)
    return SelectedDepthPreview(
        step_row_id=step_row_id,
        candidate_row_id=int(row["candidate_row_id"][0]),
        depth_m=shown,
        stride=stride,
        valid_fraction=float(valid.mean()),
        full_size_hw=(height, width),
    )


_CAMERA = {
    "image_size_hw": (("image_height", "image_width"), pl.Int64),
    "focal_px": (("focal_x_px", "focal_y_px"), pl.Float64),
    "principal_point_px": (("principal_x_px", "principal_y_px"), pl.Float64),
}
"""Stored pair -> the names and the type of its two columns."""

_COUNTS, _FRACTIONS = ("pixel_count", "valid_pixels"), ("valid_fraction", "far_fraction")
_DEPTHS = ("depth_min_m", "depth_mean_m", "depth_median_m", "depth_max_m")
_SUMMARY = dict.fromkeys(("step_row_id", *_COUNTS), pl.Int64) | dict.fromkeys((*_FRACTIONS, *_DEPTHS), pl.Float64)


def _summary(row: int, depth: NDArray[np.float16], valid: NDArray[np.bool_], far_m: float) -> dict[str, Any]:
    seen = depth[valid].astype(np.float32)
    line: dict[str, Any] = {"step_row_id": row, "pixel_count": valid.size, "valid_pixels": len(seen)}
    line["valid_fraction"] = len(seen) / valid.size
    if not len(seen):
        return line
    return line | {
        "far_fraction": float((seen >= np.float16(far_m)).mean()),
        "depth_min_m": float(seen.min()),
        "depth_mean_m": float(seen.mean(dtype=np.float64)),
        "depth_median_m": float(np.median(seen)),
        "depth_max_m": float(seen.max()),
    }


def _far_m(reader: RolloutZarrStoreReader) -> float:
    return FAR_SHARE * float(reader.attributes.get("selected_depth_zfar_m") or np.inf)


def _depth_rows(reader: RolloutZarrStoreReader) -> NDArray[np.int64]:
    """Steps with a selected view whose depth is stored."""
    if not reader.attributes.get("selected_depth_enabled"):
        return np.zeros(0, np.int64)
    return np.flatnonzero(reader.array(SELECTED_DEPTH.path("candidate_row_id")) != ABSENT)


def _spread(rows: NDArray[np.int64], limit: int | None) -> NDArray[np.int64]:
    if limit is None or len(rows) <= limit:
        return rows
    if limit < 0:
        raise StoreError(f"limit must be >= 0, got {limit}")
    return rows[np.unique(np.linspace(0, len(rows) - 1, limit).round().astype(np.int64))] if limit else rows[:0]


def _over_blocks(
    reader: RolloutZarrStoreReader, rows: NDArray[np.int64], work: Callable[[int, int, NDArray[np.int64]], list[Any]]
) -> list[Any]:
    """The lines of ``work(start, stop, rows)`` over the chunks that hold some of the rows, on all cores, in order."""
    if not len(rows):
        return []
    array = reader.row_array(SELECTED_DEPTH.path("depth_m"))
    chunk = array.layout.chunk_rows if array.layout is not None else 16
    chunks = rows // chunk
    groups = np.split(rows, np.flatnonzero(np.diff(chunks)) + 1)

    def work_on(group: NDArray[np.int64]) -> list[Any]:
        start = int(group[0]) // chunk * chunk
        return work(start, min(start + chunk, len(array)), group)

    return list(chain.from_iterable(decoding_threads().map(work_on, groups)))
