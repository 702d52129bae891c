"""What the actor knew at stored states, from a rollout store and the source it was made from.

Only actor columns are read: of the store neither labels nor what was measured on the mesh, of the source only the
actor's half. Clouds grow along a chain, one view at a time, and chains of one target that begin with the same views
share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.geometry.poses import Float32
from rollout_assets.learning.observable import COLUMNS_READ, read_columns, require_observable, require_source_of
from rollout_assets.observations.assemble import ObservedState, ObservedTarget, observe
from rollout_assets.observations.cloud import TakenView, TargetCloud
from rollout_assets.observations.observation import MOTION_COLUMNS, Arrays, Observations, stacked
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCES,
    STEPS,
    TARGETS,
)
from rollout_assets.sources.sample import VinActor
from rollout_assets.sources.vin_store import VinOfflineStore

BLOCK_STEPS = 64
"""Steps whose depth images are decoded together."""

_KEPT_ACTORS = 2
_KEPT_CLOUDS = 64

_Rows = dict[str, NDArray[Any]]

_CloudKey = tuple[tuple[bytes, int], ...]
"""Pose and checksum of the depth of every view taken since the root."""


class ObservedStates:
    """The states of one store as the actor knew them; ``source`` must be the store that its rollouts began from.

    A store without what is needed, and a source that is not the store's, are refused when this is made; ``check=False``
    is for a process whose parent did so already.
    """

    def __init__(
        self, reader: RolloutZarrStoreReader, source: VinOfflineStore, config: ObservationConfig, *, check: bool = True
    ) -> None:
        if check:
            require_observable(reader)
            require_source_of(reader, source)
        self.config = config
        self._reader = reader
        self._source = source
        self._shell_ends: NDArray[np.int64] = np.cumsum(reader.array(STEPS.path("num_candidates")), dtype=np.int64)
        self._class_names = reader.strings(str(TARGETS["target_class_name_id"].dictionary))
        self._keys = reader.strings(str(SOURCES["sample_key_id"].dictionary))
        self._actors: LRUCache[int, VinActor] = LRUCache(_KEPT_ACTORS)
        self._targets: LRUCache[int, ObservedTarget] = LRUCache(_KEPT_CLOUDS)
        self._clouds: LRUCache[tuple[int, int, _CloudKey], TargetCloud] = LRUCache(_KEPT_CLOUDS)

    def observations(
        self, step_row_ids: Sequence[int] | NDArray[np.int64], width: int | None = None
    ) -> Observations[Arrays]:
        """Observations of some steps, in the given order, ``width`` candidates wide (the store's widest by default)."""
        rows = self._checked(step_row_ids)
        widest = int(self._reader.attribute("q_h_max_candidates"))
        order = np.argsort(rows, kind="stable")
        parts = [self._observe(block, width or widest) for block in np.split(rows[order], self._cuts(rows[order]))]
        together = stacked(parts)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return together.mapped(lambda values: values[back])

    def states(self, step_row_ids: Sequence[int] | NDArray[np.int64]) -> Iterator[ObservedState]:
        """What the actor knew at some steps, given in ascending order."""
        rows = self._checked(step_row_ids)
        for block in np.split(rows, self._cuts(rows)):
            yield from self._states(block)

    def _observe(self, rows: NDArray[np.int64], width: int) -> Observations[Arrays]:
        return observe(list(self._states(rows)), self.config, width)

    def _checked(self, step_row_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        rows = np.asarray(step_row_ids, np.int64)
        beyond = rows[(rows < 0) | (rows >= len(self._shell_ends))]
        if not len(rows) or len(beyond):
            got = f"step {beyond[0]}" if len(beyond) else "no step at all"
            raise StoreError(f"{self._reader.location}: has steps 0 to {len(self._shell_ends) - 1}, got {got}")
        return rows

    def _cuts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where ascending rows are divided so that no part spans many more than ``BLOCK_STEPS`` steps."""
        blocks = rows // BLOCK_STEPS
        return np.flatnonzero(np.diff(blocks)) + 1

    def _states(self, rows: NDArray[np.int64]) -> Iterator[ObservedState]:
        """States of ascending rows that lie close together; the steps before them in their chains are read too."""
        block = _Block.read(self._reader, int(rows[0]), int(rows[-1]) + 1, self._shell_ends)
        for row in rows.tolist():
            yield self._state(block, row)

    def _state(self, block: _Block, row: int) -> ObservedState:
        source_row, target_row = block.owner(row)
        target, actor = self._target(target_row), self._actor(source_row)
        poses, position, takeable, motion = block.shell(row)
        chain = block.views(row)
        taken = np.concatenate([block.root_pose(row)[None], *(view.pose_world_camera[None] for view in chain)])
        self._require_root(actor, taken[0])
        return ObservedState(
            target=target,
            camera=actor.camera,
            cloud=self._cloud(actor, source_row, target_row, target, chain),
            poses_world_camera=poses,
            position_id=position,
            motion=motion,
            takeable=takeable,
            taken_world_camera=taken,
            steps_left=block.steps_left(row),
        )

    def _cloud(
        self, actor: VinActor, source_row: int, target_row: int, target: ObservedTarget, chain: Sequence[TakenView]
    ) -> TargetCloud:
        """The cloud after a chain's views: the longest beginning that is known, extended by the rest."""
        keys = [(view.pose_world_camera.tobytes(), crc32(view.depth_m.data)) for view in chain]
        cloud = self._root_cloud(actor, source_row, target_row, target)
        for taken, view in enumerate(chain, start=1):
            name = (source_row, target_row, tuple(keys[:taken]))
            grown = self._clouds.get(name)
            if grown is None:
                grown = self._clouds[name] = cloud.after([view])
            cloud = grown
        return cloud

    def _root_cloud(self, actor: VinActor, source_row: int, target_row: int, target: ObservedTarget) -> TargetCloud:
        name = (source_row, target_row, ())
        cloud = self._clouds.get(name)
        if cloud is None:
            cloud = TargetCloud.of(actor.points_world, target.pose_world_object, target.extents_m, self.config)
            self._clouds[name] = cloud
        return cloud

    def _target(self, target_row: int) -> ObservedTarget:
        if target_row not in self._targets:
            row = read_columns(self._reader, TARGETS, target_row, target_row + 1)
            name_id = int(row["target_class_name_id"][0])
            counts = ("target_semidense_support_count", "target_evl_support_count", "target_effective_support_count")
            semidense, evidence, effective = (float(row[name][0]) for name in counts)
            self._targets[target_row] = ObservedTarget(
                pose_world_object=row["target_pose_world_object"][0],
                extents_m=row["target_extents"][0],
                class_name="" if name_id == ABSENT else self._class_names[name_id],
                confidence=float(row["target_confidence"][0]),
                support=(semidense, evidence, effective),
            )
        return self._targets[target_row]

    def _actor(self, source_row: int) -> VinActor:
        if source_row not in self._actors:
            row = read_columns(self._reader, SOURCES, source_row, source_row + 1)
            self._actors[source_row] = self._source.actor(self._source.row(self._keys[int(row["sample_key_id"][0])]))
        return self._actors[source_row]

    def _require_root(self, actor: VinActor, root_pose: Float32) -> None:
        if actor.reference_pose_world_camera.tobytes() != root_pose.tobytes():
            raise StoreError(
                f"{self._reader.location}: rollouts of {actor.identity.sample_key} begin at another pose than the row "
                f"has in {self._source.location}; the row was changed after the rollouts were made, so make them again"
            )


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows ``first`` to ``stop`` of the steps, with all that belongs to them; ``first`` begins a chain."""

    first: int
    steps: _Rows
    rollouts: _Rows
    first_rollout: int
    shells: _Rows
    shell_ends: NDArray[np.int64]
    first_candidate: int
    depth: _Rows

    @classmethod
    def read(cls, reader: RolloutZarrStoreReader, start: int, stop: int, shell_ends: NDArray[np.int64]) -> _Block:
        """Steps ``start`` to ``stop`` and those before them in the chain of the first."""
        first = start - int(reader.array(STEPS.path("step_index"), start, start + 1)[0])
        steps = read_columns(reader, STEPS, first, stop)
        owners = steps["rollout_row_id"]
        if first < 0 or (np.diff(owners) < 0).any():
            raise StoreDamaged(STEPS.path("step_index"), f"the chain of step {start} is not whole")
        rollouts = int(owners[0]), int(owners[-1]) + 1
        candidates = int(shell_ends[first - 1]) if first else 0, int(shell_ends[stop - 1])
        return cls(
            first=first,
            steps=steps,
            rollouts=read_columns(reader, ROLLOUTS, *rollouts),
            first_rollout=rollouts[0],
            shells=read_columns(reader, CANDIDATES, *candidates)
            | read_columns(reader, CANDIDATE_DIAGNOSTICS, *candidates),
            shell_ends=shell_ends,
            first_candidate=candidates[0],
            # what the last step's own view shows is known only after it
            depth=read_columns(reader, SELECTED_DEPTH, first, stop - 1),
        )

    def owner(self, row: int) -> tuple[int, int]:
        """Source row and target row of a step."""
        rollout = self._rollout(row)
        return int(self.rollouts["source_row_id"][rollout]), int(self.rollouts["target_row_id"][rollout])

    def root_pose(self, row: int) -> Float32:
        """(12,) where the step's chain began."""
        pose: Float32 = self.rollouts["root_pose_world"][self._rollout(row)]
        return pose

    def steps_left(self, row: int) -> int:
        """Views that may be taken from this step on, its own included."""
        return int(self.rollouts["horizon"][self._rollout(row)]) - int(self.steps["step_index"][row - self.first])

    def shell(self, row: int) -> tuple[Float32, NDArray[np.int32], NDArray[np.bool_], Float32]:
        """Poses, position modes, takeable masks and motion of the views offered at a step."""
        begin = int(self.shell_ends[row - 1]) if row else 0
        rows = slice(begin - self.first_candidate, int(self.shell_ends[row]) - self.first_candidate)
        motion = np.stack([self.shells[name][rows] for name in MOTION_COLUMNS], axis=-1)
        poses, position, takeable = (self.shells[name][rows] for name in COLUMNS_READ[CANDIDATES.name])
        return poses, position, takeable, motion

    def views(self, row: int) -> list[TakenView]:
        """What the views taken before a step showed, first to last."""
        taken = int(self.steps["step_index"][row - self.first])
        return [self._view(at) for at in range(row - self.first - taken, row - self.first)]

    def _view(self, at: int) -> TakenView:
        candidate = int(self.steps["selected_candidate_row_id"][at]) - self.first_candidate
        return TakenView(
            pose_world_camera=self.shells["pose_world_cam"][candidate],
            depth_m=self.depth["depth_m"][at],
            valid_mask=self.depth["valid_mask"][at],
            focal_px=self.depth["focal_px"][at],
            principal_point_px=self.depth["principal_point_px"][at],
        )

    def _rollout(self, row: int) -> int:
        return int(self.steps["rollout_row_id"][row - self.first]) - self.first_rollout
