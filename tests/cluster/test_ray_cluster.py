"""A campaign on a real cluster: Postgres, a Ray head and raylets, S3, and Dagster's daemon, some of which are killed.

Run it with -m cluster. It takes minutes, needs Ray (pip install 'rollout-assets[cluster]') and a Postgres server.
"""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from dagster import DagsterRunStatus, RunsFilter

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import content_sha256, read_owner
from rollout_assets.campaigns.objects.storage import ShardMarker, marker_key, parse_stored, storage_at
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.defs import keys as names
from rollout_assets.defs.backfills import backfill_is_running, shard_throughput
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.defs.records import validated_versions
from rollout_assets.files import tree_digests
from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.testing.local_cluster import LocalCluster, RayNode, local_cluster
from rollout_assets.testing.local_daemon import wait_until
from rollout_assets.testing.object_storage import environment_of, local_object_storage
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign
from tests.support.commands import call

pytest.importorskip("ray", reason="Ray is not installed; run: pip install 'rollout-assets[cluster]'")
pytestmark = pytest.mark.cluster

TEMPLATE = Path(__file__).resolve().parents[2] / "infra" / "cluster" / "ray" / "dagster.yaml"
SHARDS = 24
CHAIN = (names.VIN_SOURCE_ROWS, names.ROLLOUT_SHARDS, names.VALIDATED_SHARDS, names.ROLLOUTS_ZARR)
LONG_S = 1_500.0


def content_of_local(config: CampaignConfig) -> dict[str, str]:
    """Shard -> digest of its content, of a campaign in a folder."""
    shards = CampaignLayout.of(config).shards
    return {path.name: read_owner(path).content_sha256 for path in sorted(shards.glob("shard-*"))}


def markers(config: CampaignConfig) -> dict[str, ShardMarker]:
    """Shard -> the marker that says which pack it is, of a campaign behind a URL."""
    storage = storage_at(config.shards.output_dir)
    found = {}
    for entry in read_rollout_shard_manifest(config):
        key = marker_key(entry.shard_id, entry.sha256)
        with suppress(FileNotFoundError):
            found[entry.shard_id] = parse_stored(ShardMarker, storage.objects.read(key), key)
    return found


def promoted_content(config: CampaignConfig) -> dict[str, str]:
    """Split -> digest of the content of the promoted store, every byte of which is read."""
    readers = {child.name: RolloutZarrStoreReader(child) for child in current_version(config).children}
    assert [error for reader in readers.values() for error in reader.validate(deep=True).errors] == []
    return {split: content_sha256(reader.sidecar_manifest()) for split, reader in readers.items()}


def freeze_a_builder(cluster: LocalCluster, config: CampaignConfig) -> tuple[RayNode, int, str]:
    """Stop a process in the middle of building a shard that nobody has finished: its node, the process, the shard."""

    def caught() -> tuple[RayNode, int, str] | None:
        for node in cluster.nodes:
            attempts = sorted(node.cache.glob("*/staging/build-shard-*"))
            builders = node.builders()
            if not attempts or not builders:
                continue
            builder, shard_id = builders[0], attempts[-1].name.split(".")[0].removeprefix("build-")
            os.kill(builder, signal.SIGSTOP)
            if attempts[-1].exists() and shard_id not in markers(config):
                return node, builder, shard_id
            os.kill(builder, signal.SIGCONT)
        return None

    return wait_until("a builder in the middle of a shard", caught, LONG_S, every_s=0.05)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def end_at_once(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s3")
    with local_object_storage(folder) as storage, environment_of(storage, folder / "cache"):
        yield storage


def test_a_campaign_survives_a_killed_node_daemon_and_an_orphan(request, tmp_path, storage, capsys):
    source = build_tiny_source(tmp_path, SHARDS)
    ObjectFolder(storage.url("source")).upload(source, list(tree_digests(source)), "")
    local = load_campaign(write_tiny_campaign(tmp_path, source, "local"))
    assert run_campaign(local).ok
    promote_rollout_campaign(local)

    campaign = write_tiny_campaign(tmp_path, storage.url("source"), "ray")
    text = campaign.read_text().replace('output_dir = "ray"', f'output_dir = "{storage.url("ray")}"')
    campaign.write_text(f"automation.shards_per_run = 1\n{text}")
    config, keys = load_campaign(campaign), CampaignKeys.of(campaign)
    with local_cluster(tmp_path / "cluster", TEMPLATE, [campaign]) as cluster, cluster.variables():
        facts = json.loads(call("cluster", "check", "-c", str(campaign), "--json").out)
        assert facts["problems"] == [] and facts["places"] == facts["slots"] == 2 and len(facts["reports"]) == 3

        cluster.materialize(keys.job(names.PLAN))
        assert len(read_rollout_shard_manifest(config)) == SHARDS
        cluster.start_daemon()
        chain = [keys.key(asset).path for asset in CHAIN]
        backfill = cluster.backfill(chain, [entry.shard_id for entry in read_rollout_shard_manifest(config)])
        with open_instance(cluster.home) as instance:
            wait_until("the first shards", lambda: len(validated_versions(instance, keys)) >= 4, LONG_S, every_s=1.0)

            node, orphan, shard_id = freeze_a_builder(cluster, config)
            request.addfinalizer(lambda: end_at_once(orphan))
            for watcher in node.watchers_of(orphan):
                os.kill(watcher, signal.SIGKILL)
            os.kill(node.raylet, signal.SIGKILL)
            killed_at = time.monotonic()
            cluster.nodes.remove(node)
            cluster.kill_daemon()
            cluster.add_node()
            cluster.start_daemon()

            of_shard = RunsFilter(tags={names.RANGE_START_TAG: shard_id, names.BACKFILL_TAG: backfill})
            failed = lambda: [r for r in instance.get_runs(of_shard) if r.status == DagsterRunStatus.FAILURE]  # noqa: E731
            wait_until("the killed run to be failed", failed, LONG_S, every_s=1.0)
            noticed_s = time.monotonic() - killed_at
            wait_until("another builder to finish", lambda: shard_id in markers(config), LONG_S, every_s=1.0)
            published = markers(config)[shard_id]
            assert is_alive(orphan)
            os.kill(orphan, signal.SIGCONT)
            wait_until("the orphan to end", lambda: not is_alive(orphan), LONG_S, every_s=0.5)
            assert markers(config)[shard_id] == published

            wait_until("the backfill", lambda: not backfill_is_running(instance, backfill), LONG_S, every_s=2.0)
            runs = instance.get_runs(of_shard)
            assert len(runs) == 2 and runs[0].parent_run_id == runs[1].run_id and runs[0].is_success
            failures = RunsFilter(tags={names.BACKFILL_TAG: backfill}, statuses=[DagsterRunStatus.FAILURE])
            assert {run.tags.get(names.RANGE_START_TAG) for run in instance.get_runs(failures)} <= {shard_id}
            times = shard_throughput(instance, keys, backfill, 2)
    built = {shard: marker.content_sha256 for shard, marker in markers(config).items()}
    assert built == content_of_local(local) and len(built) == SHARDS
    packs = [fact.key for fact in storage_at(config.shards.output_dir).objects.listing("packs")]
    assert sorted(packs) == sorted(marker.pack.key for marker in markers(config).values())
    assert promoted_content(config) == promoted_content(local)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{SHARDS} shards; killed run noticed after {noticed_s:.0f} s; orphan of {shard_id} without effect; "
            f"{times.shards_per_minute:.1f} shards a minute; a slot {times.slot_s:.1f} s, of it {times.engine_s:.1f} s "
            f"engine and {times.steps_s:.1f} s steps"
        )
