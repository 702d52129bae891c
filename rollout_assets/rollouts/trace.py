"""What the engine hands to the store: one record per root, target and recipe, with all kept chains and lineage."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.reasons import INVALID_REASON_VERSION
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.geometry.poses import Float32

TerminationReason = Literal["fixed_horizon", "terminated_early", "incomplete_rollout"]
"""Why a chain is as long as it is: its horizon, or a dead end; an incomplete one was cut short after a view it took.

A dead end is a state at which nothing was taken: no view is takeable, or none has the label that the choice needs.
The engine ends no chain that way. A record may say so all the same, for chains that others recorded or interrupted.
"""

ROLLOUT_ID_PATTERN = r"^\d+-target-\d+-(.+)-\d+$"
"""``<sample_index>-target-<rank>-<recipe>-<chain>``; the group is the recipe's name."""

NOT_SELECTED = -1
"""``selected_shell_index`` of a step at which nothing could be taken; its shell is kept all the same."""


def rollout_id_prefix(sample_index: int, target_rank: int, recipe_name: str) -> str:
    """What the ids of all chains of one root, target and recipe begin with."""
    return f"{sample_index:08d}-target-{target_rank:02d}-{recipe_name}"


def recipe_of(rollout_id: str) -> str | None:
    """The recipe's name in a rollout id; None if the id is not one of ours."""
    match = re.match(ROLLOUT_ID_PATTERN, rollout_id)
    return None if match is None else match[1]


def recipe_and_chain(rollout_id: str) -> str:
    """The end of a rollout id, which tells the chains of one target apart: ``oracle_greedy-000001``."""
    return rollout_id.split("-", 3)[3]


@dataclass(frozen=True)
class RolloutLineage:
    """Deterministic provenance for one rollout root, target and policy.

    Row ids stay None until a store assigns its own. ``rollout_id`` and ``chain_id`` are filled per kept chain by
    ``RolloutZarrRecord.lineage_for_chain``.
    """

    rollout_id: str = ""
    chain_id: int = 0
    scene_id: str | None = None
    snippet_id: str | None = None
    mesh_version: str | None = None
    candidate_config_hash: str | None = None
    oracle_config_hash: str | None = None
    model_checkpoint_hash: str | None = None
    random_seed: int | None = None
    rollout_policy: str = "unknown"
    source_cache_version: str | None = None
    split: str | None = None
    source_offline_store_manifest_hash: str | None = None
    source_row_id: int | None = None
    source_sample_index: int | None = None
    source_sample_key: str | None = None
    split_manifest_hash: str | None = None
    source_shard_id: str | None = None
    source_shard_row: int | None = None
    rollout_config_hash: str | None = None
    branch_schedule_id: str | None = None
    target_row_id: int | None = None
    target_id: str | None = None
    target_protocol_version: str | None = None
    target_crop_policy: str | None = None
    reason_code_version: str = INVALID_REASON_VERSION
    selection_rng_state_hash: str | None = None
    target_selection_policy: str | None = None
    target_selection_rank: int | None = None
    target_selection_score: float | None = None
    target_selection_probability: float | None = None
    target_selection_temperature: float | None = None
    target_source: str | None = None
    target_source_index: int | None = None
    target_sem_id: int | None = None
    target_inst_id: int | None = None
    target_class_name: str | None = None
    target_confidence: float | None = None
    target_projected_area_pixels: float | None = None
    target_projected_area_fraction: float | None = None
    target_semidense_support_count: int | None = None
    target_evl_support_count: int | None = None
    target_effective_support_count: float | None = None
    target_visibility_score: float | None = None
    target_support_score: float | None = None
    target_deficit_score: float | None = None
    target_center_world: tuple[float, ...] | None = None
    target_extents: tuple[float, ...] | None = None
    target_pose_world_object: tuple[float, ...] | None = None
    target_relative_pose_reference_object: tuple[float, ...] | None = None
    target_invalid_reason_bitset: int | None = None
    target_primary_invalid_reason: int | None = None
    target_reason_code_version: str | None = None
    matched_gt_target_row_id: int | None = None
    matched_gt_target_id: str | None = None
    gt_match_iou: float | None = None
    gt_match_score: float | None = None
    gt_match_status: str | None = None
    source_split: str | None = None
    """The source's own split, where the campaign has put the row into another one."""


