"""The files that make a shard a finished one: its owner file, its success file, and the note that a failure leaves.

``_owner.json`` says what was built, from what, and seals every byte of the store; ``_SUCCESS.json`` names the owner's
SHA-256. A shard counts only if both are there and agree with each other, with the store and with the plan, and if a
build has validated these very bytes: the name of an empty file in ``validated/``, which no change inside the shard's
folder reaches, says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from rollout_assets.campaigns.layout import (
    FAILURE_PREFIX,
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    STORE_ELSEWHERE_FILENAME,
    STORE_NAME,
    VALIDATED,
    CampaignLayout,
    StoredModel,
)
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import canonical_hash
from rollout_assets.errors import MeshError, NotReadBack, StoreDamaged, StoreError
from rollout_assets.files import (
    SizeAndDigest,
    file_sha256,
    make_folder,
    now_utc,
    publish_bytes,
    publish_json,
    seal_tree,
    stamp_tree,
    time_name,
)
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.rollouts.zarr_store.chunks.files import HashingFiles
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, read_rollout_store_manifest
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.sources.vin_store import VinOfflineStore

Model = TypeVar("Model", bound=StoredModel)

_FILES_OF_SHARD = {
    STORE_NAME,
    STORE_ELSEWHERE_FILENAME,
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
}


class RowOutcome(StoredModel):
    """What became of one planned source row: its number of records, or why there are none."""

    sample_index: int
    sample_key: str
    records: int
    skipped: str | None
    detail: str | None

    @property
    def why_skipped(self) -> str:
        """The reason, with its detail if that says more; empty for a row with records."""
        detail = " ".join((self.detail or "").split())
        return f"{self.skipped or ''}{f', {detail}' if detail not in ('', self.skipped) else ''}"


class SourceShardSeal(StoredModel):
    """The source files behind a shard: a stamp that is cheap to compare, and the digest that decides."""

    stamp: str
    sha256: str


class SealedStore(StoredModel):
    """A shard's store: the digest of its content, and the seal over every byte of its files."""

    content_sha256: str
    manifest_sha256: str
    files: int
    bytes: int
    files_sha256: str


class ShardOwner(StoredModel):
    """``_owner.json``: which attempt built a shard, from what, and what became of every planned source row."""

    owner_version: Literal["rollout-shard-owner-v1"] = "rollout-shard-owner-v1"
    shard_id: str
    split: str
    entry_sha256: str
    writer_config_hash: str
    attempt: str
    host: str
    process: int
    created_at_utc: str
    seconds: float
    rows: tuple[RowOutcome, ...]
    stats: dict[str, Any]
    mesh_versions: dict[str, str | None]
    source_shards: dict[str, SourceShardSeal]
    store: SealedStore | None
    reused_from: str | None = Field(default=None, exclude_if=lambda folder: folder is None)
    """The folder of the finished shard whose files were taken over; ``seconds`` and ``stats`` are of its build."""

    @property
    def records(self) -> int:
        """Records in the shard's store."""
        return sum(row.records for row in self.rows)

    @property
    def content_sha256(self) -> str | None:
        """Digest of the store's content; None without a store."""
        return None if self.store is None else self.store.content_sha256


class ShardSuccess(StoredModel):
    """``_SUCCESS.json``, written last."""

    success_version: Literal["rollout-shard-success-v1"] = "rollout-shard-success-v1"
    shard_id: str
    owner_sha256: str
    created_at_utc: str


@dataclass(frozen=True)
class SourceState:
    """What the present source says about a shard's rows: mesh versions and the seals of source shards."""

    mesh_versions: Mapping[str, str | None]
    source_shards: Mapping[str, SourceShardSeal]


def observe_source(entry: RolloutShardEntry, store: VinOfflineStore) -> SourceState:
    """Read and seal the source files that an entry's rows lie in, and the versions of their meshes."""
    folders = source_folders(entry, store)
    return SourceState(
        mesh_versions(entry, store),
        {
            name: SourceShardSeal(stamp=stamp_tree(path), sha256=seal_tree(path).sha256)
            for name, path in folders.items()
        },
    )


def source_has_changed(before: SourceState, entry: RolloutShardEntry, store: VinOfflineStore) -> bool:
    """Whether the files behind an entry were replaced or written to since they were observed."""
    stamps = {name: stamp_tree(path) for name, path in source_folders(entry, store).items()}
    return stamps != {name: seal.stamp for name, seal in before.source_shards.items()} or (
        mesh_versions(entry, store) != before.mesh_versions
    )


def mesh_versions(entry: RolloutShardEntry, store: VinOfflineStore) -> dict[str, str | None]:
    """Content hash of the mesh of each scene; None where there is none, or none that can be used.

    They are for comparison: the version of a label is the hash of what was scored.
    """
    versions: dict[str, str | None] = {}
    for scene in dict.fromkeys(row.scene_id for row in entry.rows):
        try:
            versions[scene] = store.meshes.known_hash(scene) if store.meshes.find(scene) is not None else None
        except MeshError:
            versions[scene] = None
    return versions


