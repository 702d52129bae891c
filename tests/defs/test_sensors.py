"""New snippets: one look plans and runs exactly the new shards, promotion follows, and an edit waits for a human."""

import json
import time
from types import SimpleNamespace

import dagster as dg
import pytest

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.versions import current_version, rollback_promotion, unpin_promotion
from rollout_assets.commands import campaign as commands
from rollout_assets.defs.assets import plan as plan_asset
from rollout_assets.defs.headless import QUIET
from rollout_assets.defs.keys import RANGE_END_TAG, RANGE_START_TAG
from rollout_assets.defs.records import validated_versions
from rollout_assets.defs.upkeep.old_runs import clean_runs
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.defs.campaigns import edit
from tests.defs.looks import Ticker, asked_for, told, written


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

    planning = ticker.sensor("tiny_new_snippets")
    assert asked_for(planning) == ["tiny_plan"]
    again = ticker.sensor("tiny_new_snippets")
    assert [request.run_key for request in again.run_requests] == [planning.run_requests[0].run_key]
    assert ticker.accept(planning) == ["tiny_plan"]
    new = ticker.sensor("tiny_new_snippets")
    assert asked_for(new) == ["shard-000002", "shard-000003"]
    assert "shard-000002" in ticker.sensor("tiny_promotion").skip_message

    assert ticker.accept(new) == ["shard-000002", "shard-000003"]
    assert "all 4 shards are validated" in ticker.sensor("tiny_new_snippets").skip_message
    assert ticker.accept(ticker.sensor("tiny_promotion")) == ["tiny_promote"]
    assert "promoted" in ticker.sensor("tiny_promotion").skip_message

    assert rollback_promotion(made_desk.config).name == "v000001"
    assert "pinned to v000001" in ticker.sensor("tiny_promotion").skip_message
    unpin_promotion(made_desk.config)
    assert ticker.accept(ticker.sensor("tiny_promotion")) == ["tiny_promote"], "under another key"
    assert current_version(made_desk.config).name == "v000002"

    assert len(current_version(made_desk.config).shard_ids) == 4
    after = made_desk.content()
    assert {shard: after[shard] for shard in before} == before
    plan = ticker.instance.get_latest_materialization_event(dg.AssetKey(["tiny", "rollout_shard_plan"]))
    assert plan.asset_materialization.metadata["new_shards"].value == 2


def test_a_look_writes_nothing(made_desk, ticker):
    promote_rollout_campaign(made_desk.config, incremental=False)
    rollback_promotion(made_desk.config)
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    before = written(made_desk, ticker.instance)
    looks = [ticker.sensor(f"tiny_{name}") for name in ("new_snippets", "promotion", "nightly_shards")]
    night = ticker.schedule("tiny_nightly")
    assert written(made_desk, ticker.instance) == before
    assert [asked_for(look) for look in looks] == [["tiny_plan"], [], []] and len(night.run_requests) == 1
    assert [len(look.asset_events) for look in looks] == [0, 1, 0]


def test_a_first_look_at_a_campaign_writes_nothing_either(desk):
    with desk.runner().instance as instance:
        ticker = Ticker(desk, instance)
        looks = [ticker.sensor(f"tiny_{name}") for name in ("new_snippets", "promotion")]
        night = ticker.schedule("tiny_nightly")
        assert written(desk, instance) == {"files": {}, "partitions": [], "events": None, "runs": 0}
        assert asked_for(looks[0]) == ["tiny_plan"] and len(night.run_requests) == 1
        assert "nothing is planned yet" in looks[1].skip_message


def lose_promotion(desk) -> None:
    """Let the promoted version no longer say what it was made from, so that a promotion is due."""
    (desk.layout.versions / "v000001/zarr.json").write_text("{}")


