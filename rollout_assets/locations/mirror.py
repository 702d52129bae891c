"""Copies of some objects below a URL in a folder on this machine, so that what reads files can read them.

Only what a caller reads is copied, and a copy is used again as long as the object has the same tag and the copy has the
digest that it was written with: a copy that a power loss emptied, or that was altered, is made again. A process reads
each copy once for that, and again when its size or times have changed; so copies are written without waiting for the
disk. Several processes share the folder: each copy appears by rename, and one process at a time brings a group of
objects up to date. The folder can be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rollout_assets.files import FileStamp, file_lock, file_sha256, remove_path, replace_bytes
from rollout_assets.locations.objects import ObjectFact, ObjectFolder, TaggedBytes
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.parsing import parse_json

_NOTES = ".tags"
_PATIENCE_S = 600.0
"""How long to wait for another process that copies the same objects."""


class CopiedObject(NamedTuple):
    """The tag of an object and the SHA-256 of its content, when it was copied."""

    etag: str
    sha256: str


class ObjectMirror:
    """The copies of objects below one URL."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self.root = url.cache_dir
        self.objects = ObjectFolder(url)
        self._verified: dict[str, tuple[FileStamp, CopiedObject]] = {}

    def file(self, key: str, *, anew: bool = False) -> Path | None:
        """The copy of one object, as it is now; None if there is no such object. One request.

        ``anew`` reads the object again, whatever is here.
        """
        with self._group(key) as notes:
            path = self.root / key
            note = None if anew else notes.get(key)
            known = note.etag if note is not None and self._is_copy(key, note) else None
            try:
                fresh = self.objects.read_if_changed(key, known) if known else self.objects.read_tagged(key)
            except FileNotFoundError:
                remove_path(path)
                notes.clear()
                return None
            if fresh is not None:
                notes[key] = self._write(key, fresh)
            return path

    def kept(self, key: str) -> Path | None:
        """The copy of an object that never changes; None if there is no such object. No request if it is here."""
        with self._group(key) as notes:
            if key in notes and self._is_copy(key, notes[key]):
                return self.root / key
        return self.file(key)

    def folder(self, prefix: str, *, anew: bool = False) -> Path:
        """A folder with copies of all objects below a prefix, as they are now: a listing, and what has changed.

        ``anew`` reads every object again, whatever is here.
        """
        with self._group(prefix) as notes:
            facts = {fact.key: fact for fact in self.objects.listing(prefix)}
            for key in notes.keys() - facts.keys():
                remove_path(self.root / key)
                del notes[key]
            outdated = [key for key, fact in facts.items() if anew or not self._is_current(fact, notes.get(key))]
            copied = self.objects.at_once(lambda key: self._write(key, self.objects.read_tagged(key)), outdated)
            notes.update(zip(outdated, copied, strict=True))
        return self.root / prefix

    def is_unaltered(self, key: str) -> bool:
        """Whether this process has verified the copy of an object and nothing has written to it since. No request."""
        verified = self._verified.get(key)
        return verified is not None and verified[0] == self._stamp(key)

    def _is_current(self, fact: ObjectFact, note: CopiedObject | None) -> bool:
        return note is not None and note.etag == fact.etag and self._is_copy(fact.key, note)

    def _is_copy(self, key: str, note: CopiedObject) -> bool:
        """Whether a copy has the digest of what was copied."""
        stamp = self._stamp(key)
        if stamp is None:
            return False
        if self._verified.get(key) != (stamp, note):
            if file_sha256(self.root / key) != note.sha256:
                return False
            self._verified[key] = stamp, note
        return True

    def _stamp(self, key: str) -> FileStamp | None:
        path = self.root / key
        return FileStamp.of(path) if path.is_file() else None

    def _write(self, key: str, content: TaggedBytes) -> CopiedObject:
        path = self.root / key
        note = CopiedObject(content.etag, hashlib.sha256(content.data).hexdigest())
        if not (path.is_file() and file_sha256(path) == note.sha256):  # an equal one keeps its times
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(path, content.data)
        self._verified[key] = FileStamp.of(path), note
        return note

    def _group(self, name: str) -> _Notes:
        return _Notes(self.root / _NOTES / quote(name or "all", safe=""), str(self.url))


class _Notes(dict[str, CopiedObject]):
    """What was copied of one group of objects, kept in a file beside the copies, for one process at a time."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__()
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = file_lock(path.with_name(f"{path.name}.lock"), what, patience_s=_PATIENCE_S)

    def __enter__(self) -> _Notes:
        self._lock.__enter__()
        with suppress(OSError, ValueError):
            self.update(_copied_objects(parse_json(self._path.read_bytes())))
        self._before = dict(self)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None and self != self._before:
                replace_bytes(self._path, _json(self))
        finally:
            self._lock.__exit__(*error)


def _copied_objects(value: Any) -> dict[str, CopiedObject]:
    notes = value.items() if isinstance(value, dict) else ()
    return {key: CopiedObject(**note) for key, note in notes if isinstance(note, dict) and note.keys() == _FIELDS}


_FIELDS = set(CopiedObject._fields)


def _json(notes: Mapping[str, CopiedObject]) -> bytes:
    return json.dumps({key: note._asdict() for key, note in notes.items()}).encode()
