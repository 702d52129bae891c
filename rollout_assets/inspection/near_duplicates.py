"""Views of one shell that are almost the same view: exact search that stays linear in the rows of real shells."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float32
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES


def near_duplicate_pairs(reader: RolloutZarrStoreReader, max_distance_m: float, max_angle_deg: float) -> pl.DataFrame:
    """Pairs of takeable views of one step closer than both limits: step, both candidates (the later one first), gaps.

    A view that has several near twins is named once, with the first of them.
    """
    rows = np.flatnonzero(reader.array(CANDIDATES.path("actor_action_mask")))
    steps = reader.array(CANDIDATES.path("step_row_id"))[rows]
    poses = reader.array(CANDIDATES.path("pose_world_cam"))
    first, second, distance_m, angle_deg = _pairs(steps, poses, rows, max_distance_m, max_angle_deg)
    frame = pl.DataFrame(
        {
            "step_row_id": steps[first],
            "other_candidate_row_id": rows[np.minimum(first, second)],
            "candidate_row_id": rows[np.maximum(first, second)],
            "distance_m": distance_m,
            "angle_deg": angle_deg,
        }
    )
    return frame.sort("candidate_row_id", "other_candidate_row_id").unique(
        "candidate_row_id", keep="first", maintain_order=True
    )


def _pairs(
    steps: NDArray[np.int64], poses: Float32, rows: NDArray[np.int64], max_distance_m: float, max_angle_deg: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Positions in ``rows`` of near pairs. Rows of a step are ordered along x and compared with the next, the one after
    that, and so on, until no two of them are within reach along x: no pair is missed, few are looked at."""
    x = poses[rows, 9]
    order = np.lexsort((x, steps))
    steps, x = steps[order], x[order]
    open_rows = np.arange(len(order))
    pairs = []
    for shift in itertools.count(1):
        open_rows = open_rows[open_rows + shift < len(order)]
        after = open_rows + shift
        reachable = (steps[after] == steps[open_rows]) & (x[after] - x[open_rows] <= max_distance_m)
        open_rows, after = open_rows[reachable], after[reachable]
        a, b = order[open_rows], order[after]
        one, other = poses[rows[a]].astype(np.float64), poses[rows[b]].astype(np.float64)
        distance = np.linalg.norm(one[:, 9:] - other[:, 9:], axis=1)
        chord = np.linalg.norm(one[:, :9] - other[:, :9], axis=1) / np.sqrt(8.0)
        angle = np.degrees(2.0 * np.arcsin(np.clip(chord, 0.0, 1.0)))
        near = (distance <= max_distance_m) & (angle <= max_angle_deg)
        pairs.append((a[near], b[near], distance[near], angle[near]))
        if not len(open_rows):
            break
    first, second, distances, angles = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return first, second, distances, angles