def test_promotion_waits_while_a_rollback_pins_readers_and_the_catalog_learns_of_it(made_desk, ticker):
    config = made_desk.config
    promote_rollout_campaign(config, incremental=False)
    ticker.accept(ticker.sensor("tiny_promotion"))
    assert told(ticker.instance) == ("v000002", "")
    assert rollback_promotion(config).name == "v000001"
    for events in (1, 0):
        result = ticker.sensor("tiny_promotion")
        assert ticker.accept(result) == [] and len(result.asset_events) == events
        assert "pinned to v000001 by a rollback" in result.skip_message
        assert "'rollout-assets campaign unpin' lifts it" in result.skip_message
        version, pin = told(ticker.instance)
        assert version == "v000001" and "pinned to v000001 by a rollback" in pin
    unpin_promotion(config)
    result = ticker.sensor("tiny_promotion")
    assert ticker.accept(result) == [] and "promoted" in result.skip_message
    assert told(ticker.instance) == ("v000001", "")


def test_commands_tell_the_catalog_at_once_and_work_without_one(made_desk, ticker, monkeypatch, capsys):
    campaign = str(made_desk.campaign)
    monkeypatch.setenv("DAGSTER_HOME", str(made_desk.home))
    commands.promote(campaign, anew=True)
    assert told(ticker.instance) == ("v000002", "")
    commands.rollback(campaign, apply=True)
    assert told(ticker.instance)[0] == "v000001" and "pinned to v000001" in told(ticker.instance)[1]
    commands.unpin(campaign, apply=True)
    assert told(ticker.instance) == ("v000001", "")

    monkeypatch.setenv("DAGSTER_HOME", str(made_desk.folder / "nowhere"))
    commands.rollback(campaign, to="v000002", apply=True)
    assert not (made_desk.folder / "nowhere").exists() and told(ticker.instance) == ("v000001", "")
    broken = made_desk.folder / "broken"
    broken.mkdir()
    (broken / "dagster.yaml").write_text("storage: {nothing: of the kind}")
    monkeypatch.setenv("DAGSTER_HOME", str(broken))
    commands.rollback(campaign, to="v000001", apply=True)
    assert "was not told" in capsys.readouterr().err and current_version(made_desk.config).name == "v000001"


@pytest.mark.ci
def test_after_an_edit_and_planning_again_both_sensors_wait_for_the_shards_as_planned_now(made_desk, ticker):
    edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
    ticker = Ticker(made_desk, ticker.instance)
    ticker.execute(dg.RunRequest(job_name="tiny_plan"))
    promotion = ticker.sensor("tiny_promotion")
    assert promotion.run_requests == []
    assert "2 of 2 shards are not validated as planned: shard-000000, shard-000001" in promotion.skip_message
    assert asked_for(ticker.sensor("tiny_new_snippets")) == ["shard-000000", "shard-000001"]

    ticker.execute(ticker.sensor("tiny_new_snippets").run_requests[0])
    half = ticker.sensor("tiny_promotion")
    assert half.run_requests == [] and "1 of 2 shards are not validated as planned: shard-000001" in half.skip_message
    assert asked_for(ticker.sensor("tiny_new_snippets")) == ["shard-000001"]


def test_promotion_waits_while_validated_shards_are_being_built_again(made_desk, ticker):
    lose_promotion(made_desk)
    range_of = {RANGE_START_TAG: "shard-000000", RANGE_END_TAG: "shard-000001"}
    job = ticker.definitions.resolve_job_def("tiny_shard")
    run = ticker.instance.create_run_for_job(job, tags=range_of, status=dg.DagsterRunStatus.STARTED)
    waits = ticker.sensor("tiny_promotion")
    assert waits.run_requests == []
    assert "2 of 2 shards are being built again: shard-000000, shard-000001" in waits.skip_message
    ticker.instance.report_run_failed(run)
    assert asked_for(ticker.sensor("tiny_promotion")) == ["tiny_promote"]


