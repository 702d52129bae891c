"""Trees on hand-made features: columns that mean what they say, and a benchmark over real stored states."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.benchmarks.policies import benchmark_policies
from rollout_assets.benchmarks.trees import FEATURES, fit_trees, tree_features
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import TrainingError
from rollout_assets.learning.training.run import train_policy
from rollout_assets.testing.fake_observations import fake_observations
from tests.learning.conftest import observed_campaign, observed_store  # noqa: F401 - fixtures
from tests.learning.test_training import config, two_scenes  # noqa: F401 - fixtures
from tests.support.refusals import refused

OBSERVATION = ObservationConfig(points=8, history=4)


def test_there_are_22_features_of_views_that_can_be_taken() -> None:
    observations = fake_observations(6, 5, OBSERVATION)
    features = tree_features(observations)
    assert features.shape == (observations.candidate_mask.sum(), 22) == (len(features), len(FEATURES))
    assert np.isfinite(features).all()
    column = dict(zip(FEATURES, features.T, strict=True))
    state, view = np.nonzero(observations.candidate_mask)
    place = observations.candidate_pose_target[state, view, 9:]
    assert np.allclose(column["distance_m"], np.linalg.norm(place, axis=1))
    assert np.allclose(column["gaze_cosine"], 1.0, atol=1e-5), "fake views look at the target"
    assert (column["turn_from_nearest_cosine"] >= column["turn_from_root_cosine"] - 1e-9).all()
    assert (column["turn_from_nearest_cosine"] >= column["turn_from_current_cosine"] - 1e-9).all()


@pytest.mark.ci
def test_trees_learn_what_the_features_tell() -> None:
    observations = fake_observations(400, 8, OBSERVATION)
    nearer = -tree_features(observations)[:, FEATURES.index("distance_m")]
    policy = fit_trees(tree_features(observations), nearer, OBSERVATION)
    unseen = fake_observations(50, 8, OBSERVATION, seed=1)
    scores = policy.scores(unseen)
    assert np.isneginf(scores[~unseen.candidate_mask]).all()
    distance = np.linalg.norm(unseen.candidate_pose_target[..., 9:], axis=-1)
    nearest = np.where(unseen.candidate_mask, distance, np.inf).argmin(axis=1)
    assert (scores.argmax(axis=1) == nearest).mean() > 0.8


@pytest.mark.slow
def test_policies_are_judged_on_scenes_that_none_was_trained_on(config, two_scenes, small_store, tmp_path) -> None:  # noqa: F811
    checkpoint = train_policy(config.model_copy(update={"epochs": 1}), tmp_path / "run").checkpoint
    options = {"sources": [small_store], "cache_dir": tmp_path / "kept"}
    with refused(TrainingError, checkpoint.name, "1 of the 1"):
        for held_out in two_scenes:
            benchmark_policies(two_scenes[0], held_out=held_out, checkpoints=[checkpoint], **options)
    result = benchmark_policies(two_scenes[0], held_out=two_scenes[1], **options)
    names = [quality.policy for quality in result.policies]
    assert names == ["random", "nearest_to_target", "largest_turn", "most_new_points", "trees"]
    random = result.policies[0]
    assert abs(random.share) < 0.2
    assert all(-2 < quality.share <= 1 for quality in result.policies)
    assert (result.training_scenes, result.scenes) == (1, 1)
