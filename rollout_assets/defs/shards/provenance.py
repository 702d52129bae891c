"""The tags by which Dagster knows what a materialization was made from, for those that a step records by itself.

Dagster writes them itself for a step with one result an asset. A step that takes several shards has one for each shard,
and their versions differ.
"""

from __future__ import annotations

import dagster as dg

from rollout_assets.defs.keys import DATA_VERSION_TAG

NEVER_MATERIALIZED = ("INITIAL", "NULL")
"""Dagster's words for the data version and the event of an input that has none."""


def version_tags(
    instance: dg.DagsterInstance,
    code_version: str,
    data_version: str,
    upstream: dg.AssetKey,
    upstream_partition: str | None,
) -> dict[str, str]:
    """Versions of code and data, and the last event of what lies upstream, which the UI compares with later ones."""
    version, event = _last_event(instance, upstream, upstream_partition)
    return {
        "dagster/code_version": code_version,
        f"dagster/input_data_version/{upstream.to_user_string()}": version,
        f"dagster/input_event_pointer/{upstream.to_user_string()}": event,
        DATA_VERSION_TAG: data_version,
        "dagster/data_version_is_user_provided": "true",
    }


def _last_event(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None) -> tuple[str, str]:
    wanted = dg.AssetRecordsFilter(key, asset_partitions=None if partition is None else [partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    if not records:
        return NEVER_MATERIALIZED
    materialization = records[0].asset_materialization
    tags = {} if materialization is None else materialization.tags or {}
    return tags.get(DATA_VERSION_TAG, NEVER_MATERIALIZED[0]), str(records[0].storage_id)
