"""What an instance has recorded about a campaign: validated shards, data versions, and runs that are not finished."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus

from rollout_assets.defs import keys as names
from rollout_assets.defs.keys import CampaignKeys

UNFINISHED = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)

UNFINISHED_BACKFILL = ("REQUESTED", "CANCELING", "FAILING")
"""Dagster's words for a backfill that is not over."""


def unfinished_runs(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """All runs that wait or run."""
    return list(instance.get_runs(filters=dg.RunsFilter(statuses=list(UNFINISHED))))


def shards_in_progress(instance: dg.DagsterInstance, keys: CampaignKeys) -> set[str]:
    """Shards that an unfinished run builds or will build."""
    runs = _runs_in_progress(instance, keys, names.ROLLOUT_SHARDS, names.SHARD)
    known = instance.get_dynamic_partitions(keys.partitions_name) if runs else ()
    return {shard for run in runs for shard in shards_of_run(run, known)}


def shards_of_run(run: dg.DagsterRun, known: Sequence[str]) -> Sequence[str]:
    """The shards that a run is about: one, or all of ``known``, which are in order, from its first to its last."""
    if names.PARTITION_TAG in run.tags:
        return [run.tags[names.PARTITION_TAG]]
    first, last = run.tags.get(names.RANGE_START_TAG), run.tags.get(names.RANGE_END_TAG)
    if first not in known or last not in known:
        return []
    return known[known.index(first) : known.index(last) + 1]


def runs_by_key(instance: dg.DagsterInstance, run_keys: Sequence[str]) -> dict[str, dg.DagsterRun]:
    """The last run under each of some run keys; keys that were never used are left out."""
    runs = instance.get_runs(filters=dg.RunsFilter(tags={names.RUN_KEY_TAG: list(run_keys)}))
    return {run.tags[names.RUN_KEY_TAG]: run for run in reversed(list(runs))}


def promotion_in_progress(instance: dg.DagsterInstance, keys: CampaignKeys) -> bool:
    """Whether an unfinished run promotes the campaign."""
    return bool(_runs_in_progress(instance, keys, names.ROLLOUTS_ZARR, names.PROMOTE, names.PROMOTE_ANEW))


def promoting_backfill(instance: dg.DagsterInstance, keys: CampaignKeys) -> str | None:
    """The unfinished backfill that promotes the campaign once its shards are done; None if there is none."""
    key = keys.key(names.ROLLOUTS_ZARR)
    return next((name for name, assets in unfinished_backfills(instance).items() if key in assets), None)


def unfinished_backfills(instance: dg.DagsterInstance) -> dict[str, Sequence[dg.AssetKey]]:
    """Every backfill that is not over, with its assets."""
    statuses = [BulkActionStatus(status) for status in UNFINISHED_BACKFILL]
    found = instance.get_backfills(filters=BulkActionsFilter(statuses=statuses))
    return {backfill.backfill_id: backfill.asset_selection or () for backfill in found}


def _runs_in_progress(instance: dg.DagsterInstance, keys: CampaignKeys, asset: str, *jobs: str) -> list[dg.DagsterRun]:
    key, named = keys.key(asset), [keys.job(job) for job in jobs]
    return [run for run in unfinished_runs(instance) if key in (run.asset_selection or ()) or run.job_name in named]


def last_storage_id(instance: dg.DagsterInstance, key: dg.AssetKey) -> int | None:
    """The number of the last materialization of an asset among all events; None if there is none."""
    records = instance.fetch_materializations(key, limit=1).records
    return records[0].storage_id if records else None


def validated_versions(instance: dg.DagsterInstance, keys: CampaignKeys) -> dict[str, str]:
    """Shard -> the data version under which it was last validated."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        keys.key(names.VALIDATED_SHARDS),
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        tag_keys=[names.DATA_VERSION_TAG],
        asset_partitions=None,
    )
    return {shard: tags_of_shard[names.DATA_VERSION_TAG] for shard, tags_of_shard in tags.items()}


def planned_source(instance: dg.DagsterInstance, keys: CampaignKeys) -> str | None:
    """The version of the source that the plan was last recorded for; None if no plan was recorded."""
    event = instance.get_latest_materialization_event(keys.key(names.ROLLOUT_SHARD_PLAN))
    materialization = None if event is None else event.asset_materialization
    tag = f"{names.INPUT_VERSION_TAG}/{keys.key(names.VIN_OFFLINE_STORE).to_user_string()}"
    return None if materialization is None else (materialization.tags or {}).get(tag)


def run_of_plan(instance: dg.DagsterInstance, keys: CampaignKeys) -> dg.DagsterRun | None:
    """The run that recorded the last plan; None if there is none, or if it was removed."""
    event = instance.get_latest_materialization_event(keys.key(names.ROLLOUT_SHARD_PLAN))
    return None if event is None or not event.run_id else instance.get_run_by_id(event.run_id)


def materialized_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """The data version of the last materialization of an asset."""
    materialization = _last_materialization(instance, key)
    return None if materialization is None else (materialization.tags or {}).get(names.DATA_VERSION_TAG)


def described_version(instance: dg.DagsterInstance, key: dg.AssetKey) -> str | None:
    """The promoted version that the last materialization of an asset is about; None without a materialization."""
    materialization = _last_materialization(instance, key)
    return None if materialization is None else str(materialization.metadata["version"].value)


def _last_materialization(instance: dg.DagsterInstance, key: dg.AssetKey) -> dg.AssetMaterialization | None:
    event = instance.get_latest_materialization_event(key)
    return None if event is None else event.asset_materialization
