"""The markers of finished shards in columns: each is read once, and again only after one of its files has changed.

A shard is known by the times at which its folder, its two markers and its store's manifest last changed their status,
which nobody can set back. Only shards without any problem are known; every other one is left to whoever reads it.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.kept import Columns, keep_columns, kept_columns, text_list, texts
from rollout_assets.campaigns.layout import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    STORE_NAME,
    CampaignLayout,
)
from rollout_assets.campaigns.markers import (
    ShardOwner,
    damage,
    read_owner,
    skipped_for_faults,
    skipped_in_words,
    validated_version,
)
from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME

VERSION = "marker-columns-v1"
SETTLED_NS = 2_000_000_000
"""A shard that changed less long ago is read but not kept, because a second change could leave the same times."""

_FILES = (
    "",
    f"/{ROLLOUT_SHARD_SUCCESS_FILENAME}",
    f"/{ROLLOUT_SHARD_OWNER_FILENAME}",
    f"/{STORE_NAME}/{ROLLOUT_MANIFEST_FILENAME}",
)
_TEXTS = ("config", "skips", "meshes", "sources")
"""Columns that are numbers of texts, because most shards share them."""

_DTYPES: dict[str, Any] = {
    "shard": np.int64,
    "entry": "S64",
    "content": "S64",
    "version": "S16",
    "config": np.int32,
    "skips": np.int32,
    "meshes": np.int32,
    "sources": np.int32,
    "records": np.int64,
    "rows": np.int64,
    "skipped": np.int64,
    "bytes": np.int64,
    "seconds": np.float64,
    "faults": np.bool_,
}


@dataclass(frozen=True, eq=False)
class FinishedShards:
    """Finished shards without a problem, one row each, in no order; ``place`` (shards,) has a shard's row, or -1."""

    columns: Columns
    texts: dict[str, list[str]]
    place: NDArray[np.int64]

    @classmethod
    def look(cls, layout: CampaignLayout, built: Sequence[int], shards: int) -> FinishedShards:
        """Those among the shards with a folder, by their numbers; what is new is read and kept for the next look."""
        kept = kept_columns(layout.marker_columns, VERSION) or _no_columns()
        numbers = np.array(built, np.int64)
        times = _times(layout, built)
        known = np.full(shards, -1, np.int64)
        inside = kept["shard"] < shards
        known[kept["shard"][inside]] = np.flatnonzero(inside)
        places = known[numbers]
        same = (places >= 0) & (kept["times"][places] == times).all(axis=1) if len(kept["shard"]) else places >= 0
        columns, names = _only(kept, places[same]), _text_lists(kept)
        if same.all() and len(columns["shard"]) == len(kept["shard"]):
            return cls(columns, names, _places(columns, shards))
        added = _Added(names)
        for number in numbers[~same].tolist():
            added.read(layout, number)
        new, settled = added.finish(numbers, times)
        both = {name: np.concatenate([columns[name], new[name]]) for name in columns}
        stay = np.concatenate([np.ones(len(columns["shard"]), np.bool_), settled])
        if len(new["shard"]) or not same.all():
            kept_texts = {f"texts_{name}": texts(names[name]) for name in _TEXTS}
            keep_columns(layout.marker_columns, VERSION, {name: both[name][stay] for name in both} | kept_texts)
        return cls(both, names, _places(both, shards))

    def __contains__(self, number: int) -> bool:
        return bool(self.place[number] >= 0)

    @cached_property
    def lists(self) -> dict[str, list[Any]]:
        """The columns as lists of plain values, which are faster to take apart one by one; digests are texts."""
        return {
            name: (values.astype(np.str_) if values.dtype.kind == "S" else values).tolist()
            for name, values in self.columns.items()
            if name != "times"
        }

    def text(self, name: str, row: int) -> str:
        """A text of a row."""
        return self.texts[name][self.lists[name][row]]

    def by_shard(self, name: str) -> list[Any]:
        """A column of numbers in the order of the shards, with something for those that are not among them."""
        values = self.columns[name]
        return values[np.maximum(self.place, 0)].tolist() if len(values) else [0] * len(self.place)

    def pairs(self, name: str, shard_of: NDArray[np.int64], codes: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
        """Every text of these shards together with every code that stands beside it, each pair once.

        ``shard_of``, ``codes``: (rows,) the shard of a planned row, and a number of something in it.
        """
        place = self.place[shard_of]
        there = place >= 0
        width = int(codes.max(initial=0)) + 1
        both = np.unique(self.columns[name][place[there]].astype(np.int64) * width + codes[there])
        yield from zip((both // width).tolist(), (both % width).tolist(), strict=True)


def built_numbers(names: Iterable[str]) -> list[int]:
    """Numbers of the folders that are named as shards are."""
    return [int(name[6:]) for name in names if name.startswith("shard-") and name[6:].isdecimal()]


def _times(layout: CampaignLayout, built: Sequence[int]) -> NDArray[np.int64]:
    """(shards, 4) when each file of each shard last changed its status; 0 for a file that is not there."""
    if not built:
        return np.zeros((0, len(_FILES)), np.int64)
    times = array("q")
    stat, add = os.stat, times.append
    shards = os.open(layout.shards, os.O_RDONLY | os.O_DIRECTORY)  # short paths: of so many, each costs its lookups
    try:
        for number in built:
            folder = f"shard-{number:06d}"
            for name in _FILES:
                try:
                    add(stat(folder + name, dir_fd=shards).st_ctime_ns)
                except OSError:
                    add(0)
    finally:
        os.close(shards)
    return np.frombuffer(times, np.int64).reshape(-1, len(_FILES))


class _Added:
    """Shards that are read now."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self._names = names
        self._numbers = {kind: {text: number for number, text in enumerate(names[kind])} for kind in _TEXTS}
        self._rows: dict[str, list[Any]] = {name: [] for name in _DTYPES}

    def read(self, layout: CampaignLayout, number: int) -> None:
        """Add a shard if there is nothing wrong with it, as far as its markers and its manifest tell."""
        folder = layout.shard(f"shard-{number:06d}")
        try:
            owner = read_owner(folder)
            if any(damage(folder, owner, deep=False)):
                return
        except (StoreDamaged, OSError):
            return
        self._add(number, owner)

    def _add(self, number: int, owner: ShardOwner) -> None:
        sources = {name: (seal.stamp, seal.sha256) for name, seal in owner.source_shards.items()}
        facts = {
            "shard": number,
            "entry": owner.entry_sha256,
            "content": owner.content_sha256 or "",
            "version": validated_version(owner.entry_sha256, owner.content_sha256),
            "config": self._number("config", owner.writer_config_hash),
            "skips": self._number("skips", skipped_in_words(owner)),
            "meshes": self._number("meshes", json.dumps(owner.mesh_versions)),
            "sources": self._number("sources", json.dumps(sources)),
            "records": owner.records,
            "rows": len(owner.rows),
            "skipped": sum(row.skipped is not None for row in owner.rows),
            "bytes": 0 if owner.store is None else owner.store.bytes,
            "seconds": owner.seconds,
            "faults": bool(skipped_for_faults(owner)),
        }
        for name, value in facts.items():
            self._rows[name].append(value)

    def finish(self, numbers: NDArray[np.int64], times: NDArray[np.int64]) -> tuple[Columns, NDArray[np.bool_]]:
        """The columns of what was read, and which of it has not changed for a while and may be kept."""
        columns: Columns = {name: np.array(self._rows[name], dtype) for name, dtype in _DTYPES.items()}
        order = np.argsort(numbers)
        columns["times"] = times[order[np.searchsorted(numbers[order], columns["shard"])]] if len(numbers) else times
        settled = columns["times"].max(axis=1, initial=0) < time.time_ns() - SETTLED_NS
        return columns, settled

    def _number(self, kind: str, text: str) -> int:
        numbers = self._numbers[kind]
        if text not in numbers:
            numbers[text] = len(numbers)
            self._names[kind].append(text)
        return numbers[text]


def _no_columns() -> Columns:
    columns: Columns = {name: np.zeros(0, dtype) for name, dtype in _DTYPES.items()}
    columns["times"] = np.zeros((0, len(_FILES)), np.int64)
    return columns | {f"texts_{name}": texts([]) for name in _TEXTS}


def _text_lists(kept: Columns) -> dict[str, list[str]]:
    return {name: text_list(kept[f"texts_{name}"]) for name in _TEXTS}


def _only(kept: Columns, rows: NDArray[np.int64]) -> Columns:
    return {name: values[rows] for name, values in kept.items() if not name.startswith("texts_")}


def _places(columns: Columns, shards: int) -> NDArray[np.int64]:
    place = np.full(shards, -1, np.int64)
    place[columns["shard"]] = np.arange(len(columns["shard"]))
    return place
