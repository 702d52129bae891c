"""This machine's copy of a campaign in object storage: markers, versions' roots and, where they are needed, the bytes.

Everything that looks at a campaign looks at a folder. For a campaign behind a URL that folder is a copy, brought up to
date here before it is looked at: a finished shard has its two marker files there, a version its root and its inventory.
The bytes of a shard or of a version follow when somebody reads them. The folder can be removed at any time.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from rollout_assets.campaigns.layout import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    STORE_ELSEWHERE_FILENAME,
    STORE_NAME,
    CampaignLayout,
    StoredModel,
)
from rollout_assets.campaigns.markers import ShardOwner, note_validated
from rollout_assets.campaigns.objects.packs import unpack_folder
from rollout_assets.campaigns.objects.storage import (
    CLAIM,
    INPUTS,
    PLAN,
    POLICY,
    CampaignStorage,
    MarkerKey,
    ShardMarker,
    TaggedPointer,
    marker_key,
    parse_stored,
    storage_at,
)
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.errors import NotReadBack
from rollout_assets.files import file_lock, file_sha256, publish_json, remove_path, replace_bytes, switch_link
from rollout_assets.locations.mirror import ObjectMirror
from rollout_assets.parsing import parse_json
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON

_PATIENCE_S = 600.0


class CopiedMarker(StoredModel):
    """The marker that a copied shard is a copy of, and the tag that it had."""

    key: str
    etag: str
    marker: ShardMarker


def refresh_plan(layout: CampaignLayout) -> None:
    """Bring claim and plan up to date: two requests, which answer nothing if nothing has changed."""
    if layout.url is not None:
        mirror = ObjectMirror(layout.url)
        mirror.file(CLAIM)
        mirror.file(PLAN)


def refresh_inputs(layout: CampaignLayout) -> None:
    """Bring the record of planned inputs up to date: one request."""
    if layout.url is not None:
        ObjectMirror(layout.url).file(INPUTS)


def refresh_shards(layout: CampaignLayout) -> None:
    """Bring the markers of all planned shards up to date: a listing per thousand, and one request per new one."""
    if layout.url is None:
        return
    storage = storage_at(layout.url)
    with _one_process(layout, "shards"):
        planned = _planned_entries(layout)
        listed = {
            key.shard_id: key for key in storage.marker_keys() if key.is_of(key.shard_id, planned.get(key.shard_id, ""))
        }
        for shard_id in _copied_shards(layout) - listed.keys():
            _forget_shard(layout, shard_id)
        outdated = [key for key in listed.values() if not _is_copied(layout, key)]
        storage.objects.at_once(lambda key: _copy_marker(layout, _read_copied(storage, key.key)), outdated)
        _copy_failures(layout, storage, planned.keys() - listed.keys())


def fetch_shard(layout: CampaignLayout, shard_id: str, entry_sha256: str, *, store: bool = True) -> ShardMarker | None:
    """Bring one shard up to date, with the bytes of its ``store``; None if it is not finished. At most two requests."""
    if layout.url is None:
        return None
    storage = storage_at(layout.url)
    with _one_process(layout, shard_id):
        try:
            copied = _read_copied(storage, marker_key(shard_id, entry_sha256))
        except FileNotFoundError:
            _forget_shard(layout, shard_id)
            return None
        if not store:
            _copy_marker(layout, copied)
        elif not _has_bytes(layout, copied.marker):
            _copy_pack(layout, storage, copied)
        return copied.marker


def fetch_planned_shard(layout: CampaignLayout, shard_id: str) -> None:
    """Bring a shard as it is planned now up to date, with all its bytes."""
    if layout.url is not None and (entry := _planned_entries(layout).get(shard_id)) is not None:
        fetch_shard(layout, shard_id, entry)


def place_shard(layout: CampaignLayout, key: str, marker: ShardMarker, built: Path) -> None:
    """Let a shard that was just built and published here become this machine's copy of it."""
    with _one_process(layout, marker.shard_id):
        _replace_folder(layout, built, CopiedMarker(key=key, etag="", marker=marker))


