"""The reader that users open: tables, the training view, typed records and validation of one store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import ConfigError, StoreError
from rollout_assets.rollouts.zarr_store.attributes import dead_ends_in_view
from rollout_assets.rollouts.zarr_store.foreign.origin import Profile
from rollout_assets.rollouts.zarr_store.foreign.schema_versions import schema_problem
from rollout_assets.rollouts.zarr_store.open_store import OpenStore, StoreLocation
from rollout_assets.rollouts.zarr_store.records import StoredRollout, StoredStep, read_rollout, read_step
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, Q_H, ROLLOUTS, STEPS
from rollout_assets.rollouts.zarr_store.training_view import (
    CANDIDATE_COLUMNS,
    ROLLOUT_COLUMNS,
    STEP_COLUMNS,
    StateIndex,
    build_view,
)
from rollout_assets.rollouts.zarr_store.validation import RolloutZarrValidationResult, validate_files

_VIEW_BLOCK_ROWS = 1 << 20


class RolloutZarrStoreReader(OpenStore):
    """Open and validate standalone rollout replay stores; one of another schema or version is a ``StoreError``."""

    def __init__(self, store_dir: StoreLocation) -> None:
        super().__init__(store_dir)
        if problem := schema_problem(self.attributes):
            raise StoreError(f"{self.location}: is not a rollout store that this package reads: {problem}")

    def state_index(self) -> StateIndex:
        """Where each state's candidates lie, from the factual tables."""
        steps, rollouts = self.columns(STEPS, STEP_COLUMNS), self.columns(ROLLOUTS, ROLLOUT_COLUMNS)
        return StateIndex.build(steps, rollouts, dead_ends_in_view(self.attributes))

    def q_h_view(self, *, discount_gamma: float | None = None) -> dict[str, NDArray[Any]]:
        """The padded training view: as persisted, or rebuilt from the factual tables for another discount."""
        if discount_gamma is None:
            return self.columns(Q_H)
        blocks = list(self.rebuilt_view(discount_gamma))
        if not blocks:
            return self.columns(Q_H)
        return {name: np.concatenate([block[name] for block in blocks]) for name in Q_H.names}

    def rebuilt_view(self, discount_gamma: float) -> Iterator[dict[str, NDArray[Any]]]:
        """The view derived from the factual tables, in blocks of states; a discount is from 0 to 1."""
        if not isinstance(discount_gamma, float | int) or not 0 <= discount_gamma <= 1:
            raise ConfigError(f"discount_gamma must be a number from 0 to 1, got {discount_gamma!r}")
        index = self.state_index()
        for start, stop in index.blocks(_VIEW_BLOCK_ROWS):
            rows = index.rows(start, stop)
            candidates = self.columns(CANDIDATES, CANDIDATE_COLUMNS, rows.start, rows.stop)
            yield build_view(index, candidates, start, stop, discount_gamma)

    def rollout(self, rollout_row_id: int) -> StoredRollout:
        """One kept chain with its lineage, as the engine made it."""
        return read_rollout(self, rollout_row_id)

    def step(self, step_row_id: int) -> StoredStep:
        """One decision with its whole shell, as the engine made it."""
        return read_step(self, step_row_id)

    def validate(self, *, deep: bool = False, profile: Profile | None = None) -> RolloutZarrValidationResult:
        """Check the store against the schema and itself; see ``validate_rollout_zarr_store``."""
        return validate_files(self.files, self.location, deep, profile)
