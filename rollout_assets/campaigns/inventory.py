"""Is a promoted version still what was published? Its inventory has the size, time and SHA-256 of every file.

A shallow comparison asks the file system for sizes and times, and reads the metadata documents and every file that has
another time, so that a campaign that was copied is not called damaged. With a sample it reads some of the other files
too. A deep one reads every byte, and when that was last done for a version is kept beside its inventory.

Versions share full files by hard link, so a file that is damaged in place is damaged in each of them. They are kept
that way because a copy of every version would cost its whole size again, while the shards already hold every row a
second time: whatever is damaged is built again from there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from os import stat_result
from os.path import samestat
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.objects.storage import storage_at
from rollout_assets.files import (
    SizeAndDigest,
    file_sha256,
    make_folder,
    now_utc,
    publish_bytes,
    publish_json,
    tree_digests,
    tree_status,
)
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME

_READING_THREADS = 2
_DOCUMENTS = (ZARR_JSON, ROLLOUT_MANIFEST_FILENAME)
_CHUNKS = "c"
"""Folder of an array's chunks."""


class PublishedFile(StoredModel):
    """One file as it was published."""

    bytes: int
    modified_ns: int
    sha256: str


class VersionInventory(StoredModel):
    """Every file of a version by its path below the version's folder."""

    inventory_version: Literal["rollout-version-inventory-v1"] = "rollout-version-inventory-v1"
    files: dict[str, PublishedFile]

    @classmethod
    def take(cls, version_dir: Path, digests: Mapping[str, SizeAndDigest]) -> VersionInventory:
        """The inventory of files with known digests."""
        status = tree_status(version_dir)
        return cls(
            files={
                path: PublishedFile(bytes=size, modified_ns=status[path].st_mtime_ns, sha256=digest)
                for path, (size, digest) in digests.items()
            }
        )

    def of_split(self, split: str) -> dict[str, PublishedFile]:
        """The files of one child store, by their path below the version's folder; for "" those of its root."""
        return {path: file for path, file in self.files.items() if _split_of(path) == split}

    @property
    def digests(self) -> dict[str, SizeAndDigest]:
        """Size and SHA-256 of every file."""
        return {path: (file.bytes, file.sha256) for path, file in self.files.items()}


class FullRead(StoredModel):
    """When every byte of a version was last found to be what was published."""

    full_read_version: Literal["rollout-full-read-v1"] = "rollout-full-read-v1"
    at_utc: str


@dataclass(frozen=True)
class DamagedFile:
    """A file of a promoted version that is not what was published; ``split`` and ``array`` are empty at the root."""

    split: str
    array: str
    file: str
    problem: str

    @classmethod
    def at(cls, path: str, problem: str) -> DamagedFile:
        """The damage at a path below a version's folder, such as ``train/candidates/target_rri/c/0``."""
        split = _split_of(path)
        *folders, name = path.removeprefix(f"{split}/").split("/")
        if _CHUNKS in folders:
            cut = folders.index(_CHUNKS)
            folders, name = folders[:cut], "/".join([*folders[cut:], name])
        return cls(split, "/".join(folders), name, problem)


@dataclass(frozen=True)
class VersionCheck:
    """A version compared with its inventory; ``comparable`` is False if that cannot be read.

    ``bytes_read`` is how many of its ``bytes_published`` were read for that; sizes and times tell of the others.
    """

    version: str
    comparable: bool
    damage: tuple[DamagedFile, ...]
    bytes_read: int = 0
    bytes_published: int = 0

    @property
    def sound(self) -> bool:
        """Whether it is known to be what was published."""
        return self.comparable and not self.damage

    @property
    def problems(self) -> tuple[str, ...]:
        """One line per damaged array, with its first file and the number of others."""
        if not self.comparable:
            return (f"{self.version}: its inventory is missing or cannot be read, so that nothing vouches for it",)
        return tuple(self._lines())

    def _lines(self) -> Iterator[str]:
        for (split, array), files in groupby(self.damage, key=lambda damaged: (damaged.split, damaged.array)):
            first, *others = files
            place = " ".join(part for part in (self.version, split, array) if part)
            more = f" (and {len(others)} more of its files)" if others else ""
            yield f"{place}: {first.file} {first.problem}{more}"


