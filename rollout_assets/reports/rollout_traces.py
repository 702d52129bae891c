"""What a 3-D page of a rollout draws, each part as traces that the legend switches on and off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32, Float64, rotation, translation
from rollout_assets.inspection.decode import decode_invalid_reason, decode_position_id
from rollout_assets.reports.scene_cut import indexed, outline_at, slab, surface_in_box
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutChain, RolloutStep

REACH_M = 2.2
"""How far around the target and the path the scene is shown."""

HEAD_ROOM_M = 0.1
"""At first the scene is cut this far above the highest view: below every lintel that a path passes under."""

LOW_CUTS_M = (0.5, 1.0)
"""Other heights above the floor at which the scene can be cut."""

_SLACK_M = 3e-4
"""Keeps cuts off the floor, and off table tops at round heights, which would lie in no slab."""

SCALE_NAME = "Viridis"
REFUSED_FRUSTA = "frusta of refused views"
FRUSTUM_M = 0.12
BOX_EDGES = ((0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (0, 4), (1, 5), (2, 6), (3, 7))

_SCENE, _TARGET, _PATH = ({"legendgroup": name, "legendgrouptitle_text": name} for name in ("scene", "target", "path"))


@dataclass(frozen=True, eq=False)
class Cut:
    """A height at which the scene can be cut: the slab below it down to the next lower cut, and the walls there."""

    label: str
    mesh: go.Mesh3d
    walls: go.Scatter3d


def scene_cuts(
    vertices: Float32, faces: NDArray[np.int32], focus: Float64, views_top_m: float
) -> tuple[list[Cut], int]:
    """The scene around ``focus`` (n, 3) in slabs from the floor up, and the number of the cut just above the views."""
    low, high = focus.min(axis=0) - REACH_M, focus.max(axis=0) + REACH_M
    low[2], high[2] = vertices[:, 2].min() - _SLACK_M, vertices[:, 2].max() + _SLACK_M
    around = surface_in_box(vertices, faces, low, high)
    floor_m = float(low[2])
    above_views_m = views_top_m + HEAD_ROOM_M
    inner = sorted({*(floor_m + cut for cut in LOW_CUTS_M), above_views_m})
    heights = [floor_m - _SLACK_M, *(height for height in inner if height < high[2]), float(high[2]) + _SLACK_M]
    cuts = [_cut(around, below, height, floor_m) for below, height in pairwise(heights)]
    cuts[-1] = replace(cuts[-1], label="nowhere")
    return cuts, min(inner.index(above_views_m), len(cuts) - 1)


def _cut(triangles: Float64, below_m: float, height_m: float, floor_m: float) -> Cut:
    vertices, faces = indexed(slab(triangles, below_m, height_m))
    i, j, k = faces.T
    look = {"color": "#c9c4bb", "opacity": 0.6, "flatshading": True, "hoverinfo": "skip", "showlegend": True}
    light = {"ambient": 0.55, "diffuse": 0.6, "specular": 0.0, "facenormalsepsilon": 0}
    name = f"mesh, {max(below_m - floor_m, 0):.1f} to {height_m - floor_m:.1f} m"
    mesh = go.Mesh3d(**_xyz(vertices), i=i, j=j, k=k, name=name, lighting=light, **look, **_SCENE)
    line = {"line": {"color": "#3b3a36", "width": 4}, "hoverinfo": "skip", "name": "where the mesh is cut"}
    walls = go.Scatter3d(**_segments(outline_at(triangles, height_m)), mode="lines", **line, **_SCENE)
    return Cut(f"{height_m - floor_m:.1f} m", mesh, walls)


def known_points(points_world: Float32, focus: Float64) -> go.Scatter3d:
    """Points (p, 3) that the actor knows around ``focus``."""
    inside = ((points_world > focus.min(axis=0) - REACH_M) & (points_world < focus.max(axis=0) + REACH_M)).all(axis=1)
    look = {"mode": "markers", "marker": {"size": 1.5, "color": "slateblue"}, "hoverinfo": "skip"}
    return go.Scatter3d(**_xyz(points_world[inside]), name="semi-dense points", **look, **_SCENE)


def target_box(box: OrientedBoxes, name: str) -> go.Scatter3d:
    """The edges of the target's box."""
    corners = box.corners_world()[0]
    edges = _segments(np.array([[corners[a], corners[b]] for a, b in BOX_EDGES]))
    line = {"color": "green", "width": 5}
    return go.Scatter3d(**edges, mode="lines", line=line, name=f"target: {name}", hoverinfo="skip", **_TARGET)


