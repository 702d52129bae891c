"""Results of a shard's checks are found again for the very same bytes, with their time, and for nothing else."""

import os
from datetime import datetime

import dagster as dg
import pytest

from tests.defs.campaigns import edit
from tests.defs.test_checks_alone import check_key, latest
from tests.defs.test_headless import failed


def test_an_unchanged_shard_keeps_its_results_with_their_time(made_desk):
    runner, key = made_desk.runner(), check_key("rollout_shards", "content_digests")
    with runner.instance as instance:
        first = runner.run("shard", "shard-000000")
        assert first.ok and not any(check.kept for check in first.checks), "a campaign elsewhere is another one"
        again = runner.run("shard", "shard-000000")
        assert again.ok and len(again.checks) == 7 and all(check.kept for check in again.checks)
        _, kept = latest(instance, key)
        asset = instance.get_latest_materialization_event(dg.AssetKey(["tiny", "validated_shards"]))
        began = instance.get_run_record_by_id(again.run_id).start_time
        assert kept.passed and kept.metadata["checked_at"].value < began
        examined_at = asset.asset_materialization.metadata["examined_at"].value
        assert datetime.fromisoformat(examined_at).timestamp() == kept.metadata["checked_at"].value

        alone = runner.run("shard_checks", "shard-000000")
        assert alone.ok and len(alone.checks) == 7 and not any(check.kept for check in alone.checks)


@pytest.mark.ci
def test_damaged_bytes_and_edited_minima_are_examined_again(made_desk):
    runner, before = made_desk.runner(), made_desk.content()
    with runner.instance:
        assert runner.run("shard", "shard-000001").ok
    chunk = next((made_desk.layout.shard("shard-000001") / "rollouts.zarr").rglob("c/0"))
    status, content = chunk.stat(), chunk.read_bytes()
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(chunk, ns=(status.st_atime_ns, status.st_mtime_ns))
    runner = made_desk.runner()
    with runner.instance:
        validated = runner.definitions.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=runner.instance,
            partition_key="shard-000001",
            asset_selection=[dg.AssetKey(["tiny", "validated_shards"])],
            raise_on_error=False,
        )
        assert not validated.success
        healed = runner.run("shard", "shard-000001")
        assert healed.ok and not any(check.kept for check in healed.checks)
        assert made_desk.content() == before
        assert all(check.kept for check in runner.run("shard", "shard-000001").checks)

    edit(made_desk.campaign, "[shards]", "[quality]\nmin_valid_fanout = 13\n\n[shards]")
    runner = made_desk.runner()
    with runner.instance:
        run = runner.run("shard", "shard-000001")
    assert "valid_fanout" in failed(run, "WARN") and not any(check.kept for check in run.checks)
