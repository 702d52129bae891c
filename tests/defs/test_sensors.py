"""New snippets: one look plans and runs exactly the new shards, promotion follows, and an edit waits for a human."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import dagster as dg
import pytest

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.versions import current_version, rollback_promotion, unpin_promotion
from rollout_assets.defs.assets import plan as plan_asset
from rollout_assets.defs.headless import QUIET
from rollout_assets.defs.old_runs import clean_runs
from rollout_assets.defs.records import validated_versions
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.defs.campaigns import edit


class Ticker:
    """Evaluates the sensors and the schedule of a desk, and executes what they ask for, once per run key."""

    def __init__(self, desk, instance):
        self.definitions = desk.runner().definitions
        self.repository = self.definitions.get_repository_def()
        self.instance = instance
        self.keys: set[str] = set()

    def sensor(self, name: str, cursor: str | None = None):
        """One evaluation as the daemon makes it: the instance is opened anew."""
        context = dg.SensorEvaluationContext(
            instance_ref=self.instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=cursor,
            log_key=None,
            repository_name=None,
            repository_def=self.repository,
        )
        with context:
            return self.repository.get_sensor_def(name).evaluate_tick(context)

    def schedule(self, name: str):
        context = dg.ScheduleEvaluationContext(
            self.instance.get_ref(), datetime(2026, 1, 2, 3, tzinfo=UTC), None, None, repository_def=self.repository
        )
        with context:
            return self.repository.get_schedule_def(name).evaluate_tick(context)

    def execute(self, job: str, requests) -> list[str | None]:
        """Partitions that were run; all must succeed."""
        done = []
        for request in requests:
            if request.run_key in self.keys:
                continue
            self.keys.add(request.run_key)
            result = self.definitions.resolve_job_def(job).execute_in_process(
                instance=self.instance, partition_key=request.partition_key, run_config=QUIET
            )
            assert result.success
            done.append(request.partition_key)
        return done


@pytest.fixture
def ticker(made_desk):
    with made_desk.runner().instance as instance:
        yield Ticker(made_desk, instance)


@pytest.mark.ci
def test_appended_snippets_become_shards_once_and_promotion_follows(made_desk, ticker):
    assert ticker.sensor("tiny_new_snippets").run_requests == []
    assert "promoted" in ticker.sensor("tiny_promotion").skip_message
    before = made_desk.content()
    scene = VinOfflineStore.open(made_desk.source).row(0).scene_id
    append_synthetic_snippets(made_desk.source, 3, scene_ids=[scene], workers=1)

    asked = ticker.sensor("tiny_new_snippets").run_requests
    assert [request.partition_key for request in asked] == ["shard-000002", "shard-000003"]
    again = ticker.sensor("tiny_new_snippets").run_requests
    assert {request.run_key for request in again} == {request.run_key for request in asked}
    assert "shard-000002" in ticker.sensor("tiny_promotion").skip_message

    assert ticker.execute("tiny_shard", asked) == ["shard-000002", "shard-000003"]
    assert ticker.execute("tiny_shard", ticker.sensor("tiny_new_snippets").run_requests) == []
    assert ticker.execute("tiny_promote", ticker.sensor("tiny_promotion").run_requests) == [None]
    assert "promoted" in ticker.sensor("tiny_promotion").skip_message

    assert rollback_promotion(made_desk.config).name == "v000001"
    assert "pinned to v000001" in ticker.sensor("tiny_promotion").skip_message
    unpin_promotion(made_desk.config)
    assert ticker.execute("tiny_promote", ticker.sensor("tiny_promotion").run_requests) == [None], "under another key"
    assert current_version(made_desk.config).name == "v000002"

    assert len(current_version(made_desk.config).shard_ids) == 4
    after = made_desk.content()
    assert {shard: after[shard] for shard in before} == before
    plan = ticker.instance.get_latest_materialization_event(dg.AssetKey(["tiny", "rollout_shard_plan"]))
    assert plan.asset_materialization.metadata["new_shards"].value == 2


def test_promotion_waits_while_a_rollback_pins_readers_and_the_catalog_learns_of_it(made_desk, ticker):
    config = made_desk.config
    promote_rollout_campaign(config, incremental=False)
    assert rollback_promotion(config).name == "v000001"
    key = dg.AssetKey(["tiny", "rollouts_zarr"])
    for _ in range(2):
        result = ticker.sensor("tiny_promotion")
        assert result.run_requests == [] and "pinned to v000001 by a rollback" in result.skip_message
        assert "'rollout-assets campaign unpin' lifts it" in result.skip_message
    (observed,) = ticker.instance.fetch_observations(key, limit=9).records
    assert observed.asset_observation.metadata["version"].value == "v000001"
    unpin_promotion(config)
    assert "promoted" in ticker.sensor("tiny_promotion").skip_message


def test_a_promotion_that_is_run_by_hand_is_refused_while_readers_are_pinned(made_desk, ticker):
    promote_rollout_campaign(made_desk.config, incremental=False)
    rollback_promotion(made_desk.config)
    chunk = made_desk.layout.versions / "v000001/train/candidates/target_rri/c/0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    promote = ticker.definitions.resolve_job_def("tiny_promote")
    result = promote.execute_in_process(instance=ticker.instance, run_config=QUIET, raise_on_error=False)
    assert not result.success and current_version(made_desk.config).name == "v000001"


@pytest.mark.parametrize("sensor", ["tiny_new_snippets", "tiny_promotion"])
def test_a_tick_with_nothing_new_looks_at_no_shard(made_desk, ticker, monkeypatch, sensor):
    looks = []
    look = CampaignSurvey.of.__func__
    counting = classmethod(lambda cls, *arguments: looks.append(1) or look(cls, *arguments))
    monkeypatch.setattr(CampaignSurvey, "of", counting)
    first = ticker.sensor(sensor)
    again = ticker.sensor(sensor, first.cursor)
    assert again.skip_message == first.skip_message and again.cursor == first.cursor and len(looks) == 1

    (made_desk.layout.shards / "something").mkdir()
    assert ticker.sensor(sensor, first.cursor).skip_message == first.skip_message and len(looks) == 2
    old = json.dumps(json.loads(first.cursor) | {"looked": 0.0})
    for cursor in ("not JSON", "[]", old):
        ticker.sensor(sensor, cursor)
    assert len(looks) == 5, "a cursor that says nothing is no reason not to look, nor is one of more than an hour"


def test_a_quiet_sensor_wakes_up_for_new_snippets_and_for_a_shard_that_is_gone(made_desk, ticker):
    cursor = ticker.sensor("tiny_new_snippets").cursor
    shard = made_desk.layout.shard("shard-000001")
    shard.rename(shard.with_name("_gone"))
    asked = ticker.sensor("tiny_new_snippets", cursor)
    assert [request.partition_key for request in asked.run_requests] == ["shard-000001"]
    shard.with_name("_gone").rename(shard)
    cursor = ticker.sensor("tiny_new_snippets", asked.cursor).cursor
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    assert len(ticker.sensor("tiny_new_snippets", cursor).run_requests) == 2


def test_partitions_are_added_in_parts_and_removed_with_the_plan(monkeypatch):
    monkeypatch.setattr(plan_asset, "PARTITIONS_AT_ONCE", 3)
    with dg.DagsterInstance.ephemeral() as instance:
        step = SimpleNamespace(keys=SimpleNamespace(partitions_name="many"), instance=instance)
        names = [f"shard-{number:06d}" for number in range(8)]
        for planned in (names, names[:5], names):
            plan_asset._match_partitions(step, planned)
            assert sorted(instance.get_dynamic_partitions("many")) == planned


def test_old_runs_go_unless_they_tell_what_is_current(made_desk, ticker):
    edit(made_desk.campaign, "[shards]", "[retention]\nrun_days = 0\n\n[shards]")
    campaign, home = str(made_desk.campaign), made_desk.home
    assert clean_runs(campaign, home, apply=False) == (), "every run recorded something that is current"
    (first,) = ticker.instance.get_runs(filters=dg.RunsFilter(job_name="tiny_plan"))
    assert made_desk.runner().run("plan").ok
    before = validated_versions(ticker.instance, made_desk.runner().keys)
    (found,) = clean_runs(campaign, home, apply=True)
    assert found.name == first.run_id and "tiny_plan success" in found.why and found.bytes > 0
    assert not ticker.instance.has_run(first.run_id) and clean_runs(campaign, home, apply=True) == ()
    assert validated_versions(ticker.instance, made_desk.runner().keys) == before
    assert ticker.sensor("tiny_new_snippets").run_requests == []


def test_the_nightly_schedule_asks_for_the_same_new_shards(made_desk, ticker):
    assert ticker.schedule("tiny_nightly").run_requests == []
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    asked = ticker.schedule("tiny_nightly").run_requests
    assert [request.partition_key for request in asked] == ["shard-000002", "shard-000003"]


@pytest.mark.ci
def test_a_sensor_asks_in_parts_and_a_schedule_for_all_because_it_comes_once_a_night(made_desk, ticker):
    edit(made_desk.campaign, "[shards]", "[automation]\nshards_per_tick = 2\n\n[shards]")
    scene = VinOfflineStore.open(made_desk.source).row(0).scene_id
    append_synthetic_snippets(made_desk.source, 6, scene_ids=[scene], workers=1)
    new = ["shard-000002", "shard-000003", "shard-000004"]
    in_parts = ticker.sensor("tiny_new_snippets").run_requests
    assert [request.partition_key for request in in_parts] == new[:2]
    assert [request.partition_key for request in ticker.schedule("tiny_nightly").run_requests] == new
    assert ticker.execute("tiny_shard", in_parts) == new[:2]
    rest = ticker.sensor("tiny_new_snippets").run_requests
    assert [request.partition_key for request in rest] == new[2:]


def test_the_schedule_follows_the_campaign(made_desk):
    edit(made_desk.campaign, "[shards]", "[automation]\nnightly = '30 1 * * 1-5'\n\n[shards]")
    schedule = made_desk.runner().definitions.get_repository_def().get_schedule_def("tiny_nightly")
    assert schedule.cron_schedule == "30 1 * * 1-5"


def test_an_edited_campaign_is_not_rebuilt_by_itself(made_desk, ticker):
    edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
    for sensor in ("tiny_new_snippets", "tiny_promotion"):
        result = ticker.sensor(sensor)
        assert result.run_requests == [] and "2 shards are planned for another config" in result.skip_message
