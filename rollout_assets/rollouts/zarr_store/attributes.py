"""Attributes of a store's root and groups, and its manifest, from the config and what was written.

Writer and validator both call ``root_attributes`` and ``group_attributes``: what one writes, the other expects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rollout_assets.config import (
    CampaignConfig,
    ConfigSection,
    Count,
    Fraction,
    Positive,
    SelectedDepthRetentionConfig,
)
from rollout_assets.rollouts.trace import INVALID_REASON_VERSION
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    ROLLOUT_MANIFEST_VERSION,
    RolloutStoreManifestContext,
)
from rollout_assets.rollouts.zarr_store.schema import (
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    DEFAULT_RETURN_SEMANTICS,
    LINEAGE,
    Q_H,
    Q_H_REWARD_METRIC,
    Q_H_TD_SEMANTICS,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCE_ROLES,
    SOURCES,
    STEPS,
    TARGET_EVAL_CROPS,
    TARGETS,
)

STORE_KIND = "standalone_rollout_zarr_shard"
"""``store_kind`` of a store written on its own; promotion names its own kind."""

DEPTH_CODEC = "blosc:zstd:clevel=5:bitshuffle"
VIEW_ROLE = "training_core_derived_cache"
VIEW_SOURCES = "steps,candidates,rollouts,targets"
MIXED = "mixed"


class RolloutZarrStoreConfig(ConfigSection):
    """Layout and target metadata for one standalone rollout replay store."""

    discount_gamma: Fraction = 1.0
    return_semantics: str = DEFAULT_RETURN_SEMANTICS
    target_protocol_version: str = Field("v1_observed", pattern=r"^(v1_observed|v0_gt_input)$")
    reason_code_version: str = INVALID_REASON_VERSION
    field_retention_policy: str = "compact"
    chunk_rows: Count = 65_536
    chunks_per_shard: Count = Field(4, description="Chunks of table rows in one file.")
    chunk_states: Count = 4_096
    states_per_shard: Count = Field(32_768, description="States of the training view in one file, about.")
    selected_depth: SelectedDepthRetentionConfig = SelectedDepthRetentionConfig()
    depth_chunks_per_shard: Count = Field(16, description="Chunks of depth images in one file.")
    depth_renderer: str = "warp_bvh4"
    depth_znear_m: Positive = 0.001
    depth_zfar_m: Positive = 20.0
    target_eval_max_points: Count = 4_096

    @classmethod
    def from_campaign(cls, campaign: CampaignConfig) -> RolloutZarrStoreConfig:
        """The store that a campaign asks for."""
        return cls(
            discount_gamma=campaign.store.discount_gamma,
            target_protocol_version=campaign.targets.protocol,
            chunk_rows=campaign.store.chunk_rows,
            chunk_states=campaign.store.chunk_states,
            selected_depth=campaign.selected_depth,
            depth_znear_m=campaign.oracle.znear_m,
            depth_zfar_m=campaign.oracle.zfar_m,
        )

    @property
    def dims(self) -> dict[str, int]:
        """Sizes behind the schema's symbols that are known before writing."""
        depth = self.selected_depth
        return {"H": depth.height_px, "W": depth.width_px, "P": self.target_eval_max_points}


@dataclass(frozen=True)
class StoreCounts:
    """Rows of every table, and the width of the training view."""

    sources: int
    targets: int
    rollouts: int
    steps: int
    candidates: int
    candidate_diagnostics: int
    selected_depths: int
    target_eval_crops: int
    q_h_states: int
    q_h_max_candidates: int

    @classmethod
    def of(cls, shape_of: Callable[[str], tuple[int, ...]]) -> StoreCounts:
        """From the shapes of a store's arrays by path."""

        def rows(table: Table) -> int:
            return shape_of(table.path(table.names[0]))[0]

        view = shape_of(Q_H.path("candidate_row_id"))
        return cls(
            sources=rows(SOURCES),
            targets=rows(TARGETS),
            rollouts=rows(ROLLOUTS),
            steps=rows(STEPS),
            candidates=rows(CANDIDATES),
            candidate_diagnostics=rows(CANDIDATE_DIAGNOSTICS),
            selected_depths=rows(SELECTED_DEPTH),
            target_eval_crops=rows(TARGET_EVAL_CROPS),
            q_h_states=view[0],
            q_h_max_candidates=view[1],
        )