@pytest.mark.ci
def test_a_failed_promotion_says_why_it_waits_and_is_tried_again(made_desk, ticker):
    lose_promotion(made_desk)
    (first,) = ticker.sensor("tiny_promotion").run_requests
    chunk = next(path for path in made_desk.layout.shard("shard-000001").rglob("c/0") if path.is_file())
    sound = chunk.read_bytes()
    chunk.write_bytes(sound[::-1])
    ticker.execute(first, fails=True)
    run = ticker.instance.get_run_records(limit=1)[0].dagster_run
    waits = ticker.sensor("tiny_promotion")
    assert waits.run_requests == []
    assert f"run {run.run_id[:8]} of tiny_promote failed: " in waits.skip_message
    assert "shard-000001" in waits.skip_message and "the sensor tries again after 20" in waits.skip_message
    assert "to try at once, re-execute that run or materialize rollouts_zarr" in waits.skip_message
    assert ticker.sensor("tiny_promotion", waits.cursor).skip_message == waits.skip_message, "a quiet tick says it too"

    chunk.write_bytes(sound)
    edit(made_desk.campaign, "[shards]", "[automation]\nretry_after_minutes = 0\n\n[shards]")
    (second,) = ticker.sensor("tiny_promotion", waits.cursor).run_requests
    assert second.run_key != first.run_key and second.run_key.endswith(f":after-{run.run_id[:8]}")
    assert ticker.execute(second) == "tiny_promote"
    assert "all 2 shards are promoted" in ticker.sensor("tiny_promotion").skip_message


def test_a_quiet_sensor_looks_again_when_another_try_is_due(made_desk, ticker, monkeypatch):
    lose_promotion(made_desk)
    (first,) = ticker.sensor("tiny_promotion").run_requests
    job = ticker.definitions.resolve_job_def("tiny_promote")
    run = ticker.instance.create_run_for_job(job, tags={**first.tags, "dagster/run_key": first.run_key})
    ticker.instance.report_run_failed(run, "the machine was switched off")
    waits = ticker.sensor("tiny_promotion")
    assert "failed: the machine was switched off" in waits.skip_message
    later = time.time() + 59 * 60
    monkeypatch.setattr(time, "time", lambda: later)
    assert ticker.sensor("tiny_promotion", waits.cursor).skip_message == waits.skip_message
    monkeypatch.setattr(time, "time", lambda: later + 120)
    assert asked_for(ticker.sensor("tiny_promotion", waits.cursor)) == ["tiny_promote"]


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
    old = json.dumps(json.loads(first.cursor) | {"good_until": 0.0})
    for cursor in ("not JSON", "[]", old):
        ticker.sensor(sensor, cursor)
    assert len(looks) == 5, "a cursor that says nothing is no reason not to look, nor is one of more than an hour"


def test_a_quiet_sensor_wakes_up_for_new_snippets_and_for_a_shard_that_is_gone(made_desk, ticker):
    cursor = ticker.sensor("tiny_new_snippets").cursor
    shard = made_desk.layout.shard("shard-000001")
    shard.rename(shard.with_name("_gone"))
    gone = ticker.sensor("tiny_new_snippets", cursor)
    assert asked_for(gone) == ["shard-000001"]
    shard.with_name("_gone").rename(shard)
    cursor = ticker.sensor("tiny_new_snippets", gone.cursor).cursor
    append_synthetic_snippets(made_desk.source, 1, workers=1)
    assert asked_for(ticker.sensor("tiny_new_snippets", cursor)) == ["tiny_plan"]


def test_a_failed_shard_does_not_keep_others_from_being_asked_for(made_desk, ticker):
    edit(made_desk.campaign, "[shards]", "[automation]\nshards_per_tick = 1\n\n[shards]")
    for shard_id in ("shard-000000", "shard-000001"):
        made_desk.layout.shard(shard_id).rename(made_desk.layout.shards / f"_{shard_id}")
    ticker.instance.delete_dynamic_partition("tiny_shards", "shard-000001")
    job = ticker.definitions.resolve_job_def("tiny_shard")
    for shard_id in ("shard-000000", "shard-000001"):
        result = ticker.sensor("tiny_new_snippets")
        (request,) = result.run_requests
        assert request.partition_key == shard_id
        tags = {**request.tags, "dagster/run_key": request.run_key}
        ticker.instance.report_run_failed(ticker.instance.create_run_for_job(job, tags=tags), f"{shard_id} broke")
    assert [item.partition_keys for item in result.dynamic_partitions_requests] == [["shard-000001"]]
    skipped = ticker.sensor("tiny_new_snippets").skip_message
    assert "2 of 2 shards are not validated, and each was asked for already" in skipped
    assert "the first is shard-000000: run" in skipped and "failed: shard-000000 broke" in skipped


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
    (observed,) = clean_runs(campaign, home, apply=True)
    assert "tiny_observe" in observed.why, "planning observed the source again; all others recorded what is current"
    (first,) = ticker.instance.get_runs(filters=dg.RunsFilter(job_name="tiny_plan"))
    assert made_desk.runner().run("plan").ok
    before = validated_versions(ticker.instance, made_desk.runner().keys)
    (found,) = clean_runs(campaign, home, apply=True)
    assert found.name == first.run_id and "tiny_plan success" in found.why and found.bytes > 0
    assert not ticker.instance.has_run(first.run_id) and clean_runs(campaign, home, apply=True) == ()
    assert validated_versions(ticker.instance, made_desk.runner().keys) == before
    assert ticker.sensor("tiny_new_snippets").run_requests == []


