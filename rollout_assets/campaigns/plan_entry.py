"""A planned shard: which source rows it is built from, and under which config and source they were planned."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, overload

import numpy as np
from pydantic import Field

from rollout_assets.campaigns.columns.plan_columns import PlanColumns
from rollout_assets.campaigns.layout import StoredModel
from rollout_assets.config import CampaignConfig, Natural, Split, canonical_json
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.scene_splits import scene_splits

ROLLOUT_SHARD_MANIFEST_VERSION: Literal["rollout-shard-manifest-v2"] = "rollout-shard-manifest-v2"
"""Version label for rollout generation JSONL shard manifests."""


def shard_id_of(number: int) -> str:
    """``shard-000003``."""
    return f"shard-{number:06d}"


class RolloutShardRow(StoredModel):
    """One VIN offline source row that a rollout shard is built from."""

    order: Natural
    sample_index: Natural
    sample_key: str
    scene_id: str
    snippet_id: str
    split: Split
    source_shard_id: str
    source_shard_row: Natural
    source_split: Split | None = Field(default=None, exclude_if=lambda split: split is None)
    """The source's own split, where the campaign's is another one."""

    @property
    def own_split(self) -> Split:
        """The split that the source itself gives the row."""
        return self.source_split or self.split

    @classmethod
    def of(cls, order: int, row: IndexRow) -> RolloutShardRow:
        """The row of a source index, at its place in a shard."""
        same = row.model_dump(exclude={"shard_id", "row"})
        return cls(order=order, **same, source_shard_id=row.shard_id, source_shard_row=row.row)

    def is_row(self, row: IndexRow) -> bool:
        """Whether a source row is still the one that was planned, whatever split a campaign puts it into."""
        return self == RolloutShardRow.of(self.order, row.in_split(self.split))


class RolloutShardEntry(StoredModel):
    """One deterministic rollout generation shard entry."""

    manifest_version: Literal["rollout-shard-manifest-v2"] = ROLLOUT_SHARD_MANIFEST_VERSION
    shard_id: Annotated[str, Field(pattern=r"^shard-\d{6,}$")]
    split: Split
    rows: tuple[RolloutShardRow, ...] = Field(min_length=1)
    writer_config_hash: str
    source_manifest_hash: str
    source_cache_version: str
    split_manifest_hash: str
    source_store_dir: str

    def to_json(self) -> bytes:
        """One line of the plan, newline included."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    @property
    def sha256(self) -> str:
        """Digest of the line: what a finished shard was built for."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def config_change(self, config: CampaignConfig) -> str | None:
        """How the campaign was edited since this shard was planned; None if in no way that changes a stored byte."""
        if self.writer_config_hash == config.writer_config_hash:
            return self.split_change(config)
        planned, present = self.writer_config_hash[:12], config.writer_config_hash[:12]
        return f"planned for writer config {planned}, the campaign now has {present}"

    def split_change(self, config: CampaignConfig) -> str | None:
        """A scene of this shard that the campaign's ``[split]`` puts elsewhere, in words; None if there is none."""
        splits = scene_splits(config.split)
        for row in self.rows:
            split = splits.split_of(row.scene_id, row.own_split)
            if split != row.split:
                now = "not listed" if split is None else f"in {split}"
                return f"planned with scene {row.scene_id} in {row.split}; by the campaign's [split] it is now {now}"
        return None


class PlannedShards(Sequence[RolloutShardEntry]):
    """The entries of a plan in order, each parsed when it is asked for, and the plan's columns.

    A plan of 100,000 shards is held as its lines, because their entries would take ten times the memory.
    """

    def __init__(self, lines: Sequence[bytes], columns: PlanColumns) -> None:
        self.lines = lines
        self.columns = columns

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, place: int) -> RolloutShardEntry: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[RolloutShardEntry, ...]: ...
    def __getitem__(self, place: int | slice) -> RolloutShardEntry | tuple[RolloutShardEntry, ...]:
        if isinstance(place, slice):
            return tuple(RolloutShardEntry.model_validate_json(line) for line in self.lines[place])
        return RolloutShardEntry.model_validate_json(self.lines[place])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PlannedShards):
            return self.columns.sha256 == other.columns.sha256
        return tuple(self) == other

    __hash__ = None  # type: ignore[assignment]

    def config_changes(self, config: CampaignConfig) -> dict[int, str]:
        """``config_change`` of every shard that has one, by the shard's number."""
        columns, present = self.columns, config.writer_config_hash
        others = [number for number, name in enumerate(columns.names["configs"]) if name != present]
        changed = np.isin(columns.config, others) | columns.shards_with(columns.moved_rows(config.split))
        changes = {number: self[number].config_change(config) for number in np.flatnonzero(changed).tolist()}
        return {number: change for number, change in changes.items() if change is not None}
