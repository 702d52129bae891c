"""The gate before promotion: every planned shard must be validated, and must still be what was validated.

The caller says which version of each shard was validated; Dagster's instance records it. Every byte is read of the
shards that are new to the promoted store. Those that it already holds are compared by their markers, manifests and
times, and a few of them, drawn at random, are read too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.integrity import shard_damage
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import owner_if_finished, validated_version
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.objects.working_copy import refresh_shards
from rollout_assets.campaigns.plan_entry import PlannedShards, RolloutShardEntry, shard_id_of
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PromotionRefused, RolloutAssetsError
from rollout_assets.progress import ProgressSink
from rollout_assets.workers import run_tasks

WORTH_A_WORKER = 64
"""Shards to read from which on processes beside this one are started; each takes a second or two to start."""


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


def refuse_unvalidated(
    config: CampaignConfig,
    validated: Mapping[str, str],
    sample: ReadSample | None = None,
    workers: int | None = None,
) -> None:
    """Raise ``PromotionRefused`` with every reason, after every byte of every new shard was read.

    ``sample`` says which of the others are read; ``workers`` is by default as many as the campaign promotes with.
    """
    count = config.automation.promotion_workers if workers is None else workers
    reasons = list(_reasons(config, validated, sample or ReadSample.new(), count))
    if reasons:
        raise PromotionRefused(CampaignLayout.of(config).place, reasons)


def _reasons(config: CampaignConfig, validated: Mapping[str, str], sample: ReadSample, workers: int) -> Iterator[str]:
    layout, survey = CampaignLayout.of(config), CampaignSurvey.of(config)
    unvalidated = set(unvalidated_numbers(survey, validated))
    damaged = damage_of_shards(layout, numbers_to_read(config, survey, sample), workers)
    for number, current in enumerate(survey.current().tolist()):
        shard_dir = layout.shard(shard_id_of(number))
        problems = () if current else shard_problems(shard_dir, survey.planned[number], None, deep=False)
        problems = problems or damaged.get(number, ())
        if problems:
            yield f"{shard_dir.name}: {'; '.join(problems)}; materialize rollout_shards of this partition again"
        elif number in unvalidated:
            yield f"{shard_dir.name}: not validated; materialize it up to validated_shards"


def numbers_to_read(config: CampaignConfig, survey: CampaignSurvey, sample: ReadSample) -> list[int]:
    """Built shards of which every byte is read: those that the promoted store does not hold as they are, and a sample.

    One whose markers tell of a problem is among them.
    """
    promoted = _promoted_contents(config)
    built = {number for number in range(len(survey.planned)) if shard_id_of(number) in survey.folders.built}
    held = {
        number
        for number in built
        if number in survey.finished
        and promoted.get(shard_id_of(number)) == (survey.planned.columns.sha256[number], survey.content(number))
    }
    sizes = survey.finished.by_shard("bytes")
    drawn = sample.shards({shard_id_of(number): sizes[number] for number in held})
    return sorted((built - held) | {number for number in held if shard_id_of(number) in drawn})


def _promoted_contents(config: CampaignConfig) -> dict[str, tuple[str, str | None]]:
    """Shard -> entry and content with which readers get it; nothing if no version can be read."""
    try:
        record = current_version(config).record
    except RolloutAssetsError:
        return {}
    shards = (shard for of_split in record.splits.values() for shard in of_split)
    return {shard.shard_id: (shard.entry_sha256, shard.content_sha256) for shard in shards}


def damage_of_shards(layout: CampaignLayout, numbers: Sequence[int], workers: int) -> dict[int, tuple[str, ...]]:
    """What is wrong with the bytes of some shards, for those with anything wrong; read side by side if there are many.

    This process remembers what it has read, and does not read it again before it changes; others do not.
    """
    count = min(workers, len(numbers) // WORTH_A_WORKER)
    shares = {str(start): numbers[start::count] for start in range(count)} if count > 1 else {"0": numbers}
    found = run_tasks(partial(_share_reader, layout.shards), shares, count)
    return {number: problems for share in found.values() for number, problems in share.items()}


def _share_reader(shards: Path) -> Callable[[Sequence[int], ProgressSink], dict[int, tuple[str, ...]]]:
    def read(numbers: Sequence[int], _progress: ProgressSink) -> dict[int, tuple[str, ...]]:
        damaged = {number: shard_damage(shards / shard_id_of(number)) for number in numbers}
        return {number: problems for number, problems in damaged.items() if problems}

    return read
