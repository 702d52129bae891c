"""Which part of a scene's surface belongs to a box, and how it is cut into pieces that completeness is summed over.

``clipped_surface``: the surface inside the box, exactly, with samples on a lattice in the box's own frame. It depends
on the surface alone: neither on how finely the mesh was tessellated, nor on anything outside the box.
``vertex_in_box``: whole faces with a vertex in the box, as ARIA-NBV crops. A coarse wall beside the target has no
vertex in the box and is left out, while points seen on it are kept and then measured against the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.clipping import clip_to_box, lattice_samples, touching_box
from rollout_assets.geometry.poses import Float64, rotation, translation
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.surface_error import Surface, triangle_areas

MIN_TRIANGLE_AREA_M2 = 5e-3
"""With ``distance = "pytorch3d"`` a smaller triangle counts as its three edges."""

_MEAN_HITS = 1.5
"""Lines of three families that meet a piece of surface one pitch wide, averaged over all directions."""


@dataclass(frozen=True, eq=False)
class _Found:
    """What a box holds, so that a scene also remembers that it is nothing."""

    surface: Surface | None

    @property
    def nbytes(self) -> int:
        return 1 if self.surface is None else self.surface.nbytes


def crop_surface(scene: OracleScene, box: OrientedBoxes, config: OracleConfig) -> Surface | None:
    """The surface of ``scene`` in one box ± the crop margin; None if there is none, or none with area."""
    if len(box) != 1:
        raise GeometryError(f"a crop takes exactly one box, got {len(box)}")
    place = box.pose_world_object.tobytes(), box.extents_m.tobytes()
    options = (config.crop_policy, config.crop_margin_m, config.surface_samples, config.face_weighting, config.distance)
    crop = _clipped if config.crop_policy == "clipped_surface" else _whole_faces
    return scene.kept((*place, *options), lambda: _Found(crop(scene, box, config))).surface


def sample_pitch_m(half: Float64, samples: int) -> float:
    """The lattice pitch that puts about ``samples`` samples on the sides of a box with half sizes (3,)."""
    a, b, c = 2.0 * half
    return float(np.sqrt(_MEAN_HITS * 2.0 * (a * b + b * c + c * a) / samples))


def _clipped(scene: OracleScene, box: OrientedBoxes, config: OracleConfig) -> Surface | None:
    turn, centre = rotation(box.pose_world_object)[0], translation(box.pose_world_object)[0]
    half = np.asarray(box.extents_m, np.float64)[0] * 0.5 + config.crop_margin_m
    reach = np.abs(turn) @ half * (1.0 + 1e-6) + 1e-6  # of the box along the axes of the world
    near = scene.faces[touching_box(scene.vertices, scene.faces, reach + 1e-3, centre)]
    local = (scene.vertices[near.reshape(-1)].astype(np.float64) - centre) @ turn
    clipped, source = clip_to_box(local.reshape(-1, 3, 3), half)
    samples = lattice_samples(clipped, sample_pitch_m(half, config.surface_samples))
    if not len(samples.points):
        return None
    weights = samples.area_m2
    if config.face_weighting == "uniform":
        face = source[samples.triangle]
        weights = weights / np.bincount(face, weights)[face]
    triangles, points = ((part @ turn.T + centre).astype(np.float32) for part in (clipped, samples.points))
    return Surface.of_samples(triangles, points, weights, scene.device)


def _whole_faces(scene: OracleScene, box: OrientedBoxes, config: OracleConfig) -> Surface | None:
    inside = box.contains(scene.vertices, config.crop_margin_m)[0]
    first, second, third = (inside[scene.faces[:, corner]] for corner in range(3))
    used, local = np.unique(scene.faces[first | second | third], return_inverse=True)
    vertices, faces = scene.vertices[used], local.reshape(-1, 3).astype(np.int32)
    if not len(faces) or (config.face_weighting == "area" and not triangle_areas(vertices, faces).any()):
        return None
    min_area_m2 = MIN_TRIANGLE_AREA_M2 if config.distance == "pytorch3d" else 0.0
    return Surface.of_faces(vertices, faces, scene.device, config.face_weighting, min_area_m2)
