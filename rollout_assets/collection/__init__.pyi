"""Batch collection: many rollouts, here or on a server, one JSON line each; and their aggregation."""

from rollout_assets.collection.agents import (
    LocalAgent as LocalAgent,
)
from rollout_assets.collection.agents import (
    RemoteAgent as RemoteAgent,
)
from rollout_assets.collection.aggregation import (
    AggregationReport as AggregationReport,
)
from rollout_assets.collection.aggregation import (
    RolloutAggregationHelper as RolloutAggregationHelper,
)
from rollout_assets.collection.aggregation import (
    aggregate_file as aggregate_file,
)
from rollout_assets.collection.aggregation import (
    aggregate_rollouts as aggregate_rollouts,
)
from rollout_assets.collection.campaign_inputs import (
    CampaignInputs as CampaignInputs,
)
from rollout_assets.collection.campaign_inputs import (
    PreparedInputs as PreparedInputs,
)
from rollout_assets.collection.collector import (
    RolloutCollectionHelper as RolloutCollectionHelper,
)
from rollout_assets.collection.collector import (
    collect_rollouts as collect_rollouts,
)
from rollout_assets.collection.configs import (
    E2ERolloutCollectionConfig as E2ERolloutCollectionConfig,
)
from rollout_assets.collection.configs import (
    RolloutAggregationConfig as RolloutAggregationConfig,
)
from rollout_assets.collection.configs import (
    RolloutCollectionConfig as RolloutCollectionConfig,
)
from rollout_assets.collection.configs import (
    SharedRolloutCollectionConfig as SharedRolloutCollectionConfig,
)
from rollout_assets.collection.coverage import (
    CollectionReport as CollectionReport,
)
from rollout_assets.collection.coverage import (
    Coverage as Coverage,
)
from rollout_assets.collection.e2e import (
    E2EReport as E2EReport,
)
from rollout_assets.collection.e2e import (
    collect_end_to_end as collect_end_to_end,
)
from rollout_assets.collection.failures import (
    RolloutFailure as RolloutFailure,
)
from rollout_assets.collection.failures import (
    _rollout_request_debug_summary as _rollout_request_debug_summary,
)
from rollout_assets.collection.in_flight import (
    Outcome as Outcome,
)
from rollout_assets.collection.in_flight import (
    RolloutAgent as RolloutAgent,
)
from rollout_assets.collection.result_files import (
    _expand_input_glob as _expand_input_glob,
)
from rollout_assets.collection.result_files import (
    collected_files as collected_files,
)
from rollout_assets.metrics.results import (
    MetricOptions as MetricOptions,
)
from rollout_assets.metrics.results import (
    aggregate_results as aggregate_results,
)
from rollout_assets.serving.service import RolloutService as RolloutService