@dataclass(frozen=True)
class StoreOrigin:
    """What all source rows of a store have in common."""

    split: str
    source_offline_store_version: str
    split_manifest_hash: str

    @classmethod
    def of(cls, splits: Sequence[str], versions: Sequence[str], split_hashes: Sequence[str]) -> StoreOrigin:
        """From the values of every source row; several different ones are ``mixed``."""
        return cls(*(values[0] if len(set(values)) == 1 else MIXED for values in (splits, versions, split_hashes)))


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


def view_attributes(config: RolloutZarrStoreConfig, counts: StoreCounts, horizon: int) -> dict[str, Any]:
    """Attributes of the ``q_h`` group."""
    return {
        "view_role": VIEW_ROLE,
        "source_tables": VIEW_SOURCES,
        "td_semantics": Q_H_TD_SEMANTICS,
        "reward_metric": Q_H_REWARD_METRIC,
        "return_semantics": config.return_semantics,
        "td_reward_target_rri_role": "diagnostic_state_relative_rri",
        "state_count": counts.q_h_states,
        "max_candidates": counts.q_h_max_candidates,
        "horizon": horizon,
        "discount_gamma": config.discount_gamma,
        "chunk_states": config.chunk_states,
    }


def crop_attributes(config: RolloutZarrStoreConfig, rows: int) -> dict[str, Any]:
    """Attributes of the ``target_eval_crops`` group."""
    return {
        "role": "oracle_eval_only",
        "coordinate_frame": "world",
        "enabled": rows > 0,
        "max_points": config.target_eval_max_points,
        "source_roles": ",".join(SOURCE_ROLES),
        "retention": "sampled_audit",
    }


def group_attributes(config: RolloutZarrStoreConfig, counts: StoreCounts, horizon: int) -> dict[str, dict[str, Any]]:
    """Attributes of every group that has some."""
    return {
        "selected_depth": depth_attributes(config),
        "target_eval_crops": crop_attributes(config, counts.target_eval_crops),
        "q_h": view_attributes(config, counts, horizon),
    }


def root_attributes(
    config: RolloutZarrStoreConfig, origin: StoreOrigin, counts: StoreCounts, horizon: int, created_at_utc: str
) -> dict[str, Any]:
    """Root attributes, without the manifest's digest."""
    depth = {f"selected_depth_{name.removeprefix('depth_')}": value for name, value in depth_attributes(config).items()}
    crops = crop_attributes(config, counts.target_eval_crops)
    return {
        "schema_id": ROLLOUT_ZARR_SCHEMA_ID,
        "schema_version": ROLLOUT_ZARR_SCHEMA_VERSION,
        "zarr_format": 3,
        "created_at_utc": created_at_utc,
        "manifest_path": ROLLOUT_MANIFEST_FILENAME,
        "manifest_version": ROLLOUT_MANIFEST_VERSION,
        "source_offline_store_version": origin.source_offline_store_version,
        "split_manifest_hash": origin.split_manifest_hash,
        "source_split": origin.split,
        "reason_code_version": config.reason_code_version,
        "target_protocol_version": config.target_protocol_version,
        "return_semantics": config.return_semantics,
        "discount_gamma": config.discount_gamma,
        "field_retention_policy": config.field_retention_policy,
        **depth,
        "q_h_view_persisted": True,
        "q_h_view_role": VIEW_ROLE,
        "q_h_source_tables": VIEW_SOURCES,
        "q_h_reward_metric": Q_H_REWARD_METRIC,
        "q_h_return_semantics": config.return_semantics,
        "q_h_horizon": horizon,
        "q_h_chunk_states": config.chunk_states,
        "q_h_state_count": counts.q_h_states,
        "q_h_max_candidates": counts.q_h_max_candidates,
        "num_sources": counts.sources,
        "num_targets": counts.targets,
        "num_rollouts": counts.rollouts,
        "num_steps": counts.steps,
        "num_candidates": counts.candidates,
        "num_candidate_diagnostics": counts.candidate_diagnostics,
        "num_selected_depths": counts.selected_depths,
        "num_q_h_states": counts.q_h_states,
        "candidate_diagnostics_enabled": True,
        "candidate_diagnostics_role": "audit_rerun_only",
        "candidate_diagnostics_unavailable_float": "NaN",
        "candidate_diagnostics_unavailable_bool": "false",
        "target_eval_crops_enabled": crops["enabled"],
        "target_eval_crops_role": crops["role"],
        "target_eval_crops_coordinate_frame": crops["coordinate_frame"],
        "target_eval_crops_max_points": crops["max_points"],
        "target_eval_crops_num_rows": counts.target_eval_crops,
    }


Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class SmallTables:
    """The tables a manifest summarises, as columns, and the dictionaries behind them."""

    sources: Columns
    lineage: Columns
    targets: Columns
    dictionaries: Mapping[str, list[str]]

    @classmethod
    def of(cls, column: Callable[[Table, str], NDArray[Any]], dictionaries: Mapping[str, list[str]]) -> SmallTables:
        """From a function that reads a column."""

        def columns(table: Table) -> Columns:
            return {name: column(table, name) for name in table.names}

        return cls(columns(SOURCES), columns(LINEAGE), columns(TARGETS), dictionaries)

    def strings(self, columns: Columns, name: str, dictionary: str) -> list[str]:
        """Decoded strings of a column; "" where not given."""
        values = self.dictionaries[dictionary]
        return [values[index] if index >= 0 else "" for index in columns[name].tolist()]

    def distinct(self, columns: Columns, name: str, dictionary: str) -> list[str]:
        """Sorted distinct strings of a column."""
        values = self.dictionaries[dictionary]
        return sorted(values[index] for index in np.unique(columns[name]).tolist() if index >= 0)

    @property
    def origin(self) -> StoreOrigin:
        """What the source rows have in common."""
        return StoreOrigin.of(
            self.strings(self.sources, "split_id", "split"),
            self.strings(self.sources, "source_cache_version_id", "config"),
            self.strings(self.sources, "split_manifest_hash_id", "config"),
        )