def refresh_versions(layout: CampaignLayout) -> TaggedPointer | None:
    """Bring the roots and inventories of versions, the link and the pin up to date; returns the pointer.

    A listing, and one request for the pointer and for each version. One without a root is not complete, and no version.
    """
    if layout.url is None:
        return None
    storage = storage_at(layout.url)
    with _one_process(layout, "versions"):
        pointer = storage.read_pointer()
        names = storage.version_names()
        layout.versions.mkdir(parents=True, exist_ok=True)
        mirror = ObjectMirror(layout.url)
        complete = {name for name in names if mirror.file(f"versions/{name}/{ZARR_JSON}") is not None}
        for path in layout.versions.glob("v*"):
            if path.name not in complete:
                remove_path(path)
                remove_path(layout.inventory(path.name))
        for name in complete:
            if not layout.inventory(name).is_file():
                mirror.file(f"inventories/{name}.json")
        _copy_pointer(layout, pointer)
    return pointer


def fetch_version(layout: CampaignLayout, name: str, files: Sequence[str]) -> None:
    """Copy the bytes of a version's files, those that are not here yet; objects of a version never change."""
    if layout.url is None:
        return
    storage = storage_at(layout.url)
    folder = layout.versions / name
    with _one_process(layout, name):
        missing = [file for file in files if not (folder / file).is_file()]
        storage.objects.at_once(lambda file: _copy_file(storage, f"versions/{name}/{file}", folder / file), missing)


def fetch_folder(layout: CampaignLayout, folder: Path) -> None:
    """Bring a folder of what else a campaign has made, such as its evaluation, up to date."""
    if layout.url is not None:
        ObjectMirror(layout.url).folder(folder.relative_to(layout.root).as_posix())


def fetch_policy(layout: CampaignLayout) -> None:
    """Bring the training that was finished last up to date, and the link to it."""
    if layout.url is None:
        return
    note = ObjectMirror(layout.url).file(POLICY)
    if note is not None:
        target = str(parse_json(note.read_bytes())["folder"])
        fetch_folder(layout, layout.root / target)
        switch_link(layout.policy, target)


def forget_bytes(layout: CampaignLayout, kept: str) -> None:
    """Remove the bytes of other versions than ``kept`` from this machine's copy; their roots stay."""
    if layout.url is not None:
        for folder in layout.versions.glob("v*/*"):
            if folder.parent.name != kept and folder.is_dir():
                remove_path(folder)


def _planned_entries(layout: CampaignLayout) -> dict[str, str]:
    """Digest of every planned entry by shard, by the lines of the plan's copy."""
    if not layout.plan.is_file():
        return {}
    lines = layout.plan.read_bytes().splitlines(keepends=True)
    return {shard_id_of(number): hashlib.sha256(line).hexdigest() for number, line in enumerate(lines)}


def _copied_shards(layout: CampaignLayout) -> set[str]:
    return {path.name for path in layout.shards.glob("shard-*") if path.is_dir()}


def _forget_shard(layout: CampaignLayout, shard_id: str) -> None:
    remove_path(_copied_file(layout, shard_id))
    remove_path(layout.shard(shard_id))


def _copied_file(layout: CampaignLayout, shard_id: str) -> Path:
    return layout.root / "copied" / f"{shard_id}.json"


def _copied(layout: CampaignLayout, shard_id: str) -> CopiedMarker | None:
    """What the copy of a shard is a copy of; None if there is none."""
    try:
        return CopiedMarker.model_validate_json(_copied_file(layout, shard_id).read_bytes())
    except (OSError, ValueError):
        return None


def _is_copied(layout: CampaignLayout, key: MarkerKey) -> bool:
    copied = _copied(layout, key.shard_id)
    return copied is not None and (copied.key, copied.etag) == (key.key, key.etag)


def _read_copied(storage: CampaignStorage, key: str) -> CopiedMarker:
    tagged = storage.objects.read_tagged(key)
    marker = parse_stored(ShardMarker, tagged.data, f"{storage.url}/{key}")
    return CopiedMarker(key=key, etag=tagged.etag, marker=marker)