@pytest.mark.ci
def test_a_night_plans_new_snippets_runs_all_shards_in_parts_and_tries_failed_ones_again(made_desk, ticker):
    edit(made_desk.campaign, "[shards]", "[automation]\nshards_per_tick = 2\n\n[shards]")
    assert "all 2 shards are validated" in ticker.schedule("tiny_nightly").skip_message
    assert "was not made by the nightly schedule" in ticker.sensor("tiny_nightly_shards").skip_message
    scene = VinOfflineStore.open(made_desk.source).row(0).scene_id
    append_synthetic_snippets(made_desk.source, 6, scene_ids=[scene], workers=1)
    (night,) = ticker.schedule("tiny_nightly").run_requests
    ticker.execute(night)
    parts = []
    while (part := ticker.sensor("tiny_nightly_shards")).run_requests:
        parts.append(asked_for(part))
        for request in part.run_requests:
            if request.partition_key == "shard-000003":
                tags = {**request.tags, "dagster/run_key": request.run_key}
                run = ticker.instance.create_run_for_job(ticker.definitions.resolve_job_def("tiny_shard"), tags=tags)
                ticker.instance.report_run_failed(run)
            else:
                ticker.execute(request)
    assert parts == [["shard-000002", "shard-000003"], ["shard-000004"]]
    assert "each was asked for already; the first is shard-000003" in part.skip_message
    (night,) = ticker.schedule("tiny_nightly").run_requests
    ticker.execute(night)
    assert ticker.accept(ticker.sensor("tiny_nightly_shards")) == ["shard-000003"]
    assert "all 5 shards are validated" in ticker.schedule("tiny_nightly").skip_message


def test_once_somebody_plans_an_edited_campaign_the_night_is_over(made_desk, ticker):
    shard = made_desk.layout.shard("shard-000001")
    shard.rename(shard.with_name("_gone"))
    (night,) = ticker.schedule("tiny_nightly").run_requests
    ticker.execute(night)
    assert asked_for(ticker.sensor("tiny_nightly_shards")) == ["shard-000001"]
    edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
    assert "the campaign was edited" in ticker.sensor("tiny_nightly_shards").skip_message
    ticker.execute(dg.RunRequest(job_name="tiny_plan"))
    assert "was not made by the nightly schedule" in ticker.sensor("tiny_nightly_shards").skip_message


def test_the_schedule_follows_the_campaign(made_desk):
    edit(made_desk.campaign, "[shards]", "[automation]\nnightly = '30 1 * * 1-5'\n\n[shards]")
    schedule = made_desk.runner().definitions.get_repository_def().get_schedule_def("tiny_nightly")
    assert schedule.cron_schedule == "30 1 * * 1-5"


def test_an_edited_campaign_is_not_rebuilt_by_itself(made_desk, ticker):
    edit(made_desk.campaign, "radius_max_m = 0.9", "radius_max_m = 0.8")
    for sensor in ("tiny_new_snippets", "tiny_promotion"):
        result = ticker.sensor(sensor)
        assert result.run_requests == [] and "2 shards are planned for another config" in result.skip_message
