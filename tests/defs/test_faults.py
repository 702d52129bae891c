"""Through Dagster too, a fault of the machine is tried again and a row without a record is named at the end."""

import dataclasses

import dagster as dg
import pytest

from rollout_assets.commands.headless import show_headless
from rollout_assets.defs import retries
from rollout_assets.defs.retries import failures_for_dagster
from rollout_assets.errors import ConfigError, DeviceError, ReadingsDiffer, ShardBusy, ShardFailed, SourceDamaged
from tests.campaigns.failing_machine import Fault, failing


@pytest.mark.parametrize(
    "fault", [DeviceError("gone"), ReadingsDiffer("twice"), ShardFailed("full"), ShardBusy("held")]
)
@pytest.mark.ci
def test_what_may_pass_is_left_to_the_retry_policy(fault):
    with pytest.raises(type(fault)), failures_for_dagster():
        raise fault


@pytest.mark.parametrize("final", [ConfigError("no"), SourceDamaged("the store", ["a problem"])])
@pytest.mark.ci
def test_what_data_or_user_say_is_final(final):
    with pytest.raises(dg.Failure) as caught, failures_for_dagster():
        raise final
    assert not caught.value.allow_retries


@pytest.mark.ci
def test_a_fault_is_tried_again_and_the_shard_is_the_same(desk, finished_desk):
    assert len(retries.RETRY_AFTER_S) == 2
    runner = desk.runner()
    chunk = Fault("shards/shard-000000/vin/points_world/c/0/0/0", "EIO", nth=2)
    with runner.instance as instance:
        assert runner.run("observe").ok and runner.run("plan").ok
        with failing(chunk) as machine:
            done = runner.run("shard", "shard-000000")
        assert done.ok and machine.happened == [chunk]
        said = [
            event.user_message for event in instance.all_logs(done.run_id) if "is tried again" in event.user_message
        ]
    assert len(said) == 1 and said[0].startswith("shard-000000: ") and "in 2 s" in said[0]
    assert desk.content()["shard-000000"] == finished_desk[0].content()["shard-000000"]


@pytest.mark.ci
def test_rows_without_a_record_are_named_at_the_end(finished_desk, capsys):
    _, result = finished_desk
    assert result.skipped == ()
    show_headless(dataclasses.replace(result, skipped=("scene/snippet: MESH_REFERENCE_MISSING",)))
    assert capsys.readouterr().out.splitlines()[-3:-1] == [
        "1 source row gave no record:",
        "  scene/snippet: MESH_REFERENCE_MISSING",
    ]
