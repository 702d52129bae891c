"""Gradient-boosted trees on hand-made features: what a learned policy should beat clearly.

The features are of the actor's side only, from the same observations that a network gets. The label is the gain less
the mean of its state, because trees that are told plain gains mostly learn which states are easy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.poses import Float64
from rollout_assets.observations.observation import MOTION_COLUMNS, Arrays, Observations

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

FEATURES = (
    *("x_m", "y_m", "z_m", "distance_m", "elevation_sine", "angular_size", "gaze_cosine", "turn_from_root_cosine"),
    *("turn_from_current_cosine", "turn_from_nearest_cosine", "nearer_than_current_m", "position_mode"),
    *MOTION_COLUMNS,
    *("extent_x_m", "extent_y_m", "extent_z_m", "confidence", "semidense_support", "effective_support"),
)
"""Columns of ``tree_features``, in order. Poses are in the target's frame."""

_LEAST = 1e-6

_THREADS = 1
"""More threads wait for each other without end where other processes use the processors too."""


@dataclass(frozen=True)
class TreePolicy:
    """Trees as a policy."""

    model: HistGradientBoostingRegressor
    observation: ObservationConfig
    score_source: str = "trees"

    def scores(self, observations: Observations[Arrays]) -> Float64:
        """(b, k) predicted gain beyond the state's mean; -inf where a view cannot be taken."""
        scores = np.full(observations.candidate_mask.shape, -np.inf)
        with threadpool_limits(_THREADS):
            scores[observations.candidate_mask] = self.model.predict(tree_features(observations))
        return scores


def fit_trees(
    features: NDArray[Any], centred_gain: NDArray[Any], observation: ObservationConfig, seed: int = 0
) -> TreePolicy:
    """Trees for features (n, 22) of labelled views and their gains (n,), less their state's mean."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # takes a second to import

    model = HistGradientBoostingRegressor(
        max_iter=300,
        learning_rate=0.05,
        max_leaf_nodes=31,
        min_samples_leaf=40,
        l2_regularization=1.0,
        random_state=seed,
    )
    with threadpool_limits(_THREADS):
        return TreePolicy(model.fit(features, centred_gain), observation)


def tree_features(observations: Observations[Arrays], mask: NDArray[np.bool_] | None = None) -> Float64:
    """(n, 22) features of the views of a mask (b, k), state by state; of those that can be taken by default."""
    shown = observations.candidate_mask if mask is None else mask
    state, view = np.nonzero(shown)
    pose = observations.candidate_pose_target[state, view].astype(np.float64)
    place, distance = pose[:, 9:], _length(pose[:, 9:])
    direction = place / distance[:, None]
    extents = observations.target_extents[state].astype(np.float64)
    taken = observations.taken_pose_target[..., 9:].astype(np.float64)
    taken_distance = _length(taken)
    cosines = np.einsum("nd,nhd->nh", direction, (taken / taken_distance[..., None])[state])
    present = observations.taken_mask[state]
    root = observations.taken_mask.sum(axis=1)[state] - 1
    columns = [
        *place.T,
        distance,
        direction[:, 2],
        _length(extents) / distance,
        -(pose[:, [2, 5, 8]] * direction).sum(axis=1),
        cosines[np.arange(len(state)), root],
        cosines[:, 0],
        np.where(present, cosines, -1.0).max(axis=1),
        taken_distance[state, 0] - distance,
        observations.candidate_position[state, view],
        *observations.candidate_motion[state, view].T,
        *extents.T,
        observations.target_confidence[state],
        observations.target_support[state, 0],
        observations.target_support[state, 2],
    ]
    return np.stack([np.asarray(column, np.float64) for column in columns], axis=1)


def _length(vectors: Float64) -> Float64:
    return np.maximum(np.sqrt((vectors * vectors).sum(axis=-1)), _LEAST)