def source_coverage(tables: SmallTables) -> dict[str, Any]:
    """Which source rows a store covers."""
    sources = tables.sources
    names = {
        "source_sample_key": tables.strings(sources, "sample_key_id", "source_key"),
        "scene_id": tables.strings(sources, "scene_id", "scene"),
        "snippet_id": tables.strings(sources, "snippet_id", "snippet"),
        "split": tables.strings(sources, "split_id", "split"),
        "source_shard_id": tables.strings(sources, "source_shard_id", "source_shard"),
    }
    rows = [
        {
            "source_row_id": int(sources["source_row_id"][row]),
            "source_sample_index": int(sources["sample_index"][row]),
            "source_shard_row": int(sources["source_shard_row"][row]),
            **{name: values[row] for name, values in names.items()},
        }
        for row in range(len(sources["source_row_id"]))
    ]
    return {
        "num_source_rows": len(rows),
        "scene_counts": dict(Counter(names["scene_id"])),
        "split_counts": dict(Counter(names["split"])),
        "source_shard_counts": dict(Counter(names["source_shard_id"])),
        "sources": rows,
    }


def config_hashes(tables: SmallTables) -> dict[str, list[str]]:
    """Every config hash and policy that the rows of a store name, sorted."""
    return {
        "candidate": tables.distinct(tables.lineage, "candidate_config_id", "config"),
        "oracle": tables.distinct(tables.lineage, "oracle_config_id", "config"),
        "rollout": tables.distinct(tables.lineage, "rollout_config_id", "config"),
        "model_checkpoint": tables.distinct(tables.lineage, "model_checkpoint_id", "config"),
        "source_manifest": tables.distinct(tables.sources, "source_offline_store_manifest_hash_id", "config"),
        "split_manifest": tables.distinct(tables.sources, "split_manifest_hash_id", "config"),
        "target_crop_policy": tables.distinct(tables.targets, "target_crop_policy_id", "config"),
        "target_protocol": tables.distinct(tables.lineage, "target_protocol_version_id", "config"),
    }


def manifest_payload(
    root: Mapping[str, Any],
    counts: StoreCounts,
    tables: SmallTables,
    content_sha256: Mapping[str, str],
    stored_crc32c: Mapping[str, str],
    context: RolloutStoreManifestContext,
    store_kind: str,
) -> dict[str, Any]:
    """The manifest of a store."""
    return {
        "manifest_version": ROLLOUT_MANIFEST_VERSION,
        "schema_id": ROLLOUT_ZARR_SCHEMA_ID,
        "schema_version": ROLLOUT_ZARR_SCHEMA_VERSION,
        "created_at_utc": root["created_at_utc"],
        "store_kind": store_kind,
        "root_attrs": dict(root),
        "counts": vars(counts),
        "source_coverage": source_coverage(tables),
        "config_hashes": config_hashes(tables),
        "dictionary_sizes": {name: len(values) for name, values in tables.dictionaries.items()},
        "generation": context.to_jsonable(),
        "content_sha256": dict(content_sha256),
        "stored_crc32c": dict(stored_crc32c),
    }
