"""Old runs of a campaign in Dagster's storage, which of them tell nothing that is current, and what they printed.

Removing a run removes its events. So one that recorded the last materialization of an asset, or of a shard, stays
however old it is: sensors, the promotion and the lineage go by it. A run that is not finished stays too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import dagster as dg

from rollout_assets.campaigns.cleaning.removable import Removable, size_of
from rollout_assets.defs import keys as names
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.files import remove_path

_DAY_S = 86_400.0
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 500


def clean_runs(campaign: str, home: Path, *, apply: bool) -> tuple[Removable, ...]:
    """Runs beyond the campaign's ``[retention] run_days`` that tell nothing current; removed if ``apply``."""
    keys = CampaignKeys.of(campaign)
    with open_instance(home) as instance:
        return clean_recorded_runs(keys, instance, home, apply=apply)


def clean_recorded_runs(
    keys: CampaignKeys, instance: dg.DagsterInstance, home: Path, *, apply: bool, besides: str = ""
) -> tuple[Removable, ...]:
    """Old runs in an open instance, with the logs that they left; the run ``besides`` is left alone."""
    before = time.time() - keys.config.retention.run_days * _DAY_S
    old = (record for record in _finished_runs(instance, keys, before) if record.dagster_run.run_id != besides)
    found = [record for record in old if not _tells(instance, record.dagster_run)]
    removable = tuple(_removable(record, home) for record in found)
    logs = tuple(_lost_logs(instance, home, before))
    if apply:
        for record in found:
            instance.delete_run(record.dagster_run.run_id)
            remove_path(_logs(home, record.dagster_run.run_id))  # Dagster leaves what a run printed where it is
        for item in logs:
            remove_path(item.paths[0])
    return (*removable, *logs)


def _lost_logs(instance: dg.DagsterInstance, home: Path, before: float) -> Iterator[Removable]:
    """What runs have printed that the instance no longer knows, for example because somebody deleted them in the UI."""
    for folder in sorted((home / "storage").glob("*")):
        if _is_run_id(folder.name) and folder.stat().st_mtime < before and not instance.has_run(folder.name):
            yield Removable("log", folder.name, (folder,), "its run is no longer recorded", size_of([folder]))


def _is_run_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _logs(home: Path, run_id: str) -> Path:
    """Where Dagster's default storage keeps what a run printed."""
    return home / "storage" / run_id


def _finished_runs(instance: dg.DagsterInstance, keys: CampaignKeys, before: float) -> Iterator[dg.RunRecord]:
    """Finished runs of a campaign that began before a time, newest first."""
    tagged = dg.RunsFilter(statuses=_FINISHED, tags={names.CAMPAIGN_TAG: keys.config.name})
    cursor: str | None = None
    while records := instance.get_run_records(filters=tagged, limit=_AT_ONCE, cursor=cursor):
        yield from (record for record in records if record.create_timestamp.timestamp() < before)
        cursor = records[-1].dagster_run.run_id


def _tells(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a run recorded the last event of an asset, or of an asset's partition that it was about."""
    events = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    for event in events:
        key = event.asset_key
        if key is not None and _last_run(instance, key, event.partition_key) == run.run_id:
            return True
    observed = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION).records
    return any(_last_observer(instance, event.asset_key) == run.run_id for event in observed if event.asset_key)


def _last_run(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> str | None:
    partitions = None if partition is None else [partition]
    wanted = dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions)
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].run_id if records else None


def _last_observer(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    records = instance.fetch_observations(key, limit=1).records
    return records[0].run_id if records else None


def _removable(record: dg.RunRecord, home: Path) -> Removable:
    run = record.dagster_run
    days = (time.time() - record.create_timestamp.timestamp()) / _DAY_S
    path = home / "history" / "runs" / f"{run.run_id}.db"
    size = size_of([path, _logs(home, run.run_id)])
    shards = [run.tags.get(tag, "") for tag in (names.PARTITION_TAG, names.RANGE_START_TAG, names.RANGE_END_TAG)]
    what = " ".join(word for word in (run.job_name, *shards) if word)
    why = f"{what} {run.status.value.lower()} {days:.0f} days ago, and tells nothing current"
    return Removable("run", run.run_id, (), why, size)
