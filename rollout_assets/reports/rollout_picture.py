"""One rollout in 3-D: the scene around the target, the points seen, the views offered at each step, the path taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, MeshError, SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32, rotation, translation
from rollout_assets.inspection.replay import source_of
from rollout_assets.oracle.scorer import OracleScorer, OracleState, points_in
from rollout_assets.reports import rollout_traces as traces
from rollout_assets.reports.scene_cut import thinned
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.rollouts.trace import RolloutChain, RolloutLineage, RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.sources.sample import VinSample
from rollout_assets.sources.vin_store import VinOfflineStore


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a store does not hold: the scene, vertices (n, 3) and faces (m, 3), and points_world (p, 3) seen of it.

    ``before`` and ``after`` (·, 3) are the points on the target at the root and at the path's end, as the oracle fused
    them; None where they cannot be told.
    """

    vertices: Float32
    faces: NDArray[np.int32]
    points_world: Float32
    before: Float32 | None = None
    after: Float32 | None = None

    @classmethod
    def of(
        cls, root: OracleState, points_world: Float32, root_pose: Float32, chain: RolloutChain, scorer: OracleScorer
    ) -> Surroundings:
        """The surroundings of a chain that starts from the oracle's state at the root."""
        state = root
        for pose in traces.walked(root_pose, chain)[1:]:
            state = scorer.advance(state, pose)
        scene, row = root.scene, root.target.crop.box_row
        before, after = (each.cloud.points[points_in(each.cloud.points, row)] for each in (root, state))
        return cls(scene.vertices, scene.faces, points_world, before, after)


def plot_rollout(record: RolloutZarrRecord, chain: RolloutChain, around: Surroundings, path: Path) -> None:
    """Write the page of a chain as one self-contained file."""
    refuse_other_pages(path)
    _write(picture(record.lineage_for_chain(chain), record.root.pose_world_camera, chain, around), path)


def plot_stored_rollout(
    reader: RolloutZarrStoreReader, rollout_row_id: int, campaign: CampaignConfig | None, path: Path
) -> None:
    """Write the page of a stored chain. Without the campaign, or its source, the scene and its points are left out."""
    refuse_other_pages(path)
    _write(StoredPictures(reader, campaign).picture(rollout_row_id), path)


def refuse_other_pages(path: Path) -> None:
    """A 3-D picture is an HTML file; anything else is a ``ConfigError``, best raised before the work."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a 3-D picture is a page: --plot needs FILE.html, got {path.name}")


class StoredPictures:
    """Pictures of the chains of one store; source, meshes and samples stay loaded from one picture to the next."""

    def __init__(self, reader: RolloutZarrStoreReader, campaign: CampaignConfig | None) -> None:
        self._reader, self._campaign = reader, campaign
        self._sample = lru_cache(maxsize=4)(self._read_sample)
        self._drawn = lru_cache(maxsize=2)(lambda scene: thinned(scene.vertices, scene.faces))

    @cached_property
    def _source(self) -> VinOfflineStore | str:
        """The source, or why there is none."""
        if self._campaign is None:
            return "no campaign was given"
        try:
            return source_of(self._campaign)
        except (SourceError, ConfigError) as error:
            return str(error)

    @property
    def problem(self) -> str | None:
        """Why there is no scene to draw; None if there is a source."""
        return self._source if isinstance(self._source, str) else None

    def picture(self, rollout_row_id: int) -> go.Figure:
        """One stored chain, in its scene if the source still has it."""
        stored = self._reader.rollout(rollout_row_id)
        root_pose = stored.root.pose_world_camera
        around = self._surroundings(stored.lineage, root_pose, stored.chain)
        return picture(stored.lineage, root_pose, stored.chain, around)

    def write_pages(self, rollout_row_ids: Sequence[int], folder: Path) -> dict[int, Path]:
        """One page per chain in a folder, in place of earlier ones; all share one script that lies there too."""
        folder.mkdir(parents=True, exist_ok=True)
        for earlier in folder.glob("rollout-*.html"):
            earlier.unlink()
        pages = {row: folder / f"rollout-{row:06d}.html" for row in rollout_row_ids}
        for row, path in pages.items():
            _write(self.picture(row), path, script="directory")
        return pages

    @cached_property
    def _scenes(self) -> SceneLoader:
        assert self._campaign is not None and isinstance(self._source, VinOfflineStore)
        return SceneLoader(self._source.meshes, self._campaign.oracle)

    def _read_sample(self, sample_key: str) -> VinSample:
        assert isinstance(self._source, VinOfflineStore)
        return self._source.sample(self._source.row(sample_key))

    def _surroundings(self, lineage: RolloutLineage, root_pose: Float32, chain: RolloutChain) -> Surroundings | None:
        if self.problem is not None:
            return None
        try:
            sample = self._sample(lineage.source_sample_key or "")
            loaded = self._scenes.find(sample.actor.identity.scene_id)
        except (SourceError, MeshError):
            return None
        if loaded is None:
            return None
        scene, mesh_version = loaded
        points_world = sample.actor.points_world
        around = Surroundings(*self._drawn(scene), points_world)
        if mesh_version == lineage.mesh_version and (root := self._root(sample, lineage)) is not None:
            exact = Surroundings.of(root, points_world, root_pose, chain, self._scorer)
            around = replace(around, before=exact.before, after=exact.after)
        return around

    @cached_property
    def _scorer(self) -> OracleScorer:
        assert self._campaign is not None
        return OracleScorer(self._campaign.oracle)

    def _root(self, sample: VinSample, lineage: RolloutLineage) -> OracleState | None:
        """The oracle's state at the root; None for another oracle than the one that labelled the chain."""
        assert self._campaign is not None
        rows = np.flatnonzero(sample.truth.gt_boxes.source_index == lineage.matched_gt_target_row_id)
        loaded = self._scenes.find(sample.actor.identity.scene_id)
        if lineage.oracle_config_hash != self._campaign.oracle_config_hash or len(rows) != 1 or loaded is None:
            return None
        cloud = self._scorer.fuse(loaded[0], sample.actor.points_world)
        state = self._scorer.begin(loaded[0], sample.actor.camera, cloud, sample.truth.gt_boxes.boxes[rows])
        return state if isinstance(state, OracleState) else None


