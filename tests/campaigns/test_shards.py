"""One shard at a time: finished or not there, never skipped when altered, never two builders, no human needed."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.errors import ShardBusy, ShardDrift, ShardFailed, StoreError
from rollout_assets.files import file_lock
from rollout_assets.rollouts import run_rollout_shard, summarize_rollout_shard_campaign
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.sources.layout import POINTS_WORLD
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.campaigns.kill_campaigns import fake_campaign, real
from tests.sources.test_vin_store import edit_array
from tests.support.digests import store_digests
from tests.support.refusals import assert_names, refused
from tests.support.unreadable import unreadable
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A campaign with one finished shard. Shared: copy before changing."""
    campaign = fake_campaign(tmp_path_factory.mktemp("finished") / "out", [("train", 1)])
    campaign.run(campaign.plan().entries[0])
    return campaign


@pytest.fixture
def copy(finished, tmp_path):
    """The same campaign at another place, to be damaged."""
    shutil.copytree(finished.config.shards.output_dir, tmp_path / "out")
    return fake_campaign(tmp_path / "out", [("train", 1)])


def state_of(campaign, **options):
    return summarize_rollout_shard_campaign(campaign.config, **options).shards[0]


def test_a_finished_shard_is_complete_valid_and_left_alone(copy):
    entry = copy.plan().entries[0]
    shard = CampaignLayout.of(copy.config).shard(entry.shard_id)
    before = {path: path.stat().st_mtime_ns for path in shard.rglob("*")}
    result = copy.run(entry)
    assert result.outcome == "already_finished" and result.set_aside == ()
    assert {path: path.stat().st_mtime_ns for path in shard.rglob("*")} == before
    assert validate_rollout_zarr_store(result.store_dir, deep=True).ok
    assert state_of(copy, deep=True).state == "succeeded"


def test_success_names_the_owner_that_accounts_for_every_row(finished):
    shard = finished.config.shards.output_dir / "shards/shard-000000"
    owner = json.loads((shard / "_owner.json").read_bytes())
    assert [row["sample_index"] for row in owner["rows"]] == [0] and owner["rows"][0]["records"] == 3
    manifest = json.loads((shard / STORE_NAME / "manifest.json").read_bytes())
    assert manifest["generation"]["shard"]["shard_id"] == "shard-000000"
    assert manifest["generation"]["writer_config"] is None  # no campaign made fake records


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


ARRAYS = {
    "row id": "sources/source_row_id",
    "target": "targets/target_confidence",
    "rollout": "rollouts/root_pose_world",
    "lineage": "lineage/oracle_config_id",
    "step": "steps/cumulative_target_rri",
    "candidate": "candidates/target_rri",
    "mask": "candidates/q_train_mask",
    "diagnostic": "candidate_diagnostics/mesh_distance_m",
    "depth": "selected_depth/depth_m",
    "view": "q_h/td_reward",
    "dictionary": "dictionaries/config",
}


@pytest.mark.parametrize("kind", ["owner", "success", "manifest", "root", *ARRAYS, "missing", "extra", "no success"])
def test_a_tampered_shard_is_set_aside_named_and_rebuilt(copy, finished, kind):
    entry = copy.plan().entries[0]
    shard = CampaignLayout.of(copy.config).shard(entry.shard_id)
    store = shard / STORE_NAME
    if kind in ARRAYS:
        flip(next(path for path in sorted((store / ARRAYS[kind] / "c").rglob("*")) if path.is_file()))
    elif kind == "missing":
        shutil.rmtree(store / "candidates/target_rri/c")
    elif kind == "extra":
        (store / "candidates/note.txt").write_text("hello")
    elif kind == "no success":
        (shard / "_SUCCESS.json").unlink()
    else:
        flip(
            {
                "owner": shard / "_owner.json",
                "success": shard / "_SUCCESS.json",
                "manifest": store / "manifest.json",
                "root": store / "zarr.json",
            }[kind]
        )
    assert state_of(copy, deep=True).state == "incomplete" and state_of(copy, deep=True).reason
    result = copy.run(entry)
    assert result.outcome == "built" and len(result.set_aside) == 1
    aside = result.set_aside[0]
    assert aside.path.is_dir() and aside.reason
    note = aside.path.with_name(f"{aside.path.name}.reason.json")
    assert json.loads(note.read_text()) == {"reason": aside.reason, "was": "shard-000000"}
    assert store_digests(result.store_dir) == store_digests(
        finished.config.shards.output_dir / f"shards/shard-000000/{STORE_NAME}"
    )
    assert state_of(copy, deep=True).state == "succeeded"


