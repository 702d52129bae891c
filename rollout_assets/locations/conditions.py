"""Does a storage keep the conditions of a write? Some endpoints accept and ignore them, and would lose data silently.

Everything that is published there rests on two conditions: an object is created only if there is none, and replaced
only if it is still the one that was read. The probe tries both with an object of its own, once per process and URL.
"""

from __future__ import annotations

import os
import uuid
from functools import lru_cache

from rollout_assets.errors import ObjectStorageError
from rollout_assets.locations.objects import ObjectFolder, TaggedBytes
from rollout_assets.locations.url import ObjectUrl

_PROBE = "_conditions"
_ANOTHER = TaggedBytes(b"", '"0123456789abcdef0123456789abcdef"', "1")
"""An object that the one of the probe is not."""


def require_conditional_writes(folder: ObjectFolder) -> None:
    """Raise ``ObjectStorageError`` if the storage behind a folder ignores conditions, or does not know them."""
    _probe(folder.url, os.getpid())


@lru_cache
def _probe(url: ObjectUrl, _process: int) -> None:
    folder = ObjectFolder(url)
    key = f"{_PROBE}/{uuid.uuid4().hex}"
    try:
        if not folder.create(key, b"first"):
            raise ObjectStorageError(f"{url}: refused to create {key}, which nobody else writes")
        present = folder.read_tagged(key)
        if folder.create(key, b"second") or folder.read(key) != b"first":
            _refuse(url, "created an object that was there already")
        if folder.replace(key, b"third", _ANOTHER) or folder.read(key) != b"first":
            _refuse(url, "replaced an object that was another one than the condition named")
        if not folder.replace(key, b"fourth", present):
            _refuse(url, "did not replace an object by its own tag")
    finally:
        folder.remove([key])


def _refuse(url: ObjectUrl, what: str) -> None:
    raise ObjectStorageError(
        f"{url}: this storage {what}, so two writers could overwrite each other's data without a word; use one that "
        "keeps conditional writes (If-None-Match and If-Match), such as Amazon S3, Google Cloud Storage, Azure Blob "
        "Storage or MinIO, or a shared folder"
    )