def target_points(points_world: Float32, when: str, colour: str, shown: bool) -> go.Scatter3d:
    """The points (p, 3) on the target at one moment."""
    look = {"mode": "markers", "marker": {"size": 2.5, "color": colour}, "hoverinfo": "skip"}
    visible = True if shown else "legendonly"
    name = f"{len(points_world):,} points on it {when}"
    return go.Scatter3d(**_xyz(points_world), name=name, visible=visible, **look, **_TARGET)


@dataclass(frozen=True)
class GainScale:
    """Colours of root gains between the least and the greatest one of a chain."""

    low: float
    high: float

    @classmethod
    def of(cls, chain: RolloutChain) -> GainScale:
        """The scale of all labelled views of a chain."""
        gains = np.concatenate([[], *(step.labels.target_root_gain[step.oracle_label_mask] for step in chain.steps)])
        return cls(float(gains.min()), float(gains.max())) if len(gains) else cls(0.0, 0.0)

    def colours(self, gains: Float32) -> list[str]:
        """Written out, because Plotly's legend cannot show a number of a colour axis."""
        shares = (gains.astype(np.float64) - self.low) / max(self.high - self.low, 1e-12)
        return sample_colorscale(SCALE_NAME, shares.clip(0.0, 1.0).tolist()) if len(gains) else []

    def bar(self) -> go.Scatter3d:
        """Draws nothing but the colour bar."""
        title = {"title": {"text": "root gain"}, "len": 0.8}
        marker = {"color": [self.low, self.high], "colorscale": SCALE_NAME, "showscale": True, "colorbar": title}
        nowhere = {axis: [None, None] for axis in "xyz"}
        return go.Scatter3d(**nowhere, mode="markers", marker=marker, showlegend=False, hoverinfo="skip")


def views_offered(step: RolloutStep, index: int, scale: GainScale) -> list[go.Scatter3d]:
    """The views of one step, valid and refused: a marker each, which says what is known of it, and their frusta."""
    valid = np.flatnonzero(step.oracle_label_mask)
    refused = np.flatnonzero(~step.shell.actor_action_mask & np.isfinite(step.shell.pose_world_camera).all(axis=1))
    gains = {"color": scale.colours(step.labels.target_root_gain[valid])}
    green, red = {"color": "rgba(45,140,100,0.6)", "width": 3}, {"color": "rgba(200,60,60,0.6)"}
    return [
        _markers(step, index, valid, f"{len(valid)} valid views", gains, index == 0),
        _frusta_of(step, index, valid, "their frusta", green, index == 0),
        _markers(step, index, refused, f"{len(refused)} refused views", red, False),
        _frusta_of(step, index, refused, REFUSED_FRUSTA, red | {"width": 2}, False),
    ]


def path_taken(root_pose: Float32, chain: RolloutChain) -> list[go.Scatter3d]:
    """The path from the root on, its nodes with what is known of the views that were taken, and their frusta."""
    poses = walked(root_pose, chain)
    names = ["root", *(f"step {index}" for index in range(len(poses) - 1))]
    taken = [step for step in chain.steps if step.selection.selected_shell_index != NOT_SELECTED]
    hover = ["root", *(view_text(step, step.selection.selected_shell_index) for step in taken)]
    look = {"line": {"color": "crimson", "width": 8}, "marker": {"size": 5, "color": "crimson"}, "hoverinfo": "text"}
    said = {"mode": "lines+markers+text", "text": names, "hovertext": hover, "name": "path taken"}
    path = go.Scatter3d(**_xyz(translation(poses)), **said, **look, **_PATH)
    edges = _segments(frusta(poses).reshape(-1, 2, 3))
    line = {"color": "crimson", "width": 4}
    seen = go.Scatter3d(**edges, mode="lines", line=line, name="frusta on the path", hoverinfo="skip", **_PATH)
    return [path, seen]


