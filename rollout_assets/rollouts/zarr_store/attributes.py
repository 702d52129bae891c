"""Attributes of a store's root and groups, and its manifest, from the config and what was written.

Writer and validator both call ``root_attributes`` and ``group_attributes``: what one writes, the other expects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from rollout_assets.candidates.reasons import INVALID_REASON_VERSION
from rollout_assets.config import (
    CampaignConfig,
    ConfigSection,
    Count,
    Fraction,
    Positive,
    SelectedDepthRetentionConfig,
)
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, ROLLOUT_MANIFEST_VERSION

STORE_KIND = "standalone_rollout_zarr_shard"
"""``store_kind`` of a store written on its own; promotion names its own kind."""

DEPTH_CODEC = "blosc:zstd:clevel=5:bitshuffle"
VIEW_ROLE = "training_core_derived_cache"
VIEW_SOURCES = "steps,candidates,rollouts,targets"
MIXED = "mixed"
DEAD_ENDS_IN_VIEW = "dead_ends_in_training_view"
"""Root attribute: whether dead ends are states of the training view. They are in a store that does not say."""


def dead_ends_in_view(root: Mapping[str, Any]) -> bool:
    """Whether dead ends are states of the training view of a store with these root attributes."""
    return bool(root.get(DEAD_ENDS_IN_VIEW, True))


class RolloutZarrStoreConfig(ConfigSection):
    """Layout and target metadata for one standalone rollout replay store."""

    discount_gamma: Fraction = 1.0
    return_semantics: Literal["cumulative_target_root_gain"] = schema.DEFAULT_RETURN_SEMANTICS
    target_protocol_version: str = Field("v1_observed", pattern=r"^(v1_observed|v0_gt_input)$")
    reason_code_version: str = INVALID_REASON_VERSION
    field_retention_policy: str = "compact"
    chunk_rows: Count = 65_536
    chunks_per_shard: Count = Field(4, description="Chunks of table rows in one file.")
    chunk_states: Count = 4_096
    dead_ends_in_training_view: bool = False
    states_per_shard: Count = Field(32_768, description="States of the training view in one file, about.")
    selected_depth: SelectedDepthRetentionConfig = SelectedDepthRetentionConfig()
    depth_chunks_per_shard: Count = Field(16, description="Chunks of depth images in one file.")
    depth_renderer: str = "warp_bvh4"
    depth_znear_m: Positive = 0.001
    depth_zfar_m: Positive = 20.0
    target_eval_max_points: Count = Field(4_096, description="Width of the crop arrays, which stay empty.")

    @field_validator("depth_zfar_m")
    @classmethod
    def _beyond_the_nearest(cls, zfar_m: float, info: ValidationInfo) -> float:
        znear_m = info.data.get("depth_znear_m")
        if znear_m is not None and zfar_m <= znear_m:
            raise ValueError(f"depth_zfar_m must be > depth_znear_m {znear_m}, got {zfar_m}")
        return zfar_m

    @classmethod
    def from_campaign(cls, campaign: CampaignConfig) -> RolloutZarrStoreConfig:
        """The store that a campaign asks for."""
        return cls(
            discount_gamma=campaign.store.discount_gamma,
            target_protocol_version=campaign.targets.protocol,
            chunk_rows=campaign.store.chunk_rows,
            chunk_states=campaign.store.chunk_states,
            dead_ends_in_training_view=campaign.store.dead_ends_in_training_view,
            selected_depth=campaign.selected_depth,
            depth_znear_m=campaign.oracle.znear_m,
            depth_zfar_m=campaign.oracle.zfar_m,
        )

    @property
    def dims(self) -> dict[str, int]:
        """Sizes behind the schema's symbols that are known before writing."""
        depth = self.selected_depth
        return {"H": depth.height_px, "W": depth.width_px, "P": self.target_eval_max_points}


COUNTED: Mapping[str, Table] = {
    "sources": schema.SOURCES,
    "targets": schema.TARGETS,
    "rollouts": schema.ROLLOUTS,
    "steps": schema.STEPS,
    "candidates": schema.CANDIDATES,
    "candidate_diagnostics": schema.CANDIDATE_DIAGNOSTICS,
    "selected_depths": schema.SELECTED_DEPTH,
    "q_h_states": schema.Q_H,
    "target_eval_crops": schema.TARGET_EVAL_CROPS,
}
"""What a manifest calls the rows of each table."""

Counts = Mapping[str, int]


