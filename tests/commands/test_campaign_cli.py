"""`rollout-assets campaign`, as a user types it."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.test_cli import COMMAND, run

TINY = """
name = "tiny"
[source]
store_dir = "{source}"
[targets]
top_k = 1
[candidates]
mixture = [{{position = "forward_local", count = 4}}]
[oracle]
width_px = 8
height_px = 8
[selected_depth]
width_px = 8
height_px = 8
[shards]
rows_per_shard = 1
output_dir = "out"
[[recipes]]
name = "greedy"
policy = "oracle_greedy"
horizon = 1
"""


@pytest.fixture
def campaign(small_store, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(source=small_store))
    return str(path)


def facts(*arguments):
    done = run(*arguments, "--json")
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_campaign_from_plan_to_rollback(campaign, tmp_path):
    refused = run("campaign", "status", "-c", campaign)
    assert refused.returncode == 2 and "no plan yet; 'rollout-assets campaign plan' makes one" in refused.stderr
    planned = run("campaign", "plan", "-c", campaign)
    assert "4 shards (4 new), 4 source rows (2 train, 2 val), about 4 targets, 4 views a step" in planned.stdout
    assert "hours and gigabytes are known after the first shard" in planned.stdout
    unfinished = run("campaign", "promote", "-c", campaign)
    assert unfinished.returncode == 2 and unfinished.stderr.count("not built yet") == 4
    code, first = facts("campaign", "run", "-c", campaign, "--shard", "shard-000002")
    assert code == 0 and [shard["outcome"] for shard in first["shards"]] == ["built"]
    assert "min of one process" in run("campaign", "plan", "-c", campaign).stdout
    code, shown = facts("campaign", "status", "-c", campaign)
    states = [shard["state"] for shard in shown["shards"]]
    assert code == 2 and states == ["missing", "missing", "succeeded", "missing"]
    rest = run("campaign", "run", "-c", campaign, "--workers", "2")
    assert rest.returncode == 0 and "4 of 4 shards: 3 built, 1 already finished" in rest.stdout
    table = run("campaign", "status", "-c", campaign, "--deep")
    assert table.returncode == 0 and "4 shards: 4 succeeded" in table.stdout
    assert "not all is promoted: nothing is promoted yet: campaign promote" in table.stdout
    assert "is now v000001" in run("campaign", "promote", "-c", campaign).stdout
    assert "already holds these shards as v000001" in run("campaign", "promote", "-c", campaign).stdout
    assert facts("campaign", "promote", "-c", campaign, "--anew")[1]["version"] == "v000002"
    assert facts("campaign", "rollback", "-c", campaign)[1]["version"] == "v000001"
    assert (tmp_path / "out/rollouts.zarr").readlink().name == "v000001"
    kept = ("--set", "retention.versions=1")
    assert facts("campaign", "clean", "-c", campaign, *kept, "--yes")[1]["found"] == [], (
        "one is current, one the newest"
    )
    assert "nothing to clean" in run("campaign", "clean", "-c", campaign, *kept).stdout
    pinned = run("campaign", "promote", "-c", campaign, "--anew")
    assert pinned.returncode == 2 and "'rollout-assets campaign unpin' lifts it" in pinned.stderr
    chunks = [tmp_path / f"out/versions/v00000{number}/val/candidates/target_rri/c/0" for number in (1, 2)]
    chunks[1].write_bytes(b"")
    shown = run("campaign", "status", "-c", campaign)
    assert shown.returncode == 2 and "pinned: readers are pinned to v000001 by a rollback of" in shown.stdout
    assert "campaign promote" not in shown.stdout and "damaged: v000002 val candidates/target_rri: c/0" in shown.stdout
    assert "no longer: readers are pinned to v000001" in run("campaign", "unpin", "-c", campaign).stdout
    chunks[0].write_bytes(b"")
    healed = run("campaign", "promote", "-c", campaign).stdout
    assert "is now v000003" in healed and healed.count("val candidates/target_rri: c/0 has 0 bytes") == 2


def test_status_names_rows_that_no_shard_owns_and_what_is_not_promoted(campaign, tmp_path):
    assert run("campaign", "plan", "-c", campaign).returncode == 0
    plan = tmp_path / "out/plan.jsonl"
    lines = plan.read_text().splitlines(keepends=True)
    plan.write_text("".join(lines[:-1]))
    code, shown = facts("campaign", "status", "-c", campaign)
    assert code == 2 and shown["unplanned_rows"] == [row["sample_key"] for row in json.loads(lines[-1])["rows"]]
    assert "1 source row is in no shard yet" in run("campaign", "status", "-c", campaign).stdout


def test_wrong_input_is_one_clear_line(campaign):
    for arguments, message in (
        (["run", "--shard", "shard-000009"], "no shard-000009 in the plan"),
        (["run", "--workers", "0"], "invalid value for '--workers': Input should be greater than or equal to 1"),
        (["rollback"], "nothing is promoted yet"),
    ):
        refused = run("campaign", *arguments, "-c", campaign)
        assert refused.returncode == 2 and message in refused.stderr and len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.ci
def test_an_interrupt_ends_the_run_cleanly_and_the_next_goes_on(campaign, tmp_path, workers):
    command = [*COMMAND, "campaign", "run", "-c", campaign, "--workers", workers]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    staging = tmp_path / "out/staging"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (staging.is_dir() and any(staging.iterdir())):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    said, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and "interrupted" in said and "Traceback" not in errors
    assert list(staging.iterdir()) == []
    assert run("campaign", "run", "-c", campaign).returncode == 0


def test_a_run_ends_with_the_rows_that_gave_nothing_and_why(store_copy, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(source=store_copy))
    sorted((store_copy / "meshes").glob("*.ply"))[0].unlink()
    done = run("campaign", "run", "-c", path)
    assert done.returncode == 0
    *_, title, first, second, total, without = done.stdout.splitlines()
    assert title == "2 source rows gave no record:"
    assert first.endswith(": MESH_REFERENCE_MISSING") and second.endswith(": MESH_REFERENCE_MISSING")
    assert "4 of 4 shards: 4 built; 2 records" in total
    assert without == "2 shards without a record: shard-000000, shard-000001"
    shown = run("campaign", "status", "-c", path)
    assert shown.returncode == 0 and without in shown.stdout


@pytest.mark.ci
def test_a_campaign_without_any_record_and_one_without_its_device_fail(campaign, tmp_path):
    text = Path(campaign).read_text()
    Path(campaign).write_text(text.replace("[oracle]", '[oracle]\ndevice = "cuda:77"'))
    done = run("campaign", "run", "-c", campaign, "--shard", "shard-000000")
    assert done.returncode == 2 and "device 'cuda:77' is not there" in done.stdout and "1 failed" in done.stdout
    Path(campaign).write_text(text.replace("[oracle]", "[candidates.rules]\nmax_yaw_deg = 0.01\n[oracle]"))
    done = run("campaign", "run", "-c", campaign)
    assert done.returncode == 2 and done.stdout.splitlines()[-1].startswith("the campaign gave no record at all")
    shown = run("campaign", "status", "-c", campaign)
    assert shown.returncode == 2 and "the campaign gave no record at all" in shown.stdout
    Path(campaign).write_text(text.replace("[oracle]", "[oracle]\nfusion_voxel_m = 1e-9"))
    refused = run("config", "validate", campaign)
    assert refused.returncode == 2 and "fusion_voxel_m" in refused.stderr + refused.stdout


@pytest.mark.slow
def test_a_run_may_promote_in_the_same_breath(campaign, tmp_path):
    done = run("campaign", "run", "-c", campaign, "--promote")
    assert done.returncode == 0 and "4 built" in done.stdout and "is now v000001" in done.stdout
    assert (tmp_path / "out" / "rollouts.zarr" / "train").is_dir()
