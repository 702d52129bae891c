"""Targets of rows without true boxes: their views at the root are offered and judged, but none is scored or taken."""

from __future__ import annotations

import numpy as np

from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.candidates.rules import Extent, with_no_hit
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.geometry.poses import Float32, translation
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.rollouts.engine import Chain, EvaluatedState, StepDecision
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.rollouts.policies import PolicyView, decide
from rollout_assets.rollouts.trace import NOT_SELECTED, StepLabels
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
        images = render_depth(scene.bvh, poses, camera, config.oracle.znear_m, config.oracle.zfar_m)
        hits[takeable] = images.valid.flatten(1).sum(dim=1).cpu().numpy()
    return with_no_hit(shell, hits)


def offered_chain(shell: CandidateShell, pose_world_camera: Float32, recipe: RolloutRecipeConfig) -> Chain:
    """One state without labels, at which nothing was taken: no policy is asked, because no choice could be judged."""
    count = len(shell)
    unscored = np.full(count, np.nan)
    view = PolicyView(
        takeable=np.zeros(count, bool),
        centers_world=translation(shell.pose_world_camera),
        history_world=translation(pose_world_camera[None]),
        scores=unscored,
    )
    decision = decide(recipe, view, 1, np.random.default_rng(0))
    labels = StepLabels.unlabelled(count)
    state = EvaluatedState((), pose_world_camera, shell, labels, unscored.astype(np.float32))
    return Chain(steps=(StepDecision(state, decision, NOT_SELECTED),), dead_end=True)
