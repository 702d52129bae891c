"""A folder as one file and back: a ZIP archive without compression, because the chunks in it are compressed already.

One object per shard instead of some hundred: an upload costs one request, and a bucket of a hundred thousand shards
stays small enough to be listed.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath

from rollout_assets.errors import StoreDamaged
from rollout_assets.files import tree_sizes

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that the format knows: equal folders give equal packs."""


def pack_folder(folder: Path, pack: Path) -> None:
    """Write every file below a folder into one file; the order and the times do not depend on the machine."""
    with zipfile.ZipFile(pack, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tree_sizes(folder)):
            with archive.open(zipfile.ZipInfo(name, _EPOCH), "w", force_zip64=True) as entry:
                entry.write((folder / name).read_bytes())


def unpack_folder(pack: Path, folder: Path, where: str) -> None:
    """Write the files of a pack below a folder; names that lead out of it are ``StoreDamaged``."""
    try:
        with zipfile.ZipFile(pack) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename)
                if name.is_absolute() or ".." in name.parts or os.sep != "/" or entry.is_dir():
                    raise StoreDamaged(where, f"its pack has the name {entry.filename!r}, which leads out of it")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(entry))
    except zipfile.BadZipFile as error:
        raise StoreDamaged(where, f"its pack cannot be read: {error}") from None