def walked(root_pose: Float32, chain: RolloutChain) -> Float32:
    """(s + 1, 12) poses from the root on."""
    chosen = ((step, step.selection.selected_shell_index) for step in chain.steps)
    return np.stack([root_pose, *(step.shell.pose_world_camera[row] for step, row in chosen if row != NOT_SELECTED)])


def view_text(step: RolloutStep, row: int) -> str:
    """What is known of one candidate: where it was offered, its gain or why it was refused, and its clearance."""
    about = step.shell.diagnostics
    gain, reason = step.labels.target_root_gain[row], int(step.shell.primary_invalid_reason[row])
    worth = f"root gain {gain:.4f}" if np.isfinite(gain) else f"refused: {decode_invalid_reason(reason)}"
    return (
        f"view {row}, {decode_position_id(int(step.shell.position_id[row]))}<br>{worth}<br>"
        f"distance to the mesh {_metres(about.mesh_distance_m[row])}<br>"
        f"least clearance on the way {_metres(about.path_min_clearance_m[row])}"
    )


def _metres(value: float) -> str:
    return f"{value:.3f} m" if np.isfinite(value) else "not measured"


def _step_group(index: int) -> dict[str, Any]:
    return {"legendgroup": f"step {index}", "legendgrouptitle_text": f"step {index}"}


def _markers(
    step: RolloutStep, index: int, rows: NDArray[np.int64], name: str, colour: dict[str, Any], shown: bool
) -> go.Scatter3d:
    look = {"mode": "markers", "marker": {"size": 4, **colour}, "hoverinfo": "text"}
    text = [view_text(step, int(row)) for row in rows]
    where = _xyz(translation(step.shell.pose_world_camera[rows]))
    visible = True if shown else "legendonly"
    return go.Scatter3d(**where, hovertext=text, name=name, visible=visible, **look, **_step_group(index))


def _frusta_of(
    step: RolloutStep, index: int, rows: NDArray[np.int64], name: str, line: dict[str, Any], shown: bool
) -> go.Scatter3d:
    edges = _segments(frusta(step.shell.pose_world_camera[rows]).reshape(-1, 2, 3))
    visible = True if shown else "legendonly"
    look = {"mode": "lines", "line": line, "hoverinfo": "skip"}
    return go.Scatter3d(**edges, name=name, visible=visible, **look, **_step_group(index))


def frusta(poses: Float32) -> Float64:
    """(n, 12) -> (n, 8, 2, 3): four edges from the centre, four around the image."""
    rim = FRUSTUM_M * np.array([[0.6, 0.6, 1.0], [0.6, -0.6, 1.0], [-0.6, -0.6, 1.0], [-0.6, 0.6, 1.0]])
    centre = translation(poses)[:, None]
    corners = np.einsum("nij,kj->nki", rotation(poses), rim) + centre
    spokes = np.stack([np.broadcast_to(centre, corners.shape), corners], axis=2)
    sides = np.stack([corners, np.roll(corners, -1, axis=1)], axis=2)
    return np.concatenate([spokes, sides], axis=1)


def _segments(ends: Float64) -> dict[str, Float32]:
    """(n, 2, 3) -> x, y, z with a gap after every segment."""
    gaps = np.full((len(ends), 1, 3), np.nan)
    return _xyz(np.concatenate([ends, gaps], axis=1).reshape(-1, 3))


def _xyz(points: Float32 | Float64) -> dict[str, Float32]:
    """(n, 3) -> coordinates by the names that Plotly gives them."""
    return dict(zip("xyz", points.astype(np.float32).T, strict=True))
