"""A picture of one source sample from above: the home, the walk through it, boxes and semi-dense points.

The mesh is shown as heights below a cut at door height, as an architect draws a plan: walls and furniture are visible,
ceilings and lintels are not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from rollout_assets.errors import ConfigError
from rollout_assets.geometry.poses import Float32, Float64, rotation, translation
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.meshes import TriangleMesh
from rollout_assets.sources.sample import BoxSet, VinSample
from rollout_assets.sources.vin_store import VinOfflineStore

CUT_HEIGHT_M = 2.02
"""What is higher is left out of the picture."""

_PNG_SIDE_PX, _HTML_SIDE_PX = 900, 500
_FINEST_CELL_M = 0.015
_FACES_AT_ONCE = 20_000
_MAX_SAMPLES_PER_FACE = 4_000_000
_SAMPLES_AT_ONCE = 2_000_000
_RING = (0, 1, 3, 2, 0)
_TRUE_COLOUR, _DETECTED_COLOUR, _WALK_COLOUR, _POINT_COLOUR = "#1a7f37", "#d9480f", "#1864ab", "#7048e8"


@dataclass(frozen=True, eq=False)
class HeightMap:
    """Greatest height below the cut in each cell, (rows, cols) float32, NaN where there is nothing; y up the rows."""

    heights_m: Float32
    x0: float
    y0: float
    cell_m: float

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """x0, x1, y0, y1."""
        rows, cols = self.heights_m.shape
        return self.x0, self.x0 + cols * self.cell_m, self.y0, self.y0 + rows * self.cell_m


def plot_sample(store: VinOfflineStore, row: IndexRow, path: Path) -> Path:
    """Write the picture of one row of a store; the scene's mesh must be there.

    By the path's ending it is a PNG with Matplotlib, or one self-contained HTML file with Plotly.
    """
    writers = {".png": _write_png, ".html": _write_html}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise ConfigError(f"a picture must end in {' or '.join(writers)}, got {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    mesh = store.meshes.load(row.scene_id)
    writer(f"{row.sample_key} ({row.split}), {len(mesh.faces):,} faces", store.sample(row), mesh, path)
    return path


def height_map(
    vertices: Float32, faces: NDArray[np.int32], longest_side_px: int, cut_m: float = CUT_HEIGHT_M
) -> HeightMap:
    """Spread points over every face and keep the highest one below the cut in each cell."""
    used = vertices[np.unique(faces)].astype(np.float64)
    floor = float(np.percentile(used[:, 2], 1.0))
    (x0, y0), (x1, y1) = used[:, :2].min(axis=0), used[:, :2].max(axis=0)
    cell = max(_FINEST_CELL_M, max(x1 - x0, y1 - y0) / longest_side_px)
    shape = (int((y1 - y0) / cell) + 1, int((x1 - x0) / cell) + 1)
    heights = np.full(shape, -np.inf, np.float32)
    for points in _spread(vertices, faces, cell, floor + cut_m):
        points = points[points[:, 2] < floor + cut_m]
        rows = ((points[:, 1] - y0) / cell).astype(np.int64).clip(0, shape[0] - 1)
        cols = ((points[:, 0] - x0) / cell).astype(np.int64).clip(0, shape[1] - 1)
        np.maximum.at(heights, (rows, cols), (points[:, 2] - floor).astype(np.float32))
    return HeightMap(_without_specks(heights), float(x0), float(y0), cell)


def _without_specks(heights: Float32) -> Float32:
    """Give a lone empty cell the height around it; cells among other empty ones become NaN."""
    padded = np.pad(heights, 1, constant_values=-np.inf)
    rows, cols = heights.shape
    around = [padded[i : i + rows, j : j + cols] for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    crowded = np.isfinite(around).sum(axis=0) >= 6
    filled = np.where(np.isneginf(heights) & crowded, np.median(around, axis=0), heights)
    return np.where(np.isfinite(filled), filled, np.nan).astype(np.float32)


def _spread(vertices: Float32, faces: NDArray[np.int32], cell: float, highest: float) -> Iterator[Float64]:
    """Points less than a cell apart as seen from above, on every face that reaches below the cut, in blocks."""
    spacing = cell * 0.5
    for start in range(0, len(faces), _FACES_AT_ONCE):
        corners = vertices[faces[start : start + _FACES_AT_ONCE]].astype(np.float64)
        corners = corners[corners[:, :, 2].min(axis=1) < highest]
        a, ab, ac = corners[:, 0], corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
        seen_area = np.abs(ab[:, 0] * ac[:, 1] - ab[:, 1] * ac[:, 0]) / 2
        longest = np.maximum(np.linalg.norm(ab[:, :2], axis=1), np.linalg.norm(ac[:, :2], axis=1))
        counts = np.ceil(np.maximum(seen_area / spacing**2, 3.0 * longest / spacing)).astype(np.int64)
        counts = np.clip(counts, 1, _MAX_SAMPLES_PER_FACE)
        for owner, within in _in_blocks(counts):
            u, v = (within * 0.7548776662466927) % 1.0, (within * 0.5698402909980532) % 1.0
            beyond = u + v > 1.0
            u, v = np.where(beyond, 1 - u, u), np.where(beyond, 1 - v, v)
            yield a[owner] + u[:, None] * ab[owner] + v[:, None] * ac[owner]


def _in_blocks(counts: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Float64]]:
    """Face and number plus a half of every sample, ``counts`` (n,) of each face, some at a time to bound memory."""
    ends = np.cumsum(counts)
    for start in range(0, int(ends[-1]) if len(ends) else 0, _SAMPLES_AT_ONCE):
        sample = np.arange(start, min(start + _SAMPLES_AT_ONCE, int(ends[-1])))
        owner = np.searchsorted(ends, sample, side="right")
        yield owner, sample - (ends - counts)[owner] + 0.5


def _outlines(boxes: BoxSet) -> list[Float64]:
    """Closed floor rings (5, 2), one per box."""
    return [corners[list(_RING), :2].astype(np.float64) for corners in boxes.boxes.corners_world()]


def _detected(sample: VinSample) -> tuple[list[Float64], list[str]]:
    """Outlines and labels of the detected boxes; nothing without a detector."""
    boxes = sample.actor.detected
    if boxes is None:
        return [], []
    return _outlines(boxes), [f"{n} {share:.2f}" for n, share in zip(boxes.class_names, boxes.confidence, strict=True)]


def _write_png(title: str, sample: VinSample, mesh: TriangleMesh, path: Path) -> None:
    from matplotlib.figure import Figure  # half a second that only a PNG needs to pay
    from matplotlib.lines import Line2D

    ground = height_map(mesh.vertices, mesh.faces, _PNG_SIDE_PX)
    x0, x1, y0, y1 = ground.extent
    figure = Figure(figsize=(12, 10.6 * (y1 - y0) / (x1 - x0) + 1.0), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(ground.heights_m, origin="lower", extent=ground.extent, cmap="bone_r", vmin=-0.3, vmax=2.2)
    figure.colorbar(shown, ax=axes, shrink=0.7, label="height (m)")
    points = sample.actor.points_world
    axes.plot(points[:, 0], points[:, 1], ".", color=_POINT_COLOUR, markersize=1.6, alpha=0.5)
    truth = sample.truth.gt_boxes
    groups = (
        (_outlines(truth), truth.class_names, _TRUE_COLOUR, "-", "bottom"),
        (*_detected(sample), _DETECTED_COLOUR, "--", "top"),
    )
    for rings, labels, colour, style, side in groups:
        for ring, label in zip(rings, labels, strict=True):
            axes.plot(ring[:, 0], ring[:, 1], style, color=colour, linewidth=1.6)
            x, y = ring[:4].mean(axis=0).tolist()
            backdrop = {"facecolor": "white", "alpha": 0.65, "edgecolor": "none", "pad": 0.6}
            axes.text(x, y, label, color=colour, fontsize=8, ha="center", va=side, bbox=backdrop)
    poses = sample.actor.trajectory_world_camera
    track, ahead = translation(poses), rotation(poses)[..., 2]
    axes.plot(track[:, 0], track[:, 1], color=_WALK_COLOUR, linewidth=2)
    axes.quiver(track[:, 0], track[:, 1], ahead[:, 0], ahead[:, 1], color=_WALK_COLOUR, scale=26, width=0.0022)
    axes.plot(*track[-1, :2], "o", color=_WALK_COLOUR, markersize=8)
    handles = [
        Line2D([], [], color=_TRUE_COLOUR, label="ground truth"),
        Line2D([], [], color=_DETECTED_COLOUR, linestyle="--", label="detected"),
        Line2D([], [], color=_WALK_COLOUR, marker="o", label="walk (dot: last pose)"),
        Line2D([], [], color=_POINT_COLOUR, marker=".", linestyle="", label="semi-dense points"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    axes.set(title=title, xlabel="x (m)", ylabel="y (m)", aspect="equal")
    figure.savefig(path)


def _write_html(title: str, sample: VinSample, mesh: TriangleMesh, path: Path) -> None:
    ground = height_map(mesh.vertices, mesh.faces, _HTML_SIDE_PX)
    rows, cols = ground.heights_m.shape
    figure = go.Figure(
        go.Heatmap(
            z=np.round(ground.heights_m.astype(np.float64), 2),
            x=ground.x0 + (np.arange(cols) + 0.5) * ground.cell_m,
            y=ground.y0 + (np.arange(rows) + 0.5) * ground.cell_m,
            colorscale="Greys",
            zmin=-0.3,
            zmax=2.2,
            colorbar={"title": "height (m)", "x": 1.02},
            hovertemplate="%{x:.2f}, %{y:.2f}: %{z:.2f} m<extra></extra>",
        )
    )
    points = sample.actor.points_world
    marker = {"size": 2, "color": _POINT_COLOUR, "opacity": 0.5}
    figure.add_scattergl(x=points[:, 0], y=points[:, 1], mode="markers", marker=marker, name="semi-dense points")
    truth = sample.truth.gt_boxes
    _add_boxes(figure, _outlines(truth), truth.class_names, "ground truth", _TRUE_COLOUR, "solid")
    _add_boxes(figure, *_detected(sample), "detected", _DETECTED_COLOUR, "dash")
    poses = sample.actor.trajectory_world_camera
    track, ahead = translation(poses), rotation(poses)[..., 2]
    line = {"color": _WALK_COLOUR, "width": 3}
    figure.add_scatter(x=track[:, 0], y=track[:, 1], mode="lines+markers", line=line, name="walk")
    tips = track + 0.35 * ahead
    gaze = _broken([np.stack([start, tip]) for start, tip in zip(track[:, :2], tips[:, :2], strict=True)])
    figure.add_scatter(x=gaze[:, 0], y=gaze[:, 1], mode="lines", line={"color": _WALK_COLOUR, "width": 1}, name="gaze")
    legend = {"orientation": "h", "y": -0.06}
    figure.update_layout(title=title, template="plotly_white", legend=legend, height=850)
    figure.update_xaxes(title="x (m)", showgrid=False)
    figure.update_yaxes(title="y (m)", showgrid=False, scaleanchor="x")
    figure.write_html(path, include_plotlyjs=True)


def _add_boxes(figure: Any, rings: list[Float64], labels: Sequence[str], name: str, colour: str, dash: str) -> None:
    if not rings:
        return
    lines = _broken(rings)
    line = {"color": colour, "width": 2, "dash": dash}
    figure.add_scatter(x=lines[:, 0], y=lines[:, 1], mode="lines", line=line, name=name, hoverinfo="skip")
    middles = np.array([ring[:4].mean(axis=0) for ring in rings])
    place = "top center" if dash == "solid" else "bottom center"
    font = {"color": colour, "size": 11}
    look = {"text": labels, "textposition": place, "textfont": font, "name": f"{name} names"}
    figure.add_scatter(x=middles[:, 0], y=middles[:, 1], mode="text", **look)


def _broken(lines: list[Float64]) -> Float64:
    """Several lines as one, with NaN between them."""
    gap = np.full((1, 2), np.nan)
    return np.concatenate(list(itertools.chain.from_iterable((line, gap) for line in lines)))
