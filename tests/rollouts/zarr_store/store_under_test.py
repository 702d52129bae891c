"""Records and layout of one small store with everything in it, and a copy that can be damaged and put back."""

from __future__ import annotations

import json
from pathlib import Path

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.files import tree_folders, tree_status
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig
from rollout_assets.testing.fake_records import SyntheticRecords

HEIGHT, WIDTH = 10, 12

RECORDS = SyntheticRecords(
    sources=5, targets=2, horizon=3, shell=(3, 16), depth_hw=(HEIGHT, WIDTH), scene_labels=True, seed=3
)
"""Varying shells, dead ends, records without chains, targets without labels, scene labels and depth."""

CONFIG = RolloutZarrStoreConfig(
    discount_gamma=0.9,
    chunk_rows=500,
    chunks_per_shard=2,
    chunk_states=40,
    states_per_shard=80,
    selected_depth=SelectedDepthRetentionConfig(width_px=WIDTH, height_px=HEIGHT, chunk_steps=25),
    depth_chunks_per_shard=3,
)
"""Several chunks and shards of everything, small enough to be quick."""

CREATED = "2026-01-02T03:04:05Z"


class Mutable:
    """A copy of a store that can be put back as it was after each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folders = tree_folders(path)
        self._stamps = self._stamped()
        self.original = {key: (path / key).read_bytes() for key in sorted(self._stamps)}

    def _stamped(self) -> dict[str, tuple[int, int]]:
        return {key: (found.st_mtime_ns, found.st_size) for key, found in tree_status(self.path).items()}

    def files(self) -> list[str]:
        """Every file, as a key."""
        return sorted(tree_status(self.path))

    def arrays(self) -> list[str]:
        """Every array path."""
        nodes = json.loads(self.original["zarr.json"])["consolidated_metadata"]["metadata"]
        return sorted(path for path, node in nodes.items() if node["node_type"] == "array")

    def restore(self) -> None:
        """Undo everything."""
        files = self._stamped()
        for key in files.keys() - self.original.keys():
            (self.path / key).unlink()
        for folder in sorted(tree_folders(self.path) - self._folders, reverse=True):
            (self.path / folder).rmdir()
        for key, data in self.original.items():
            if files.get(key) != self._stamps[key]:
                file = self.path / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
                found = file.stat()
                self._stamps[key] = found.st_mtime_ns, found.st_size
