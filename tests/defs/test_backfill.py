"""A backfill through a real daemon: few runs for many shards, and a bad shard is reported while the others are made."""

import json
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from rollout_assets.campaigns.check_names import INTEGRITY_CHECKS
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.defs import keys as names
from rollout_assets.defs.backfills import backfill_is_running, shard_throughput
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.records import shards_of_run, validated_versions
from rollout_assets.testing.local_daemon import LocalDaemon, local_daemon, wait_until
from tests.defs.campaigns import edit
from tests.defs.conftest import new_desk
from tests.defs.test_ranges import spoil_plan

GRAPHQL = Path(sys.executable).with_name("dagster-graphql")
QUERY = """{ assetNodeOrError(assetKey: {path: ["tiny", "validated_shards"]}) { ... on AssetNode {
  partitionStats { numMaterialized numPartitions numFailed }
} } }"""

pytestmark = pytest.mark.slow  # two minutes: a daemon, a server of definitions, and runs in processes of their own


def partition_stats(daemon: LocalDaemon) -> dict[str, int]:
    """What the page of partitions says of the validated shards."""
    answer = daemon.folder / "answer.json"
    command = [GRAPHQL, "-m", "rollout_assets.definitions", "-t", QUERY, "-o", answer]
    subprocess.run(command, env=daemon.environment, cwd=daemon.folder, check=True, capture_output=True)
    return json.loads(answer.read_text())["data"]["assetNodeOrError"]["partitionStats"]


def test_a_backfill_takes_ranges_and_a_bad_shard_stops_no_neighbour(tmp_path, small_store):
    desk = new_desk(tmp_path / "desk", small_store, rows_per_shard=1)
    edit(desk.campaign, "[shards]", "[automation]\nshards_per_run = 3\n\n[shards]")
    runner = desk.runner()
    with runner.instance as instance:
        assert runner.run("observe").ok and runner.run("plan").ok
        shards = sorted(instance.get_dynamic_partitions("tiny_shards"))
    assert len(shards) == 4
    spoil_plan(desk, 1)
    bad = shard_id_of(1)
    with local_daemon(desk.folder, [desk.campaign]) as daemon:
        daemon.start_daemon()
        backfill = daemon.backfill([runner.keys.key(asset).path for asset in names.SHARD_CHAIN], shards)
        with open_instance(desk.home) as instance:
            wait_until("the backfill", lambda: not backfill_is_running(instance, backfill), 900, every_s=1.0)
        daemon.stop_daemon()
        stats = partition_stats(daemon)
    with open_instance(desk.home) as instance:
        runs = instance.get_runs(dg.RunsFilter(tags={names.BACKFILL_TAG: backfill}))
        taken = sorted((shards_of_run(run, shards), run.status.value) for run in runs)
        assert taken == [(shards[:3], "FAILURE"), (shards[3:], "SUCCESS")]
        assert set(validated_versions(instance, runner.keys)) == set(shards) - {bad}
        assert shard_throughput(instance, runner.keys, backfill, 1).shards == 1
        key = dg.AssetCheckKey(runner.keys.key(names.ROLLOUT_SHARDS), next(iter(INTEGRITY_CHECKS)))
        history = instance.event_log_storage.get_asset_check_execution_history(key, limit=20)
        passed = {record.partition for record in history if record.status.value == "SUCCEEDED"}
        assert passed == set(shards) - {bad}
    assert stats == {"numMaterialized": 3, "numPartitions": 4, "numFailed": 1}
