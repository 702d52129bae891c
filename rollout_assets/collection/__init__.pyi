"""Batch collection: many rollouts, here or on a server, one JSON line each; and their aggregation."""

from rollout_assets.collection.agents import LocalAgent as LocalAgent, RemoteAgent as RemoteAgent
from rollout_assets.collection.aggregation import (
    AggregationReport as AggregationReport,
    RolloutAggregationHelper as RolloutAggregationHelper,
    aggregate_file as aggregate_file,
    aggregate_rollouts as aggregate_rollouts,
)
from rollout_assets.collection.campaign_inputs import CampaignInputs as CampaignInputs, PreparedInputs as PreparedInputs
from rollout_assets.collection.collector import (
    RolloutCollectionHelper as RolloutCollectionHelper,
    collect_rollouts as collect_rollouts,
)
from rollout_assets.collection.configs import (
    E2ERolloutCollectionConfig as E2ERolloutCollectionConfig,
    RolloutAggregationConfig as RolloutAggregationConfig,
    RolloutCollectionConfig as RolloutCollectionConfig,
    SharedRolloutCollectionConfig as SharedRolloutCollectionConfig,
)
from rollout_assets.collection.coverage import CollectionReport as CollectionReport, Coverage as Coverage
from rollout_assets.collection.e2e import E2EReport as E2EReport, collect_end_to_end as collect_end_to_end
from rollout_assets.collection.failures import _rollout_request_debug_summary as _rollout_request_debug_summary
from rollout_assets.collection.in_flight import Outcome as Outcome, RolloutAgent as RolloutAgent
from rollout_assets.collection.result_files import (
    _expand_input_glob as _expand_input_glob,
    collected_files as collected_files,
)
from rollout_assets.metrics.results import MetricOptions as MetricOptions, aggregate_results as aggregate_results
from rollout_assets.serving.service import RolloutService as RolloutService
