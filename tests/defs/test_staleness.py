"""What is stale, and why: by Dagster's versions per partition, and by the check on the promoted store."""

from dagster import AssetKey
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from rollout_assets.defs.headless import CheckOutcome
from rollout_assets.defs.keys import CHAIN
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.defs.campaigns import edit
from tests.defs.conftest import Desk

SHARDS = ("shard-000000", "shard-000001")


def stale(desk: Desk) -> set[str]:
    """Assets, or asset and shard, that Dagster shows as out of sync after a reload."""
    runner = desk.runner()
    graph = runner.definitions.resolve_asset_graph()
    found = set()
    with runner.instance as instance:
        resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
        for name in CHAIN[1:]:
            key = AssetKey(["tiny", name])
            for shard in SHARDS if graph.get(key).is_partitioned else (None,):
                if resolver.get_status(key, shard) == StaleStatus.STALE:
                    found.add(name if shard is None else f"{name}[{shard}]")
    return found


def up_to_date(desk: Desk) -> CheckOutcome:
    runner = desk.runner()
    with runner.instance:
        run = runner.run("promote")
        checks = {check.check: check for check in run.checks}
        assert run.ok, run.error
    return checks["up_to_date"]


def test_a_finished_campaign_is_not_stale(made_desk):
    assert stale(made_desk) == set()


def test_an_edited_oracle_section_makes_every_shard_stale_and_a_device_none(made_desk):
    edit(made_desk.campaign, 'device = "cpu"', 'device = "auto"  # comment')
    assert stale(made_desk) == set()
    edit(made_desk.campaign, "[oracle]\nwidth_px = 16", "[oracle]\nwidth_px = 18")
    assert {"rollout_shards[shard-000000]", "rollout_shards[shard-000001]"} <= stale(made_desk)
    assert not any(name.startswith("vin_source_rows") for name in stale(made_desk))


def test_after_new_snippets_the_plan_is_stale_and_the_check_names_them(made_desk):
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    runner = made_desk.runner()
    with runner.instance:
        assert runner.run("observe").ok
    assert stale(made_desk) == {"rollout_shard_plan"}
    check = up_to_date(made_desk)
    assert not check.passed and check.level == "WARN"
    assert "rollout_shard_plan" in check.evidence and "2 new source row(s)" in check.evidence


def test_an_edited_campaign_refuses_promotion_and_says_what_to_do(made_desk):
    edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
    runner = made_desk.runner()
    with runner.instance:
        shard = runner.run("shard", "shard-000000")
        assert not shard.ok and "ShardDrift" in shard.error and "campaign plan" in shard.error
        assert runner.run("plan").ok
        refused = runner.run("promote")
        assert not refused.ok and "shard-000000: built with writer config" in refused.error
