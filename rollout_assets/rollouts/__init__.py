"""Target-conditioned rollouts and their replay stores: the public surface, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "batching": ("BatchLimits",),
    "dataset_writer": (
        "RolloutDatasetWriterConfig",
        "RolloutDatasetWriterStats",
        "RolloutGenerator",
        "SelectedDepthRetentionConfig",
    ),
    "manager": ("AsyncRolloutImpl", "RolloutCompletion", "RolloutGroupRecord", "RolloutManager"),
    "recipes": ("RolloutRecipeConfig",),
    "roots": ("RolloutTargetSource",),
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
