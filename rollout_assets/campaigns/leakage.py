"""The leakage gate: what a policy trains on must not be what it is judged on. The campaign's splits are judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rollout_assets.campaigns.markers import ShardOwner
from rollout_assets.campaigns.plan import RolloutShardEntry

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


def leaking_scenes(entries: Iterable[RolloutShardEntry]) -> tuple[str, ...]:
    """Scenes that are planned in more than one split, which promotion will refuse."""
    splits: dict[str, set[str]] = {}
    for entry in entries:
        for row in entry.rows:
            splits.setdefault(row.scene_id, set()).add(row.split)
    return tuple(sorted(scene for scene, of_scene in splits.items() if len(of_scene) > 1))


def _places(places: dict[str, str]) -> str:
    return ", ".join(f"{split} ({place})" for split, place in sorted(places.items()))