class StagedDigests:
    """Size and SHA-256 of the files of a version that is being built, noted as early as they are known."""

    def __init__(self, layout: CampaignLayout) -> None:
        self._layout = layout
        self._known: dict[str, SizeAndDigest] = {}

    def note_linked(self, child: Path, version: str) -> None:
        """Take over the digests of the files that a child shares with an earlier one, which was compared with them."""
        inventory = read_inventory(self._layout, version)
        if inventory is None:
            return
        here, there = tree_status(child), tree_status(self._layout.versions / version / child.name)
        for path, fact in inventory.digests.items():
            name = path.removeprefix(f"{child.name}/")
            if path != name and name in here and name in there and samestat(here[name], there[name]):
                self._known[path] = fact

    def note_written(self, child: Path) -> None:
        """Hash what was written, before it is validated: a later change is found by one of the two."""
        prefix = f"{child.name}/"
        known = {path.removeprefix(prefix): fact for path, fact in self._known.items() if path.startswith(prefix)}
        self._known.update({f"{prefix}{path}": fact for path, fact in tree_digests(child, known).items()})

    def forget(self, child: Path) -> None:
        """Forget what is known of a child that is removed and written again."""
        self._known = {path: fact for path, fact in self._known.items() if not path.startswith(f"{child.name}/")}

    def inventory(self, version_dir: Path) -> VersionInventory:
        """The inventory of the version; files that were not noted are read."""
        return VersionInventory.take(version_dir, tree_digests(version_dir, self._known))


def write_inventory(layout: CampaignLayout, version: str, inventory: VersionInventory) -> None:
    """Put an inventory beside the versions; before its version appears, so that no version is without one."""
    path = layout.inventory(version)
    make_folder(path.parent)
    publish_bytes(path, inventory.model_dump_json().encode() + b"\n")


def read_inventory(layout: CampaignLayout, version: str) -> VersionInventory | None:
    """The inventory of a version; None if it is missing or cannot be read."""
    try:
        return VersionInventory.model_validate_json(layout.inventory(version).read_bytes())
    except (OSError, ValidationError):
        return None


def renew_times(layout: CampaignLayout, version: str) -> None:
    """Take over the present times of a version that was found sound, so that its files need not be read next time."""
    before = read_inventory(layout, version)
    if before is not None and layout.url is None:
        after = VersionInventory.take(layout.versions / version, before.digests)
        if after != before:
            write_inventory(layout, version, after)


def check_version(
    layout: CampaignLayout,
    version: str,
    *,
    split: str | None = None,
    deep: bool = False,
    sample: ReadSample | None = None,
    written: Collection[str] = (),
) -> VersionCheck:
    """Compare a version with its inventory, or only one split of it, or only its root, which is the split "".

    If ``deep``, every byte is read; otherwise the files that are ``written`` lately and those of the ``sample``.
    """
    inventory = read_inventory(layout, version)
    if inventory is None:
        return VersionCheck(version, False, ())
    published = inventory.files if split is None else inventory.of_split(split)
    chosen = set(published) if deep else _chosen(published, sample, written, f"{version}/{split or ''}")
    if layout.url is not None:
        damage = list(_object_damage(layout.url, version, split, published, chosen))
    else:
        present = _status(layout.versions / version, split)
        chosen |= _with_other_times(present, published)
        damage = list(_damage(layout.versions / version, present, published, chosen))
    if deep and split is None and not damage:
        note_full_read(layout, version)
    sizes = {path: file.bytes for path, file in published.items()}
    return VersionCheck(version, True, tuple(damage), sum(sizes[path] for path in chosen), sum(sizes.values()))


def _chosen(
    published: Mapping[str, PublishedFile], sample: ReadSample | None, written: Collection[str], of: str
) -> set[str]:
    chosen = published.keys() & set(written)
    if sample is not None:
        rest = {path: file.bytes for path, file in published.items() if path not in chosen}
        chosen |= sample.files(rest, of)
    return chosen


def written_files(layout: CampaignLayout, version: str) -> frozenset[str]:
    """The files of a version that no earlier version has: those that its promotion wrote."""
    inventory = read_inventory(layout, version)
    written = {} if inventory is None else inventory.digests
    names = sorted((path.stem for path in layout.inventories.glob("v*.json")), key=lambda name: (len(name), name))
    for name in names[: names.index(version)] if version in names else ():
        if (earlier := read_inventory(layout, name)) is not None:
            shared = earlier.digests
            written = {path: fact for path, fact in written.items() if shared.get(path) != fact}
    return frozenset(written)


def note_full_read(layout: CampaignLayout, version: str) -> None:
    """Keep that every byte of a version was read just now and found to be what was published.

    Somebody who may only read the campaign may read all of it too, and then nothing is kept.
    """
    with suppress(OSError):
        layout.full_read(version).parent.mkdir(exist_ok=True)
        publish_json(layout.full_read(version), FullRead(at_utc=now_utc()).model_dump(mode="json"))


def last_full_read(layout: CampaignLayout, version: str) -> str | None:
    """When every byte of a version was last read by this machine; None if that is not known."""
    try:
        return FullRead.model_validate_json(layout.full_read(version).read_bytes()).at_utc
    except (OSError, ValidationError):
        return None


