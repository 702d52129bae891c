"""Hand-made shells and states for tests of what decides over them."""

import numpy as np

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.candidates.shell import CandidateDiagnostics, CandidateShell
from rollout_assets.geometry.poses import IDENTITY_POSE, make_pose
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.rollouts.trace import StepLabels


def shell_at(centers_world: np.ndarray, takeable: np.ndarray) -> CandidateShell:
    """A shell whose rows stand at ``centers_world`` (k, 3); rows that are not takeable were rejected by a rule."""
    k = len(centers_world)
    nothing = np.full(k, np.nan, np.float32)
    reason = np.where(takeable, InvalidReason.VALID, InvalidReason.SAMPLER_RULE_REJECTED)
    return CandidateShell(
        pose_world_camera=make_pose(np.eye(3), centers_world),
        position_id=np.ones(k, np.int32),
        strategy_id=np.full(k, 3, np.int32),
        mixture_id=np.zeros(k, np.int32),
        sampler_probability=np.full(k, 1 / k, np.float32),
        actor_action_mask=takeable,
        invalid_reason_bitset=(1 << reason).astype(np.uint32),
        primary_invalid_reason=reason.astype(np.uint16),
        diagnostics=CandidateDiagnostics(
            mesh_distance_m=nothing,
            path_min_clearance_m=nothing,
            path_collision_mask=np.zeros(k, bool),
            free_space_margin_m=nothing,
            motion_step_length_m=nothing,
            motion_height_delta_m=nothing,
            motion_backward_step_m=nothing,
            motion_yaw_delta_deg=nothing,
            target_distance_m=nothing,
            target_bearing_yaw_deg=nothing,
        ),
    )


def labels_of(root_gain: np.ndarray) -> StepLabels:
    """Labels of which only the target's root gain is known."""
    labels = StepLabels.unlabelled(len(root_gain))
    labels.target_root_gain[:] = root_gain
    return labels


class DrawnStates:
    """Evaluated states drawn from their path, as the real ones are: equal paths give equal states."""

    def __init__(self, key: RolloutKey, k: int = 8, takeable_share: float = 0.7, dead: tuple[int, ...] | None = None):
        self.key, self.k, self.takeable_share, self.dead = key, k, takeable_share, dead
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, path: tuple[int, ...]) -> EvaluatedState:
        self.asked.append(path)
        rng = self.key.candidates_rng(path)
        takeable = rng.random(self.k) < self.takeable_share
        if path == self.dead:
            takeable[:] = False
        gain = np.where(takeable, rng.normal(0.2, 0.2, self.k), np.nan)
        pose = IDENTITY_POSE if not path else self(path[:-1]).shell.pose_world_camera[path[-1]]
        points = np.where(takeable, rng.integers(10, 100, self.k), np.nan).astype(np.float32)
        shell = shell_at(rng.uniform(-1, 1, (self.k, 3)), takeable)
        return EvaluatedState(path, pose, shell, labels_of(gain), points)
