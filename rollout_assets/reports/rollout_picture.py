"""One rollout in 3-D: the scene around the target, the points seen, the views offered at each step, the path taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, MeshError, SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32, Float64, rotation, translation
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutChain, RolloutLineage, RolloutStep, RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.sources.vin_store import VinOfflineStore

REACH_M = 2.2
"""How far around the target and the path the scene is shown."""

HEAD_ROOM_M = 0.3
"""The scene is cut this far above the highest view, so that no ceiling hides it."""

FRUSTUM_M = 0.12
BOX_EDGES = ((0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (0, 4), (1, 5), (2, 6), (3, 7))


def plot_rollout(
    record: RolloutZarrRecord,
    chain: RolloutChain,
    vertices: Float32,
    faces: NDArray[np.int32],
    points_world: Float32,
    path: Path,
) -> None:
    """Write a self-contained page. vertices (n, 3), faces (m, 3): the scene; points_world (p, 3): points seen."""
    lineage = record.lineage_for_chain(chain)
    _write(lineage, record.root.pose_world_camera, chain, _Surroundings(vertices, faces, points_world), path)


def plot_stored_rollout(
    reader: RolloutZarrStoreReader, rollout_row_id: int, campaign: CampaignConfig | None, path: Path
) -> None:
    """Write the page of a stored chain. Without the campaign, or its source, the scene and its points are left out."""
    stored = reader.rollout(rollout_row_id)
    around = _surroundings(campaign, stored.lineage) if campaign is not None else None
    _write(stored.lineage, stored.root.pose_world_camera, stored.chain, around, path)


@dataclass(frozen=True, eq=False)
class _Surroundings:
    """vertices (n, 3), faces (m, 3): the scene; points_world (p, 3): the points seen of it."""

    vertices: Float32
    faces: NDArray[np.int32]
    points_world: Float32


def _surroundings(campaign: CampaignConfig, lineage: RolloutLineage) -> _Surroundings | None:
    try:
        source = VinOfflineStore.open(campaign.source.store_dir, campaign.source.mesh_dirs)
        row = source.row(lineage.source_sample_key or "")
        mesh = source.meshes.load(row.scene_id)
        return _Surroundings(mesh.vertices, mesh.faces, source.sample(row).actor.points_world)
    except (SourceError, MeshError):
        return None


def refuse_other_pages(path: Path) -> None:
    """A 3-D picture is an HTML file; anything else is a ``ConfigError``, best raised before the work."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a 3-D picture is a page: --plot needs FILE.html, got {path.name}")


def _write(
    lineage: RolloutLineage, root_pose: Float32, chain: RolloutChain, around: _Surroundings | None, path: Path
) -> None:
    refuse_other_pages(path)
    centres = translation(_walked(root_pose, chain))
    target = OrientedBoxes(
        np.array([lineage.target_pose_world_object], np.float32), np.array([lineage.target_extents], np.float32)
    )
    focus = np.concatenate([centres, target.centers_world])
    figure = go.Figure()
    if around is not None:
        ceiling_m = float(centres[:, 2].max()) + HEAD_ROOM_M
        figure.add_trace(_scene(around.vertices, around.faces, focus, ceiling_m))
        figure.add_trace(_known_points(around.points_world, focus))
    figure.add_trace(_box(target, lineage.target_class_name or "target"))
    for index, step in enumerate(chain.steps):
        figure.add_traces([*_offered(step, index), _refused(step, index)])
    figure.add_trace(_path(centres))
    figure.update_layout(
        title=f"{lineage.rollout_id}: {lineage.target_id}",
        scene={
            "aspectmode": "data",
            "xaxis_title": "x (m)",
            "yaxis_title": "y (m)",
            "zaxis_title": "z (m)",
            "camera": {"eye": _eye(root_pose)},
        },
        margin={"l": 0, "r": 0, "t": 50, "b": 0},
        legend={"itemsizing": "constant", "x": 0.01, "y": 0.99, "bgcolor": "rgba(255,255,255,0.7)"},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True, full_html=True, default_height="97vh")


def _eye(root_pose: Float32) -> dict[str, float]:
    """A look over the actor's shoulder, from above, so that walls do not hide what it looks at."""
    back = -rotation(root_pose)[:, 2] * np.array([1.0, 1.0, 0.0])
    away = back / max(float(np.linalg.norm(back)), 1e-6)
    return {"x": float(0.8 * away[0]), "y": float(0.8 * away[1]), "z": 1.3}


def _walked(root_pose: Float32, chain: RolloutChain) -> Float32:
    """(s + 1, 12) poses from the root on."""
    poses = [
        step.shell.pose_world_camera[step.selection.selected_shell_index]
        for step in chain.steps
        if step.selection.selected_shell_index != NOT_SELECTED
    ]
    return np.stack([root_pose, *poses])


