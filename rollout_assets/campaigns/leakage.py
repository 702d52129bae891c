"""The leakage gate: what a policy trains on must not be what it is judged on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollout_assets.campaigns.markers import ShardOwner
from rollout_assets.campaigns.plan import RolloutShardEntry


def find_leaks(shards: Iterable[tuple[RolloutShardEntry, ShardOwner]]) -> Iterator[str]:
    """Every scene, and every mesh by its content hash, that appears in more than one split."""
    scenes: dict[str, dict[str, str]] = {}
    meshes: dict[str, dict[str, str]] = {}
    for entry, owner in shards:
        for row in entry.rows:
            scenes.setdefault(row.scene_id, {}).setdefault(row.split, f"{entry.shard_id} {row.sample_key}")
        for scene, version in owner.mesh_versions.items():
            if version is not None:
                meshes.setdefault(version, {}).setdefault(entry.split, f"{entry.shard_id} scene {scene}")
    for scene, places in sorted(scenes.items()):
        if len(places) > 1:
            yield f"scene {scene} is in several splits: {_places(places)}"
    for version, places in sorted(meshes.items()):
        if len(places) > 1:
            yield f"mesh {version[:12]} is in several splits: {_places(places)}"


def _places(places: dict[str, str]) -> str:
    return ", ".join(f"{split} ({place})" for split, place in sorted(places.items()))