def test_a_changed_config_is_refused_until_planned(copy):
    entry = copy.plan().entries[0]
    changed = fake_campaign(copy.config.shards.output_dir, [("train", 1)], seed=5)
    with refused(
        ShardDrift,
        "shard-000000: ",
        entry.writer_config_hash[:12],
        changed.config.writer_config_hash[:12],
        "campaign plan",
    ):
        changed.run(entry)
    assert state_of(changed).state == "incomplete"
    assert_names(state_of(changed).reason, changed.config.writer_config_hash[:12])
    result = changed.run(changed.plan().entries[0])
    assert result.outcome == "built"
    assert_names(result.set_aside[0].reason, entry.writer_config_hash[:12])


@pytest.mark.parametrize("stuck", ["owner/after", "temp/after"])
def test_a_failure_leaves_only_a_note_and_can_be_repeated(tmp_path, stuck):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    entry = campaign.plan().entries[0]

    def fail(step):
        if step == stuck:
            raise ValueError("the lights went out")

    with refused(ValueError, "lights"):
        campaign.run(entry, fail)
    found = state_of(campaign)
    assert found.state == "failed" and "ValueError: the lights went out" in found.reason
    assert "campaign run --shard shard-000000" in found.hint
    notes = list((tmp_path / "shards").iterdir())
    assert [path.name.startswith("_FAILED.shard-000000.") for path in notes] == [True]
    assert list((tmp_path / "staging").iterdir()) == []
    assert campaign.run(entry).outcome == "built"
    assert state_of(campaign).state == "succeeded"


def test_an_interrupted_build_leaves_nothing(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])

    def interrupt(step):
        if step == "rename/after":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign.run(campaign.plan().entries[0], interrupt)
    assert list((tmp_path / "staging").iterdir()) == list((tmp_path / "shards").iterdir()) == []
    assert state_of(campaign).state == "missing"


