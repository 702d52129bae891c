"""Replay data for next-best-view learning: what a user needs, by one import."""

from rollout_assets.campaigns.plan import plan_rollout_shards as plan_rollout_shards
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
from rollout_assets.campaigns.status import (
    RolloutShardCampaignStatus as RolloutShardCampaignStatus,
)
from rollout_assets.campaigns.status import (
    summarize_rollout_shard_campaign as summarize_rollout_shard_campaign,
)
from rollout_assets.config import (
    CampaignConfig as CampaignConfig,
)
from rollout_assets.config import (
    load_campaign as load_campaign,
)
from rollout_assets.errors import RolloutAssetsError as RolloutAssetsError
from rollout_assets.learning import (
    QHBatch as QHBatch,
)
from rollout_assets.learning import (
    QHDataset as QHDataset,
)
from rollout_assets.learning import (
    QHIterableDataset as QHIterableDataset,
)
from rollout_assets.learning import (
    QHLoader as QHLoader,
)
from rollout_assets.rollouts.manager import (
    RolloutGroupRecord as RolloutGroupRecord,
)
from rollout_assets.rollouts.manager import (
    RolloutManager as RolloutManager,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreReader as RolloutZarrStoreReader,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrValidationResult as RolloutZarrValidationResult,
)
from rollout_assets.rollouts.zarr_store import (
    validate_rollout_zarr_store as validate_rollout_zarr_store,
)
from rollout_assets.sources.vin_store import VinOfflineStore as VinOfflineStore

__version__: str
