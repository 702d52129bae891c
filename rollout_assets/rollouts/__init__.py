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
    "manager": ("AsyncRolloutImpl", "RolloutCompletion", "RolloutGroupRecord", "RolloutManager"),
    "recipes": ("RolloutRecipeConfig",),
    "roots": ("RolloutTargetSource",),
    "promoted_versions": ("current_version", "promoted_versions", "prune_promoted_versions", "rollback_promotion"),
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
