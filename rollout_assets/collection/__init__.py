"""Batch collection: many rollouts, here or on a server, one JSON line each; their aggregation; and the server."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "agents": ("LocalAgent", "RemoteAgent"),
    "aggregation": ("AggregationReport", "RolloutAggregationHelper", "aggregate_file", "aggregate_rollouts"),
    "attempts": ("Outcome", "RolloutAgent"),
    "campaign_inputs": ("CampaignInputs", "PreparedInputs"),
    "collector": ("RolloutCollectionHelper", "collect_rollouts"),
    "configs": (
        "E2ERolloutCollectionConfig",
        "RolloutAggregationConfig",
        "RolloutCollectionConfig",
        "SharedRolloutCollectionConfig",
    ),
    "coverage": ("CollectionReport", "Coverage"),
    "e2e": ("E2EReport", "collect_end_to_end"),
    "failures": ("RolloutFailure", "_rollout_request_debug_summary"),
    "metrics": ("MetricOptions", "aggregate_results"),
    "result_files": ("_expand_input_glob", "collected_files"),
    "service": ("RolloutService",),
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
