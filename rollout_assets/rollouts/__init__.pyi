"""Target-conditioned rollouts and their replay stores: the public surface."""

from rollout_assets.campaigns.dataset_writer import (
    RolloutDatasetWriter as RolloutDatasetWriter,
)
from rollout_assets.campaigns.dataset_writer import (
    RolloutDatasetWriterConfig as RolloutDatasetWriterConfig,
)
from rollout_assets.campaigns.layout import (
    ROLLOUT_SHARD_OWNER_FILENAME as ROLLOUT_SHARD_OWNER_FILENAME,
)
from rollout_assets.campaigns.layout import (
    ROLLOUT_SHARD_SUCCESS_FILENAME as ROLLOUT_SHARD_SUCCESS_FILENAME,
)
from rollout_assets.campaigns.layout import (
    CampaignLayout as CampaignLayout,
)
from rollout_assets.campaigns.plan_entry import (
    ROLLOUT_SHARD_MANIFEST_VERSION as ROLLOUT_SHARD_MANIFEST_VERSION,
)
from rollout_assets.campaigns.plan_entry import (
    RolloutShardEntry as RolloutShardEntry,
)
from rollout_assets.campaigns.plan_entry import (
    RolloutShardRow as RolloutShardRow,
)
from rollout_assets.campaigns.plan import (
    plan_rollout_shards as plan_rollout_shards,
)
from rollout_assets.campaigns.plan import (
    read_rollout_shard_manifest as read_rollout_shard_manifest,
)
from rollout_assets.campaigns.plan import (
    write_rollout_shard_manifest_from_config as write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.promotion import (
    PromotionResult as PromotionResult,
)
from rollout_assets.campaigns.promotion import (
    promote_rollout_campaign as promote_rollout_campaign,
)
from rollout_assets.campaigns.run import (
    CampaignRunResult as CampaignRunResult,
)
from rollout_assets.campaigns.run import (
    run_campaign as run_campaign,
)
from rollout_assets.campaigns.shard import (
    RolloutShardRunResult as RolloutShardRunResult,
)
from rollout_assets.campaigns.shard import (
    run_rollout_shard as run_rollout_shard,
)
from rollout_assets.campaigns.status import (
    RolloutShardCampaignStatus as RolloutShardCampaignStatus,
)
from rollout_assets.campaigns.status import (
    RolloutShardStatus as RolloutShardStatus,
)
from rollout_assets.campaigns.status import (
    summarize_rollout_shard_campaign as summarize_rollout_shard_campaign,
)
from rollout_assets.campaigns.versions import (
    current_version as current_version,
)
from rollout_assets.campaigns.versions import (
    promoted_versions as promoted_versions,
)
from rollout_assets.campaigns.versions import (
    prune_promoted_versions as prune_promoted_versions,
)
from rollout_assets.campaigns.versions import (
    rollback_promotion as rollback_promotion,
)
from rollout_assets.campaigns.versions import (
    unpin_promotion as unpin_promotion,
)
from rollout_assets.config import (
    RolloutRecipeConfig as RolloutRecipeConfig,
)
from rollout_assets.config import (
    SelectedDepthRetentionConfig as SelectedDepthRetentionConfig,
)
from rollout_assets.inspection.audit import (
    candidate_audit_rows as candidate_audit_rows,
)
from rollout_assets.inspection.audit import (
    target_audit_rows as target_audit_rows,
)
from rollout_assets.inspection.decode import (
    decode_invalid_reason as decode_invalid_reason,
)
from rollout_assets.inspection.decode import (
    decode_position_id as decode_position_id,
)
from rollout_assets.inspection.decode import (
    decode_strategy_id as decode_strategy_id,
)
from rollout_assets.inspection.decode import (
    decode_target_invalid_reason as decode_target_invalid_reason,
)
from rollout_assets.inspection.depth import (
    selected_depth_preview as selected_depth_preview,
)
from rollout_assets.inspection.depth import (
    selected_depth_summary_rows as selected_depth_summary_rows,
)
from rollout_assets.inspection.diff import (
    StoreDiff as StoreDiff,
)
from rollout_assets.inspection.diff import (
    diff_stores as diff_stores,
)
from rollout_assets.inspection.explain import (
    Explanation as Explanation,
)
from rollout_assets.inspection.explain import (
    explain as explain,
)
from rollout_assets.inspection.inventory import (
    discover_rollout_store_paths as discover_rollout_store_paths,
)
from rollout_assets.inspection.inventory import (
    rollout_store_inventory_rows as rollout_store_inventory_rows,
)
from rollout_assets.inspection.objectives import rollout_step_objective_rows as rollout_step_objective_rows
from rollout_assets.inspection.readiness import (
    ReadinessConfig as ReadinessConfig,
)
from rollout_assets.inspection.readiness import (
    TrainingReadiness as TrainingReadiness,
)
from rollout_assets.inspection.readiness import (
    training_readiness as training_readiness,
)
from rollout_assets.inspection.replay import (
    Replay as Replay,
)
from rollout_assets.inspection.replay import (
    replay as replay,
)
from rollout_assets.inspection.replay import (
    replay_sources as replay_sources,
)
from rollout_assets.inspection.second_opinion import (
    second_opinion as second_opinion,
)
from rollout_assets.inspection.stored_opinion import (
    SecondOpinion as SecondOpinion,
)
from rollout_assets.inspection.summary import (
    candidate_group_summary_rows as candidate_group_summary_rows,
)
from rollout_assets.inspection.summary import (
    candidate_result_diagnostic_counts as candidate_result_diagnostic_counts,
)
from rollout_assets.inspection.summary import (
    rollout_tree_summary_rows as rollout_tree_summary_rows,
)
from rollout_assets.inspection.summary import (
    validity_waterfall_rows as validity_waterfall_rows,
)
from rollout_assets.config.sections import (
    RolloutSuspiciousQueryConfig as RolloutSuspiciousQueryConfig,
)
from rollout_assets.inspection.suspicious import (
    suspicious_rollout_rows as suspicious_rollout_rows,
)
from rollout_assets.rollouts.generator import (
    RolloutDatasetWriterStats as RolloutDatasetWriterStats,
)
from rollout_assets.rollouts.generator import (
    RolloutGenerator as RolloutGenerator,
)
from rollout_assets.rollouts.manager import (
    AsyncGymRolloutImpl as AsyncGymRolloutImpl,
)
from rollout_assets.rollouts.manager import (
    AsyncRolloutImpl as AsyncRolloutImpl,
)
from rollout_assets.rollouts.manager import (
    BatchLimits as BatchLimits,
)
from rollout_assets.rollouts.manager import (
    GymServerConfig as GymServerConfig,
)
from rollout_assets.rollouts.manager import (
    RolloutCompletion as RolloutCompletion,
)
from rollout_assets.rollouts.manager import (
    RolloutGroupRecord as RolloutGroupRecord,
)
from rollout_assets.rollouts.manager import (
    RolloutManager as RolloutManager,
)
from rollout_assets.rollouts.target_sources import RolloutTargetSource as RolloutTargetSource
from rollout_assets.candidates.reasons import (
    INVALID_REASON_CODES as INVALID_REASON_CODES,
)
from rollout_assets.candidates.reasons import (
    INVALID_REASON_VERSION as INVALID_REASON_VERSION,
)
from rollout_assets.rollouts.trace import (
    RolloutLineage as RolloutLineage,
)
from rollout_assets.rollouts.trace import (
    RolloutZarrRecord as RolloutZarrRecord,
)
from rollout_assets.rollouts.zarr_store import (
    DEFAULT_RETURN_SEMANTICS as DEFAULT_RETURN_SEMANTICS,
)
from rollout_assets.rollouts.zarr_store import (
    ROLLOUT_ZARR_SCHEMA_ID as ROLLOUT_ZARR_SCHEMA_ID,
)
from rollout_assets.rollouts.zarr_store import (
    ROLLOUT_ZARR_SCHEMA_VERSION as ROLLOUT_ZARR_SCHEMA_VERSION,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig as RolloutZarrStoreConfig,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreReader as RolloutZarrStoreReader,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrValidationResult as RolloutZarrValidationResult,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrWriteResult as RolloutZarrWriteResult,
)
from rollout_assets.rollouts.zarr_store import (
    validate_rollout_zarr_store as validate_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store import (
    write_rollout_zarr_store as write_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.manifest import (
    ROLLOUT_MANIFEST_FILENAME as ROLLOUT_MANIFEST_FILENAME,
)
from rollout_assets.rollouts.zarr_store.manifest import (
    ROLLOUT_MANIFEST_VERSION as ROLLOUT_MANIFEST_VERSION,
)
from rollout_assets.rollouts.zarr_store.manifest import (
    RolloutStoreInvocation as RolloutStoreInvocation,
)
from rollout_assets.rollouts.zarr_store.manifest import (
    RolloutStoreManifestContext as RolloutStoreManifestContext,
)
