"""Checks run when they are needed: before there is anything, for all shards at once, and by the clock.

A refused promotion examines nothing of the store that readers have, and leaves the results of its checks alone.
"""

import dagster as dg
import pytest

from rollout_assets.campaigns.check_names import INTEGRITY_CHECKS, QUALITY_CHECKS
from rollout_assets.defs.checks import store_check_keys
from rollout_assets.defs.code_location import build_definitions
from tests.defs.browser import running_ui
from tests.defs.campaigns import edit
from tests.defs.test_headless import failed
from tests.support.waiting import wait_until


def latest(instance, key):
    """The newest execution of a check, as the UI shows it: its status, and its result if it has one."""
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    return record.status.value, record.evaluation


def check_key(asset, name):
    return dg.AssetCheckKey(dg.AssetKey(["tiny", asset]), name)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("shard_checks", "No rollout shard is planned yet: materialize rollout_shard_plan first."),
        ("store_checks", "Nothing is promoted yet: materialize rollouts_zarr when all shards are validated."),
        ("up_to_date", "No rollout shard is planned yet"),
    ],
)
def test_a_check_of_nothing_is_a_warning_with_what_to_do(desk, job, message):
    runner = desk.runner()
    with runner.instance:
        run = runner.run(job)
    assert run.ok and run.checks
    assert {check.level for check in run.checks} == {"WARN"} and not any(check.passed for check in run.checks)
    assert any(message in check.evidence for check in run.checks)


def test_checks_without_a_partition_look_at_every_shard(made_desk):
    runner = made_desk.runner()
    array = made_desk.layout.shard("shard-000001") / "rollouts.zarr" / "candidates" / "target_rri" / "zarr.json"
    array.write_text("{}")
    with runner.instance as instance:
        run = runner.run("shard_checks")
        assert len(run.checks) == len(INTEGRITY_CHECKS) + len(QUALITY_CHECKS)
        found = failed(run)
        assert found["content_digests"] == "1 of 2 shards pass"
        status, evaluation = latest(instance, check_key("rollout_shards", "content_digests"))
    assert status == "FAILED" and evaluation.partition is None
    counts = [evaluation.metadata[f"shards_{name}"].value for name in ("planned", "checked", "failed")]
    assert counts == [2, 2, 1]
    (row,) = (record.data for record in evaluation.metadata["evidence"].records)
    assert row["shard"] == "shard-000001" and "were altered" in row["why"]


def executions(instance, keys):
    """Every execution of the store's checks: when it was recorded, of which run, and with what result."""
    history = instance.event_log_storage.get_asset_check_execution_history
    return {key: history(key, limit=100) for key in store_check_keys(keys)}


def test_a_refused_promotion_leaves_the_stores_checks_alone(made_desk):
    runner = made_desk.runner()
    chunk = next(path for path in (made_desk.layout.shard("shard-000001") / "rollouts.zarr").rglob("c/0"))
    sound = chunk.read_bytes()
    chunk.write_bytes(sound[::-1])
    materialize = runner.definitions.get_implicit_global_asset_job_def()
    with runner.instance as instance:
        before = executions(instance, runner.keys)
        assert all(before.values())
        assert not runner.run("promote").ok
        assert executions(instance, runner.keys) == before
        by_hand = materialize.execute_in_process(
            instance=instance, asset_selection=[runner.keys.key("rollouts_zarr")], raise_on_error=False
        )
        assert not by_hand.success
        assert executions(instance, runner.keys) == before

        chunk.write_bytes(sound)
        run = runner.run("promote")
        assert run.ok
        for key, (last, *earlier) in executions(instance, runner.keys).items():
            assert last.run_id == run.run_id and earlier == before[key]


def test_a_refused_first_promotion_leaves_its_checks_unevaluated(desk):
    runner = desk.runner()
    with runner.instance as instance:
        assert runner.run("plan").ok and not runner.run("promote").ok
        assert not any(executions(instance, runner.keys).values())


@pytest.mark.ci
def test_a_kept_second_opinion_says_when_it_was_measured(made_desk):
    runner = made_desk.runner()
    with runner.instance as instance:
        key = check_key("rollouts_zarr", "second_opinion")
        assert runner.run("promote").ok
        _, measured = latest(instance, key)
        assert runner.run("promote").ok
        _, kept = latest(instance, key)
    oldest = min(record.data["measured_at"] for record in kept.metadata["scope"].records)
    assert kept.metadata["measured_at"].value == oldest == measured.metadata["measured_at"].value
    assert oldest in kept.description and measured.description is None


def test_readiness_is_a_check_with_its_measures_as_numbers(finished_desk):
    desk, _ = finished_desk
    with desk.runner().instance as instance:
        _, evaluation = latest(instance, check_key("rollout_report", "readiness"))
    assert not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.WARN, "a tiny store needs care"
    assert evaluation.metadata["verdict_train"].value == "ready with care"
    assert isinstance(evaluation.metadata["trainable states (train)"], dg.FloatMetadataValue)
    shown = [record.data for record in evaluation.metadata["evidence"].records]
    assert {"split", "name", "value", "wanted", "meaning"} <= set(shown[0])
    assert "trainable states" in {row["name"] for row in shown}


def test_the_clock_is_on_and_can_be_switched_off(desk):
    def clock():
        schedules = build_definitions([desk.campaign]).get_repository_def().schedule_defs
        return next(schedule for schedule in schedules if schedule.name == "tiny_up_to_date")

    assert clock().default_status == dg.DefaultScheduleStatus.RUNNING and clock().cron_schedule == "0 6 * * *"
    edit(desk.campaign, "[shards]", '[automation]\ncheck_up_to_date = false\nup_to_date = "5 * * * *"\n\n[shards]')
    assert clock().default_status == dg.DefaultScheduleStatus.STOPPED and clock().cron_schedule == "5 * * * *"


@pytest.mark.ci
def test_a_real_daemon_runs_the_check_by_the_clock(made_desk):
    edit(made_desk.campaign, "[shards]", '[automation]\nup_to_date = "* * * * *"\n\n[shards]')
    key = check_key("rollouts_zarr", "up_to_date")
    with made_desk.runner().instance as instance, running_ui(made_desk.home, made_desk.campaign):
        (before,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)

        def evaluated():
            (now,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
            return now if now.id != before.id and isinstance(now.evaluation, dg.AssetCheckEvaluation) else None

        now = wait_until(evaluated, "a check by the clock", every_s=1)
        assert now.evaluation.passed
        run = instance.get_run_by_id(now.run_id)
        assert run.tags["dagster/schedule_name"] == "tiny_up_to_date"
