"""Digests of mesh files, remembered between runs so that a status need not read every mesh of a campaign.

A digest is believed while the file has the size, inode and times that it had when it was read. It says whether a mesh
seems to be the one that a shard was built from. It never becomes the version of a label: that is always the hash of the
very triangles that were scored. Nothing is ever written beside the input.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollout_assets.files import FileStamp, replace_bytes

_VERSION = 2
_DIGITS = 64


class MeshDigests:
    """Remembered digests, one small file each in ``folder``; without a folder nothing is remembered.

    The folder is made when its parent is there. That it cannot be written to is no error: the mesh is read again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def get(self, mesh: Path, stamp: FileStamp) -> str | None:
        """The digest of a mesh file that has not been touched since it was remembered; else None."""
        try:
            kept = json.loads(self._note(mesh).read_bytes()) if self.folder is not None else {}
            digest = kept.pop("content_hash")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        current = kept == _facts(mesh, stamp)
        return digest if current and isinstance(digest, str) and len(digest) == _DIGITS else None

    def put(self, mesh: Path, stamp: FileStamp, digest: str) -> None:
        """Remember a digest, if there is a place for it."""
        if self.folder is None or not self.folder.parent.is_dir():
            return
        with suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            body = _facts(mesh, stamp) | {"content_hash": digest}
            replace_bytes(self._note(mesh), json.dumps(body).encode("ascii") + b"\n")

    def forget(self, mesh: Path) -> None:
        """Believe no digest of this file any more."""
        if self.folder is not None:
            self._note(mesh).unlink(missing_ok=True)

    def _note(self, mesh: Path) -> Path:
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(str(mesh.absolute()).encode()).hexdigest()[:32]}.json"


def _facts(mesh: Path, stamp: FileStamp) -> dict[str, Any]:
    return {"version": _VERSION, "mesh": str(mesh.absolute())} | stamp._asdict()