class VersionChecks:
    """Splits of earlier versions, each compared with its inventory at most once in a promotion.

    Comparing one reads the ``sample``, or every byte if ``deep``.
    """

    def __init__(self, layout: CampaignLayout, sample: ReadSample) -> None:
        self._layout = layout
        self._sample = sample if layout.url is None else None  # object storage keeps what it was given
        self._checks: dict[tuple[str, str, bool], VersionCheck] = {}
        self._noted: list[str] = []

    def is_sound(self, version: str, split: str, *, deep: bool) -> bool:
        """Whether a split is what was published; if ``deep``, every byte of it."""
        key = version, split, deep
        if key not in self._checks:
            self._checks[key] = check_version(self._layout, version, split=split, deep=deep, sample=self._sample)
        return self._checks[key].sound

    def note(self, problem: str) -> None:
        """Add something else that was found damaged."""
        self._noted.append(problem)

    @property
    def damaged(self) -> tuple[str, ...]:
        """One line for everything that was found damaged."""
        lines = (line for check in self._checks.values() for line in check.problems)
        return tuple(dict.fromkeys([*lines, *self._noted]))


def _with_other_times(present: Mapping[str, stat_result], published: Mapping[str, PublishedFile]) -> set[str]:
    """Files that are read in any case: documents, and what has another time than when it was published."""
    return {
        path
        for path, file in published.items()
        if path in present and (present[path].st_mtime_ns != file.modified_ns or path.rsplit("/", 1)[-1] in _DOCUMENTS)
    }


def _damage(
    version_dir: Path,
    present: Mapping[str, stat_result],
    published: Mapping[str, PublishedFile],
    chosen: Collection[str],
) -> Iterator[DamagedFile]:
    with ThreadPoolExecutor(_READING_THREADS) as threads:

        def problem(path: str) -> str | None:
            return _problem(version_dir / path, present.get(path), published.get(path), path in chosen)

        gone = _missing_splits(published, present)
        paths = sorted(path for path in published.keys() | present.keys() if _split_of(path) not in gone)
        for path, found in zip(paths, threads.map(problem, paths), strict=True):
            if found is not None:
                yield DamagedFile.at(path, found)
    yield from (DamagedFile(split, "", f"all {files:,} files", "are missing") for split, files in gone.items())


def _missing_splits(published: Collection[str], present: Collection[str]) -> dict[str, int]:
    """Splits of which nothing is left, each with the number of its files, so that they are not named one by one."""
    left = {_split_of(path) for path in present} | {""}
    return Counter(split for split in map(_split_of, published) if split not in left)


def _object_damage(
    url: ObjectUrl, version: str, split: str | None, published: Mapping[str, PublishedFile], chosen: Collection[str]
) -> Iterator[DamagedFile]:
    """What of a version in object storage is not as published: by the sizes of a listing, and the bytes of some."""
    objects = storage_at(url).objects
    prefix = f"versions/{version}/"
    sizes = {fact.key.removeprefix(prefix): fact.size for fact in objects.listing(f"{prefix}{split or ''}".rstrip("/"))}
    present = {path: size for path, size in sizes.items() if split in (None, _split_of(path))}

    def problem(path: str) -> str | None:
        file = published.get(path)
        if file is None:
            return "does not belong there"
        if path not in present:
            return "is missing"
        if present[path] != file.bytes:
            return f"has {present[path]:,} bytes, {file.bytes:,} were published"
        if path in chosen and hashlib.sha256(objects.read(prefix + path)).hexdigest() != file.sha256:
            return "was altered since it was published"
        return None

    paths = sorted(published.keys() | present.keys())
    for path, found in zip(paths, objects.at_once(problem, paths), strict=True):
        if found is not None:
            yield DamagedFile.at(path, found)


def _status(version_dir: Path, split: str | None) -> dict[str, stat_result]:
    try:
        if split:
            return {f"{split}/{path}": status for path, status in tree_status(version_dir / split).items()}
        return {path: status for path, status in tree_status(version_dir).items() if split in (None, _split_of(path))}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _split_of(path: str) -> str:
    return path.split("/", 1)[0] if "/" in path else ""


def _problem(path: Path, present: stat_result | None, published: PublishedFile | None, read: bool) -> str | None:
    if published is None:
        return "does not belong there"
    if present is None:
        return "is missing"
    if present.st_size != published.bytes:
        return f"has {present.st_size:,} bytes, {published.bytes:,} were published"
    return _difference(path, published.sha256) if read else None


def _difference(path: Path, sha256: str) -> str | None:
    try:
        return None if file_sha256(path) == sha256 else "was altered since it was published"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
