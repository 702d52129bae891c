"""The VIN offline store: read-only access to recorded snippets, one row at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Self

import msgpack
import numpy as np
import zarr
from numpy.typing import NDArray

from rollout_assets.config import SplitConfig
from rollout_assets.errors import NotRegularFile, SourceDamaged, SourceError, SourceRowMissing, is_fault
from rollout_assets.geometry.boxes import SEM_ID, is_padding, unpack_boxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import RIG_FROM_LUF, Float32, compose, finite_rigid
from rollout_assets.locations.url import Location
from rollout_assets.parsing import open_regular
from rollout_assets.sources import layout
from rollout_assets.sources.array_files import read_array_file
from rollout_assets.sources.folder import SourceFolder
from rollout_assets.sources.layout import IndexRow, ShardSpec
from rollout_assets.sources.mesh_digests import MeshDigests
from rollout_assets.sources.meshes import MeshLibrary
from rollout_assets.sources.sample import BoxSet, EvidencePoints, VinActor, VinSample, VinTruth, class_names_of
from rollout_assets.sources.scene_splits import scene_splits
from rollout_assets.sources.snapshot import StoreSnapshot, refuse_oversize
from rollout_assets.sources.versions import REFERENCE, SNIPPET, block_of
from rollout_assets.sources.zarr_files import RegularFileStore


class VinOfflineStore:
    """A store of a supported format version. Opening checks all metadata; ``sample`` reads only one row's chunks."""

    def __init__(
        self, folder: SourceFolder, snapshot: StoreSnapshot, meshes: MeshLibrary, splits: SplitConfig | None = None
    ) -> None:
        self._splits = splits or SplitConfig()
        self._folder = folder
        self._snapshot = self._assigned(snapshot)
        self._arrays: dict[tuple[str, str], zarr.Array[Any]] = {}
        self._lock = Lock()
        self.meshes = meshes

    @classmethod
    def open(
        cls,
        path: str | Path,
        mesh_dirs: Sequence[Location] = (),
        mesh_digests: MeshDigests | None = None,
        *,
        splits: SplitConfig | None = None,
        simplify: float | None = None,
    ) -> Self:
        """Open and check a store, in a folder or behind a URL; ``SourceDamaged`` lists all problems.

        Meshes default to ``meshes/`` inside it.

        Nothing is ever written there; what is worth remembering about meshes goes to ``mesh_digests``. Rows are in
        the splits of a campaign's ``splits``, and in the source's own without it. With ``simplify``, meshes are read
        with only that share of their faces.
        """
        folder = SourceFolder.at(path)
        folders = tuple(mesh_dirs) or (folder.location / layout.MESHES_DIR,)
        return cls(folder, folder.snapshot(), MeshLibrary(folders, digests=mesh_digests, simplify=simplify), splits)

    def __len__(self) -> int:
        return len(self._snapshot.rows)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the snapshot, so that it sees the same rows, but no lock and no opened array."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_arrays", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _arrays={}, _lock=Lock())

    @property
    def root(self) -> Path:
        """The folder that the store's files are read from."""
        return self._snapshot.root

    @property
    def location(self) -> Location:
        """Where the store lies: its folder, or its URL."""
        return self._folder.location

    def shard_dir(self, shard: ShardSpec, *, anew: bool = False) -> Path:
        """The folder with all files of one shard; ``anew`` compares copies of objects with what is there now."""
        return self._folder.shard(shard, self.version, anew=anew)

    def copy_anew(self, row: IndexRow) -> None:
        """Let the next reading of a row come from where the store lies, and not from copies on this machine."""
        self._folder.copy_anew(self._shard(row))
        self.meshes.copy_anew(row.scene_id)

    @property
    def manifest(self) -> layout.Manifest:
        """The manifest as of the last open or refresh."""
        return self._snapshot.manifest

    @property
    def version(self) -> int:
        """The store's own format version, which lineage records as the version of the source."""
        return self._snapshot.manifest.version

    @property
    def source_manifest_hash(self) -> str:
        """Digest of the manifest's canonical bytes, 16 hex digits."""
        return layout.source_manifest_hash(self._snapshot.manifest_json)

    def had_manifest(self, manifest_hash: str) -> bool:
        """Whether the store has a manifest of this hash now, or had it before rows were appended."""
        return manifest_hash in self._snapshot.manifest_hashes()

    def split_manifest_hash(self, split: str) -> str:
        """Digest of a split's ordered rows under this manifest, 16 hex digits."""
        return layout.split_manifest_hash(self.source_manifest_hash, split, self.rows(split))

    def rows(self, split: str = layout.ALL) -> tuple[IndexRow, ...]:
        """The rows of a split in index order; ``all`` for every row."""
        if split not in layout.SPLIT_FILES:
            raise SourceRowMissing(f"split must be one of {', '.join(layout.SPLIT_FILES)}, got {split!r}")
        return tuple(row for row in self._snapshot.rows if split in (layout.ALL, row.split))

    def row(self, index_or_key: int | str) -> IndexRow:
        """The row of a sample index or sample key."""
        rows = self._snapshot.rows
        if isinstance(index_or_key, int):
            if 0 <= index_or_key < len(rows):
                return rows[index_or_key]
            raise SourceRowMissing(f"{self.location}: no sample {index_or_key}; the store has 0 to {len(rows) - 1}")
        if row := self._snapshot.rows_by_key.get(index_or_key):
            return row
        raise SourceRowMissing(f"{self.location}: no sample with key {index_or_key!r}; 'source info --rows' lists them")

    def refresh(self) -> tuple[IndexRow, ...]:
        """Look again and return the rows appended since; rows that changed under us are an error."""
        fresh = self._assigned(self._folder.snapshot())
        count = len(self._snapshot.rows)
        if fresh.rows[:count] != self._snapshot.rows:
            raise SourceError(f"{self.location}: rows seen before have changed; the store was rebuilt, open it again")
        self._snapshot = fresh
        return fresh.rows[count:]

    def _assigned(self, snapshot: StoreSnapshot) -> StoreSnapshot:
        if self._splits.mode == "from_source":
            return snapshot
        return replace(snapshot, rows=scene_splits(self._splits).assign(snapshot.rows, str(self.location)))

    def sample(self, row: IndexRow) -> VinSample:
        """Both halves of one row. Values that cannot be right are a ``SourceDamaged`` that names them.

        A read that the system refuses is its own ``OSError``: it says nothing about the row.
        """
        trajectory = self._trajectory(row)
        actor, snippet = self._actor(row, trajectory), self._snippet_pose(row, trajectory)
        gt_boxes = self._optional_boxes(row, layout.GT_OBBS, layout.GT_NAMES, snippet) or BoxSet.empty()
        return VinSample(actor, VinTruth(gt_boxes=gt_boxes, mesh_path=self.meshes.find(row.scene_id)))

    def actor(self, row: IndexRow) -> VinActor:
        """The actor's half of one row. Nothing of the truth is read, so neither meshes nor true boxes need be there."""
        return self._actor(row, self._trajectory(row))

    def _actor(self, row: IndexRow, trajectory: Float32) -> VinActor:
        points, inv_dist_std = self._points(row)
        snippet = self._snippet_pose(row, trajectory)
        return VinActor(
            identity=row,
            trajectory_world_camera=compose(trajectory, RIG_FROM_LUF),
            reference_pose_world_camera=self._pose(row, REFERENCE),
            camera=self._camera(row),
            points_world=points,
            points_inv_dist_std=inv_dist_std,
            detected=self._optional_boxes(row, layout.DETECTED_OBBS, layout.DETECTED_NAMES, snippet),
            evidence=self._evidence(row),
            time_ns=self._time_ns(row, len(trajectory)),
            gravity_in_world=self._gravity(row),
        )

    def record(self, row: IndexRow, name: str) -> Any:
        """One row of a msgpack block, decoded; None when the shard does not have it."""
        spec = self._shard(row).blocks.get(name)
        if spec is None:
            return None
        payload, offsets_path = (self.shard_dir(self._shard(row)) / path for path in spec.paths)
        try:
            # Not mapped into memory: a read of a map that fails ends the process instead of raising an error.
            begin, end = read_array_file(offsets_path)[row.row : row.row + 2]
            with open_regular(payload) as stream:
                stream.seek(int(begin))
                packed = stream.read(int(end - begin))
            return msgpack.unpackb(packed, strict_map_key=False)
        except (ValueError, EOFError, FileNotFoundError, NotRegularFile, msgpack.exceptions.UnpackException) as error:
            raise self._damage(row, name, f"record cannot be decoded: {error!r}") from None

    def padded_poses(self, row: IndexRow) -> int:
        """Poses of a row's trajectory with the padding at its end, which the sample leaves out."""
        return int(self._array(self._shard(row), layout.T_WORLD_RIG).shape[1])

    def _shard(self, row: IndexRow) -> ShardSpec:
        shard = self._snapshot.shards.get(row.shard_id)
        if shard is None:
            raise SourceRowMissing(
                f"{self.location}: sample {row.sample_key!r} lies in {row.shard_id}, which is not there"
            )
        return shard

    def _array(self, shard: ShardSpec, name: str) -> zarr.Array[Any]:
        with self._lock:
            array = self._arrays.get((shard.shard_id, name))
            if array is None:
                path = self.shard_dir(shard) / shard.blocks[name].paths[0]
                array = zarr.open_array(RegularFileStore(path, read_only=True), mode="r")
                refuse_oversize(array.shape, array.chunks, array.dtype.itemsize)
                self._arrays[shard.shard_id, name] = array
            return array

    def _block(self, row: IndexRow, name: str) -> NDArray[Any]:
        try:
            return np.asarray(self._array(self._shard(row), name)[row.row])
        except Exception as error:  # a codec may raise anything on damaged bytes
            if is_fault(error):
                raise
            raise self._damage(row, name, f"cannot be decoded: {error}") from error

    def _trajectory(self, row: IndexRow) -> Float32:
        """(t, 12) raw rig poses up to the last one that is there: shorter walks of a shard end in poses of NaN."""
        stored = self._block(row, layout.T_WORLD_RIG)
        there = np.flatnonzero(~np.isnan(stored).all(axis=1))
        if not len(there):
            raise self._damage(row, layout.T_WORLD_RIG, f"all {len(stored)} poses are NaN, at least one must be there")
        trajectory = stored[: there[-1] + 1]
        self._require_rigid(row, layout.T_WORLD_RIG, trajectory)
        return trajectory

    def _snippet_pose(self, row: IndexRow, trajectory: Float32) -> Float32:
        """(12,) the frame of the boxes in the world: a block of its own since version 8, before that the first pose."""
        return trajectory[0] if block_of(SNIPPET, self._shard(row).blocks) is None else self._pose(row, SNIPPET)

    def _pose(self, row: IndexRow, role: str) -> Float32:
        """(12,) the one pose of a role, by whatever name the store's version has for it."""
        name = block_of(role, self._shard(row).blocks)
        if name is None:
            raise self._damage(row, role, "the store has no such block")
        pose = self._block(row, name).reshape(12)
        self._require_rigid(row, name, pose)
        return pose

    def _time_ns(self, row: IndexRow, poses: int) -> NDArray[np.int64] | None:
        """(t,) times of the poses that are there; None without the block, and for a row that was filled with zeros."""
        stored = self._optional_block(row, layout.TIME_NS)
        if stored is None or (poses > 1 and not (stored[:poses] > 0).any()):
            return None
        return stored[:poses]

    def _gravity(self, row: IndexRow) -> Float32 | None:
        stored = self._optional_block(row, layout.GRAVITY_IN_WORLD)
        return stored if stored is not None and stored.any() else None

    def _optional_block(self, row: IndexRow, name: str) -> NDArray[Any] | None:
        return self._block(row, name) if name in self._shard(row).blocks else None

    def _points(self, row: IndexRow) -> tuple[Float32, Float32]:
        stored = self._block(row, layout.POINTS_WORLD)
        length = int(self._block(row, layout.LENGTHS)[0])
        if not 0 <= length <= len(stored):
            raise self._damage(row, layout.LENGTHS, f"length is {length}, must be 0 to {len(stored)}")
        prefix = stored[:length]
        finite = np.isfinite(prefix[:, :3]).all(axis=1)
        if not finite.all():
            at = int(np.flatnonzero(~finite)[0])
            raise self._damage(row, layout.POINTS_WORLD, f"point {at} is {prefix[at, :3].tolist()}, must be finite")
        if length and not prefix.any():
            raise self._damage(row, layout.POINTS_WORLD, f"all {length} points are zero; a chunk seems to be missing")
        return np.ascontiguousarray(prefix[:, :3]), np.ascontiguousarray(prefix[:, 3])

    def _camera(self, row: IndexRow) -> PinholeCamera:
        if (in_ndc := self._optional_block(row, layout.IN_NDC)) is not None and in_ndc:
            raise self._damage(row, layout.IN_NDC, "is true: the camera is not in pixels, and no other unit is read")
        focal, principal, size = (
            self._block(row, name)[0] for name in (layout.FOCAL_LENGTH, layout.PRINCIPAL_POINT, layout.IMAGE_SIZE)
        )
        if not np.isfinite(size).all():
            raise self._damage(row, layout.IMAGE_SIZE, f"is {size.tolist()}, must be finite")
        try:
            (fx_px, fy_px), (cx_px, cy_px), (height_px, width_px) = focal.tolist(), principal.tolist(), map(int, size)
            return PinholeCamera(fx_px, fy_px, cx_px, cy_px, height_px, width_px)
        except ValueError as error:
            raise self._damage(row, layout.FOCAL_LENGTH, str(error)) from None

    def _evidence(self, row: IndexRow) -> EvidencePoints | None:
        points = self._optional_block(row, layout.EVIDENCE_POINTS)
        counts = self._optional_block(row, layout.EVIDENCE_COUNTS)
        if points is None or counts is None:
            return None
        flat = counts.reshape(-1)
        if len(flat) != points.shape[1]:
            raise self._damage(row, layout.EVIDENCE_POINTS, f"{points.shape[1]} points, but {len(flat)} counts")
        seen = flat > 0
        places = points[0][seen]
        if len(places) > 1 and not places.any():
            problem = f"all {len(places)} voxels with counts lie at zero; a chunk seems to be missing"
            raise self._damage(row, layout.EVIDENCE_POINTS, problem)
        return EvidencePoints(points_world=places, counts=flat[seen])

    def _optional_boxes(self, row: IndexRow, block: str, names: str, pose_world_snippet: Float32) -> BoxSet | None:
        return self._boxes(row, block, names, pose_world_snippet) if block in self._shard(row).blocks else None

    def _class_names(self, row: IndexRow, names: str) -> dict[int, str]:
        try:
            return class_names_of(self.record(row, names))
        except ValueError as error:
            raise self._damage(row, names, str(error)) from None

    def _boxes(self, row: IndexRow, block: str, names: str, pose_world_snippet: Float32) -> BoxSet:
        """Boxes of the last time slice that has any; an empty set when none has."""
        slices = self._block(row, block)
        real = ~is_padding(slices)
        with_boxes = np.flatnonzero(real.any(axis=1))
        last = int(with_boxes[-1]) if len(with_boxes) else len(slices) - 1
        source_index = np.flatnonzero(real[last])
        packed = np.ascontiguousarray(slices[last][source_index])
        table = self._class_names(row, names)
        sem_ids = np.nan_to_num(packed[:, SEM_ID], nan=-1).astype(int)
        return BoxSet(
            boxes=unpack_boxes(packed, pose_world_snippet),
            packed=packed,
            source_index=source_index.astype(np.int64),
            class_names=tuple(table.get(int(sem), f"class_{sem}") for sem in sem_ids),
        )

    def _require_rigid(self, row: IndexRow, name: str, poses: Float32) -> None:
        good = np.atleast_1d(finite_rigid(poses))
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            shown = np.atleast_2d(poses)[at].round(3).tolist()
            raise self._damage(row, name, f"pose {at} is not a finite rigid pose: {shown}")

    def _damage(self, row: IndexRow, name: str, problem: str) -> SourceDamaged:
        return SourceDamaged(
            str(self.location), [f"{row.shard_id}: {name} row {row.row} ({row.sample_key}): {problem}"]
        )
