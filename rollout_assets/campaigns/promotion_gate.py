"""The gate before promotion: every planned shard must be validated, and must still be what was validated.

The caller says which version of each shard was validated; Dagster's instance records it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.integrity import shard_damage
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import owner_if_finished, validated_version
from rollout_assets.campaigns.objects.working_copy import refresh_shards
from rollout_assets.campaigns.plan_entry import PlannedShards, RolloutShardEntry, shard_id_of
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PromotionRefused


def version_on_disk(layout: CampaignLayout, entry: RolloutShardEntry) -> str | None:
    """The version that a shard on disk would be validated under; None while it is not finished as it is planned now."""
    folder = layout.shard(entry.shard_id)
    owner = None if shard_problems(folder, entry, None, deep=False) else owner_if_finished(folder)
    return None if owner is None else validated_version(owner.entry_sha256, owner.content_sha256)


def unvalidated_shards(
    config: CampaignConfig, entries: Sequence[RolloutShardEntry], validated: Mapping[str, str]
) -> list[RolloutShardEntry]:
    """Planned shards that are not finished as planned now, or are another version than the validated one."""
    if isinstance(entries, PlannedShards):
        survey = CampaignSurvey.of(config, entries)
        return [entries[number] for number in unvalidated_numbers(survey, validated)]
    layout = CampaignLayout.of(config)
    refresh_shards(layout)
    versions = {entry.shard_id: version_on_disk(layout, entry) for entry in entries}
    return [
        entry
        for entry in entries
        if versions[entry.shard_id] is None or validated.get(entry.shard_id) != versions[entry.shard_id]
    ]


def unvalidated_numbers(survey: CampaignSurvey, validated: Mapping[str, str]) -> list[int]:
    """The numbers of the planned shards that ``unvalidated_shards`` names."""
    return [
        number
        for number, version in enumerate(versions_on_disk(survey))
        if version is None or validated.get(shard_id_of(number)) != version
    ]


def versions_on_disk(survey: CampaignSurvey) -> list[str | None]:
    """``version_on_disk`` of every planned shard; no marker is read again."""
    versions, places = survey.finished.lists["version"], survey.finished.place.tolist()
    return [
        versions[place] if current else None for place, current in zip(places, survey.current().tolist(), strict=True)
    ]


def refuse_unvalidated(config: CampaignConfig, validated: Mapping[str, str]) -> None:
    """Raise ``PromotionRefused`` with every reason, after every byte of every shard was read by this process."""
    reasons = list(_reasons(config, validated))
    if reasons:
        raise PromotionRefused(CampaignLayout.of(config).place, reasons)


def _reasons(config: CampaignConfig, validated: Mapping[str, str]) -> Iterator[str]:
    layout, survey = CampaignLayout.of(config), CampaignSurvey.of(config)
    unvalidated = set(unvalidated_numbers(survey, validated))
    for number, current in enumerate(survey.current().tolist()):
        shard_dir = layout.shard(shard_id_of(number))
        problems = () if current else shard_problems(shard_dir, survey.planned[number], None, deep=False)
        problems = problems or shard_damage(shard_dir)
        if problems:
            yield f"{shard_dir.name}: {'; '.join(problems)}; materialize rollout_shards of this partition again"
        elif number in unvalidated:
            yield f"{shard_dir.name}: not validated; materialize it up to validated_shards"
