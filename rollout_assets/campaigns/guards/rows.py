"""Rows that readers have: a version with fewer of them is published on the operator's word only, and says what went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rollout_assets.campaigns.guards.inputs import ALLOW_FEWER
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import owner_if_finished
from rollout_assets.campaigns.merging.row_counts import COUNTED_TABLES, rows_of_shards
from rollout_assets.campaigns.versions import PromotedShard, PromotedVersion, PromotionRecord
from rollout_assets.errors import PromotionRefused, StoreError
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

SHOWN_SHARDS = 20
"""Shards that a refused promotion lists."""


def fewer_rows(
    layout: CampaignLayout, record: PromotionRecord, versions: Sequence[PromotedVersion], left_out: Sequence[str]
) -> tuple[str, ...]:
    """Tables of which a promotion would give readers fewer rows, each in a line, then the shards that it is for.

    Readers have the current version or, if it cannot be read, the newest one that can. ``left_out`` are unfinished
    shards with their reasons.
    """
    before = next((version for version in versions if version.is_current), versions[-1] if versions else None)
    if before is None or before.record == record:
        return ()
    had, has = _rows_of_version(layout, before), _rows_by_split(layout, record.splits)
    lines = [
        f"{split} {table}: {present:,}, readers of {before.name} have {rows:,}"
        for split, tables in had.items()
        for table, rows, present in zip(COUNTED_TABLES, tables, has.get(split, _NO_ROWS), strict=True)
        if present < rows
    ]
    if not lines:
        return ()
    reasons = list(_changed_shards(layout, before.record, record, left_out))
    more = [f"and {len(reasons) - SHOWN_SHARDS} more shards"] if len(reasons) > SHOWN_SHARDS else []
    return (*lines, *reasons[:SHOWN_SHARDS], *more)


def refuse_fewer_rows(layout: CampaignLayout, fewer: Sequence[str], *, allow: bool) -> None:
    """Raise ``PromotionRefused`` with what ``fewer_rows`` found, unless that is allowed."""
    if fewer and not allow:
        remedy = f"readers keep their rows; restore what is missing, or publish fewer rows by {ALLOW_FEWER}"
        raise PromotionRefused(layout.place, [*fewer, remedy])


_NO_ROWS = [0] * len(COUNTED_TABLES)


def _rows_of_version(layout: CampaignLayout, version: PromotedVersion) -> dict[str, list[int]]:
    """The rows of every counted table by split; those of a damaged split by the shards that it was made from."""
    rows = {}
    for child in version.children:
        try:
            reader = RolloutZarrStoreReader(child)
            rows[child.name] = [reader.num_rows(table) for table in COUNTED_TABLES]
        except (StoreError, OSError):
            rows |= _rows_by_split(layout, {child.name: version.record.splits[child.name]})
    return rows


def _rows_by_split(layout: CampaignLayout, splits: Mapping[str, Sequence[PromotedShard]]) -> dict[str, list[int]]:
    return {split: rows_of_shards(layout, shards).sum(axis=0).tolist() for split, shards in splits.items()}


def _changed_shards(
    layout: CampaignLayout, before: PromotionRecord, after: PromotionRecord, left_out: Sequence[str]
) -> Iterator[str]:
    """The shards of a version that another one lacks or has with other content, each with the reason."""
    present = {shard.shard_id: shard for shards in after.splits.values() for shard in shards}
    unfinished = {line.split(" ", 1)[0]: line for line in left_out}
    for shard in (shard for shards in before.splits.values() for shard in shards):
        new = present.get(shard.shard_id)
        if new is None:
            yield unfinished.get(shard.shard_id, f"{shard.shard_id}: is not in the plan")
        elif new != shard:
            owner = owner_if_finished(layout.shard(shard.shard_id))
            rows = () if owner is None else owner.rows
            skipped = "; ".join(f"{row.sample_key} {row.why_skipped}" for row in rows if row.skipped)
            what = "built" if new.entry_sha256 == shard.entry_sha256 else "planned"
            yield f"{shard.shard_id}: was {what} again{f', without {skipped}' if skipped else ''}"