def _scene(vertices: Float32, faces: NDArray[np.int32], focus: Float64, ceiling_m: float) -> go.Mesh3d:
    middles = vertices[faces].mean(axis=1)
    gap = np.min([np.linalg.norm(middles - place, axis=1) for place in focus], axis=0)
    shown = faces[(gap < REACH_M) & (middles[:, 2] < ceiling_m)]
    used, local = np.unique(shown, return_inverse=True)
    i, j, k = local.reshape(-1, 3).T
    look = {"color": "lightgray", "opacity": 0.55, "flatshading": True, "hoverinfo": "skip"}
    return go.Mesh3d(**_xyz(vertices[used]), i=i, j=j, k=k, name="mesh", showlegend=True, **look)


def _known_points(points_world: Float32, focus: Float64) -> go.Scatter3d:
    gap = np.min([np.linalg.norm(points_world - place, axis=1) for place in focus], axis=0)
    look = {"mode": "markers", "marker": {"size": 1.5, "color": "slateblue"}, "hoverinfo": "skip"}
    return go.Scatter3d(**_xyz(points_world[gap < REACH_M]), name="semi-dense points", **look)


def _box(box: OrientedBoxes, name: str) -> go.Scatter3d:
    corners = box.corners_world()[0]
    edges = _segments(np.array([[corners[a], corners[b]] for a, b in BOX_EDGES]))
    return go.Scatter3d(**edges, mode="lines", line={"color": "green", "width": 5}, name=f"target: {name}")


def _offered(step: RolloutStep, index: int) -> list[go.Scatter3d]:
    """Frusta of the views that can be taken, coloured by their root gain, and a plain line for the legend."""
    rows = np.flatnonzero(step.oracle_label_mask)
    frusta = _frusta(step.shell.pose_world_camera[rows])
    gains = np.repeat(step.labels.target_root_gain[rows], frusta.shape[1] * 3)
    bar = {"title": "root gain", "len": 0.8}
    line = {"color": gains.tolist(), "colorscale": "Viridis", "width": 4, "showscale": index == 0, "colorbar": bar}
    text = [f"view {row}: root gain {step.labels.target_root_gain[row]:.4f}" for row in rows]
    shared = {
        "mode": "lines",
        "legendgroup": f"offered {index}",
        "visible": True if index == 0 else "legendonly",
        "name": f"step {index}: {len(rows)} valid views",
    }
    hover = np.repeat(text, frusta.shape[1] * 3).tolist() if len(rows) else None
    edges = _segments(frusta.reshape(-1, 2, 3))
    coloured = go.Scatter3d(**edges, line=line, showlegend=False, hovertext=hover, hoverinfo="text", **shared)
    in_legend = go.Scatter3d(x=[None], y=[None], z=[None], line={"color": "#35b779", "width": 4}, **shared)
    return [coloured, in_legend]


def _refused(step: RolloutStep, index: int) -> go.Scatter3d:
    rows = np.flatnonzero(~step.shell.actor_action_mask & np.isfinite(step.shell.pose_world_camera).all(axis=1))
    edges = _segments(_frusta(step.shell.pose_world_camera[rows]).reshape(-1, 2, 3))
    line = {"color": "rgba(200,60,60,0.35)", "width": 2}
    name = f"step {index}: {len(rows)} refused views"
    return go.Scatter3d(**edges, mode="lines", line=line, name=name, visible="legendonly", hoverinfo="skip")


def _path(centres: Float64) -> go.Scatter3d:
    text = ["root", *(f"step {index}" for index in range(len(centres) - 1))]
    look = {"line": {"color": "crimson", "width": 8}, "marker": {"size": 5, "color": "crimson"}}
    return go.Scatter3d(**_xyz(centres), mode="lines+markers+text", text=text, name="path taken", **look)


def _frusta(poses: Float32) -> Float64:
    """(n, 12) -> (n, 8, 2, 3): four edges from the centre, four around the image."""
    rim = FRUSTUM_M * np.array([[0.6, 0.6, 1.0], [0.6, -0.6, 1.0], [-0.6, -0.6, 1.0], [-0.6, 0.6, 1.0]])
    centre = translation(poses)[:, None]
    corners = np.einsum("nij,kj->nki", rotation(poses), rim) + centre
    spokes = np.stack([np.broadcast_to(centre, corners.shape), corners], axis=2)
    sides = np.stack([corners, np.roll(corners, -1, axis=1)], axis=2)
    return np.concatenate([spokes, sides], axis=1)


def _segments(ends: Float64) -> dict[str, Float64]:
    """(n, 2, 3) -> x, y, z with a gap after every segment."""
    gaps = np.full((len(ends), 1, 3), np.nan)
    return _xyz(np.concatenate([ends, gaps], axis=1).reshape(-1, 3))


def _xyz(points: Float32 | Float64) -> dict[str, Any]:
    """(n, 3) -> coordinates by the names that Plotly gives them."""
    return dict(zip("xyz", points.T, strict=True))