def _copy_marker(layout: CampaignLayout, copied: CopiedMarker) -> None:
    """Copy the two files that make a shard a finished one, unless its bytes are here already."""
    if _has_bytes(layout, copied.marker):
        replace_bytes(_copied_file(layout, copied.marker.shard_id), copied.model_dump_json().encode())
        return
    staged = layout.new_attempt(f"copy-{copied.marker.shard_id}")
    staged.mkdir(parents=True)
    (staged / ROLLOUT_SHARD_OWNER_FILENAME).write_bytes(copied.marker.owner.encode())
    (staged / ROLLOUT_SHARD_SUCCESS_FILENAME).write_bytes(copied.marker.success.encode())
    if copied.marker.content_sha256 is not None:
        (staged / STORE_ELSEWHERE_FILENAME).write_bytes(copied.marker.pack.model_dump_json().encode())
    _replace_folder(layout, staged, copied)


def _copy_pack(layout: CampaignLayout, storage: CampaignStorage, copied: CopiedMarker) -> None:
    marker = copied.marker
    staged = layout.new_attempt(f"copy-{marker.shard_id}")
    staged.mkdir(parents=True)
    pack = staged.with_name(f"{staged.name}.zip")
    try:
        storage.objects.download(marker.pack.key, pack)
        if file_sha256(pack) != marker.pack.sha256:
            raise NotReadBack(f"{storage.url}/{marker.pack.key}: does not read back as it was written")
        unpack_folder(pack, staged, marker.shard_id)
        _replace_folder(layout, staged, copied)
    finally:
        remove_path(pack)
        remove_path(staged)


def _has_bytes(layout: CampaignLayout, marker: ShardMarker) -> bool:
    """Whether the copy of a shard is of this marker, with its owner file, and has its store, if there is one."""
    copied = _copied(layout, marker.shard_id)
    folder = layout.shard(marker.shard_id)
    owner = folder / ROLLOUT_SHARD_OWNER_FILENAME
    if copied is None or copied.marker != marker or not owner.is_file() or owner.read_text() != marker.owner:
        return False
    return marker.content_sha256 is None or (folder / STORE_NAME).exists()


def _replace_folder(layout: CampaignLayout, staged: Path, copied: CopiedMarker) -> None:
    """Exchange the copy of a shard; what it is a copy of is noted last."""
    folder = layout.shard(copied.marker.shard_id)
    note_validated(layout.root, ShardOwner.model_validate_json(copied.marker.owner))
    note = _copied_file(layout, folder.name)
    remove_path(note)
    for parent in (layout.staging, folder.parent, note.parent):
        parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        leaving = layout.new_attempt(f"copy-{folder.name}-old")
        folder.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)
    staged.rename(folder)
    replace_bytes(note, copied.model_dump_json().encode())


def _copy_failures(layout: CampaignLayout, storage: CampaignStorage, unfinished: Iterable[str]) -> None:
    waiting = set(unfinished)
    for fact in storage.objects.listing("failures"):
        path = layout.shards / fact.key.removeprefix("failures/")
        shard_id = path.name.removeprefix("_FAILED.").partition(".")[0]
        if shard_id in waiting and not path.exists():
            _copy_file(storage, fact.key, path)


def _copy_file(storage: CampaignStorage, key: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_bytes(path, storage.objects.read(key))


def _copy_pointer(layout: CampaignLayout, tagged: TaggedPointer | None) -> None:
    if tagged is None:
        remove_path(layout.promoted)
        remove_path(layout.pin)
        return
    target = f"{layout.versions.name}/{tagged.pointer.version}"
    if not layout.promoted.is_symlink() or str(layout.promoted.readlink()) != target:
        switch_link(layout.promoted, target)
    if tagged.pointer.pin is None:
        remove_path(layout.pin)
    else:
        publish_json(layout.pin, tagged.pointer.pin)


def _one_process(layout: CampaignLayout, name: str) -> AbstractContextManager[None]:
    """Only one process at a time brings a part of the copy up to date."""
    return file_lock(layout.lock(f"copy.{name}"), layout.place, patience_s=_PATIENCE_S)
