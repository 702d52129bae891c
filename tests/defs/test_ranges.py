"""Runs that take a range of shards: each is recorded by itself, a bad one stops no other, and a kill loses nothing."""

import signal
import subprocess
import sys

import dagster as dg
import pytest

from rollout_assets.campaigns.check_names import INTEGRITY_CHECKS, QUALITY_CHECKS
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.defs import keys as names
from rollout_assets.defs.headless import QUIET
from rollout_assets.defs.records import shards_in_progress, validated_versions
from rollout_assets.defs.shards.chain import shard_step
from rollout_assets.defs.upkeep.old_runs import clean_runs
from tests.defs.campaigns import edit
from tests.defs.conftest import Desk
from tests.defs.test_killed import wait_for_build
from tests.defs.test_staleness import stale_statuses

SHARDS = ["shard-000000", "shard-000001"]
RANGE = {names.RANGE_START_TAG: SHARDS[0], names.RANGE_END_TAG: SHARDS[1]}
RUN_A_RANGE = """
import sys
from tests.defs.conftest import Desk
from tests.defs.test_ranges import run_range
from pathlib import Path
desk = Desk(Path(sys.argv[1]))
with desk.runner().instance as instance:
    run_range(desk, instance)
"""


def run_range(desk: Desk, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """One run of both shards, as a backfill launches it."""
    job = desk.runner().definitions.resolve_job_def("tiny_shard")
    return job.execute_in_process(instance=instance, tags=RANGE, run_config=QUIET, raise_on_error=False)


def materialized(result: dg.ExecuteInProcessResult) -> list[tuple[str, str | None]]:
    """Asset and shard of every materialization, in order."""
    events = [event.event_specific_data.materialization for event in result.get_asset_materialization_events()]
    return [(event.asset_key.path[-1], event.partition) for event in events]


def evaluated(result: dg.ExecuteInProcessResult) -> dict[str | None, dict[str, bool]]:
    """Shard -> check -> whether it passed."""
    found: dict[str | None, dict[str, bool]] = {}
    for evaluation in result.get_asset_check_evaluations():
        found.setdefault(evaluation.partition, {})[evaluation.check_name] = evaluation.passed
    return found


def reason_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return failure.step_failure_data.user_failure_data.description


def spoil_plan(desk: Desk, number: int) -> None:
    """Let one line of the plan be of another config, which a build refuses."""
    lines = desk.layout.plan.read_text().splitlines(keepends=True)
    lines[number] = lines[number].replace(desk.config.writer_config_hash, "0" * 64)
    desk.layout.plan.write_text("".join(lines))


def test_the_campaign_says_how_many_shards_a_run_of_a_backfill_takes(made_desk):
    assert shard_step(made_desk.runner().keys).backfill_policy == dg.BackfillPolicy.multi_run(16)
    edit(made_desk.campaign, "[shards]", "[automation]\nshards_per_run = 3\n\n[shards]")
    assert shard_step(made_desk.runner().keys).backfill_policy == dg.BackfillPolicy.multi_run(3)


@pytest.mark.ci
def test_a_range_records_each_shard_with_its_own_versions_metadata_and_checks(made_desk):
    runner = made_desk.runner()
    with runner.instance as instance:
        before = validated_versions(instance, runner.keys)
        result = run_range(made_desk, instance)
        assert result.success
        assert materialized(result) == [(asset, shard) for shard in SHARDS for asset in names.SHARD_CHAIN]
        assert {shard: set(checks) for shard, checks in evaluated(result).items()} == {
            shard: {*INTEGRITY_CHECKS, *QUALITY_CHECKS} for shard in SHARDS
        }
        assert validated_versions(instance, runner.keys) == before and len(set(before.values())) == 2
        key = runner.keys.key(names.ROLLOUT_SHARDS)
        digests = [
            instance.fetch_materializations(dg.AssetRecordsFilter(key, asset_partitions=[shard]), limit=1)
            .records[0]
            .asset_materialization.metadata["content_sha256"]
            .value
            for shard in SHARDS
        ]
        assert len(set(digests)) == 2
    assert set(stale_statuses(made_desk).values()) == {"FRESH"}


def test_a_bad_shard_of_a_range_fails_with_its_reason_and_stops_no_other(made_desk):
    spoil_plan(made_desk, 0)
    runner = made_desk.runner()
    with runner.instance as instance:
        result = run_range(made_desk, instance)
        assert not result.success
        assert {shard for _, shard in materialized(result)} == {"shard-000001"}
        assert set(evaluated(result)) == {"shard-000001"}
        assert reason_of(result).startswith("1 of 2 shards failed:\n  shard-000000: ShardDrift: ")
        logged = [event.user_message for event in instance.all_logs(result.run_id)]
        assert any(message.startswith("shard-000000 failed: ShardDrift: ") for message in logged)
        assert not [event for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]


def test_a_blocking_check_of_one_shard_keeps_it_from_being_validated_and_the_next_one_is(made_desk):
    store = made_desk.layout.shard("shard-000000") / "rollouts.zarr"
    (store / "candidates" / "target_rri" / "zarr.json").write_text("{}")
    runner = made_desk.runner()
    validated = runner.keys.key(names.VALIDATED_SHARDS)
    checks = [dg.AssetCheckKey(runner.keys.key(names.ROLLOUT_SHARDS), check) for check in INTEGRITY_CHECKS]
    with runner.instance as instance:
        result = dg.materialize(
            [shard_step(runner.keys)],
            selection=dg.AssetSelection.assets(validated) | dg.AssetSelection.checks(*checks),
            instance=instance,
            tags=RANGE,
            resources=runner.definitions.resources,
            run_config=QUIET,
            raise_on_error=False,
        )
    assert not result.success and materialized(result) == [("validated_shards", "shard-000001")]
    found = evaluated(result)
    assert not found["shard-000000"]["schema_and_linkage"] and set(found["shard-000000"]) == set(INTEGRITY_CHECKS)
    assert all(found["shard-000001"][check] for check in INTEGRITY_CHECKS)
    assert "candidates/target_rri" in reason_of(result)


def test_shards_of_a_range_that_waits_or_runs_are_in_progress(made_desk):
    runner = made_desk.runner()
    job = runner.definitions.resolve_job_def("tiny_shard")
    with runner.instance as instance:
        assert shards_in_progress(instance, runner.keys) == set()
        instance.create_run_for_job(job, tags=RANGE)
        assert shards_in_progress(instance, runner.keys) == set(SHARDS)


@pytest.mark.ci
@pytest.mark.ci
def test_an_old_range_goes_only_when_all_its_shards_have_later_records(made_desk):
    edit(made_desk.campaign, "[shards]", "[retention]\nrun_days = 0\n\n[shards]")
    runner = made_desk.runner()
    with runner.instance as instance:
        old = run_range(made_desk, instance)
        assert runner.run("shard", "shard-000000").ok
        removable = lambda: {run.name for run in clean_runs(str(made_desk.campaign), made_desk.home, apply=False)}  # noqa: E731
        assert old.run_id not in removable()
        assert runner.run("shard", "shard-000001").ok
        assert old.run_id in removable()


@pytest.mark.ci
def test_a_range_that_is_killed_loses_nothing_and_the_next_one_keeps_what_is_finished(desk, finished_desk):
    runner = desk.runner()
    with runner.instance as instance:
        assert runner.run("observe").ok and runner.run("plan").ok
        process = subprocess.Popen([sys.executable, "-c", RUN_A_RANGE, str(desk.folder)])
        wait_for_build(desk, "shard-000001")
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert set(validated_versions(instance, runner.keys)) == {"shard-000000"}
        built = (desk.layout.shard("shard-000000") / "_owner.json").read_bytes()

        again = run_range(desk, instance)
        assert again.success and set(validated_versions(instance, runner.keys)) == set(SHARDS)
    assert (desk.layout.shard("shard-000000") / "_owner.json").read_bytes() == built, "it was read and kept"
    assert desk.content() == finished_desk[0].content()
    assert len(read_rollout_shard_manifest(desk.config)) == 2
