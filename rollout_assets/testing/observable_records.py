"""Fake rollout records that begin from the rows of a real source, so that what the actor knew can be told from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rollout_assets.geometry.poses import Float32, look_along, translation
from rollout_assets.rollouts.trace import RolloutChain, RolloutZarrRecord
from rollout_assets.sources.sample import VinActor
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.fake_records import SyntheticRecords


@dataclass(frozen=True)
class ObservableRecords:
    """``records``, with one source row for each of theirs, and their targets and views in its room."""

    source: VinOfflineStore
    records: SyntheticRecords

    def __iter__(self) -> Iterator[RolloutZarrRecord]:
        actor: VinActor | None = None
        for record in self.records:
            sample = record.lineage.source_sample_index or 0
            if actor is None or actor.identity.sample_index != sample:
                actor = self.source.actor(self.source.row(sample))
            yield self._in_room(record, actor)

    def _in_room(self, record: RolloutZarrRecord, actor: VinActor) -> RolloutZarrRecord:
        identity, rank = actor.identity, record.lineage.target_selection_rank or 0
        center = actor.points_world[(37 * rank) % len(actor.points_world)].astype(np.float64)
        lineage = replace(
            record.lineage,
            scene_id=identity.scene_id,
            snippet_id=identity.snippet_id,
            source_sample_key=identity.sample_key,
            source_shard_id=identity.shard_id,
            source_shard_row=identity.row,
            source_offline_store_manifest_hash=self.source.source_manifest_hash,
            target_id=f"{identity.scene_id}:{identity.snippet_id}:detected_obbs:sem=3:inst={rank}:idx={rank}",
            target_center_world=tuple(center.tolist()),
            target_pose_world_object=tuple(look_along(center, [1.0, 0.0, 0.0]).tolist()),
        )
        root = actor.reference_pose_world_camera
        shift = (translation(root) - translation(record.root.pose_world_camera)).astype(np.float32)
        chains = tuple(_shifted(chain, shift) for chain in record.chains)
        return replace(record, lineage=lineage, root=replace(record.root, pose_world_camera=root), chains=chains)


def _shifted(chain: RolloutChain, shift: Float32) -> RolloutChain:
    steps = []
    for step in chain.steps:
        poses = step.shell.pose_world_camera.copy()
        poses[:, 9:] += shift
        steps.append(replace(step, shell=replace(step.shell, pose_world_camera=poses)))
    return replace(chain, steps=tuple(steps))