@dataclass(frozen=True, eq=False)
class StepLabels:
    """What the oracle says of each of k candidates: float32 columns, NaN where there is no label."""

    scene_rri: Float32
    target_rri: Float32
    scene_root_gain: Float32
    target_root_gain: Float32
    scene_log_error_gain: Float32
    target_log_error_gain: Float32
    scene_pm_dist_before: Float32
    scene_pm_dist_after: Float32
    target_pm_dist_before: Float32
    target_pm_dist_after: Float32
    target_current_support: Float32
    target_candidate_support: Float32

    @classmethod
    def unlabelled(cls, k: int) -> StepLabels:
        """k rows without any label."""
        return cls(**{field.name: np.full(k, np.nan, np.float32) for field in fields(cls)})


@dataclass(frozen=True, eq=False)
class CandidateSelection:
    """How the policy saw k candidates and which one this chain took.

    logits: (k,) float32, NaN where invalid; probabilities: (k,) float32, 0 where invalid; log_probabilities: (k,)
    float32, -inf where invalid: the distribution of the first pick. inclusion_probabilities: (k,) float32, the
    probability that a row is among those drawn at this state, 0 where it cannot be; drawn_mask: (k,), the rows that
    were drawn, whether or not the beam kept them. ``draw_log_probability`` is the selected row's, given the rows drawn
    before it; None where nothing was selected. ``score_source`` names what the policy ranked by.
    """

    logits: Float32
    probabilities: Float32
    log_probabilities: Float32
    inclusion_probabilities: Float32
    drawn_mask: NDArray[np.bool_]
    selected_shell_index: int
    draw_log_probability: float | None
    score_source: str


@dataclass(frozen=True, eq=False)
class SelectedDepth:
    """What the selected view sees: depth_m (h, w) float32, 0 where invalid; valid_mask (h, w); intrinsics in pixels."""

    depth_m: Float32
    valid_mask: NDArray[np.bool_]
    focal_px: tuple[float, float]
    principal_point_px: tuple[float, float]


@dataclass(frozen=True, eq=False)
class RolloutStep:
    """One decision: the whole shell, its labels, the choice, and what the chosen view sees."""

    shell: CandidateShell
    labels: StepLabels
    selection: CandidateSelection
    selected_depth: SelectedDepth | None

    @property
    def oracle_label_mask(self) -> NDArray[np.bool_]:
        """(k,): takeable and with a finite target root gain."""
        return self.shell.actor_action_mask & np.isfinite(self.labels.target_root_gain)

    @property
    def selected_mask(self) -> NDArray[np.bool_]:
        """(k,): true at the selected row, if any."""
        return np.arange(len(self.shell)) == self.selection.selected_shell_index


@dataclass(frozen=True, eq=False)
class RolloutChain:
    """One kept sequence of decisions from the root."""

    chain_id: int
    steps: tuple[RolloutStep, ...]
    termination_reason: TerminationReason
    selection_rng_state_hash: str


@dataclass(frozen=True, eq=False)
class RolloutRoot:
    """Where a rollout starts: pose_world_camera (12,) float32 LUF, time and place in the recording (-1: unknown)."""

    pose_world_camera: Float32
    time_ns: int
    trajectory_index: int
    frame_index: int


@dataclass(frozen=True, eq=False)
class RolloutZarrRecord:
    """All kept chains of one root, target and recipe.

    A record without chains says that this target got no rollout; its source and target rows are stored all the same. A
    target of a row without true boxes has one chain of one state: the views offered, none of them labelled or taken.
    """

    lineage: RolloutLineage
    rollout_id_prefix: str
    root: RolloutRoot
    horizon: int
    branch_factor: int
    beam_width: int | None
    temperature: float
    chains: tuple[RolloutChain, ...]

    def rollout_id(self, chain: RolloutChain) -> str:
        """The id under which one kept chain is stored; ``ROLLOUT_ID_PATTERN`` reads it back."""
        return f"{self.rollout_id_prefix}-{chain.chain_id:06d}"

    def lineage_for_chain(self, chain: RolloutChain) -> RolloutLineage:
        """The record's lineage with the identity of one kept chain."""
        return replace(
            self.lineage,
            rollout_id=self.rollout_id(chain),
            chain_id=chain.chain_id,
            selection_rng_state_hash=chain.selection_rng_state_hash,
        )
