"""The gate before promotion: every planned shard must be validated, and must still be what was validated.

The caller says which version of each shard was validated; Dagster's instance records it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rollout_assets.campaigns.integrity import shard_damage
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import owner_if_finished
from rollout_assets.campaigns.plan import RolloutShardEntry, read_rollout_shard_manifest
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.config import CampaignConfig, canonical_hash
from rollout_assets.errors import PromotionRefused


def validated_version(entry_sha256: str, content_sha256: str | None) -> str:
    """What was validated: the shard as planned, with this content."""
    return canonical_hash({"entry": entry_sha256, "content": content_sha256})[:16]


def version_on_disk(layout: CampaignLayout, entry: RolloutShardEntry) -> str | None:
    """The version that a shard on disk would be validated under; None when its markers cannot be read."""
    owner = owner_if_finished(layout.shard(entry.shard_id))
    return None if owner is None else validated_version(owner.entry_sha256, owner.content_sha256)


def unvalidated_shards(
    config: CampaignConfig, entries: Sequence[RolloutShardEntry], validated: Mapping[str, str]
) -> list[RolloutShardEntry]:
    """Planned shards that were never validated, or are another version than the validated one."""
    layout = CampaignLayout(config.shards.output_dir)
    versions = {entry.shard_id: version_on_disk(layout, entry) for entry in entries}
    return [
        entry
        for entry in entries
        if versions[entry.shard_id] is None or validated.get(entry.shard_id) != versions[entry.shard_id]
    ]


def refuse_unvalidated(config: CampaignConfig, validated: Mapping[str, str]) -> None:
    """Raise ``PromotionRefused`` with every reason, after every byte of every shard was read by this process."""
    reasons = list(_reasons(config, validated))
    if reasons:
        raise PromotionRefused(str(CampaignLayout(config.shards.output_dir).root), reasons)


def _reasons(config: CampaignConfig, validated: Mapping[str, str]) -> Iterator[str]:
    layout = CampaignLayout(config.shards.output_dir)
    entries = read_rollout_shard_manifest(config)
    unvalidated = {entry.shard_id for entry in unvalidated_shards(config, entries, validated)}
    for entry in entries:
        shard_dir = layout.shard(entry.shard_id)
        problems = shard_problems(shard_dir, entry, None, deep=False) or shard_damage(shard_dir)
        if problems:
            yield f"{entry.shard_id}: {'; '.join(problems)}; materialize rollout_shards of this partition again"
        elif entry.shard_id in unvalidated:
            yield f"{entry.shard_id}: not validated; materialize it up to validated_shards"
