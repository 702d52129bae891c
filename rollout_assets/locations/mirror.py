"""Copies of some objects below a URL in a folder on this machine, so that what reads files can read them.

Only what is asked for is copied, and a copy is used again as long as the object has the same tag. Several processes
share the folder: each copy appears by rename, and one process at a time brings a group of objects up to date. The
folder can be removed at any time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rollout_assets.files import file_lock, remove_path, replace_bytes
from rollout_assets.locations.objects import ObjectFact, ObjectFolder
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.parsing import parse_json

_TAGS = ".tags"
_PATIENCE_S = 600.0
"""How long to wait for another process that copies the same objects."""


class ObjectMirror:
    """The copies of objects below one URL."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self.root = url.cache_dir
        self.objects = ObjectFolder(url)

    def file(self, key: str) -> Path | None:
        """The copy of one object, as it is now; None if there is no such object. One request."""
        with self._group(key) as tags:
            path = self.root / key
            known = tags.get(key) if path.is_file() else None
            try:
                fresh = self.objects.read_if_changed(key, known) if known else self.objects.read_tagged(key)
            except FileNotFoundError:
                remove_path(path)
                tags.clear()
                return None
            if fresh is not None:
                self._write(key, fresh.data)
                tags[key] = fresh.etag
            return path

    def folder(self, prefix: str) -> Path:
        """A folder with copies of all objects below a prefix, as they are now: a listing, and what has changed."""
        with self._group(prefix) as tags:
            facts = {fact.key: fact for fact in self.objects.listing(prefix)}
            for key in tags.keys() - facts.keys():
                remove_path(self.root / key)
                del tags[key]
            outdated = [fact for key, fact in facts.items() if not self._has(fact, tags)]
            self.objects.at_once(lambda fact: self._write(fact.key, self.objects.read(fact.key)), outdated)
            tags.update({fact.key: fact.etag for fact in outdated})
        return self.root / prefix

    def _has(self, fact: ObjectFact, tags: Mapping[str, str]) -> bool:
        path = self.root / fact.key
        return tags.get(fact.key) == fact.etag and path.is_file() and path.stat().st_size == fact.size

    def _write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, data)

    def _group(self, name: str) -> _Tags:
        return _Tags(self.root / _TAGS / quote(name or "all", safe=""), str(self.url))


class _Tags(dict[str, str]):
    """Tags of the copied objects of one group, kept in a file beside the copies, for one process at a time."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__()
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = file_lock(path.with_name(f"{path.name}.lock"), what, patience_s=_PATIENCE_S)

    def __enter__(self) -> _Tags:
        self._lock.__enter__()
        with suppress(OSError, ValueError):
            self.update(_texts(parse_json(self._path.read_bytes())))
        self._before = dict(self)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None and self != self._before:
                replace_bytes(self._path, _json(self))
        finally:
            self._lock.__exit__(*error)


def _texts(value: Any) -> dict[str, str]:
    return {key: tag for key, tag in value.items() if isinstance(tag, str)} if isinstance(value, dict) else {}


def _json(tags: Mapping[str, str]) -> bytes:
    return json.dumps(dict(tags)).encode()
