"""Views at the root of a target that nobody can label, because its row has no true boxes: offered, but not scored."""

from __future__ import annotations

import numpy as np

from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.candidates.rules import Extent, with_no_hit
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import CampaignConfig
from rollout_assets.oracle.raycast import depth_on_host
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.sources.sample import VinActor
from rollout_assets.targets.matching import TargetMatch


def views_at_root(
    actor: VinActor, match: TargetMatch, extent: Extent, scene: OracleScene, config: CampaignConfig
) -> CandidateShell:
    """The views that a rollout of this target would begin with, each with its reasons for and against."""
    key = RolloutKey(config.seed, actor.identity.sample_key, match.target.target_id)
    center = np.array(match.target.center_world, np.float32)
    request = CandidateRequest(actor.reference_pose_world_camera, center, extent, key.candidates_rng(()))
    (shell,) = generate_candidates([request], config.candidates, scene)
    takeable = np.flatnonzero(shell.actor_action_mask)
    hits = np.zeros(len(shell), np.int64)
    if len(takeable):
        camera = actor.camera.resized(config.oracle.height_px, config.oracle.width_px)
        poses = shell.pose_world_camera[takeable]
        depth = depth_on_host(scene.bvh, poses, camera, config.oracle.znear_m, config.oracle.zfar_m)
        hits[takeable] = np.count_nonzero(depth > 0, axis=(1, 2))
    return with_no_hit(shell, hits)
