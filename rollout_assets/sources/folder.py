"""The folder that a source store is read from: itself on a disk, or copies of what is needed of it behind a URL.

A store behind a URL costs five requests to open. The files of one of its shards are copied, and checked, when a row of
it is read first; a mesh when it is loaded. What lies there must not be changed while it is read: new rows are appended
as new shards, as on a disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rollout_assets.errors import SourceDamaged
from rollout_assets.locations.mirror import ObjectMirror
from rollout_assets.locations.url import Location, ObjectUrl, parse_location
from rollout_assets.sources import layout
from rollout_assets.sources.layout import ShardSpec
from rollout_assets.sources.snapshot import (
    METADATA_CHECKS,
    StoreSnapshot,
    read_snapshot,
    shard_problems,
    shards_hold_their_blocks,
)


class SourceFolder:
    """Where a source store lies, and the folder to read it from."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._mirror = ObjectMirror(location) if isinstance(location, ObjectUrl) else None
        self.root = location if isinstance(location, Path) else location.cache_dir
        self._present: set[str] = set()

    @classmethod
    def at(cls, location: str | Path) -> SourceFolder:
        """The folder of a path or a URL that somebody wrote."""
        place = parse_location(location)
        return cls(place.resolve() if isinstance(place, Path) else place)

    def snapshot(self) -> StoreSnapshot:
        """The store's metadata as it is now, checked; of a store behind a URL, its shards are checked when copied."""
        if self._mirror is None:
            return read_snapshot(self.root)
        self._copy_metadata(self._mirror)
        checks = tuple(check for check in METADATA_CHECKS if check is not shards_hold_their_blocks)
        return read_snapshot(self.root, checks)

    def whole(self) -> Path:
        """The folder with every file of the store in it."""
        return self.root if self._mirror is None else self._mirror.folder("")

    def shard(self, spec: ShardSpec, version: int, *, anew: bool = False) -> Path:
        """The folder of a shard with all its files; ``anew`` compares copies with the objects as they are now."""
        folder = self.root / spec.relative_dir
        if self._mirror is None or (spec.shard_id in self._present and not anew):
            return folder
        self._mirror.folder(spec.relative_dir)
        if problems := [f"{spec.shard_id}: {problem}" for problem in shard_problems(folder, spec, version)]:
            raise SourceDamaged(str(self.location), problems)
        self._present.add(spec.shard_id)
        return folder

    def copy_anew(self, spec: ShardSpec) -> None:
        """Copy every file of a shard again, if the store lies behind a URL."""
        if self._mirror is not None:
            self._mirror.folder(spec.relative_dir, anew=True)
            self._present.discard(spec.shard_id)

    @staticmethod
    def _copy_metadata(mirror: ObjectMirror) -> None:
        """The manifest first: an append replaces it last, so whatever is there beyond it can be left out."""
        for name in (layout.MANIFEST_FILE, layout.INDEX_FILE, *map(layout.split_file, layout.SPLIT_FILES)):
            mirror.file(name)


class MeshFolder:
    """Where scene meshes lie: a folder on a disk, or behind a URL, from which each mesh is copied when it is needed."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._mirror = ObjectMirror(location) if isinstance(location, ObjectUrl) else None
        self._found: dict[str, Path | None] = {}

    def file(self, name: str) -> Path | None:
        """The file of a name; None without one. Behind a URL it is requested once, and again if its copy changes."""
        if self._mirror is None:
            path = Path(self.location) / name
            return path if path.is_file() else None
        if name not in self._found or (self._found[name] is not None and not self._mirror.is_unaltered(name)):
            self._found[name] = self._mirror.file(name)
        return self._found[name]

    def copy_anew(self, name: str) -> None:
        """Copy a file again, if it lies behind a URL."""
        if self._mirror is not None:
            self._found[name] = self._mirror.file(name, anew=True)

    def names(self) -> Iterator[str]:
        """Names of all files, by one listing; none in a folder that is not there."""
        if self._mirror is not None:
            yield from (fact.key for fact in self._mirror.objects.listing())
            return
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.location) as entries:
            yield from (entry.name for entry in entries if entry.is_file())
