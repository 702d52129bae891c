"""The leakage gate: what a policy trains on must not be what it is judged on. The campaign's splits are judged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import ShardOwner, read_owner
from rollout_assets.campaigns.plan_entry import PlannedShards, RolloutShardEntry

BY_SCENE = '[split] mode = "by_scene" in the campaign puts every scene into one split'
"""The way out for a scene in several splits."""

_EXPLICIT = '[split] mode = "explicit" in the campaign can list scenes that share a mesh in one split'


@dataclass(frozen=True)
class Leak:
    """What is in more than one split, and what to do about it."""

    text: str
    way_out: str


def find_leaks(shards: Iterable[tuple[RolloutShardEntry, ShardOwner]]) -> Iterator[Leak]:
    """Every scene, and every mesh by its content hash, that is in more than one split."""
    scenes: dict[str, dict[str, str]] = {}
    meshes: dict[str, dict[str, str]] = {}
    owners: dict[str, set[str]] = {}
    for entry, owner in shards:
        for row in entry.rows:
            scenes.setdefault(row.scene_id, {}).setdefault(row.split, f"{entry.shard_id} {row.sample_key}")
        for scene, version in owner.mesh_versions.items():
            if version is not None:
                meshes.setdefault(version, {}).setdefault(entry.split, f"{entry.shard_id} scene {scene}")
                owners.setdefault(version, set()).add(scene)
    for scene, places in sorted(scenes.items()):
        if len(places) > 1:
            yield Leak(f"scene {scene} is in several splits: {_places(places)}", BY_SCENE)
    for version, places in sorted(meshes.items()):
        if len(places) > 1:
            way_out = BY_SCENE if len(owners[version]) == 1 else _EXPLICIT
            yield Leak(f"mesh {version[:12]} is in several splits: {_places(places)}", way_out)


def leaks_among(layout: CampaignLayout, survey: CampaignSurvey, numbers: Sequence[int]) -> Iterator[Leak]:
    """``find_leaks`` of finished shards by their numbers; their markers are read only if columns tell of a leak."""
    planned = survey.planned
    if _may_leak(survey, numbers):
        yield from find_leaks(
            (entry, read_owner(layout.shard(entry.shard_id))) for entry in (planned[number] for number in numbers)
        )


def _may_leak(survey: CampaignSurvey, numbers: Sequence[int]) -> bool:
    """Whether a scene or a mesh is in more than one split, or a shard is not in the columns."""
    columns, finished = survey.planned.columns, survey.finished
    chosen = np.zeros(len(columns), np.bool_)
    chosen[list(numbers)] = True
    if (finished.place[chosen] < 0).any():
        return True
    rows = chosen[columns.shard_of_row]
    if _in_several(np.stack([columns.scene[rows], columns.row_split[rows]], axis=1)):
        return True
    pairs = np.stack([finished.columns["meshes"][finished.place[chosen]], columns.split[chosen]], axis=1)
    splits: dict[str, set[int]] = {}
    for text, split in np.unique(pairs, axis=0).tolist():
        for version in json.loads(finished.texts["meshes"][text]).values():
            if version is not None:
                splits.setdefault(version, set()).add(split)
    return any(len(of_mesh) > 1 for of_mesh in splits.values())


def _in_several(pairs: NDArray[np.int32]) -> list[int]:
    """What stands first in more than one of some pairs (n, 2)."""
    first, times = np.unique(np.unique(pairs, axis=0)[:, 0], return_counts=True)
    return first[times > 1].tolist()


def leaking_scenes(planned: PlannedShards) -> tuple[str, ...]:
    """Scenes that are planned in more than one split, which promotion will refuse."""
    columns = planned.columns
    several = _in_several(np.stack([columns.scene, columns.row_split], axis=1))
    return tuple(sorted(columns.names["scenes"][scene] for scene in several))


def _places(places: dict[str, str]) -> str:
    return ", ".join(f"{split} ({place})" for split, place in sorted(places.items()))
