"""A fault of the machine fails a shard and is tried again; no row is ever skipped for it, and no label changes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollout_assets.campaigns import run
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner, write_success
from rollout_assets.campaigns.plan import open_source, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import MachineFault, ShardFailed, SourceDamaged
from rollout_assets.sources import layout as source_layout
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.campaigns.failing_machine import FAULTS, LAUNCH, UPLOAD, Fault, failing
from tests.campaigns.kill_campaigns import real
from tests.support.refusals import refused

SHARD = "shard-000000"
NO_FILE = ("EIO", "EMFILE", "ENOSPC", "no memory")
"""What can happen to a read or a write."""

SOURCE = f"shards/{SHARD}/"
NOT_WRITTEN = (
    *(source_layout.EVIDENCE_POINTS, source_layout.EVIDENCE_COUNTS, source_layout.IN_NDC),
    *(source_layout.T_WORLD_SNIPPET, source_layout.VIN_REFERENCE_POSE),
)
CHUNKS = [
    f"{SOURCE}{source_layout.zarr_path(block.name)}/c/{'/'.join('0' * (len(block.shapes[0]) + 1))}"
    for block in source_layout.KNOWN_BLOCKS.values()
    if block.dtype is not None and block.name not in NOT_WRITTEN
]
RECORDS = [
    SOURCE + name
    for block in (source_layout.GT_NAMES, source_layout.DETECTED_NAMES)
    for name in source_layout.record_paths(block)
]
Undisturbed = tuple[CampaignConfig, dict[str, str]]
DEVICE = ("no memory", "no device", "no thread")


def each(places: list[str], kinds: tuple[str, ...], nth: int = 1, mode: str = "") -> list[Fault]:
    """The kinds in turn, so that every place and every kind has its fault."""
    longest = max(len(places), len(kinds))
    return [Fault(places[n % len(places)], kinds[n % len(kinds)], nth, mode) for n in range(longest)]


GROUPS: dict[str, list[Fault]] = {
    "metadata": [Fault(source_layout.MANIFEST_FILE, "EIO", nth=2)],
    "array metadata": each([f"{SOURCE}vin/lengths/zarr.json"], NO_FILE, nth=2),
    "seals": each(CHUNKS[:4], NO_FILE),
    "chunks": each(CHUNKS, NO_FILE, nth=2),
    "records": each(RECORDS, NO_FILE, nth=2),
    "mesh": each([".ply"], NO_FILE),
    "upload": each([UPLOAD], DEVICE),
    "launch": each([LAUNCH], DEVICE, nth=9),
    "store": [
        Fault("candidates/target_rri/c/0", "ENOSPC", mode="w"),
        Fault("steps/zarr.json", "EMFILE", mode="w"),
        Fault("candidates/target_rri/c/0", "EIO", mode="r"),
        Fault("targets/target_row_id/c/0", "EIO", mode="r"),
        Fault("candidates/target_rri/zarr.json", "no memory", mode="r"),
    ],
    "markers": [
        Fault("_owner.json", "ENOSPC", mode="w"),
        Fault("_SUCCESS.json", "EIO", mode="w"),
        Fault("_owner.json", "EMFILE", mode="r"),
    ],
}


@pytest.fixture(autouse=True)
def retries(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how often a shard is tried again, without waiting; twice unless told otherwise."""

    def allow(times: int) -> None:
        monkeypatch.setattr(run, "RETRY_AFTER_S", (0.0,) * times)

    allow(2)
    return allow


