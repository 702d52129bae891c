"""Target-conditioned rollouts and their replay stores: the public surface, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "batching": ("BatchLimits",),
    "dataset_writer": (
        "RolloutDatasetWriter",
        "RolloutDatasetWriterConfig",
        "RolloutDatasetWriterStats",
        "RolloutGenerator",
        "SelectedDepthRetentionConfig",
    ),
    "campaign_layout": ("CampaignLayout", "ROLLOUT_SHARD_OWNER_FILENAME", "ROLLOUT_SHARD_SUCCESS_FILENAME"),
    "campaign_run": ("CampaignRunResult", "run_campaign"),
    "inspection.audit": ("candidate_audit_rows", "target_audit_rows"),
    "inspection.decode": (
        "decode_invalid_reason",
        "decode_position_id",
        "decode_strategy_id",
        "decode_target_invalid_reason",
    ),
    "inspection.depth": ("selected_depth_preview", "selected_depth_summary_rows"),
    "inspection.diff": ("StoreDiff", "diff_stores"),
    "inspection.explain": ("Explanation", "explain"),
    "inspection.inventory": ("discover_rollout_store_paths", "rollout_store_inventory_rows"),
    "inspection.objectives": ("rollout_step_objective_rows",),
    "inspection.readiness": ("ReadinessConfig", "TrainingReadiness", "training_readiness"),
    "inspection.replay": ("Replay", "replay", "replay_sources"),
    "inspection.second_opinion": ("SecondOpinion", "second_opinion"),
    "inspection.summary": (
        "candidate_group_summary_rows",
        "candidate_result_diagnostic_counts",
        "rollout_tree_summary_rows",
        "validity_waterfall_rows",
    ),
    "inspection.suspicious": ("RolloutSuspiciousQueryConfig", "suspicious_rollout_rows"),
    "manager": (
        "AsyncGymRolloutImpl",
        "AsyncRolloutImpl",
        "GymServerConfig",
        "RolloutCompletion",
        "RolloutGroupRecord",
        "RolloutManager",
    ),
    "manifest": (
        "ROLLOUT_MANIFEST_FILENAME",
        "ROLLOUT_MANIFEST_VERSION",
        "RolloutStoreInvocation",
        "RolloutStoreManifestContext",
    ),
    "recipes": ("RolloutRecipeConfig",),
    "roots": ("RolloutTargetSource",),
    "promotion_versions": ("current_version", "promoted_versions", "prune_promoted_versions", "rollback_promotion"),
    "promotion": ("PromotionResult", "promote_rollout_campaign"),
    "shard_manifest": (
        "ROLLOUT_SHARD_MANIFEST_VERSION",
        "RolloutShardEntry",
        "RolloutShardRow",
        "plan_rollout_shards",
        "read_rollout_shard_manifest",
        "write_rollout_shard_manifest_from_config",
    ),
    "shard_status": ("RolloutShardCampaignStatus", "RolloutShardStatus", "summarize_rollout_shard_campaign"),
    "shards": ("RolloutShardRunResult", "run_rollout_shard"),
    "trace": ("INVALID_REASON_CODES", "INVALID_REASON_VERSION", "RolloutLineage", "RolloutZarrRecord"),
    "zarr_store": (
        "DEFAULT_RETURN_SEMANTICS",
        "ROLLOUT_ZARR_SCHEMA_ID",
        "ROLLOUT_ZARR_SCHEMA_VERSION",
        "RolloutZarrStoreConfig",
        "RolloutZarrStoreReader",
        "RolloutZarrValidationResult",
        "RolloutZarrWriteResult",
        "validate_rollout_zarr_store",
        "write_rollout_zarr_store",
    ),
}
"""Module -> the names it gives to this package."""

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
