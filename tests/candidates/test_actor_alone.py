"""From what the actor sees to candidate views, with the truth nowhere in reach."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import rollout_assets.candidates
from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.config import CandidateConfig, TargetConfig
from rollout_assets.randomness import rng_for
from rollout_assets.targets.selection import describe_targets, select_targets
from tests.candidates.collision_worlds import AnalyticRoom
from tests.targets.handmade_samples import Box, actor, points_in

pytestmark = pytest.mark.quick


def test_the_actor_half_alone_leads_to_candidate_views():
    target = Box(center=(1.6, 0.0, 1.0), extents=(0.8, 0.8, 1.4))
    seen = actor([target], points_in(target.center, 40, size=0.7))
    (chosen,) = select_targets(describe_targets(seen, TargetConfig()), TargetConfig(), rng_for(0, "targets"))
    world = AnalyticRoom()
    asked = CandidateRequest(
        reference_pose_world_camera=seen.reference_pose_world_camera,
        target_center_world=np.array(chosen.center_world, np.float32),
        extent=world.bounds,
        rng=rng_for(0, seen.identity.sample_key, chosen.target_id, "candidates"),
    )
    (shell,) = generate_candidates([asked], CandidateConfig(), world)
    assert 10 <= shell.actor_action_mask.sum() < 60


def test_candidates_import_nothing_that_knows_the_truth():
    folder = Path(rollout_assets.candidates.__file__).parent
    imported = {
        node.module
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    rooms = {name.split(".")[1] for name in imported if name.startswith("rollout_assets.")}
    assert rooms <= {"candidates", "config", "errors", "geometry"}
