"""Replay data for next-best-view learning: what a user needs, by one import."""

from rollout_assets.campaigns.plan import (
    plan_rollout_shards as plan_rollout_shards,
    write_rollout_shard_manifest_from_config as write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.promotion import (
    PromotionResult as PromotionResult,
    promote_rollout_campaign as promote_rollout_campaign,
)
from rollout_assets.campaigns.run import CampaignRunResult as CampaignRunResult, run_campaign as run_campaign
from rollout_assets.campaigns.status import (
    RolloutShardCampaignStatus as RolloutShardCampaignStatus,
    summarize_rollout_shard_campaign as summarize_rollout_shard_campaign,
)
from rollout_assets.config import CampaignConfig as CampaignConfig, load_campaign as load_campaign
from rollout_assets.config.observation import ObservationConfig as ObservationConfig
from rollout_assets.config.training import TrainingConfig as TrainingConfig, load_training as load_training
from rollout_assets.errors import (
    CampaignError as CampaignError,
    CollectionError as CollectionError,
    ConfigError as ConfigError,
    RolloutAssetsError as RolloutAssetsError,
    SourceError as SourceError,
    StoreError as StoreError,
)
from rollout_assets.evaluation import (
    EvaluationConfig as EvaluationConfig,
    PolicyEvaluation as PolicyEvaluation,
    PolicyVerdict as PolicyVerdict,
    compare_to_accepted as compare_to_accepted,
    evaluate_policies as evaluate_policies,
    read_evaluation as read_evaluation,
)
from rollout_assets.learning import (
    DepthHistory as DepthHistory,
    ObservationSource as ObservationSource,
    QHBatch as QHBatch,
    QHDataset as QHDataset,
    QHIterableDataset as QHIterableDataset,
    QHLoader as QHLoader,
    load_policy as load_policy,
    train_policy as train_policy,
)
from rollout_assets.observations.observation import Observations as Observations
from rollout_assets.rollouts.manager import (
    RolloutCompletion as RolloutCompletion,
    RolloutGroupRecord as RolloutGroupRecord,
    RolloutManager as RolloutManager,
)
from rollout_assets.rollouts.trace import RolloutLineage as RolloutLineage, RolloutZarrRecord as RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreReader as RolloutZarrStoreReader,
    RolloutZarrValidationResult as RolloutZarrValidationResult,
    validate_rollout_zarr_store as validate_rollout_zarr_store,
    write_rollout_zarr_store as write_rollout_zarr_store,
)
from rollout_assets.sources.vin_store import VinOfflineStore as VinOfflineStore

__version__: str
