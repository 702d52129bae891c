"""The one place where code is imported late: what a step computes is loaded when the step first runs.

Zarr, Polars and Warp take as long to import as Dagster and all definitions together, and every process of Dagster
loads the definitions: the UI, the daemon, each code server and each run.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load(path: str) -> Any:
    """A function of ``defs`` by its path, for example ``assets.shards.rollout_shards``."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"rollout_assets.defs.{module}"), name)