def source_folders(entry: RolloutShardEntry, store: VinOfflineStore) -> dict[str, Path]:
    """Directories of the source shards that an entry's rows lie in."""
    source_shards = {row.source_shard_id for row in entry.rows}
    return {
        shard.shard_id: store.shard_dir(shard, anew=True)
        for shard in store.manifest.shards
        if shard.shard_id in source_shards
    }


def mesh_changes(before: SourceState, scored: Iterable[tuple[str | None, str | None]]) -> list[str]:
    """Scenes whose records name another mesh than the one that was observed before they were scored."""
    seen = before.mesh_versions
    return sorted({scene for scene, version in scored if scene and seen.get(scene) not in (None, version)})


def content_sha256(manifest: Mapping[str, Any]) -> str:
    """One digest for the content of a store: over the digests of all its arrays."""
    return canonical_hash(manifest["content_sha256"])


def validate_and_seal(store_dir: Path) -> SealedStore:
    """Validate a new store deeply, and seal the very bytes that the validator read.

    It was written a moment ago, so a finding is a ``NotReadBack``.
    """
    files = HashingFiles(store_dir)
    try:
        validate_rollout_zarr_store(files, deep=True, profile="own").raise_if_wrong()
    except StoreError as error:
        raise NotReadBack(f"the new store does not read back as it was written: {error}") from error
    manifest = read_rollout_store_manifest(store_dir)
    seal = seal_tree(store_dir, files.hashed)
    return SealedStore(
        content_sha256=content_sha256(manifest),
        manifest_sha256=file_sha256(store_dir / ROLLOUT_MANIFEST_FILENAME),
        files=seal.files,
        bytes=seal.bytes,
        files_sha256=seal.sha256,
    )


def note_validated(root: Path, owner: ShardOwner) -> None:
    """Record that a build has validated the bytes that an owner seals; before they can be found at their place."""
    note = validated_note(root, owner)
    if not note.exists():
        make_folder(note.parent)
        publish_bytes(note, b"")


def validated_note(root: Path, owner: ShardOwner) -> Path:
    """The file below a campaign's root that says that these bytes were validated."""
    files = None if owner.store is None else owner.store.files_sha256
    version = canonical_hash({"entry": owner.entry_sha256, "files": files})[:16]
    return root / VALIDATED / f"{owner.shard_id}.{version}"


def write_success(shard_dir: Path, shard_id: str) -> None:
    """Declare a shard finished; its owner file must lie there."""
    owner = file_sha256(shard_dir / ROLLOUT_SHARD_OWNER_FILENAME)
    success = ShardSuccess(shard_id=shard_id, owner_sha256=owner, created_at_utc=now_utc())
    publish_json(shard_dir / ROLLOUT_SHARD_SUCCESS_FILENAME, success.model_dump(mode="json"))


def write_failure(layout: CampaignLayout, entry: RolloutShardEntry, error: BaseException) -> Path:
    """Leave a note beside the shards that says what went wrong."""
    path = layout.shards / f"{FAILURE_PREFIX}{entry.shard_id}.{time_name()}.json"
    note = {
        "shard_id": entry.shard_id,
        "entry_sha256": entry.sha256,
        "error": type(error).__name__,
        "message": str(error),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "created_at_utc": now_utc(),
    }
    publish_json(path, note)
    return path


def last_failure(layout: CampaignLayout, entry: RolloutShardEntry) -> str | None:
    """What the newest failure note of this very entry says."""
    for path in reversed(layout.failures(entry.shard_id)):
        try:
            note = json.loads(path.read_bytes())
            if note["entry_sha256"] == entry.sha256:
                return f"{note['error']}: {note['message']}"
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def read_owner(shard_dir: Path, shard_id: str | None = None) -> ShardOwner:
    """The owner of a finished shard, as its success file seals it; anything else is ``StoreDamaged``.

    A marker that the system does not let us read is an ``OSError``, because the shard may be a good one. A folder is
    named after its shard; one that was set aside is not, and needs the ``shard_id``.
    """
    where = shard_id or shard_dir.name
    success, _ = _read(f"{shard_dir}/{ROLLOUT_SHARD_SUCCESS_FILENAME}", ShardSuccess, where)
    owner, owner_sha256 = _read(f"{shard_dir}/{ROLLOUT_SHARD_OWNER_FILENAME}", ShardOwner, where)
    if owner_sha256 != success.owner_sha256:
        raise StoreDamaged(where, f"{ROLLOUT_SHARD_OWNER_FILENAME} is not the one that succeeded")
    if not owner.shard_id == success.shard_id == where:
        raise StoreDamaged(where, f"its markers are those of {owner.shard_id} and {success.shard_id}")
    return owner


def staged_owner(folder: Path) -> ShardOwner:
    """The owner that this process has just written into a staging folder."""
    return ShardOwner.model_validate_json((folder / ROLLOUT_SHARD_OWNER_FILENAME).read_bytes())


