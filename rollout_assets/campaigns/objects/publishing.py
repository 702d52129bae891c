"""Publishing a campaign's parts to object storage: the bytes first, then the one object that makes them count."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rollout_assets.campaigns.layout import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    CampaignLayout,
)
from rollout_assets.campaigns.objects.packs import pack_folder
from rollout_assets.campaigns.objects.storage import (
    CLAIM,
    INPUTS,
    PLAN,
    POINTER,
    POLICY,
    CampaignStorage,
    ShardMarker,
    ShardPack,
    TaggedPointer,
    VersionPointer,
    marker_key,
    parse_stored,
    storage_at,
    stored_bytes,
)
from rollout_assets.campaigns.objects.working_copy import place_shard
from rollout_assets.errors import NotReadBack, PointerMoved
from rollout_assets.files import file_sha256, now_utc, remove_path, time_name
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON

OnStep = Callable[[str], None]


class PlannedShard(Protocol):
    """What is needed of an entry of the plan."""

    @property
    def shard_id(self) -> str: ...

    @property
    def sha256(self) -> str: ...


def publish_claim(layout: CampaignLayout, claim: bytes) -> bool:
    """Create the claim; False if another one is there."""
    storage = _writable(layout)
    return storage is None or storage.objects.create(CLAIM, claim)


def publish_plan(layout: CampaignLayout, before: bytes | None, after: bytes, replaced: Path | None) -> bool:
    """Replace the plan that was read, if there was one; False if another process has replaced it meanwhile."""
    storage = _writable(layout)
    if storage is None:
        return True
    if replaced is not None:
        storage.objects.put(f"plans/{replaced.name}", replaced)
    if before is None:
        return storage.objects.create(PLAN, after)
    present = storage.objects.read_tagged(PLAN)
    return present.data == before and storage.objects.replace(PLAN, after, present)


def publish_inputs(layout: CampaignLayout) -> None:
    """Publish the record of planned inputs; of two planners the last one is read, and the next planning adds to it."""
    storage = _writable(layout)
    if storage is not None:
        storage.objects.put(INPUTS, layout.planned_inputs)


def publish_shard(
    layout: CampaignLayout,
    entry: PlannedShard,
    built: Path,
    content_sha256: str | None,
    *,
    instead_of: ShardMarker | None = None,
    on_step: OnStep,
) -> ShardMarker:
    """Publish a finished shard, and return the marker that counts: ours, or that of a builder who was first.

    ``instead_of`` is the marker of a shard that is no longer current, which ours replaces. Our folder becomes this
    machine's copy, unless another builder's shard counts.
    """
    storage = _writable(layout)
    assert storage is not None
    marker = _upload_pack(storage, entry, built, content_sha256, on_step)
    key = marker_key(entry.shard_id, entry.sha256)
    on_step("marker/before")
    if _mark(storage, key, marker, instead_of):
        on_step("marker/after")
        place_shard(layout, key, marker, built)
        return marker
    winner = parse_stored(ShardMarker, storage.objects.read(key), f"{storage.url}/{key}")
    if winner.content_sha256 != content_sha256:
        raise NotReadBack(
            f"{entry.shard_id}: two builders made different content from the same plan ({content_sha256} here, "
            f"{winner.content_sha256} published); one of the two machines computes wrongly, so compare them"
        )
    storage.objects.remove([marker.pack.key])
    return winner


def _upload_pack(
    storage: CampaignStorage, entry: PlannedShard, built: Path, content_sha256: str | None, on_step: OnStep
) -> ShardMarker:
    attempt = f"{time_name()}-{uuid.uuid4().hex[:8]}"
    pack = built.with_name(f"{built.name}.zip")
    try:
        pack_folder(built, pack)
        stored = ShardPack(
            key=f"packs/{entry.shard_id}/{attempt}.zip", bytes=pack.stat().st_size, sha256=file_sha256(pack)
        )
        on_step("upload/before")
        storage.objects.put(stored.key, pack)
        on_step("upload/after")
    finally:
        remove_path(pack)
    return ShardMarker(
        shard_id=entry.shard_id,
        entry_sha256=entry.sha256,
        content_sha256=content_sha256,
        pack=stored,
        owner=(built / ROLLOUT_SHARD_OWNER_FILENAME).read_text(),
        success=(built / ROLLOUT_SHARD_SUCCESS_FILENAME).read_text(),
    )


def _mark(storage: CampaignStorage, key: str, marker: ShardMarker, instead_of: ShardMarker | None) -> bool:
    if instead_of is None:
        return storage.objects.create(key, stored_bytes(marker))
    try:
        present = storage.objects.read_tagged(key)
    except FileNotFoundError:
        return storage.objects.create(key, stored_bytes(marker))
    if present.data != stored_bytes(instead_of):
        return False
    return storage.objects.replace(key, stored_bytes(marker), present)


def publish_failures(layout: CampaignLayout, folder: Path) -> None:
    """Publish the notes that a failed build has left in a folder."""
    storage = _writable(layout)
    if storage is not None:
        for note in folder.glob("_FAILED.*.json"):
            storage.objects.put(f"failures/{note.name}", note)


def reserve_version(layout: CampaignLayout, name: str) -> bool:
    """Take a version's name for this promotion; False if another one has it."""
    storage = _writable(layout)
    note = stored_note({"reserved_at_utc": now_utc(), "by": uuid.uuid4().hex})
    return storage is None or storage.objects.create(f"reservations/{name}.json", note)


