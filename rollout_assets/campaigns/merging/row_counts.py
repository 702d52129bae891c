"""Do the rows of a promoted store add up? The rows of a shard are kept in columns, so that each shard is asked once.

They are kept under the digest of the shard's content, which decides them: a shard that is built again with other
content has another digest. The file can be removed at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.campaigns.columns.kept import Columns, keep_columns, kept_columns
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.markers import content_sha256
from rollout_assets.campaigns.objects.working_copy import fetch_planned_shard
from rollout_assets.campaigns.versions import PromotedShard, PromotionRecord
from rollout_assets.files import remove_path
from rollout_assets.locations.url import Location
from rollout_assets.rollouts.zarr_store.manifest import read_rollout_store_manifest
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

COUNTED_TABLES = ("sources", "targets", "rollouts", "steps", "candidates")
"""Tables whose rows are the sum of the shards' rows."""

VERSION = "row-columns-v1"


@dataclass(frozen=True)
class TableRows:
    """The rows of one table of a promoted split, and those of its shards together."""

    split: str
    table: str
    shards: int
    promoted: int

    @property
    def add_up(self) -> bool:
        """Whether the two are equal."""
        return self.shards == self.promoted

    def __str__(self) -> str:
        return f"{self.split} {self.table}: {self.promoted:,} rows, its shards have {self.shards:,}"


def table_rows(
    layout: CampaignLayout, record: PromotionRecord, children: Mapping[str, Location]
) -> tuple[TableRows, ...]:
    """The rows of every counted table of every split; ``children`` are its stores by split, where it has one.

    Kept rows that do not add up are forgotten, and all shards are asked again.
    """
    rows = tuple(_table_rows(layout, record, children))
    if all(counted.add_up for counted in rows) or not layout.row_columns.exists():
        return rows
    remove_path(layout.row_columns)
    return tuple(_table_rows(layout, record, children))


def _table_rows(
    layout: CampaignLayout, record: PromotionRecord, children: Mapping[str, Location]
) -> Iterator[TableRows]:
    shards = [shard for of_split in record.splits.values() for shard in of_split]
    counts = rows_of_shards(layout, shards)
    first = 0
    for split, of_split in record.splits.items():
        expected = counts[first : first + len(of_split)].sum(axis=0).tolist()
        first += len(of_split)
        reader = RolloutZarrStoreReader(children[split]) if split in children else None
        for table, rows in zip(COUNTED_TABLES, expected, strict=True):
            yield TableRows(split, table, rows, 0 if reader is None else reader.num_rows(table))


def rows_of_shards(layout: CampaignLayout, shards: Sequence[PromotedShard]) -> NDArray[np.int64]:
    """(shards, tables): the rows of each shard; the manifests of those that are not kept yet are read."""
    kept = kept_columns(layout.row_columns, VERSION) or _no_columns()
    known = dict(zip(kept["content"].tolist(), kept["rows"], strict=True))
    before = len(known)
    rows = np.zeros((len(shards), len(COUNTED_TABLES)), np.int64)
    for place, shard in enumerate(shards):
        if shard.content_sha256 is None:
            continue
        key = shard.content_sha256.encode()
        if key in known:
            rows[place] = known[key]
        else:
            rows[place], as_promoted = _counted(layout, shard)
            if as_promoted:
                known[key] = rows[place]
    if len(known) > before:
        contents = np.array(list(known), "S64")
        keep_columns(layout.row_columns, VERSION, {"content": contents, "rows": np.stack(list(known.values()))})
    return rows


def _counted(layout: CampaignLayout, shard: PromotedShard) -> tuple[list[int], bool]:
    """The rows of a shard as it lies there, and whether that is the one that was promoted."""
    store_dir = layout.shard(shard.shard_id) / STORE_NAME
    fetch_planned_shard(layout, shard.shard_id)
    if not store_dir.is_dir():
        return [0] * len(COUNTED_TABLES), False
    manifest = read_rollout_store_manifest(store_dir)
    counts = manifest["counts"]
    return [int(counts[table]) for table in COUNTED_TABLES], content_sha256(manifest) == shard.content_sha256


def _no_columns() -> Columns:
    return {"content": np.zeros(0, "S64"), "rows": np.zeros((0, len(COUNTED_TABLES)), np.int64)}
