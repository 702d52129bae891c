"""The gate before promotion: every planned shard must be validated, and must still be what was validated."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner
from rollout_assets.campaigns.plan import RolloutShardEntry, read_rollout_shard_manifest
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.defs.assets import validated_data_version
from rollout_assets.defs.campaign import VALIDATED_SHARDS, CampaignKeys, CampaignStep
from rollout_assets.errors import PromotionRefused, StoreDamaged

DATA_VERSION_TAG = "dagster/data_version"


def validated_versions(instance: dg.DagsterInstance, place: CampaignKeys) -> dict[str, str]:
    """Shard -> the data version under which it was last validated in this instance."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        place.key(VALIDATED_SHARDS),
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        tag_keys=[DATA_VERSION_TAG],
        asset_partitions=None,
    )
    return {shard: found[DATA_VERSION_TAG] for shard, found in tags.items()}


def present_version(layout: CampaignLayout, entry: RolloutShardEntry) -> str | None:
    """The data version that a shard on disk would be validated under; None when its markers cannot be read."""
    try:
        owner = read_owner(layout.shard(entry.shard_id))
    except (StoreDamaged, OSError):
        return None
    return validated_data_version(owner.entry_sha256, None if owner.store is None else owner.store.content_sha256)


def unvalidated(
    instance: dg.DagsterInstance, place: CampaignKeys, layout: CampaignLayout, entries: Sequence[RolloutShardEntry]
) -> list[RolloutShardEntry]:
    """Planned shards that were never validated, or are another version than the validated one."""
    known = validated_versions(instance, place)
    wanted = {entry.shard_id: present_version(layout, entry) for entry in entries}
    return [
        entry
        for entry in entries
        if wanted[entry.shard_id] is None or known.get(entry.shard_id) != wanted[entry.shard_id]
    ]


def refuse_unvalidated(step: CampaignStep) -> None:
    """Raise ``PromotionRefused`` with every reason, after reading every byte of every shard."""
    layout = CampaignLayout(step.config.shards.output_dir)
    entries = read_rollout_shard_manifest(step.config)
    reasons = {
        entry.shard_id: "not validated; materialize it up to validated_shards"
        for entry in unvalidated(step.instance, step.place, layout, entries)
    }
    for entry in entries:
        problems = shard_problems(layout.shard(entry.shard_id), entry, None, deep=True)
        if problems:
            reasons[entry.shard_id] = f"{'; '.join(problems)}; materialize rollout_shards of this partition again"
    if reasons:
        raise PromotionRefused(str(layout.root), [f"{shard}: {why}" for shard, why in sorted(reasons.items())])
