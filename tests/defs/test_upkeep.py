"""Rollback, unpin, clean and promoting anew as jobs: they say what they would do, do it, and record it."""

import os
import shutil
import time

import dagster as dg
import pytest

from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.versions import current_name
from rollout_assets.defs.upkeep.old_runs import clean_runs

KEY = dg.AssetKey(["tiny", "rollouts_zarr"])


def launch(desk, instance, job, **config):
    """Run a job as the launchpad does, with the config of its one step."""
    definition = desk.runner().definitions.resolve_job_def(f"tiny_{job}")
    run_config = {"ops": {f"tiny__{job}": {"config": config}}} if config else {}
    return definition.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)


def observed(instance) -> dict[str, object]:
    records = instance.fetch_observations(KEY, limit=1).records
    metadata = records[0].asset_observation.metadata if records else {}
    return {name: getattr(value, "records", value.value) for name, value in metadata.items()}


def error_of(result) -> str:
    failures = [event for event in result.all_events if event.is_step_failure]
    return failures[0].step_failure_data.user_failure_data.description


@pytest.fixture
def two_versions(made_desk):
    """Two promoted versions of the same shards."""
    promote_rollout_campaign(made_desk.config, incremental=False)
    assert current_name(made_desk.layout) == "v000002"
    return made_desk


def test_rollback_says_what_it_would_do_does_it_and_is_recorded_until_it_is_unpinned(two_versions):
    desk = two_versions
    with desk.runner().instance as instance:
        assert launch(desk, instance, "rollback").success
        assert current_name(desk.layout) == "v000002" and observed(instance) == {}, "nothing without apply"
        assert launch(desk, instance, "rollback", version="v000001", apply=True).success
        assert current_name(desk.layout) == "v000001"
        pin = read_pin(desk.layout)
        facts = observed(instance)
        assert facts["version"] == "v000001" and facts["version_before"] == "v000002" and facts["pin"] == pin.holds
        assert launch(desk, instance, "unpin").success
        assert read_pin(desk.layout) == pin and observed(instance) == facts, "nothing without apply"
        assert launch(desk, instance, "unpin", apply=True).success
        assert read_pin(desk.layout) is None and "pin" not in observed(instance)


def test_a_rollback_to_a_version_that_is_not_there_names_those_that_are(two_versions):
    with two_versions.runner().instance as instance:
        result = launch(two_versions, instance, "rollback", version="v000009", apply=True)
        assert not result.success and "no version v000009; there are v000001, v000002" in error_of(result)
        with pytest.raises(dg.DagsterInvalidConfigError, match="dry_run"):
            two_versions.runner().definitions.resolve_job_def("tiny_rollback").execute_in_process(
                instance=instance, run_config={"ops": {"tiny__rollback": {"config": {"dry_run": True}}}}
            )
    assert current_name(two_versions.layout) == "v000002"


@pytest.mark.ci
def test_promoting_anew_builds_a_version_from_all_shards(made_desk):
    runner = made_desk.runner()
    with runner.instance as instance:
        run = runner.run("promote_anew")
        assert run.ok and current_name(made_desk.layout) == "v000002"
        made = instance.get_latest_materialization_event(KEY).asset_materialization.metadata["made"]
    assert [record.data["made"] for record in made.records] == ["built", "built"]


@pytest.mark.ci
def test_clean_lists_first_and_removes_versions_reports_runs_and_their_logs_when_asked(two_versions):
    desk = two_versions
    desk.campaign.write_text(desk.campaign.read_text() + "\n[retention]\nversions = 1\nrun_days = 0\n")
    gone = desk.layout.reports / "test.html"
    gone.write_text("a page of a split that is no longer promoted")
    with desk.runner().instance as instance:
        first = desk.runner().run("store_checks").run_id
        logs = desk.home / "storage"
        assert (logs / first).is_dir()
        assert launch(desk, instance, "clean").success
        listed = observed(instance)
        assert listed["removed"] == 0 and listed["found"] >= 3
        assert {record.data["kind"] for record in listed["kinds"]} >= {"version", "report", "run"}
        assert instance.get_run_by_id(first) is not None and (desk.layout.versions / "v000001").is_dir()
        cleaning = launch(desk, instance, "clean", apply=True)
        assert cleaning.success and observed(instance)["removed"] >= 3
        assert instance.get_run_by_id(first) is None and not (logs / first).exists()
        assert instance.get_run_by_id(cleaning.run_id) is not None
    assert not (desk.layout.versions / "v000001").exists() and not gone.exists()
    assert (desk.layout.reports / "train.html").is_file() and (desk.layout.versions / "v000002").is_dir()


def test_logs_of_runs_that_are_no_longer_recorded_go_too(made_desk):
    left = made_desk.home / "storage" / "0c0ffee0-0000-4000-8000-000000000000" / "compute_logs"
    left.mkdir(parents=True)
    (left / "step.out").write_text("x" * 10_000)
    assert not [item for item in clean_runs(str(made_desk.campaign), made_desk.home, apply=False) if item.kind == "log"]
    old = time.time() - 90 * 86_400
    os.utime(left.parent, (old, old))
    (found,) = (item for item in clean_runs(str(made_desk.campaign), made_desk.home, apply=True) if item.kind == "log")
    assert found.bytes >= 10_000 and not left.parent.exists()
    assert (made_desk.home / "storage").is_dir()
    shutil.rmtree(made_desk.home)