def store_counts(shape_of: Callable[[str], tuple[int, ...]]) -> dict[str, int]:
    """Rows of every table, and the width of the training view, from the shapes of a store's arrays by path."""
    counts = {name: shape_of(table.path(table.names[0]))[0] for name, table in COUNTED.items()}
    return counts | {"q_h_max_candidates": shape_of(schema.Q_H.path("candidate_row_id"))[1]}


def depth_attributes(config: RolloutZarrStoreConfig) -> dict[str, Any]:
    """Attributes of the ``selected_depth`` group."""
    depth = config.selected_depth
    return {
        "enabled": depth.enabled,
        "width_px": depth.width_px,
        "height_px": depth.height_px,
        "depth_dtype": "float16",
        "valid_mask_dtype": "bool",
        "units": "m",
        "invalid_fill_value": 0.0,
        "codec": DEPTH_CODEC,
        "chunk_steps": depth.chunk_steps,
        "role": "selected_successor_state_history",
        "renderer": config.depth_renderer,
        "znear_m": config.depth_znear_m,
        "zfar_m": config.depth_zfar_m,
        "source_resolution": "exact_output_size",
    }


def view_attributes(config: RolloutZarrStoreConfig, counts: Counts, horizon: int) -> dict[str, Any]:
    """Attributes of the ``q_h`` group."""
    return {
        "view_role": VIEW_ROLE,
        "source_tables": VIEW_SOURCES,
        "td_semantics": schema.Q_H_TD_SEMANTICS,
        "reward_metric": schema.Q_H_REWARD_METRIC,
        "return_semantics": config.return_semantics,
        "td_reward_target_rri_role": "diagnostic_state_relative_rri",
        "state_count": counts["q_h_states"],
        "max_candidates": counts["q_h_max_candidates"],
        "horizon": horizon,
        "discount_gamma": config.discount_gamma,
        "chunk_states": config.chunk_states,
    }


def crop_attributes(config: RolloutZarrStoreConfig, rows: int) -> dict[str, Any]:
    """Attributes of the ``target_eval_crops`` group; this package writes no crops, so they are never enabled."""
    return {
        "role": "oracle_eval_only",
        "coordinate_frame": "world",
        "enabled": rows > 0,
        "max_points": config.target_eval_max_points,
        "source_roles": ",".join(schema.SOURCE_ROLES),
        "retention": "sampled_audit",
    }


def group_attributes(config: RolloutZarrStoreConfig, counts: Counts, horizon: int) -> dict[str, dict[str, Any]]:
    """Attributes of every group that has some."""
    return {
        "selected_depth": depth_attributes(config),
        "target_eval_crops": crop_attributes(config, counts["target_eval_crops"]),
        "q_h": view_attributes(config, counts, horizon),
    }


def root_attributes(
    config: RolloutZarrStoreConfig, tables: SmallTables, counts: Counts, horizon: int, created_at_utc: str
) -> dict[str, Any]:
    """Root attributes, without the manifest's digest."""
    depth = {f"selected_depth_{name.removeprefix('depth_')}": value for name, value in depth_attributes(config).items()}
    crops = crop_attributes(config, counts["target_eval_crops"])
    return {
        "schema_id": schema.ROLLOUT_ZARR_SCHEMA_ID,
        "schema_version": schema.ROLLOUT_ZARR_SCHEMA_VERSION,
        "zarr_format": 3,
        "created_at_utc": created_at_utc,
        "manifest_path": ROLLOUT_MANIFEST_FILENAME,
        "manifest_version": ROLLOUT_MANIFEST_VERSION,
        "source_offline_store_version": tables.common("source_cache_version_id"),
        "split_manifest_hash": tables.common("split_manifest_hash_id"),
        "source_split": tables.common("split_id"),
        "reason_code_version": config.reason_code_version,
        "target_protocol_version": config.target_protocol_version,
        "return_semantics": config.return_semantics,
        "discount_gamma": config.discount_gamma,
        DEAD_ENDS_IN_VIEW: config.dead_ends_in_training_view,
        "field_retention_policy": config.field_retention_policy,
        **depth,
        "q_h_view_persisted": True,
        "q_h_view_role": VIEW_ROLE,
        "q_h_source_tables": VIEW_SOURCES,
        "q_h_reward_metric": schema.Q_H_REWARD_METRIC,
        "q_h_return_semantics": config.return_semantics,
        "q_h_horizon": horizon,
        "q_h_chunk_states": config.chunk_states,
        "q_h_state_count": counts["q_h_states"],
        "q_h_max_candidates": counts["q_h_max_candidates"],
        **{f"num_{name}": counts[name] for name in COUNTED if name != "target_eval_crops"},
        "candidate_diagnostics_enabled": True,
        "candidate_diagnostics_role": "audit_rerun_only",
        "candidate_diagnostics_unavailable_float": "NaN",
        "candidate_diagnostics_unavailable_bool": "false",
        **{f"target_eval_crops_{name}": crops[name] for name in ("enabled", "role", "coordinate_frame", "max_points")},
        "target_eval_crops_num_rows": counts["target_eval_crops"],
    }