def publish_version(
    layout: CampaignLayout,
    name: str,
    earlier: Mapping[str, Mapping[str, Any]],
    files: Mapping[str, Any],
    on_step: OnStep,
) -> None:
    """Publish a version that lies complete in this machine's copy: its files, its inventory, and last its root.

    ``files``: size and digest of every file by path. ``earlier``: those of earlier versions by name; a file that one of
    them has is copied inside the storage.
    """
    storage = _writable(layout)
    if storage is None:
        return
    folder = layout.versions / name

    def publish(path: str) -> None:
        base = next((version for version, known in earlier.items() if known.get(path) == files[path]), None)
        if base is None:
            storage.objects.put(f"versions/{name}/{path}", folder / path)
        else:
            storage.objects.copy(f"versions/{base}/{path}", f"versions/{name}/{path}")

    paths = [path for path in files if path != ZARR_JSON]
    on_step("objects/before")
    storage.objects.at_once(publish, paths[: len(paths) // 2])
    on_step("objects/half")
    storage.objects.at_once(publish, paths[len(paths) // 2 :])
    on_step("objects/after")
    storage.objects.put(f"inventories/{name}.json", layout.inventory(name))
    on_step("root/before")
    storage.objects.put(f"versions/{name}/{ZARR_JSON}", folder / ZARR_JSON)
    on_step("root/after")


def move_pointer(
    layout: CampaignLayout, version: str, pin: dict[str, Any] | None, before: TaggedPointer | None
) -> None:
    """Let readers get a version, if the pointer is still the one that was read; otherwise ``PointerMoved``."""
    storage = _writable(layout)
    if storage is None:
        return
    pointer = VersionPointer(
        version=version,
        generation=1 if before is None else before.pointer.generation + 1,
        pin=pin,
        moved_at_utc=now_utc(),
        moved_by=uuid.uuid4().hex,
    )
    data = stored_bytes(pointer)
    objects = storage.objects
    if not (objects.create(POINTER, data) if before is None else objects.replace(POINTER, data, before.stored)):
        raise PointerMoved(f"{layout.place}: another promotion or rollback moved readers meanwhile; run it again")


def remove_version(layout: CampaignLayout, name: str) -> None:
    """Remove a version's objects, its root first, so that no half version can ever be opened."""
    storage = _writable(layout)
    if storage is not None:
        storage.objects.remove([f"versions/{name}/{ZARR_JSON}"])
        storage.objects.remove([fact.key for fact in storage.objects.listing(f"versions/{name}")])
        storage.objects.remove([f"inventories/{name}.json"])


def publish_folder(layout: CampaignLayout, folder: Path) -> None:
    """Publish what else a campaign has made, such as its reports, under its place below the campaign's root."""
    storage = _writable(layout)
    if storage is not None and folder.is_dir():
        names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        storage.objects.upload(folder, names, folder.relative_to(layout.root).as_posix())


def publish_policy(layout: CampaignLayout, folder: Path) -> None:
    """Publish a finished training, and then that it is the latest."""
    storage = _writable(layout)
    if storage is not None:
        publish_folder(layout, folder)
        storage.objects.put(POLICY, stored_note({"folder": folder.relative_to(layout.root).as_posix()}))


def stored_note(values: Mapping[str, Any]) -> bytes:
    """A note as JSON."""
    return json.dumps(dict(values), sort_keys=True).encode() + b"\n"


def _writable(layout: CampaignLayout) -> CampaignStorage | None:
    """The storage of a campaign behind a URL, once it is known to keep conditions; None on a disk."""
    if layout.url is None:
        return None
    storage = storage_at(layout.url)
    storage.require_conditions()
    return storage
