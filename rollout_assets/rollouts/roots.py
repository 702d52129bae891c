"""Roots: source rows with their targets, selected, matched and ready to be rolled out, or refused with a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.candidates.rules import Extent
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import CampaignConfig, OracleConfig, TargetConfig, data_home
from rollout_assets.errors import ConfigError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import IDENTITY_POSE, Float32, translation
from rollout_assets.geometry.triangle_bvh import build_tree
from rollout_assets.oracle.scene import OracleScene, SceneCache
from rollout_assets.oracle.scorer import OracleScorer, OracleState, Refusal, Refused
from rollout_assets.oracle.tree_files import TreeFiles
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.rollouts.target_sources import RolloutTargetSource, target_source_of
from rollout_assets.rollouts.unlabelled import views_at_root
from rollout_assets.sources.meshes import MeshLibrary, TriangleMesh
from rollout_assets.sources.sample import VinActor, VinSample
from rollout_assets.targets.matching import TargetMatch, match_targets
from rollout_assets.targets.reach import longest_horizon, within_sight, within_turn
from rollout_assets.targets.reasons import TargetInvalidReason
from rollout_assets.targets.selection import absent_targets, describe_sample, reason_counts
from rollout_assets.targets.table import TargetTable

SCENE_CACHE_BYTES = 2 << 30
"""Meshes and trees kept in memory; one scene always stays, whatever its size."""


MIN_TAKEABLE_SHARE = 0.05
"""Share of the root's views that must pass the rules of motion and extent for a target to count as reachable."""

NO_EXPLICIT_TARGET = "NO_EXPLICIT_TARGET"
"""Why a row is skipped that has none of a campaign's explicit targets."""


@dataclass(frozen=True, eq=False)
class TargetedRoot:
    """One source row with one labelled target. The actor's half, the match, and the oracle's state at the start."""

    actor: VinActor
    match: TargetMatch
    oracle_state: OracleState
    mesh_version: str
    extent: Extent

    @property
    def name(self) -> str:
        """For messages: sample key and target id."""
        return f"{self.actor.identity.sample_key} {self.match.target.target_id}"


@dataclass(frozen=True, eq=False)
class RefusedTarget:
    """A selected target that gets no rollout, with the reason's name; its target row is stored all the same.

    ``shell`` are its views at the root, in a row without any true box: nobody can label them, but they are offered.
    """

    match: TargetMatch
    reason: str
    detail: str
    shell: CandidateShell | None = None


@dataclass(frozen=True, eq=False)
class PreparedSample:
    """What became of one source row: its targets by rank, and, when there is none at all, why.

    ``box_reasons`` counts why boxes were not eligible, ``passed_over`` why eligible ones were not considered;
    ``absent`` are the explicit targets of the campaign that name this row and that it does not have.
    """

    actor: VinActor
    targets: tuple[TargetedRoot | RefusedTarget, ...]
    skip_reason: str | None
    box_reasons: Counter[str]
    mesh_version: str | None
    passed_over: Counter[str]
    absent: tuple[str, ...] = ()

    @property
    def roots(self) -> tuple[TargetedRoot, ...]:
        """The targets that can be rolled out."""
        return tuple(target for target in self.targets if isinstance(target, TargetedRoot))


class SceneLoader:
    """Scenes by id, on the campaign's device, with their mesh versions. Safe to share between threads.

    Meshes that are not simplified as the campaign says are refused: their labels would be those of another campaign.
    ``trees`` is where trees of large meshes are kept; default: below the data home.
    """

    def __init__(
        self,
        meshes: MeshLibrary,
        oracle: OracleConfig,
        max_bytes: int = SCENE_CACHE_BYTES,
        trees: TreeFiles | None = None,
    ) -> None:
        if meshes.simplify != oracle.simplify:
            raise ConfigError(
                f"the source was opened with simplify = {meshes.simplify}, but oracle.simplify is {oracle.simplify}; "
                "open it with campaigns.plan.open_source, or give VinOfflineStore.open the campaign's value"
            )
        self._meshes, self._device, self._scenes = meshes, oracle.device, SceneCache(max_bytes)
        self._trees = trees or TreeFiles(data_home() / "trees")

    def find(self, scene_id: str) -> tuple[OracleScene, str] | None:
        """The scene, and the version of the very triangles in it; None when there is no mesh."""
        if self._meshes.find(scene_id) is None:
            return None
        mesh = self._meshes.load(scene_id)
        return self._scenes.get(mesh.content_hash, lambda: self._scene(mesh)), mesh.content_hash

    def _scene(self, mesh: TriangleMesh) -> OracleScene:
        build = partial(build_tree, mesh.vertices, mesh.faces)
        tree = self._trees.get(mesh.content_hash, len(mesh.faces), build)
        return OracleScene(mesh.vertices, mesh.faces, self._device, tree)