@dataclass(frozen=True, eq=False)
class SmallTables:
    """What a manifest summarises: ``column`` reads a column of a small table; and the dictionaries behind them."""

    column: Callable[[Table, str], NDArray[Any]]
    dictionaries: Mapping[str, list[str]]

    def strings(self, table: Table, name: str) -> list[str]:
        """Decoded strings of a column; "" where not given."""
        values = self.dictionaries[table[name].dictionary or ""]
        return [values[index] if index >= 0 else "" for index in self.column(table, name).tolist()]

    def distinct(self, table: Table, name: str) -> list[str]:
        """Sorted distinct strings of a column."""
        values = self.dictionaries[table[name].dictionary or ""]
        return sorted(values[index] for index in np.unique(self.column(table, name)).tolist() if index >= 0)

    def common(self, name: str) -> str:
        """The string that all source rows have in a column; ``mixed`` if they differ."""
        values = set(self.strings(schema.SOURCES, name))
        return values.pop() if len(values) == 1 else MIXED


def source_coverage(tables: SmallTables) -> dict[str, Any]:
    """Which source rows a store covers."""
    columns = {
        "source_row_id": tables.column(schema.SOURCES, "source_row_id").tolist(),
        "source_sample_index": tables.column(schema.SOURCES, "sample_index").tolist(),
        "source_shard_row": tables.column(schema.SOURCES, "source_shard_row").tolist(),
        "source_sample_key": tables.strings(schema.SOURCES, "sample_key_id"),
        "scene_id": tables.strings(schema.SOURCES, "scene_id"),
        "snippet_id": tables.strings(schema.SOURCES, "snippet_id"),
        "split": tables.strings(schema.SOURCES, "split_id"),
        "source_shard_id": tables.strings(schema.SOURCES, "source_shard_id"),
    }
    return {
        "num_source_rows": len(columns["source_row_id"]),
        "scene_counts": dict(Counter(columns["scene_id"])),
        "split_counts": dict(Counter(columns["split"])),
        "source_shard_counts": dict(Counter(columns["source_shard_id"])),
        "sources": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }


def config_hashes(tables: SmallTables) -> dict[str, list[str]]:
    """Every config hash and policy that the rows of a store name, sorted."""
    return {
        "candidate": tables.distinct(schema.LINEAGE, "candidate_config_id"),
        "oracle": tables.distinct(schema.LINEAGE, "oracle_config_id"),
        "rollout": tables.distinct(schema.LINEAGE, "rollout_config_id"),
        "model_checkpoint": tables.distinct(schema.LINEAGE, "model_checkpoint_id"),
        "source_manifest": tables.distinct(schema.SOURCES, "source_offline_store_manifest_hash_id"),
        "split_manifest": tables.distinct(schema.SOURCES, "split_manifest_hash_id"),
        "target_crop_policy": tables.distinct(schema.TARGETS, "target_crop_policy_id"),
        "target_protocol": tables.distinct(schema.LINEAGE, "target_protocol_version_id"),
    }


def manifest_facts(root: Mapping[str, Any], counts: Counts, tables: SmallTables) -> dict[str, Any]:
    """What a manifest says of the store's own attributes and tables."""
    return {
        "manifest_version": ROLLOUT_MANIFEST_VERSION,
        "schema_id": schema.ROLLOUT_ZARR_SCHEMA_ID,
        "schema_version": schema.ROLLOUT_ZARR_SCHEMA_VERSION,
        "created_at_utc": root.get("created_at_utc"),
        "root_attrs": dict(root),
        "counts": dict(counts),
        "source_coverage": source_coverage(tables),
        "config_hashes": config_hashes(tables),
        "dictionary_sizes": {name: len(values) for name, values in tables.dictionaries.items()},
    }
