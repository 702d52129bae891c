"""In Dagster too nothing shrinks without the operator's word, and then the pages say what went."""

import pytest

from rollout_assets.campaigns.markers import read_owner
from rollout_assets.campaigns.plan import entry_of
from rollout_assets.campaigns.versions import current_name, current_version
from rollout_assets.defs.keys import PARTITION_TAG
from tests.support.refusals import assert_names

ALLOWED = {"config": {"allow_fewer": True}}
SHARD = "shard-000000"


def launch(desk, instance, job, step="", shard=None):
    """Run a job as the launchpad does; with a ``step``, its run config accepts fewer."""
    definition = desk.runner().definitions.resolve_job_def(f"tiny_{job}")
    return definition.execute_in_process(
        instance=instance,
        run_config={"ops": {step: ALLOWED}} if step else {},
        tags={} if shard is None else {PARTITION_TAG: shard},
        raise_on_error=False,
    )


def page(result, asset) -> dict[str, object]:
    (found,) = (event for event in result.get_asset_materialization_events() if event.asset_key.path[-1] == asset)
    return found.materialization.metadata


def error_of(result) -> str:
    return next(
        event for event in result.all_events if event.is_step_failure
    ).step_failure_data.user_failure_data.description


@pytest.mark.ci
def test_a_mesh_that_vanished_is_refused_until_the_run_config_accepts_it(made_desk):
    scene = entry_of(made_desk.config, SHARD).rows[0].scene_id
    mesh = next((made_desk.source / "meshes").glob(f"*{scene}.ply"))
    owner = read_owner(made_desk.layout.shard(SHARD))
    mesh.rename(made_desk.folder / "unmounted")
    with made_desk.runner().instance as instance:
        refused = launch(made_desk, instance, "shard", shard=SHARD)
        assert not refused.success and refused.get_asset_materialization_events() == []
        assert_names(error_of(refused), "InputMissing", SHARD, scene, "allow_fewer: true")
        assert read_owner(made_desk.layout.shard(SHARD)) == owner and not made_desk.layout.set_aside_dir.exists()
        planned = launch(made_desk, instance, "plan")
        assert page(planned, "rollout_shard_plan")["source_rows_without_mesh"].value == len(owner.rows)

        accepted = launch(made_desk, instance, "shard", "tiny__shards", SHARD)
        assert accepted.success, "its checks accept it too"
        assert_names(page(accepted, "rollout_shards")["fewer_records"].value, SHARD, "MESH_REFERENCE_MISSING")
        alone = launch(made_desk, instance, "shard", shard=SHARD)
        assert not alone.success
        assert_names(error_of(alone), "rows_accounted_for", "v000001", "MESH_REFERENCE_MISSING", "allow_fewer: true")

        assert launch(made_desk, instance, "shard", "tiny__shards", SHARD).success
        unsaid = launch(made_desk, instance, "promote")
        assert not unsaid.success and current_name(made_desk.layout) == "v000001"
        assert_names(error_of(unsaid), "train rollouts", "v000001", SHARD, "allow_fewer: true")
        said = launch(made_desk, instance, "promote", "tiny__rollouts_zarr")
        assert current_version(made_desk.config).name == "v000002"
        lines = [record.data["readers have fewer"] for record in page(said, "rollouts_zarr")["fewer_rows"].records]
        assert_names("\n".join(lines), "train rollouts", "v000001", SHARD, "MESH_REFERENCE_MISSING")
        assert launch(made_desk, instance, "shard", shard=SHARD).success, "readers have what it has"