@pytest.fixture(scope="module")
def undisturbed(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A campaign of two shards in two splits, and the digests that it promotes."""
    config = real(tmp_path_factory.mktemp("undisturbed") / "out", small_store, rows_per_shard=2)
    assert run_campaign(config).ok
    promote_rollout_campaign(config)
    return config, promoted(config)


def promoted(config: CampaignConfig) -> dict[str, str]:
    stores = CampaignLayout.of(config).promoted
    return {
        path.name: json.loads((path / "manifest.json").read_bytes())["content_sha256"]
        for path in stores.iterdir()
        if path.is_dir()
    }


def content(config: CampaignConfig, shard_id: str = SHARD) -> str | None:
    return read_owner(CampaignLayout.of(config).shard(shard_id)).content_sha256


@pytest.mark.parametrize("group", GROUPS)
def test_a_fault_at_any_read_or_write_changes_no_result(
    group: str, small_store: Path, undisturbed: Undisturbed, tmp_path: Path, retries: Callable[[int], None]
) -> None:
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    write_rollout_shard_manifest_from_config(config)
    faults = GROUPS[group]
    retries(len(faults))
    with failing(*faults) as machine:
        result = run_campaign(config, shard_ids=[SHARD])
    (shard,) = result.shards
    assert machine.happened == faults
    assert (shard.outcome, len(shard.retried), shard.skipped) == ("built", len(faults), ())
    assert content(config) == content(undisturbed[0])


@pytest.mark.ci
def test_faults_do_not_change_the_promoted_digests(
    small_store: Path, undisturbed: Undisturbed, tmp_path: Path, retries: Callable[[int], None]
) -> None:
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    faults = [GROUPS[group][0] for group in ("mesh", "seals", "chunks", "records", "upload", "store", "markers")]
    retries(len(faults))
    with failing(*faults) as machine:
        assert run_campaign(config).ok
    assert machine.happened == faults
    promote_rollout_campaign(config)
    assert promoted(config) == undisturbed[1]


@pytest.mark.parametrize("kind", NO_FILE)
@pytest.mark.parametrize("name", [source_layout.MANIFEST_FILE, source_layout.INDEX_FILE, "all.npy", ".offsets.npy"])
def test_unreadable_metadata_is_no_damage_of_the_source(kind: str, name: str, small_store: Path) -> None:
    with failing(Fault(name, kind)), pytest.raises((OSError, MemoryError)) as caught:
        VinOfflineStore.open(small_store)
    assert not isinstance(caught.value, SourceDamaged) and name in str(caught.value)
    assert len(VinOfflineStore.open(small_store)) == 4


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_that_stays_fails_the_shard_and_leaves_no_marker(kind: str, small_store: Path, tmp_path: Path) -> None:
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    with failing(*[Fault(CHUNKS[0], kind, nth=2)] * 3):
        result = run_campaign(config, shard_ids=[SHARD])
    assert not result.ok and result.shards[0].outcome == "failed" and len(result.shards[0].retried) == 2
    shards = CampaignLayout.of(config).shards
    assert not any(path.is_dir() for path in shards.iterdir())
    status = summarize_rollout_shard_campaign(config).shards[0]
    assert status.state == "failed" and status.reason


def test_shards_are_built_once_a_missing_device_is_corrected(
    small_store: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    oracle = undisturbed[0].oracle.model_dump()
    missing = real(tmp_path / "out", small_store, rows_per_shard=2, oracle=oracle | {"device": "cuda:77"})
    result = run_campaign(missing)
    assert [shard.outcome for shard in result.shards] == ["failed", "failed"]
    assert "'cuda:77'" in result.shards[0].reason
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    assert [shard.outcome for shard in run_campaign(config).shards] == ["built", "built"]
    assert content(config) == content(undisturbed[0])


@pytest.mark.parametrize("marker", ["_owner.json", "_SUCCESS.json", "rollouts.zarr/manifest.json"])
def test_a_finished_but_unreadable_shard_is_not_set_aside(
    marker: str, small_store: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed[0].shards.output_dir, tmp_path / "out", symlinks=True)
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    with failing(Fault(marker, "EIO")), refused(ShardFailed, SHARD, marker, os.strerror(errno.EIO)):
        run_rollout_shard(config, SHARD)
    assert run_rollout_shard(config, SHARD).outcome == "already_finished"
    assert not CampaignLayout(tmp_path / "out").set_aside_dir.exists()


def test_damage_that_is_read_only_once_is_a_fault_and_not_damage(
    small_store: Path,
    undisturbed: Undisturbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample, readings = VinOfflineStore.sample, []

    def flawed(store: VinOfflineStore, row: source_layout.IndexRow) -> object:
        readings.append(row)
        if len(readings) == 1:
            raise SourceDamaged("the store", ["a checksum that does not match"])
        return sample(store, row)

    monkeypatch.setattr(VinOfflineStore, "sample", flawed)
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    (shard,) = run_campaign(config, shard_ids=[SHARD]).shards
    assert shard.outcome == "built" and not shard.skipped and len(shard.retried) == 1
    assert "SOURCE_DAMAGED" in shard.retried[0]
    assert content(config) == content(undisturbed[0])


def test_damage_that_stays_skips_its_row_and_the_run_says_so(store_copy: Path, tmp_path: Path) -> None:
    chunk = next(path for path in sorted((store_copy / SOURCE / "vin/t_world_rig/c").rglob("*")) if path.is_file())
    good = chunk.read_bytes()
    chunk.write_bytes(b"not a chunk")
    config = real(tmp_path / "out", store_copy, rows_per_shard=2)
    result = run_campaign(config)
    assert result.ok and result.shards[0].retried == ()
    assert "SOURCE_DAMAGED" in result.skipped[0] and "vin.t_world_rig row 0" in result.skipped[0]
    assert "SOURCE_DAMAGED" in summarize_rollout_shard_campaign(config).shards[0].reason
    promote_rollout_campaign(config)
    chunk.write_bytes(good)
    again = run_campaign(config)
    assert (
        again.ok and again.skipped == () and [shard.outcome for shard in again.shards] == ["built", "already_finished"]
    )
    assert "1 shard" in summarize_rollout_shard_campaign(config).behind, "what was promoted has a row less"
    promote_rollout_campaign(config)
    assert summarize_rollout_shard_campaign(config).behind == ""


def test_a_shard_finished_in_spite_of_a_fault_is_rebuilt(
    small_store: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed[0].shards.output_dir, tmp_path / "out", symlinks=True)
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    shard = CampaignLayout(tmp_path / "out").shard(SHARD)
    owner = json.loads((shard / "_owner.json").read_bytes())
    owner["rows"][1] |= {"records": 0, "skipped": "DeviceError", "detail": "device 'cuda' is not there"}
    (shard / "_owner.json").write_text(json.dumps(owner))
    write_success(shard, SHARD)
    status = summarize_rollout_shard_campaign(config).shards[0]
    assert status.state == "incomplete" and "DeviceError" in status.reason
    again = run_campaign(config).shards[0]
    assert again.outcome == "built" and "DeviceError" in again.set_aside[0].reason
    assert content(config) == content(undisturbed[0])


def test_a_campaign_without_any_record_fails(small_store: Path, tmp_path: Path) -> None:
    with refused(ValidationError, "oracle.fusion_voxel_m", 1e-9):
        real(tmp_path / "out", small_store, oracle={"fusion_voxel_m": 1e-9})
    narrow = {"mixture": [{"position": "forward_local", "count": 4}], "rules": {"max_yaw_deg": 0.01}}
    config = real(tmp_path / "out", small_store, rows_per_shard=2, candidates=narrow)
    result = run_campaign(config)
    assert result.finished and result.barren and not result.ok
    assert len(result.skipped) == 4 and all(line.endswith("OUT_OF_REACH") for line in result.skipped)
    assert summarize_rollout_shard_campaign(config).barren
    assert run_campaign(config, shard_ids=[SHARD]).ok, "one shard without a record may be among others that have some"


def everything(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    paths = [folder, *sorted(folder.rglob("*"))]
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes() if path.is_file() else b"")
        for path in paths
    }


def test_a_whole_campaign_leaves_its_input_as_it_was(store_copy: Path, tmp_path: Path) -> None:
    for mesh in (store_copy / "meshes").iterdir():
        target = mesh.resolve()
        mesh.unlink()
        shutil.copy(target, mesh)
    before = everything(store_copy)
    config = real(tmp_path / "out", store_copy, rows_per_shard=2)
    assert run_campaign(config).ok and run_campaign(config).ok
    promote_rollout_campaign(config)
    assert summarize_rollout_shard_campaign(config, source=open_source(config), deep=True).complete
    assert everything(store_copy) == before


def test_a_mesh_moved_with_size_and_time_kept_is_drift(store_copy: Path, tmp_path: Path) -> None:
    config = real(tmp_path / "out", store_copy, rows_per_shard=2)
    assert run_campaign(config, shard_ids=[SHARD]).shards[0].outcome == "built"
    owner = read_owner(CampaignLayout(tmp_path / "out").shard(SHARD))
    (scene, version), *_ = owner.mesh_versions.items()
    mesh = next((store_copy / "meshes").glob(f"*{scene}.ply"))
    data, status = bytearray(mesh.read_bytes()), mesh.stat()
    data[data.index(b"end_header\n") + 20] ^= 1
    mesh.unlink()
    mesh.write_bytes(data)
    os.utime(mesh, ns=(status.st_atime_ns, status.st_mtime_ns))
    entry = summarize_rollout_shard_campaign(config, source=open_source(config)).shards[0]
    assert entry.state == "incomplete" and f"scene {scene} " in entry.reason
    assert run_campaign(config, shard_ids=[SHARD]).shards[0].outcome == "built"
    assert read_owner(CampaignLayout(tmp_path / "out").shard(SHARD)).mesh_versions[scene] != version


def test_a_wrong_remembered_digest_costs_one_attempt(
    small_store: Path, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    write_rollout_shard_manifest_from_config(config)
    source = open_source(config)
    for scene in {row.scene_id for row in source.rows()}:
        source.meshes.known_hash(scene)
    for note in CampaignLayout(tmp_path / "out").mesh_digests.iterdir():
        note.write_text(json.dumps(json.loads(note.read_bytes()) | {"content_hash": "0" * 64}))
    (shard,) = run_campaign(config, shard_ids=[SHARD]).shards
    assert shard.outcome == "built" and "scene " in shard.retried[0]
    assert content(config) == content(undisturbed[0])


@pytest.mark.slow
def test_any_open_of_a_build_may_fail(small_store: Path, undisturbed: Undisturbed, tmp_path: Path) -> None:
    """Every 23rd open of a build fails once: the build fails with it, or its digests are the same."""
    config = real(tmp_path / "out", small_store, rows_per_shard=2)
    write_rollout_shard_manifest_from_config(config)
    layout = CampaignLayout(tmp_path / "out")
    number = 1
    while True:
        with failing(Fault("", "EIO", nth=number)) as machine:
            try:
                run_rollout_shard(config, SHARD)
            except (MachineFault, OSError):
                assert not layout.shard(SHARD).exists()
        if not machine.happened:
            break
        if layout.shard(SHARD).exists():
            assert content(config) == content(undisturbed[0])
            shutil.rmtree(layout.shard(SHARD))
        number += 23
    assert number > 500 and content(config) == content(undisturbed[0])
