"""A campaign through a real instance: everything is materialized and checked, damage is found, blocked and healed."""

import socket

import pytest
import zarr
from dagster import AssetKey

from rollout_assets.campaigns.versions import current_version
from rollout_assets.defs.headless import PROCESS_TAG, RunOutcome, materialize_campaign, sweep_dead_runs
from rollout_assets.rollouts.zarr_store.manifest import read_rollout_store_manifest
from tests.defs.campaigns import edit, write_campaign

HASHES = (
    "candidate_config_hash",
    "oracle_config_hash",
    "rollout_config_hash",
    "writer_config_hash",
    "source_manifest_hash",
    "split_manifest_hash",
)


def failed(run: RunOutcome, level: str = "ERROR") -> dict[str, str]:
    return {check.check: check.evidence for check in run.failed_checks(level)}


def test_a_whole_campaign_is_materialized_checked_and_promoted(finished_desk):
    desk, result = finished_desk
    assert result.ok and result.promoted
    assert [run.name for run in result.runs] == ["observe", "plan", "shard-000000", "shard-000001", "promote"]
    assert [len(run.checks) for run in result.runs] == [0, 0, 7, 7, 6]
    assert current_version(desk.config).shard_ids == ("shard-000000", "shard-000001")


def test_metadata_carries_every_hash_counts_tables_paths_and_a_picture(finished_desk):
    desk, _ = finished_desk
    with desk.runner().instance as instance:
        for asset in ("vin_source_rows", "rollout_shards", "validated_shards"):
            event = instance.get_latest_materialization_event(AssetKey(["tiny", asset]))
            metadata = event.asset_materialization.metadata
            assert all(len(metadata[name].value) >= 16 for name in HASHES), asset
            assert metadata["dagster/row_count"].value > 0
        metadata = instance.get_latest_materialization_event(
            AssetKey(["tiny", "rollout_shards"])
        ).asset_materialization.metadata
        stages = [record.data["stage"] for record in metadata["validity_waterfall"].records]
        assert stages == ["full_shell", "actor_valid", "oracle_label", "q_train", "selected"]
        assert metadata["pictures"].value.startswith("![](data:image/svg+xml;base64,")
        assert len(metadata["pictures"].value) < 60_000
        assert metadata["views_per_second"].value > 0 and metadata["bytes"].value > 0
        promoted = instance.get_latest_materialization_event(AssetKey(["tiny", "rollouts_zarr"])).asset_materialization
        assert promoted.metadata["path"].value == str(desk.layout.promoted)


def test_every_store_records_the_campaign_that_made_it(finished_desk):
    desk, _ = finished_desk
    stores = [desk.layout.shard("shard-000000") / "rollouts.zarr", *current_version(desk.config).children]
    for store in stores:
        recorded = read_rollout_store_manifest(store)["generation"]["invocation"]
        assert recorded["mode"] == "dagster" and recorded["argv"] == [], "pytest's command line says nothing"
        assert recorded["config_path"] == str(desk.campaign.resolve())
        assert recorded["raw_toml_text"] == desk.campaign.read_text()


def test_the_minima_of_the_quality_checks_are_the_campaigns(made_desk):
    edit(made_desk.campaign, "[shards]", "[quality]\nmin_valid_fanout = 13\nmin_label_yield = 1.0\n\n[shards]")
    runner = made_desk.runner()
    with runner.instance:
        found = failed(runner.run("shard_checks", "shard-000000"), "WARN")
    assert "valid_fanout" in found and "label_yield" not in found


@pytest.mark.ci
def test_damage_fails_the_right_check_blocks_promotion_and_is_healed_by_one_partition(made_desk):
    before = made_desk.content()
    runner = made_desk.runner()
    store = made_desk.layout.shard("shard-000001") / "rollouts.zarr"
    array = zarr.open_array(store / "steps" / "step_index", mode="r+")
    array[3] = 40
    with runner.instance:
        checked = runner.run("shard_checks", "shard-000001")
        found = failed(checked)
        assert set(found) == {"schema_and_linkage", "content_digests"}
        assert "steps/step_index row 3" in found["schema_and_linkage"]
        assert failed(runner.run("shard_checks", "shard-000000")) == {}

        promotion = runner.run("promote")
        assert not promotion.ok and "shard-000001: " in promotion.error and "shard-000000" not in promotion.error

        healed = runner.run("shard", "shard-000001")
        assert healed.ok and not failed(healed)
        assert runner.run("promote").ok
    assert made_desk.content() == before
    assert [path.name.split(".")[0] for path in made_desk.layout.set_aside_dir.glob("shard-*[!n]")] == ["shard-000001"]


def test_a_shard_that_fails_its_checks_is_not_validated_in_a_later_run_either(made_desk):
    runner = made_desk.runner()
    store = made_desk.layout.shard("shard-000000") / "rollouts.zarr"
    (store / "candidates" / "target_rri" / "zarr.json").write_text("{}")
    job = runner.definitions.resolve_implicit_global_asset_job_def()
    with runner.instance as instance:
        alone = job.execute_in_process(
            instance=instance,
            partition_key="shard-000000",
            asset_selection=[AssetKey(["tiny", "validated_shards"])],
            raise_on_error=False,
        )
        assert not alone.success
        failures = [event for event in alone.all_events if event.is_step_failure]
        assert "candidates/target_rri" in failures[0].step_failure_data.user_failure_data.description
        assert not [event for event in alone.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]


@pytest.mark.ci
@pytest.mark.ci
def test_two_campaigns_share_an_instance_and_nothing_else(made_desk):
    other = write_campaign(made_desk.folder, made_desk.source, "other", rows_per_shard=2, splits=("train",))
    result = materialize_campaign(other, home=made_desk.home)
    assert result.ok and [run.name for run in result.runs] == ["observe", "plan", "shard-000000", "promote"]
    with made_desk.runner().instance as instance:
        assert sorted(instance.get_dynamic_partitions("tiny_shards")) == ["shard-000000", "shard-000001"]
        assert sorted(instance.get_dynamic_partitions("other_shards")) == ["shard-000000"]


def test_runs_of_dead_headless_processes_are_failed_at_the_next_start(made_desk):
    runner = made_desk.runner()
    job = runner.definitions.resolve_job_def("tiny_plan")
    with runner.instance as instance:
        tags = {PROCESS_TAG: f"{socket.gethostname()}:{2**22 + 1}"}
        run = instance.create_run_for_job(job, tags=tags)
        instance.report_engine_event("starting", run)
        assert sweep_dead_runs(instance) == (run.run_id,)
        assert instance.get_run_by_id(run.run_id).is_failure
        assert sweep_dead_runs(instance) == ()
