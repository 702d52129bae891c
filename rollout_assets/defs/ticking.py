"""Evaluations of a campaign's sensors as the daemon makes them, for measuring what they cost."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import dagster as dg

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.promotion_gate import versions_on_disk
from rollout_assets.defs.code_location import build_definitions
from rollout_assets.defs.home import SHARED_DATABASES, open_instance
from rollout_assets.defs.keys import DATA_VERSION_TAG, VALIDATED_SHARDS, CampaignKeys


def sensor_tick(campaign: Path, home: Path, sensor: str, cursor: str | None) -> str | None:
    """Evaluate a sensor once, with the instance opened anew; returns the cursor that it leaves."""
    repository = _definitions(campaign).get_repository_def()
    with open_instance(home) as instance:
        context = dg.SensorEvaluationContext(
            instance_ref=instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=cursor,
            log_key=None,
            repository_name=None,
            repository_def=repository,
        )
        with context:
            name = f"{CampaignKeys.of(campaign).name}_{sensor}"
            return repository.get_sensor_def(name).evaluate_tick(context).cursor


@lru_cache(maxsize=1)
def _definitions(campaign: Path) -> dg.Definitions:
    return build_definitions([campaign])


def record_validated(campaign: Path, home: Path, first_shard: int, stop: int) -> None:
    """Let an instance know that shards from ``first_shard`` up to ``stop`` are validated.

    Dagster records each of them. With SQLite it records the first one only, and the others are copies of its rows, in
    seconds, not in an hour.
    """
    keys = CampaignKeys.of(campaign)
    versions = [str(version) for version in versions_on_disk(CampaignSurvey.of(keys.config))]
    database = home / SHARED_DATABASES[1]
    with open_instance(home) as instance:
        for number in range(first_shard, first_shard + 1 if database.is_file() else stop):
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    keys.key(VALIDATED_SHARDS),
                    partition=shard_id_of(number),
                    tags={DATA_VERSION_TAG: versions[number]},
                )
            )
    if database.is_file():
        _copy_last_event(database, versions, first_shard, stop)


def _copy_last_event(path: Path, versions: Sequence[str], first_shard: int, stop: int) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.row_factory = sqlite3.Row
        event = dict(database.execute("SELECT * FROM event_logs ORDER BY id DESC LIMIT 1").fetchone())
        query = "SELECT * FROM asset_event_tags WHERE event_id = ? AND key = ?"
        tag = dict(database.execute(query, (event["id"], DATA_VERSION_TAG)).fetchone())
        text = event["event"]
        for number in range(first_shard + 1, stop):
            copied = event | {"id": event["id"] + number - first_shard, "partition": shard_id_of(number)}
            named = text.replace(shard_id_of(first_shard), shard_id_of(number))
            copied["event"] = named.replace(versions[first_shard], versions[number])
            _insert(database, "event_logs", copied)
            _insert(
                database, "asset_event_tags", tag | {"id": None, "event_id": copied["id"], "value": versions[number]}
            )


def _insert(database: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    names = ", ".join(row)
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
