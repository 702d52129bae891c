"""`rollout-assets campaign`, as a user types it."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.versions import current_name
from rollout_assets.config import load_campaign
from rollout_assets.testing.fake_shards import FakeCampaign
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names
from tests.support.waiting import PATIENCE_S, wait_until
from tests.test_cli import COMMAND

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
    done = call(*arguments, "--json")
    return done.code, json.loads(done.out)


@pytest.mark.ci
def test_a_campaign_from_plan_to_rollback(campaign, tmp_path):
    refused = call("campaign", "status", "-c", campaign)
    assert refused.code == 2
    assert_names(refused.err, "rollout-assets campaign plan")
    planned = call("campaign", "plan", "-c", campaign)
    assert_names(planned.out, "4 shards", "4 new", "4 source rows", "2 train", "2 val", "4 targets", "4 views")
    assert " min " not in planned.out, "there is no measurement yet"
    unfinished = call("campaign", "promote", "-c", campaign)
    assert unfinished.code == 2 and unfinished.err.count("shard-00000") == 4
    code, first = facts("campaign", "run", "-c", campaign, "--shard", "shard-000002")
    assert code == 0 and [shard["outcome"] for shard in first["shards"]] == ["built"]
    assert " min " in call("campaign", "plan", "-c", campaign).out
    code, shown = facts("campaign", "status", "-c", campaign)
    states = [shard["state"] for shard in shown["shards"]]
    assert code == 2 and states == ["missing", "missing", "succeeded", "missing"]
    rest = call("campaign", "run", "-c", campaign, "--workers", "2")
    assert rest.code == 0
    assert_names(rest.out, "4 of 4 shards", "3 built", "1 already")
    table = call("campaign", "status", "-c", campaign, "--deep")
    assert table.code == 0
    assert_names(table.out, "4 succeeded", "campaign promote")
    assert "v000001" in call("campaign", "promote", "-c", campaign).out
    assert "v000001" in call("campaign", "promote", "-c", campaign).out
    assert facts("campaign", "promote", "-c", campaign, "--anew")[1]["version"] == "v000002"
    assert facts("campaign", "rollback", "-c", campaign, "--yes")[1]["version"] == "v000001"
    assert (tmp_path / "out/rollouts.zarr").readlink().name == "v000001"
    kept = ("--set", "retention.versions=1")
    assert facts("campaign", "clean", "-c", campaign, *kept, "--yes")[1]["found"] == [], (
        "one is current, one the newest"
    )
    assert "nothing to clean" in call("campaign", "clean", "-c", campaign, *kept).out
    pinned = call("campaign", "promote", "-c", campaign, "--anew")
    assert pinned.code == 2
    assert_names(pinned.err, "rollout-assets campaign unpin")
    chunks = [tmp_path / f"out/versions/v00000{number}/val/candidates/target_rri/c/0" for number in (1, 2)]
    chunks[1].write_bytes(b"")
    shown = call("campaign", "status", "-c", campaign)
    assert shown.code == 2 and "campaign promote" not in shown.out
    assert_names(shown.out, "pinned", "v000001", "damaged", "v000002 val candidates/target_rri: c/0")
    assert "v000001" in call("campaign", "unpin", "-c", campaign, "--yes").out
    chunks[0].write_bytes(b"")
    healed = call("campaign", "promote", "-c", campaign).out
    assert "v000003" in healed and healed.count("val candidates/target_rri: c/0") == 2


def test_status_names_rows_that_no_shard_owns(campaign, tmp_path):
    assert call("campaign", "plan", "-c", campaign).code == 0
    plan = tmp_path / "out/plan.jsonl"
    lines = plan.read_text().splitlines(keepends=True)
    plan.write_text("".join(lines[:-1]))
    code, shown = facts("campaign", "status", "-c", campaign)
    assert code == 2 and shown["unplanned_rows"] == [row["sample_key"] for row in json.loads(lines[-1])["rows"]]
    assert "1 source row " in call("campaign", "status", "-c", campaign).out


def test_wrong_input_is_one_clear_line(campaign):
    for arguments, names in (
        (["run", "--shard", "shard-000009"], ["shard-000009"]),
        (["run", "--workers", "0"], ["--workers", 1]),
        (["rollback"], ["promoted"]),
    ):
        refused = call("campaign", *arguments, "-c", campaign)
        assert refused.code == 2 and refused.err.count("\n") == 1
        assert_names(refused.err, *names)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.ci
def test_a_run_after_an_interrupted_one_completes_it(campaign, tmp_path, workers):
    command = [*COMMAND, "campaign", "run", "-c", campaign, "--workers", workers]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    staging = tmp_path / "out/staging"
    wait_until(lambda: staging.is_dir() and any(staging.iterdir()), "a shard in the making")
    running.send_signal(signal.SIGINT)
    said, errors = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130 and "interrupted" in said and "Traceback" not in errors
    assert list(staging.iterdir()) == []
    assert call("campaign", "run", "-c", campaign).code == 0


def test_a_run_lists_rows_without_records_and_why(store_copy, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(source=store_copy))
    sorted((store_copy / "meshes").glob("*.ply"))[0].unlink()
    done = call("campaign", "run", "-c", str(path))
    assert done.code == 0
    *_, title, first, second, total, without = done.out.splitlines()
    assert title.startswith("2 source rows ")
    assert first.endswith(": MESH_REFERENCE_MISSING") and second.endswith(": MESH_REFERENCE_MISSING")
    assert_names(total, "4 of 4 shards", "4 built", "2 records")
    assert without.startswith("2 shards ") and without.endswith(": shard-000000, shard-000001")
    shown = call("campaign", "status", "-c", str(path))
    assert shown.code == 0 and without in shown.out


def test_a_campaign_without_records_or_device_fails(campaign, tmp_path):
    text = Path(campaign).read_text()
    Path(campaign).write_text(text.replace("[oracle]", '[oracle]\ndevice = "cuda:77"'))
    done = call("campaign", "run", "-c", campaign, "--shard", "shard-000000")
    assert done.code == 2
    assert_names(done.out, "cuda:77", "1 failed")
    Path(campaign).write_text(text.replace("[oracle]", "[candidates.rules]\nmax_yaw_deg = 0.01\n[oracle]"))
    done = call("campaign", "run", "-c", campaign)
    assert done.code == 2
    without = done.out.splitlines()[-1]
    assert_names(without, "no record")
    shown = call("campaign", "status", "-c", campaign)
    assert shown.code == 2 and without in shown.out
    Path(campaign).write_text(text.replace("[oracle]", "[oracle]\nfusion_voxel_m = 1e-9"))
    refused = call("config", "validate", campaign)
    assert refused.code == 2 and "fusion_voxel_m" in refused.err + refused.out


@pytest.mark.ci
def test_run_with_promote_promotes_what_it_built(campaign, tmp_path):
    done = call("campaign", "run", "-c", campaign, "--promote")
    assert done.code == 0
    assert_names(done.out, "4 built", "v000001")
    assert (tmp_path / "out" / "rollouts.zarr" / "train").is_dir()


def test_rollback_and_unpin_only_say_what_they_would_do_without_yes(tmp_path):
    made = fake_campaign(tmp_path / "out", (("train", 1),), name="tiny")
    made.run_all()
    for _ in range(2):
        promote_rollout_campaign(made.config, incremental=False)
    path, layout = tmp_path / "tiny.toml", CampaignLayout.of(made.config)
    path.write_text(TINY.format(source=tmp_path / "source"))
    would = call("campaign", "rollback", "-c", str(path))
    assert_names(would.out, "v000001", "v000002", "--yes")
    assert facts("campaign", "rollback", "-c", str(path)) == (
        0,
        {"version": "v000001", "path": str(layout.versions / "v000001"), "before": "v000002", "applied": False},
    )
    assert current_name(layout) == "v000002" and read_pin(layout) is None
    assert facts("campaign", "rollback", "-c", str(path), "--yes")[1]["applied"]
    assert current_name(layout) == "v000001"
    shown = call("campaign", "unpin", "-c", str(path))
    assert_names(shown.out, "v000001", "--yes")
    assert read_pin(layout).version == "v000001"
    assert facts("campaign", "unpin", "-c", str(path), "--yes") == (0, {"pinned": "v000001", "applied": True})
    assert read_pin(layout) is None and call("campaign", "unpin", "-c", str(path)).code == 0


def test_missing_meshes_are_named_by_plan_and_refused_by_run(store_copy, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(source=store_copy))
    assert "without a mesh" not in call("campaign", "plan", "-c", str(path)).out
    mesh = min((store_copy / "meshes").glob("*.ply"))
    scene = mesh.stem.removeprefix("scene_ply_")
    mesh.unlink()
    assert_names(call("campaign", "plan", "-c", str(path)).out, "2 source rows without a mesh", scene, "--allow-fewer")
    assert facts("campaign", "plan", "-c", str(path))[1]["scenes_that_had_mesh"] == [scene]
    refused = call("campaign", "run", "-c", str(path), "--shard", "shard-000000")
    assert refused.code == 2
    assert_names(refused.out, "shard-000000", scene, "--allow-fewer")


def test_promote_publishes_fewer_rows_when_told_to_and_says_which(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(source=tmp_path / "source"))
    made = FakeCampaign.of(load_campaign(path), (("train", 2),), targets=1, chains=1, shell=(3, 5))
    made.run_all()
    promote_rollout_campaign(made.config)
    (tmp_path / "out/shards/shard-000001/_SUCCESS.json").unlink()
    promote = ("campaign", "promote", "-c", str(path), "--partial")
    refused = call(*promote)
    assert refused.code == 2
    assert_names(refused.err, "train rollouts", "v000001", "shard-000001", "--allow-fewer")
    assert_names(call(*promote, "--allow-fewer").out, "v000002", "train rollouts", "v000001", "shard-000001")
