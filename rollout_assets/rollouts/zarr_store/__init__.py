"""Standalone Zarr replay store for finite-candidate rollout traces.

A store holds compact row tables for rollout chains, steps, full-shell candidates, VIN source rows, lineage and targets,
and the derived dense training view ``q_h``. Writer, reader and validator work from one schema object.
"""

from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.records import StoredRollout, StoredStep
from rollout_assets.rollouts.zarr_store.schema import (
    DEFAULT_RETURN_SEMANTICS,
    ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION,
)
from rollout_assets.rollouts.zarr_store.validation import RolloutZarrValidationResult, validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.writer import RolloutZarrStoreWriter, RolloutZarrWriteResult

__all__ = [
    "DEFAULT_RETURN_SEMANTICS",
    "ROLLOUT_ZARR_SCHEMA_ID",
    "ROLLOUT_ZARR_SCHEMA_VERSION",
    "RolloutZarrStoreConfig",
    "RolloutZarrStoreReader",
    "RolloutZarrStoreWriter",
    "RolloutZarrValidationResult",
    "RolloutZarrWriteResult",
    "StoredRollout",
    "StoredStep",
    "validate_rollout_zarr_store",
    "write_rollout_zarr_store",
]
