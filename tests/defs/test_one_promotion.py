"""One promotion per content: a repair is a change, a backfill promotes by itself, and pages show what readers have."""

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from rollout_assets.campaigns.plan import entry_of
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.campaigns.versions import current_name, current_version, rollback_promotion, unpin_promotion
from rollout_assets.defs.assets.store import store_data_version
from rollout_assets.defs.keys import READINGS, ROLLOUTS_ZARR, SHARD_CHAIN
from rollout_assets.defs.records import described_version, materialized_version
from tests.defs.looks import Ticker, asked_for, told
from tests.defs.test_checks_alone import check_key, latest
from tests.defs.test_sensors import lose_promotion
from tests.defs.test_upkeep import launch
from tests.support.refusals import assert_names


@pytest.fixture
def ticker(made_desk):
    with made_desk.runner().instance as instance:
        yield Ticker(made_desk, instance)


def damage(desk, shard_id: str) -> None:
    chunk = next(path for path in sorted(desk.layout.shard(shard_id).rglob("c/0")) if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[::-1])


def test_a_repaired_shard_is_promoted_with_the_next_look(made_desk, ticker):
    lose_promotion(made_desk)
    content = made_desk.content()
    (first,) = ticker.sensor("tiny_promotion").run_requests
    damage(made_desk, "shard-000001")
    ticker.execute(first, fails=True)
    waits = ticker.sensor("tiny_promotion")
    assert waits.run_requests == []
    assert_names(waits.skip_message, "shard-000001", "tries again after")

    ticker.execute(dg.RunRequest(job_name="tiny_shard", partition_key="shard-000001"))
    assert asked_for(ticker.sensor("tiny_promotion", waits.cursor)) == ["tiny_promote"]
    made_desk.layout.promoted.unlink()
    (second,) = ticker.sensor("tiny_promotion", waits.cursor).run_requests
    damage(made_desk, "shard-000001")
    ticker.execute(second, fails=True)
    waits = ticker.sensor("tiny_promotion")
    assert waits.run_requests == []

    run_rollout_shard(made_desk.config, entry_of(made_desk.config, "shard-000001"))
    (third,) = ticker.sensor("tiny_promotion", waits.cursor).run_requests
    assert made_desk.content() == content, "a repair gives the same bytes"
    assert len({first.run_key, second.run_key, third.run_key}) == 3
    ticker.execute(third)
    done = ticker.sensor("tiny_promotion")
    assert done.run_requests == [] and "all 2 shards are promoted" in done.skip_message


def backfill_of(desk, instance, names) -> PartitionBackfill:
    """A backfill as the button of the UI records it, with all partitions of these assets."""
    keys = desk.runner().keys
    return PartitionBackfill.from_asset_partitions(
        backfill_id="of_all",
        asset_graph=desk.runner().definitions.get_repository_def().asset_graph,
        partition_names=None,
        asset_selection=[keys.key(name) for name in names],
        backfill_timestamp=0.0,
        tags={},
        dynamic_partitions_store=instance,
        all_partitions=True,
        title=None,
        description=None,
        run_config=None,
    )


def test_while_a_backfill_will_promote_the_sensor_does_not(made_desk, ticker):
    lose_promotion(made_desk)
    backfill = backfill_of(made_desk, ticker.instance, (*SHARD_CHAIN, ROLLOUTS_ZARR, *READINGS))
    ticker.instance.add_backfill(backfill)
    waits = ticker.sensor("tiny_promotion")
    assert waits.run_requests == []
    assert_names(waits.skip_message, "of_all")
    assert ticker.sensor("tiny_promotion", waits.cursor).run_requests == []
    ticker.instance.update_backfill(backfill.with_status(BulkActionStatus.COMPLETED_FAILED))
    assert asked_for(ticker.sensor("tiny_promotion", waits.cursor)) == ["tiny_promote"]


def test_a_backfill_of_shards_alone_leaves_promotion_to_the_sensor(made_desk, ticker):
    lose_promotion(made_desk)
    ticker.instance.add_backfill(backfill_of(made_desk, ticker.instance, SHARD_CHAIN))
    assert asked_for(ticker.sensor("tiny_promotion")) == ["tiny_promote"]


def assert_shown(desk, instance, version: str) -> None:
    """Assert that overview, report, metrics and checks are about this version, which readers have."""
    keys = desk.runner().keys
    assert current_name(desk.layout) == version
    shown = {name: described_version(instance, keys.key(name)) for name in (ROLLOUTS_ZARR, *READINGS)}
    for asset, check in ((ROLLOUTS_ZARR, "stores_valid"), (ROLLOUTS_ZARR, "up_to_date"), (READINGS[0], "readiness")):
        shown[check] = latest(instance, check_key(asset, check))[1].metadata["version"].value
    assert shown == dict.fromkeys(shown, version)
    recorded = materialized_version(instance, keys.key(ROLLOUTS_ZARR))
    assert recorded == store_data_version(current_version(desk.config).record)


@pytest.mark.ci
def test_what_is_shown_is_what_readers_have_after_a_rollback(made_desk, ticker):
    instance = ticker.instance
    assert made_desk.runner().run("promote_anew").ok
    assert_shown(made_desk, instance, "v000002")

    rollback_promotion(made_desk.config)
    told_of = ticker.sensor("tiny_promotion")
    assert ticker.accept(told_of) == [] and told(instance)[0] == "v000001" and told(instance)[1]
    (metadata,) = (event.metadata for event in told_of.asset_events)
    assert {"rows_by_split", "candidates", "shards", "version_path"} <= metadata.keys()
    assert not {"made", "seconds", "sample_seed", "oracle_config_hash"} & metadata.keys(), "of the promotion of v000002"
    assert ticker.accept(ticker.sensor("tiny_promotion")) == ["tiny_describe"]
    assert_shown(made_desk, instance, "v000001")
    page = (made_desk.layout.reports / "train.html").read_text()
    assert "v000001" in page and "v000002" not in page
    done = ticker.sensor("tiny_promotion")
    assert done.run_requests == [] and done.asset_events == [] and "v000001" in done.skip_message

    unpin_promotion(made_desk.config)
    assert ticker.accept(ticker.sensor("tiny_promotion")) == [] and told(instance) == ("v000001", "")
    assert_shown(made_desk, instance, "v000001")

    assert launch(made_desk, instance, "rollback", version="v000002", apply=True).success
    assert described_version(instance, made_desk.runner().keys.key(ROLLOUTS_ZARR)) == "v000002"
    (request,) = ticker.sensor("tiny_promotion", done.cursor).run_requests
    run = ticker.definitions.resolve_job_def("tiny_describe")
    instance.create_run_for_job(run, tags=request.tags, status=dg.DagsterRunStatus.STARTED)
    assert ticker.sensor("tiny_promotion").run_requests == []
