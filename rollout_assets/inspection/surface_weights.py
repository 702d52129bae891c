"""How the weight of every target's surface is spread, recomputed from the source because a store does not hold it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import polars as pl

from rollout_assets.config import CampaignConfig, OracleConfig
from rollout_assets.errors import MeshError, ReplayRefused, SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float64
from rollout_assets.inspection.replay import source_of
from rollout_assets.oracle.crops import crop_surface
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.rollouts.trace import RolloutLineage
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.sources.sample import VinSample
from rollout_assets.sources.vin_store import VinOfflineStore

COLUMNS = {
    "target_row_id": pl.Int64,
    "pieces": pl.Int64,
    "half_weight_pieces": pl.Int64,
    "half_weight_area": pl.Float64,
}
"""Columns of ``surface_weights``."""


def surface_weights(
    reader: RolloutZarrStoreReader, campaign: CampaignConfig, source: VinOfflineStore | None = None
) -> pl.DataFrame:
    """One row per target with rollouts: how few pieces, and how little of the area, hold half of the weight.

    ``half_weight_area`` is a share of the surface's area; 0.5 when every piece weighs what its area is. A campaign
    with another ``[oracle]``, or a source with another mesh or without the box, is ``ReplayRefused``.
    """
    source = source or source_of(campaign)
    scenes = SceneLoader(source.meshes, campaign.oracle)
    sample = lru_cache(maxsize=1)(lambda key: source.sample(source.row(key)))
    firsts = reader.table("rollouts", columns=("rollout_row_id", "target_row_id")).unique(
        "target_row_id", keep="first", maintain_order=True
    )
    rows = []
    for rollout_row_id, target_row_id in firsts.rows():
        lineage = reader.rollout(rollout_row_id).lineage
        scene = _scene(lineage, campaign, scenes)
        spread = weight_spread(scene, _box(lineage, sample(lineage.source_sample_key or "")), campaign.oracle)
        rows.append((target_row_id, *spread))
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def weights_or_reason(compute: Callable[[], pl.DataFrame]) -> tuple[pl.DataFrame | None, str]:
    """Weights and an empty text, or None and why they cannot be computed."""
    try:
        return compute(), ""
    except (ReplayRefused, SourceError, MeshError) as error:
        return None, str(error)


def half_weight(weights: Float64, areas: Float64) -> tuple[int, float]:
    """The fewest pieces, and the least share of the area, that hold half of the weight. weights, areas: (n,)."""
    heaviest = np.cumsum(np.sort(weights)[::-1])
    pieces = int(np.searchsorted(heaviest, 0.5 * heaviest[-1])) + 1
    with np.errstate(divide="ignore", invalid="ignore"):
        dense = np.argsort(-np.nan_to_num(weights / areas, nan=0.0, posinf=np.inf), kind="stable")
    held, covered = np.cumsum(weights[dense]), np.cumsum(areas[dense])
    return pieces, float(np.interp(0.5 * held[-1], [0.0, *held], [0.0, *covered]) / covered[-1])


def weight_spread(scene: OracleScene, box: OrientedBoxes, oracle: OracleConfig) -> tuple[int, int, float]:
    """Pieces of the surface in a box, and ``half_weight`` of them; zeros when there is no surface."""
    by_area = oracle.model_copy(update={"face_weighting": "area"})
    weighted, measured = (crop_surface(scene, box, config) for config in (oracle, by_area))
    if weighted is None or measured is None:
        return 0, 0, 0.0
    return weighted.face_count, *half_weight(weighted.weights, measured.weights)


def _scene(lineage: RolloutLineage, campaign: CampaignConfig, scenes: SceneLoader) -> OracleScene:
    if lineage.oracle_config_hash != campaign.oracle_config_hash:
        raise ReplayRefused(f"{lineage.rollout_id}: [oracle] of campaign {campaign.name} is not what labelled it")
    found = scenes.find(lineage.scene_id or "")
    if found is None or found[1] != lineage.mesh_version:
        raise ReplayRefused(f"{lineage.rollout_id}: the mesh of {lineage.scene_id} is not {lineage.mesh_version}")
    return found[0]


def _box(lineage: RolloutLineage, sample: VinSample) -> OrientedBoxes:
    number = lineage.matched_gt_target_row_id
    rows = np.flatnonzero(sample.truth.gt_boxes.source_index == number)
    if len(rows) != 1:
        raise ReplayRefused(f"{lineage.rollout_id}: the source has no ground-truth box {number} any more")
    return sample.truth.gt_boxes.boxes[int(rows[0]) : int(rows[0]) + 1]
