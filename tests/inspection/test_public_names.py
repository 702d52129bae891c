"""Every name that the research code's ``rollouts`` package exports can be imported from ours."""

import pytest

import rollout_assets.rollouts

EXPORTED = """
ROLLOUT_MANIFEST_FILENAME ROLLOUT_MANIFEST_VERSION ROLLOUT_SHARD_MANIFEST_VERSION ROLLOUT_SHARD_OWNER_FILENAME
ROLLOUT_SHARD_SUCCESS_FILENAME INVALID_REASON_CODES INVALID_REASON_VERSION DEFAULT_RETURN_SEMANTICS
ROLLOUT_ZARR_SCHEMA_ID ROLLOUT_ZARR_SCHEMA_VERSION
RolloutDatasetWriter RolloutDatasetWriterConfig RolloutDatasetWriterStats RolloutRecipeConfig RolloutTargetSource
SelectedDepthRetentionConfig RolloutSuspiciousQueryConfig RolloutStoreInvocation RolloutStoreManifestContext
RolloutShardEntry RolloutShardRow RolloutShardCampaignStatus RolloutShardRunResult RolloutShardStatus RolloutLineage
RolloutZarrRecord RolloutZarrStoreConfig RolloutZarrStoreReader RolloutZarrValidationResult RolloutZarrWriteResult
candidate_audit_rows candidate_group_summary_rows candidate_result_diagnostic_counts decode_invalid_reason
decode_position_id decode_strategy_id decode_target_invalid_reason discover_rollout_store_paths
rollout_step_objective_rows rollout_store_inventory_rows rollout_tree_summary_rows selected_depth_preview
selected_depth_summary_rows suspicious_rollout_rows target_audit_rows validity_waterfall_rows plan_rollout_shards
run_rollout_shard summarize_rollout_shard_campaign write_rollout_shard_manifest_from_config
validate_rollout_zarr_store write_rollout_zarr_store
"""

NAMES = EXPORTED.split()


@pytest.mark.parametrize("name", NAMES)
def test_is_importable(name: str) -> None:
    assert getattr(rollout_assets.rollouts, name) is not None
    assert name in dir(rollout_assets.rollouts)


@pytest.mark.parametrize("name", rollout_assets.rollouts.__all__)
def test_everything_in_the_table_is_there(name: str) -> None:
    assert getattr(rollout_assets.rollouts, name) is not None
