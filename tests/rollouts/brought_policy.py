"""A package that brings policies, laid out on disk as an installer would, so that its entry points are real ones."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollout_assets.rollouts import policy_registry

MODULE = '''
"""Scores are a weighted sum of a few facts, rounded: the weights are a checkpoint."""

import json

import numpy as np

from rollout_assets.config.observation import ObservationConfig

CALLS = []


class Weighted:
    observation = ObservationConfig(points=64, depth_px=8, history=3)
    score_source = "weighted_facts"

    def __init__(self, weights):
        self.weights = weights

    def scores(self, observations):
        CALLS.append(len(observations))
        place = observations.candidate_pose_target[..., 9:].astype(np.float64)
        known = (observations.point_age * observations.point_mask).sum(axis=1, dtype=np.float64)
        facts = (place[..., 0], place[..., 2], observations.candidate_motion[..., 3], known[:, None] * place[..., 1])
        total = sum(weight * fact for weight, fact in zip(self.weights, facts, strict=True))
        return np.round(total * observations.steps_left[:, None], 6)


def weighted(checkpoint):
    return Weighted(json.loads(checkpoint.read_text())["weights"])


def not_a_number(checkpoint):
    return _broken(lambda scores: scores * np.nan)


def too_narrow(checkpoint):
    return _broken(lambda scores: scores[:, :-1])


def _broken(change):
    class Changed(Weighted):
        def scores(self, observations):
            return change(super().scores(observations))

    return Changed((1.0, 0.0, 0.0, 0.0))
'''

ENTRY_POINTS = """
[rollout_assets.policies]
weighted = brought_policy_module:weighted
not_a_number = brought_policy_module:not_a_number
too_narrow = brought_policy_module:too_narrow
absent = brought_policy_module_that_is_not_there:policy
"""


def write_package(folder: Path) -> Path:
    """The package's files in ``folder``, which must then be on the path."""
    (folder / "brought_policy_module.py").write_text(MODULE)
    info = folder / "brought_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought-policy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def write_checkpoint(path: Path, *weights: float) -> Path:
    path.write_text(json.dumps({"weights": weights or (1.0, -0.5, 0.01, 0.25)}))
    return path


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """The package on the path of this process and of those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{folder}:{':'.join(path for path in sys.path if path)}")
        patch.setattr(policy_registry, "_loaded", {})
        yield