def owner_if_finished(shard_dir: Path) -> ShardOwner | None:
    """The owner of a finished shard; None if there is none, or its markers cannot be read."""
    try:
        return read_owner(shard_dir)
    except (StoreDamaged, OSError):
        return None


def damage(
    shard_dir: Path, owner: ShardOwner, *, deep: bool, hashed: Mapping[str, SizeAndDigest] = MappingProxyType({})
) -> Iterator[str]:
    """What is wrong with a finished shard's store; ``deep`` reads every byte, otherwise only the manifest is read.

    Files of the store in ``hashed`` were read and hashed before and are not read again.
    """
    store_dir = shard_dir / STORE_NAME
    if not validated_note(shard_dir.parent.parent, owner).exists():
        yield "is not what a build has validated"
    extra = sorted(set(os.listdir(shard_dir)) - _FILES_OF_SHARD)  # noqa: PTH208 - a path per name takes longer
    if extra:
        yield f"{', '.join(extra)} does not belong there"
    if owner.store is None:
        if store_dir.exists():
            yield f"{STORE_NAME} is there, but the owner file says that no source row gave records"
        return
    if (shard_dir / STORE_ELSEWHERE_FILENAME).exists():
        return  # whoever copies the store from there compares it with its digest
    if not store_dir.is_dir():
        yield f"{STORE_NAME} is missing"
        return
    try:
        manifest_sha256 = file_sha256(store_dir / ROLLOUT_MANIFEST_FILENAME)
    except FileNotFoundError:
        yield f"{ROLLOUT_MANIFEST_FILENAME} is missing"
        return
    if manifest_sha256 != owner.store.manifest_sha256:
        yield f"{ROLLOUT_MANIFEST_FILENAME} was altered"
    if deep and seal_tree(store_dir, hashed).sha256 != owner.store.files_sha256:
        yield f"files of {STORE_NAME} were altered, added or removed since it was built"


def staleness(owner: ShardOwner, entry: RolloutShardEntry, store: VinOfflineStore | None) -> Iterator[str]:
    """Why a whole shard is not what the plan and the present source ask for."""
    if owner.entry_sha256 != entry.sha256:
        built, planned = owner.writer_config_hash, entry.writer_config_hash
        if built != planned:
            yield f"built with writer config {built[:12]}, planned is {planned[:12]}"
        else:
            yield "built for another plan entry"
        return
    if faults := skipped_for_faults(owner):
        yield f"rows were skipped for what may have been a fault of the machine: {'; '.join(faults)}"
    if store is None or isinstance(store.location, ObjectUrl):
        return  # objects are never changed in place, and looking at each of them would be thousands of requests
    for scene, version in mesh_versions(entry, store).items():
        if owner.mesh_versions.get(scene) != version:
            missing = version is None and store.meshes.find(scene) is None
            yield f"the mesh of scene {scene} {'is missing' if missing else 'has changed'}"
    for name, folder in source_folders(entry, store).items():
        seal = owner.source_shards.get(name)
        if seal is None or source_files_changed(folder, seal.stamp, seal.sha256):
            yield f"the files of source {name} have changed"


def source_files_changed(folder: Path, stamp: str, sha256: str) -> bool:
    """Whether the files of a source shard are not those of a seal; they are read only if their stamp is another."""
    return stamp != stamp_tree(folder) and sha256 != seal_tree(folder).sha256


def skipped_rows(owner: ShardOwner) -> tuple[str, ...]:
    """The rows without a record, each with the reason in words."""
    return tuple(f"{row.sample_key}: {row.why_skipped}" for row in owner.rows if row.skipped is not None)


def validated_version(entry_sha256: str, content_sha256: str | None) -> str:
    """What is validated of a shard: the shard as planned, with this content."""
    return canonical_hash({"entry": entry_sha256, "content": content_sha256})[:16]


def skipped_in_words(owner: ShardOwner) -> str:
    """How many rows have no record, by reason; empty if every row has one."""
    skipped = Counter(row.skipped for row in owner.rows if row.skipped is not None)
    return ", ".join(f"{count} row(s) skipped: {reason}" for reason, count in sorted(skipped.items()))


def skipped_for_faults(owner: ShardOwner) -> list[str]:
    """Rows that were skipped because an exception was raised, whatever its cause, as earlier versions did.

    Reasons that the data itself gives are in capitals; theirs is the name of an exception.
    """
    return [f"{row.sample_key}: {row.skipped}" for row in owner.rows if row.skipped and not row.skipped.isupper()]


def _read(path: str, model: type[Model], where: str) -> tuple[Model, str]:
    """A marker, and the SHA-256 of its bytes."""
    try:
        content = Path(path).read_bytes()
        return model.model_validate_json(content), hashlib.sha256(content).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        raise StoreDamaged(where, f"{Path(path).name} is missing") from None
    except ValidationError:
        raise StoreDamaged(where, f"{Path(path).name} cannot be understood") from None