def prepare_sample(
    sample: VinSample,
    config: CampaignConfig,
    scorer: OracleScorer,
    scenes: SceneLoader,
    target_source: RolloutTargetSource | None = None,
) -> PreparedSample:
    """Select targets from the actor's half, match them to the truth, and start the oracle on each."""
    actor = sample.actor
    extent = occupancy_extent(actor)
    table = describe_sample(sample, config.targets)
    absent = absent_targets(table, config.targets.target_ids)
    if config.targets.require_reachable:
        seen = within_sight(actor.reference_pose_world_camera, table.boxes, actor.camera, config)
        table = table.passing_over(~seen, "TOO_FAR_TO_SEE")
        table = table.passing_over(~reachable(table, actor, extent, config), "OUT_OF_REACH")
    passed_over = table.passed_over_counts()
    rng = rng_for(config.seed, actor.identity.sample_key, "targets")
    chosen = (target_source or target_source_of(config.targets)).choose(table, config, rng)
    reasons = Counter({reason.name: count for reason, count in reason_counts(table).items()})
    loaded = scenes.find(actor.identity.scene_id)
    if loaded is None:
        return PreparedSample(actor, (), Refusal.MESH_REFERENCE_MISSING.name, reasons, None, passed_over, absent)
    scene, mesh_version = loaded
    if not chosen:
        return PreparedSample(actor, (), _why_none(table, config.targets), reasons, mesh_version, passed_over, absent)
    cloud = scorer.fuse(scene, actor.points_world)
    measured = scorer.region(scene, cloud, _extent_box(extent)) if config.oracle.scene_labels else None
    scene_region = None if isinstance(measured, Refused) else measured
    matches = match_targets(chosen, sample.truth, config.targets)
    labelled = [match for match in matches if match.labelled and match.best_row is not None]
    boxes = [sample.truth.gt_boxes.boxes[row : row + 1] for row in (m.best_row for m in labelled) if row is not None]
    states = iter(scorer.begin_all(scene, actor.camera, cloud, boxes, scene_region))
    targets: list[TargetedRoot | RefusedTarget] = []
    for match in matches:
        if not match.labelled or match.best_row is None:
            known = len(sample.truth.gt_boxes) > 0
            shell = None if known else views_at_root(actor, match, extent, scene, config)
            targets.append(RefusedTarget(match, match.primary_reason.name, match.status, shell))
            continue
        state = next(states)
        if isinstance(state, Refused):
            targets.append(RefusedTarget(_without_label(match, state.reason), state.reason.name, state.detail))
        else:
            targets.append(TargetedRoot(actor, match, state, mesh_version, extent))
    return PreparedSample(actor, tuple(targets), None, reasons, mesh_version, passed_over, absent)


def occupancy_extent(actor: VinActor) -> Extent:
    """Where the actor knows there is space: the extent of its semi-dense points and of its own walk."""
    points = np.concatenate([actor.points_world, translation(actor.trajectory_world_camera).astype(np.float32)])
    return points.min(axis=0), points.max(axis=0)


class EmptySpace:
    """A collision world without a surface: what is left of the rules is what the actor knows without the mesh."""

    bounds: Extent = (np.full(3, -np.inf, np.float32), np.full(3, np.inf, np.float32))

    def distance_m(self, points: Float32) -> Float32:
        """points: (n, 3) -> (n,) infinite."""
        return np.full(len(points), np.inf, np.float32)

    def path_min_clearance_m(self, starts: Float32, ends: Float32, samples: int) -> Float32:
        """starts, ends: (n, 3) -> (n,) infinite."""
        return np.full(len(starts), np.inf, np.float32)


def reachable(table: TargetTable, actor: VinActor, extent: Extent, config: CampaignConfig) -> NDArray[np.bool_]:
    """(n,): whether the actor can turn to each box and has a first view to take, as far as it knows without the mesh.

    The bearing must be within what can be turned and walked (``within_turn``), and of the views that the root will
    offer at least ``MIN_TAKEABLE_SHARE`` must pass the rules of motion and extent. A box that is not selectable is not
    looked at.
    """
    reference, centers = actor.reference_pose_world_camera, table.boxes.centers_world.astype(np.float32)
    takeable = table.selectable & within_turn(reference, centers, config.candidates, longest_horizon(config))
    rows = np.flatnonzero(takeable)
    keys = (RolloutKey(config.seed, actor.identity.sample_key, table.target_id[row]) for row in rows)
    requests = [
        CandidateRequest(reference, centers[row], extent, key.candidates_rng(()))
        for row, key in zip(rows, keys, strict=True)
    ]
    shells = generate_candidates(requests, config.candidates, EmptySpace())
    takeable[rows] = [shell.actor_action_mask.mean() >= MIN_TAKEABLE_SHARE for shell in shells]
    return takeable


def _why_none(table: TargetTable, config: TargetConfig) -> str:
    if config.policy == "explicit":
        return NO_EXPLICIT_TARGET
    if table.source_reasons:
        return table.source_reasons[0].name
    if passed_over := table.passed_over_counts():
        return passed_over.most_common(1)[0][0]
    most, _ = reason_counts(table).most_common(1)[0]
    return most.name


def _extent_box(extent: Extent) -> OrientedBoxes:
    low, high = extent
    pose = IDENTITY_POSE.copy()
    pose[9:] = (low + high) / 2
    return OrientedBoxes(pose[None], (high - low)[None])


_REASON_OF_REFUSAL = {
    Refusal.TARGET_CROP_EMPTY: TargetInvalidReason.TARGET_GT_UNMATCHED,
    Refusal.TARGET_SUPPORT_TOO_LOW: TargetInvalidReason.TARGET_SUPPORT_TOO_LOW,
    Refusal.MESH_REFERENCE_MISSING: TargetInvalidReason.TARGET_GT_UNMATCHED,
}
"""How the oracle's refusals read in the target table, whose codes know no crop and no mesh."""


def _without_label(match: TargetMatch, refusal: Refusal) -> TargetMatch:
    """The match as stored for a target that the oracle refused: invalid, with the reason's bit."""
    reason = _REASON_OF_REFUSAL[refusal]
    return replace(match, reason_bitset=1 << reason, primary_reason=reason)
