from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig as RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store as write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader as RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.records import StoredRollout as StoredRollout, StoredStep as StoredStep
from rollout_assets.rollouts.zarr_store.schema import (
    DEFAULT_RETURN_SEMANTICS as DEFAULT_RETURN_SEMANTICS,
    ROLLOUT_ZARR_SCHEMA_ID as ROLLOUT_ZARR_SCHEMA_ID,
    ROLLOUT_ZARR_SCHEMA_VERSION as ROLLOUT_ZARR_SCHEMA_VERSION,
)
from rollout_assets.rollouts.zarr_store.validation import (
    RolloutZarrValidationResult as RolloutZarrValidationResult,
    validate_rollout_zarr_store as validate_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.writer import (
    RolloutZarrStoreWriter as RolloutZarrStoreWriter,
    RolloutZarrWriteResult as RolloutZarrWriteResult,
)
