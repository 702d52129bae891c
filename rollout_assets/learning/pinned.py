"""The one version of a store that a dataset reads, in every process and epoch.

A promoted store is a link that the next promotion moves. A dataset follows it once, when it is made, and from then on
names the version's own directory. Wherever that is opened again, it must be what it was, document for document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.locations.url import is_object_url
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON
from rollout_assets.rollouts.zarr_store.pointer import resolve_url
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.seals import Seals, apply_seals, read_seals


class UnverifiedStoreWarning(UserWarning):
    """A store that was to be verified has no digests, because another writer made it."""


_ATTEMPTS = 5
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class PinnedStore:
    """A version of a store: how the user named it, where it lies itself, and what it must be.

    ``seals`` holds the checksums of the chunks that are read; none where nothing is verified, and in a store of another
    writer, which has no digests to hold them against.
    """

    named: str
    location: str
    manifest_sha256: str
    root_sha256: str
    seals: Seals = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, reader: RolloutZarrStoreReader, sealed: Collection[str]) -> PinnedStore:
        """The version that was opened, after holding the ``sealed`` arrays against its manifest."""
        digest = str(reader.attributes.get("manifest_sha256"))
        try:
            seals = read_seals(reader, sealed) if sealed else {}
        except StoreDamaged as error:
            raise _in_store(reader.resolved_location, error) from None
        apply_seals(reader, seals)
        return cls(reader.location, reader.resolved_location, digest, reader.root_sha256, seals)

    @property
    def verified(self) -> bool:
        """Whether what is read is held against what the manifest says was written."""
        return bool(self.seals)

    def open(self) -> RolloutZarrStoreReader:
        """The store, opened anew; a ``StoreError`` if this version is gone or has changed."""
        try:
            reader = RolloutZarrStoreReader(self.location)
        except StoreError as error:
            raise self._refusal(self._absence(error)) from None
        self._require_root(reader.root_sha256)
        apply_seals(reader, self.seals)
        return reader

    def confirm(self, reader: RolloutZarrStoreReader) -> None:
        """Refuse to go on with an opened store if this version is gone or has changed since."""
        try:
            data = reader.files.read(ZARR_JSON)
        except Exception as error:  # storage backends raise many kinds of errors
            raise self._refusal(self._absence(error)) from None
        self._require_root(hashlib.sha256(data).hexdigest())

    def explain(self, error: StoreDamaged, reader: RolloutZarrStoreReader) -> StoreError:
        """What to raise for damage met while reading: that the version is gone, or where in which store it is."""
        try:
            self.confirm(reader)
        except StoreError as refusal:
            return refusal
        return _in_store(self.location, error)

    def _absence(self, error: Exception) -> str:
        gone = "://" not in self.location and not Path(self.location).is_dir()
        return "is gone" if gone else f"cannot be opened any more: {error}"

    def _require_root(self, root_sha256: str) -> None:
        if root_sha256 != self.root_sha256:
            raise self._refusal("is no longer what it was")

    def _refusal(self, what: str) -> StoreError:
        version = f"{self.location} (manifest {self.manifest_sha256[:_SHOWN_DIGITS]})"
        was = "" if self.named == self.location else f", which {self.named} was when the dataset was made,"
        way = "make the dataset again to train on what is there now; [retention] versions of the campaign keeps more"
        return StoreError(f"{version}{was} {what}; {way}")


def open_stores(stores: Sequence[str]) -> list[RolloutZarrStoreReader]:
    """Open some stores; those below one promoted root are of one version, also if it is promoted at this moment."""
    for _ in range(_ATTEMPTS):
        readers = [RolloutZarrStoreReader(store) for store in stores]
        if len(readers) == 1 or all(_resolved(reader.location) == reader.resolved_location for reader in readers):
            return readers
    raise StoreError(f"{', '.join(stores)}: the stores are replaced faster than they can be opened; try again")


def _resolved(named: str) -> str:
    if is_object_url(named):
        return str(resolve_url(named))
    return named if "://" in named else str(Path(named).expanduser().resolve())


def _in_store(location: str, error: StoreDamaged) -> StoreDamaged:
    return StoreDamaged(f"{location}/{error.where}", error.problem)
