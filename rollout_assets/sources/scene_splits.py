"""The split of every scene as a campaign's ``[split]`` says it.

The split of a scene follows from its id and the section alone. So scenes that are added later never move an old one,
and a plan can be compared with an edited campaign without its source.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import get_args

from rollout_assets.config import Split, SplitConfig, SplitShares, canonical_json
from rollout_assets.errors import ConfigError, counted
from rollout_assets.parsing import read_text_file
from rollout_assets.sources.layout import IndexRow

CSV_COLUMNS = ("scene_id", "split")
"""Columns of a file of explicit splits."""

_SPLITS: tuple[Split, ...] = get_args(Split)
_SHOWN = 5


@dataclass(frozen=True)
class SceneSplits:
    """A campaign's splits; ``listed`` are the scenes that mode ``explicit`` names."""

    config: SplitConfig
    listed: Mapping[str, Split]

    def split_of(self, scene_id: str, own_split: Split) -> Split | None:
        """The campaign's split of a scene whose row has a split of its own; None if it is not listed."""
        if self.config.mode == "from_source":
            return own_split
        if self.config.mode == "by_scene":
            return hashed_split(scene_id, self.config.seed, self.config.shares)
        return self.listed.get(scene_id, self.config.rest)

    def assign(self, rows: Iterable[IndexRow], where: str) -> tuple[IndexRow, ...]:
        """Rows in the campaign's splits; scenes that are not listed are a ``ConfigError`` that names them."""
        splits = [(row, self.split_of(row.scene_id, row.own_split)) for row in rows]
        unlisted = list(dict.fromkeys(row.scene_id for row, split in splits if split is None))
        if unlisted:
            shown = ", ".join(unlisted[:_SHOWN]) + (f" and {len(unlisted) - _SHOWN} more" if unlisted[_SHOWN:] else "")
            raise ConfigError(
                f'{where}: {counted(len(unlisted), "scene")} not listed in [split] of mode "explicit": {shown}; '
                f'list them, or set rest = "train" or "val" in [split]'
            )
        return tuple(row.in_split(split) for row, split in splits if split is not None)

    def listed_elsewhere(self, rows: Iterable[IndexRow]) -> tuple[str, ...]:
        """Listed scenes that no row is of: those of other stores, or misspelt ones."""
        return tuple(sorted(self.listed.keys() - {row.scene_id for row in rows}))


def scene_splits(config: SplitConfig) -> SceneSplits:
    """A campaign's splits; a file of explicit ones is read again only when it has changed."""
    return _read(config, () if config.file is None else _stamp(config.file))


def hashed_split(scene_id: str, seed: int, shares: SplitShares) -> Split:
    """The split of a scene by hash: its place in [0, 1) is the first 53 bits of SHA-256 over seed and scene id.

    ``val`` takes the places below its share. So a larger share only moves scenes into it, never out of it.
    """
    digest = hashlib.sha256(canonical_json([seed, scene_id])).digest()
    place = (int.from_bytes(digest[:8]) >> 11) / 2**53
    return "val" if place < shares.val else "train"


@lru_cache(maxsize=4)
def _read(config: SplitConfig, _stamp: tuple[int, ...]) -> SceneSplits:
    return SceneSplits(config, config.scenes.by_scene() if config.file is None else _listed(config.file))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; split.file must be a CSV with {_columns()}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _listed(path: Path) -> Mapping[str, Split]:
    listed: dict[str, Split] = {}
    for line, scene, split in _lines(path):
        if listed.setdefault(scene, split) != split:
            raise ConfigError(f"{path}:{line}: scene {scene} is in {split} here and in {listed[scene]} above; keep one")
    return listed


def _lines(path: Path) -> Iterator[tuple[int, str, Split]]:
    """Line number, scene and split of every line with content; anything odd is a ``ConfigError`` with its line."""
    reader = csv.reader(io.StringIO(read_text_file(path).removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if sorted(header) != sorted(CSV_COLUMNS):
            raise ConfigError(f"{path}:1: must have {_columns()}, got {', '.join(header) or 'nothing'}")
        for cells in reader:
            values = dict(zip(header, (cell.strip() for cell in cells), strict=False))
            if not any(values.values()):
                continue
            split = next((name for name in _SPLITS if name == values.get("split")), None)
            if len(cells) != len(header) or not values["scene_id"] or split is None:
                raise ConfigError(
                    f"{path}:{reader.line_num}: must be a scene id and {' or '.join(_SPLITS)}, got {','.join(cells)!r}"
                )
            yield reader.line_num, values["scene_id"], split
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: is not CSV: {error}") from None


def _columns() -> str:
    return f"the columns {' and '.join(CSV_COLUMNS)}"