def test_a_full_disk_at_any_step_is_an_error_and_can_be_repeated(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    entry = campaign.plan().entries[0]
    for full_at in ("temp/before", "flush/candidates", "manifest/before", "owner/before", "success/before"):

        def full(step, full_at=full_at):
            if step == full_at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

        with refused(ShardFailed, "shard-000000: ", "somewhere: ", os.strerror(errno.ENOSPC)):
            campaign.run(entry, full)
        assert not (tmp_path / "shards/shard-000000").exists() and list((tmp_path / "staging").iterdir()) == []
    assert campaign.run(entry).outcome == "built"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with room for less than a shard; needs the right to mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a file system here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_plan_on_a_full_disk_is_named_and_leaves_nothing(small_disk):
    campaign = fake_campaign(small_disk / "out", [("train", 1)])
    campaign.plan()
    changed = campaign.config.model_copy(update={"seed": campaign.config.seed + 1})
    with suppress(OSError), (small_disk / "fill").open("wb", buffering=0) as fill:
        while True:
            fill.write(bytes(1_024))
    with refused(OSError, errno=errno.ENOSPC) as caught:
        write_rollout_shard_manifest_from_config(changed, store=campaign.source)
    assert Path(caught.value.filename).is_relative_to(small_disk / "out")
    assert [path for path in small_disk.rglob("*") if path.name.startswith(".partial-")] == []


def remount(place, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def test_a_disk_that_is_really_full_or_read_only(small_disk):
    campaign = fake_campaign(small_disk / "out", [("train", 1)])
    entry = campaign.plan().entries[0]
    with refused((ShardFailed, StoreError), os.strerror(errno.ENOSPC)):
        campaign.run(entry)
    assert not (small_disk / "out/shards/shard-000000").exists()
    assert list((small_disk / "out/staging").iterdir()) == []
    remount(small_disk, "size=64m,ro")
    with refused(ShardFailed, "shard-000000", os.strerror(errno.EROFS)):
        campaign.run(entry)
    remount(small_disk, "size=64m,rw")
    assert campaign.run(entry).outcome == "built"


@pytest.mark.parametrize("marker", ["_owner.json", "_SUCCESS.json", "manifest.json"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_marker_that_cannot_be_read_sets_no_good_shard_aside(copy, marker, code):
    shard = CampaignLayout.of(copy.config).shard("shard-000000")
    path = next(shard.rglob(marker))
    entry = copy.plan().entries[0]
    with unreadable(path, code):
        with refused(ShardFailed, "shard-000000: ", f"{marker}: {os.strerror(code)}"):
            copy.run(entry)
        assert_names(state_of(copy).reason, os.strerror(code))
    assert shard.exists() and copy.run(entry).outcome == "already_finished"


def test_a_held_shard_is_busy_and_shown_as_running(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    entry = campaign.plan().entries[0]
    with file_lock(CampaignLayout(tmp_path).lock(entry.shard_id), "a test"):
        with refused(ShardBusy, "shard-000000: ", f"process {os.getpid()}"):
            campaign.run(entry)
        assert state_of(campaign).state == "running"
    assert state_of(campaign).state == "missing"


RACER = """
import sys
from pathlib import Path
from rollout_assets.errors import ShardBusy
from tests.campaigns.kill_campaigns import fake_campaign
campaign = fake_campaign(Path(sys.argv[1]), [("train", 1)])
entry = campaign.plan().entries[0]
print("ready", flush=True)
sys.stdin.readline()
for attempt in range(3):
    try:
        print(campaign.run(entry).outcome, flush=True)
    except ShardBusy:
        print("busy", flush=True)
"""


@pytest.mark.ci
def test_processes_racing_for_one_shard_build_it_once(tmp_path):
    fake_campaign(tmp_path, [("train", 1)]).plan()
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    root = Path(__file__).resolve().parents[2]
    racers = [
        subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [word for racer in racers for word in racer.communicate(timeout=PATIENCE_S)[0].split()]
    assert said.count("built") == 1 and set(said) <= {"built", "busy", "already_finished"}
    assert list((tmp_path / "staging").iterdir()) == []
    assert not (tmp_path / "set_aside").exists()


def test_threads_racing_for_one_shard_build_it_once(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    entry = campaign.plan().entries[0]
    said = []

    def race():
        try:
            said.append(campaign.run(entry).outcome)
        except ShardBusy:
            said.append("busy")

    racers = [threading.Thread(target=race) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert said.count("built") == 1 and set(said) <= {"built", "busy", "already_finished"}


def test_leftovers_of_dead_attempts_do_not_pile_up(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    entry = campaign.plan().entries[0]
    layout = CampaignLayout(tmp_path)
    for _ in range(3):
        for _ in range(2):
            layout.new_attempt(entry.shard_id).mkdir(parents=True)
        assert state_of(campaign).state == "incomplete"
        campaign.run(entry)
        shutil.rmtree(layout.shard(entry.shard_id))
    assert len([path for path in layout.set_aside_dir.iterdir() if path.is_dir()]) == 1


def test_a_shard_of_skipped_rows_is_finished_without_a_store(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 2)], options={"barren": frozenset({0})})
    for entry in campaign.plan().entries:
        campaign.run(entry)
    barren, fertile = summarize_rollout_shard_campaign(campaign.config).shards
    assert (barren.state, barren.records, barren.rows_skipped) == ("succeeded", 0, 1)
    assert "NO_ACTOR_VISIBLE_SOURCE" in barren.reason
    assert not (tmp_path / f"shards/{barren.shard_id}/{STORE_NAME}").exists()
    assert fertile.records == 3 and campaign.run(campaign.plan().entries[0]).outcome == "already_finished"


@pytest.fixture(scope="module")
def real_campaign(small_store, tmp_path_factory):
    config = real(tmp_path_factory.mktemp("real") / "out", small_store)
    entries = write_rollout_shard_manifest_from_config(config).entries
    return config, entries, [run_rollout_shard(config, entry) for entry in entries[:1]]


def test_a_real_shard_holds_its_rows_and_names_the_planned_source(real_campaign):
    _, entries, (result,) = real_campaign
    reader = RolloutZarrStoreReader(result.store_dir)
    table = reader.table("sources", decode=True)
    assert table["sample_index"].to_list() == [row.sample_index for row in entries[0].rows]
    assert table["source_offline_store_manifest_hash_id"].to_list() == [entries[0].source_manifest_hash]
    assert reader.attributes["split_manifest_hash"] == entries[0].split_manifest_hash
    assert result.owner.stats["views_scored"] > 0 and all(result.owner.mesh_versions.values())


def test_a_changed_source_row_is_noticed_and_the_shard_rebuilt(store_copy, tmp_path):
    config = real(tmp_path / "out", store_copy)
    entry = write_rollout_shard_manifest_from_config(config).entries[0]
    first = run_rollout_shard(config, entry)
    for path in store_copy.rglob("*"):
        if path.is_file() and "meshes" not in path.parts:
            os.utime(path)
    assert run_rollout_shard(config, entry).outcome == "already_finished", "a new date alone is no change"
    edit_array(store_copy, POINTS_WORLD, lambda values: np.add(values, 0.25, out=values))
    again = run_rollout_shard(config, entry)
    assert again.outcome == "built" and "source shard-000000" in again.set_aside[0].reason
    assert (
        store_digests(again.store_dir) != store_digests(again.set_aside[0].path / STORE_NAME)
        and first.outcome == "built"
    )


def test_a_changed_mesh_is_noticed(store_copy, tmp_path):
    config = real(tmp_path / "out", store_copy)
    entry = write_rollout_shard_manifest_from_config(config).entries[0]
    run_rollout_shard(config, entry)
    first, second = sorted(path for path in (store_copy / "meshes").iterdir() if path.suffix == ".ply")
    kept = second.resolve()
    for path in (store_copy / "meshes").iterdir():
        path.unlink()
    shutil.copy(kept, first)
    again = run_rollout_shard(config, entry)
    assert again.outcome == "built" and "scene " in again.set_aside[0].reason


def test_new_snippets_leave_finished_shards_as_they_are(store_copy, tmp_path):
    config = real(tmp_path / "out", store_copy, rows_per_shard=2)
    first = run_campaign(config)
    assert first.ok and [shard.outcome for shard in first.shards] == ["built", "built"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/shards").rglob("*")}
    append_synthetic_snippets(store_copy, 1, scene_ids=["synthetic-11-00000"], workers=1)
    second = run_campaign(config)
    assert [shard.outcome for shard in second.shards] == ["already_finished", "already_finished", "built"]
    assert before.items() <= {path: path.stat().st_mtime_ns for path in (tmp_path / "out/shards").rglob("*")}.items()


def without_locks(monkeypatch):
    """As on a file system that does not carry locks from one machine to another."""
    monkeypatch.setattr("rollout_assets.campaigns.shard.file_lock", lambda *_, **__: nullcontext())


def on_another_machine(monkeypatch, campaign, entry):
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "another")
        return run_rollout_shard(campaign.config, entry, source=campaign.source, writer=lambda: campaign.writer)


def test_a_shard_of_another_machine_waits_until_it_is_silent(tmp_path, monkeypatch):
    campaign = fake_campaign(tmp_path / "out", [("train", 1)])
    entry = campaign.plan().entries[0]
    layout = CampaignLayout.of(campaign.config)
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "another")
        theirs = layout.new_attempt(entry.shard_id)
    theirs.mkdir(parents=True)
    assert campaign.run(entry).set_aside == () and theirs.is_dir()
    long_ago = theirs.stat().st_mtime - 7_200
    os.utime(theirs, (long_ago, long_ago))
    campaign.run(entry)
    assert not theirs.exists()


def test_of_two_builders_without_a_lock_the_first_wins(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    campaign = fake_campaign(tmp_path / "out", [("train", 1)])
    entry = campaign.plan().entries[0]
    first = []

    def overtaken(step):
        if step == "rename/before" and not first:
            first.append(on_another_machine(monkeypatch, campaign, entry))

    orphan = campaign.run(entry, overtaken)
    layout = CampaignLayout.of(campaign.config)
    assert first[0].outcome == "built" and orphan.outcome == "already_finished"
    assert orphan.owner == first[0].owner and state_of(campaign, deep=True).state == "succeeded"
    assert list(layout.staging.iterdir()) == []


def test_two_builders_that_made_different_content_are_an_error(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    campaign = fake_campaign(tmp_path / "out", [("train", 1)])
    other = fake_campaign(tmp_path / "out", [("train", 1)], options={"targets": 2})
    entry = campaign.plan().entries[0]
    first = []

    def overtaken(step):
        if step == "rename/before" and not first:
            first.append(on_another_machine(monkeypatch, other, entry))

    with refused(ShardFailed, "shard-000000: ", __cause__=None):
        campaign.run(entry, overtaken)
    assert CampaignLayout.of(campaign.config).shard(entry.shard_id).is_dir()  # the first one's is not touched