def picture(lineage: RolloutLineage, root_pose: Float32, chain: RolloutChain, around: Surroundings | None) -> go.Figure:
    """The figure of one chain; without its surroundings, only what a store holds."""
    centres = translation(traces.walked(root_pose, chain))
    target = OrientedBoxes(
        np.array([lineage.target_pose_world_object], np.float32), np.array([lineage.target_extents], np.float32)
    )
    focus = np.concatenate([centres, target.centers_world])
    figure = go.Figure()
    cuts: list[traces.Cut] = []
    shown = 0
    if around is not None:
        drawn = thinned(around.vertices, around.faces)
        cuts, shown = traces.scene_cuts(*drawn, focus, float(centres[:, 2].max()))
        figure.add_traces([trace for cut in cuts for trace in (cut.mesh, cut.walls)])
        for trace, visible in zip(figure.data, _visible(len(cuts), shown), strict=True):
            trace.visible = visible
        figure.add_trace(traces.known_points(around.points_world, focus))
    figure.add_trace(traces.target_box(target, lineage.target_class_name or "target"))
    if around is not None and around.before is not None and around.after is not None:
        figure.add_trace(traces.target_points(around.before, "before", "#1f3bb3", shown=True))
        figure.add_trace(traces.target_points(around.after, "after", "#e07b00", shown=False))
    figure.add_traces(traces.path_taken(root_pose, chain))
    scale = traces.GainScale.of(chain)
    for index, step in enumerate(chain.steps):
        figure.add_traces(traces.views_offered(step, index, scale))
    figure.add_trace(scale.bar())
    return figure.update_layout(_layout(lineage, root_pose, cuts, shown))


_SHOW_STEP = """
const asked = location.hash.match(/^#step-(\\d+)$/);
if (asked) {
    const plot = document.getElementById("{plot_id}");
    const views = [...plot.data.keys()].filter(n => (plot.data[n].legendgroup || "").startsWith("step "));
    const shown = n => plot.data[n].legendgroup === `step ${asked[1]}` && plot.data[n].name !== "REFUSED";
    Plotly.restyle(plot, {visible: views.map(n => shown(n) ? true : "legendonly")}, views);
}
""".replace("REFUSED", traces.REFUSED_FRUSTA)
"""Script of a page: an address that ends in ``#step-1`` opens it with the views of that step."""


def _layout(lineage: RolloutLineage, root_pose: Float32, cuts: Sequence[traces.Cut], shown: int) -> dict[str, Any]:
    axes = {f"{axis}axis": {"title": {"text": f"{axis} (m)"}} for axis in "xyz"}
    return {
        "title": {"text": f"{lineage.rollout_id}: {lineage.target_id}", "font": {"size": 15}},
        "scene": {"aspectmode": "data", **axes, "camera": {"eye": _eye(root_pose)}},
        "margin": {"l": 0, "r": 0, "t": 50, "b": 0},
        "legend": {
            "itemsizing": "constant",
            "groupclick": "toggleitem",
            "x": 0.01,
            "y": 0.99,
            "bgcolor": "rgba(255,255,255,0.7)",
        },
        "sliders": [_cut_slider(cuts, shown)] if cuts else [],
    }


def _cut_slider(cuts: Sequence[traces.Cut], shown: int) -> dict[str, Any]:
    """Chooses the height at which the scene is cut; the cuts' traces come first in the figure."""
    numbers = list(range(2 * len(cuts)))
    steps = [
        {"label": cut.label, "method": "restyle", "args": [{"visible": _visible(len(cuts), chosen)}, numbers]}
        for chosen, cut in enumerate(cuts)
    ]
    place = {"x": 0.3, "len": 0.45, "y": 0.04, "pad": {"t": 0, "b": 8}}
    return {"active": shown, "currentvalue": {"prefix": "mesh cut at "}, "steps": steps, **place}


def _visible(cuts: int, chosen: int) -> list[bool | str]:
    """Which traces of the cuts, mesh and walls in turn, are drawn when one cut is chosen: all slabs up to there."""
    pairs = ((number <= chosen or "legendonly", number == chosen) for number in range(cuts))
    return [visible for pair in pairs for visible in pair]


def _eye(root_pose: Float32) -> dict[str, float]:
    """A look over the actor's shoulder, from above, so that walls do not hide what it looks at."""
    back = -rotation(root_pose)[:, 2] * np.array([1.0, 1.0, 0.0])
    away = back / max(float(np.linalg.norm(back)), 1e-6)
    return {"x": float(0.8 * away[0]), "y": float(0.8 * away[1]), "z": 1.3}


def _write(figure: go.Figure, path: Path, script: bool | str = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    look = {"full_html": True, "default_height": "97vh", "post_script": _SHOW_STEP}
    figure.write_html(path, include_plotlyjs=script, **look)
