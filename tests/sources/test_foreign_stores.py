"""Stores as they are out there, by a writer that shares nothing with this package: opened, run and promoted."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zarr

from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.run import CampaignRunResult, run_campaign
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PromotionRefused, SourceDamaged
from rollout_assets.geometry.poses import rotation, translation
from rollout_assets.inspection.suspicious import suspicious_rollout_rows
from rollout_assets.rollouts import promote_rollout_campaign
from rollout_assets.rollouts.trace import StepLabels
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.sources import layout
from rollout_assets.sources.audit import audit_store
from rollout_assets.sources.sample import class_names_of
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.sources.foreign_writer import CLASSES, OBJECTS, Variant, box_poses_world, walk_of, write_foreign_store
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

PLAIN = Variant(candidate_labels=False, grid=(12, 10, 5))


@dataclass(frozen=True)
class Expected:
    """What `source check` says of a variant, as patterns, and whether a whole campaign of it runs by default."""

    variant: Variant
    unusual: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    slow: bool = True


EXTRA = r"1 block of the research code that nothing here reads: backbone.voxel_extent"
SMALL_GRID = r"a grid of 12 × 10 × 5 voxels"
USUAL = (EXTRA, SMALL_GRID)
NO_TRUTH = r"no true boxes in 1 of 4 rows, first in ASE_81283_000001"

VARIANTS: dict[str, Expected] = {
    "version 7": Expected(PLAIN, USUAL),
    "labels of its own": Expected(Variant(), (r"12 blocks of the research code .*oracle\.rri",)),
    "version 8": Expected(replace(PLAIN, version=8, flat_snippet=True), USUAL),
    "version 8, frame of its own": Expected(replace(PLAIN, version=8, snippet_shift_m=0.4), USUAL),
    "version 9": Expected(replace(PLAIN, version=9), (r"version 9 is not described in public", *USUAL)),
    "version 10": Expected(replace(PLAIN, version=10, reference="oracle"), (r"version 10 is not described", *USUAL)),
    "version 11": Expected(replace(PLAIN, version=11), USUAL),
    "five columns": Expected(replace(PLAIN, columns=5), (r"5 columns; the fifth", *USUAL)),
    "grid of 96": Expected(replace(PLAIN, grid=(96, 96, 96), walks=(6, 6)), (r"grid of 96 × 96 × 96", EXTRA)),
    "grid of 48": Expected(replace(PLAIN, grid=(48, 48, 48)), (EXTRA,)),
    "no backbone": Expected(replace(PLAIN, grid=None), (r"no evidence of the backbone in every row",)),
    "names as a list": Expected(replace(PLAIN, names="list"), (*USUAL, r"class names as a list .* in every row")),
    "ids as text": Expected(replace(PLAIN, names="text"), (*USUAL, r"class ids as text .* in every row")),
    "no names": Expected(replace(PLAIN, names="none"), (*USUAL, r"boxes of a class without a name in every row")),
    "padded walks": Expected(
        replace(PLAIN, walks=(6, 4, 3, 5), columns=5, names="list"),
        (*USUAL, r"5 columns", r"names as a list", r"ends in NaN in 2 of 4 rows, first in ASE_81283_000001"),
        slow=False,
    ),
    "no true boxes": Expected(
        replace(PLAIN, without_truth="all"), (*USUAL, r"no true boxes in every row; .*\(unmatched_gt\)")
    ),
    "a row without true boxes": Expected(replace(PLAIN, without_truth=(1,)), (*USUAL, NO_TRUTH)),
    "the longest walk without true boxes": Expected(
        replace(PLAIN, walks=(4, 6, 6, 6), without_truth=(1,)),
        (r"another number of time slices than vin.t_world_rig has poses", *USUAL, NO_TRUTH, r"ends in NaN"),
    ),
    "a row without detections and one without true boxes": Expected(
        replace(PLAIN, without_detections=(0,), without_truth=(1,)),
        (*USUAL, NO_TRUTH, r"no detections in 1 of 4 rows, first in ASE_81283_000000"),
        slow=False,
    ),
    "fewer box slots": Expected(
        replace(PLAIN, slots=16), (r"gt.obbs has 16 box slots", r"detected.obbs has 16 box slots", *USUAL)
    ),
    "no times": Expected(replace(PLAIN, trajectory=False), USUAL),
    "parts that nobody knows": Expected(
        replace(PLAIN, extra=("vin.mood",), manifest={"future": {"x": 1}}),
        USUAL,
        (r"block vin.mood in 2 shards: ignored", r"key future of manifest.json: ignored"),
    ),
}


LARGE = ("grid of 96", "grid of 48")
OPENED = [pytest.param(name, marks=[pytest.mark.ci] if name in LARGE else []) for name in VARIANTS]


def campaign_of(store: Path, output_dir: Path, **changes: Any) -> CampaignConfig:
    """Two targets a row, six views, one step: as little as shows labels."""
    parts: dict[str, Any] = {
        "name": "foreign",
        "source": {"store_dir": store},
        "targets": {"top_k": 2},
        "candidates": {"mixture": [{"position": "target_bearing_local", "count": 6}]},
        "oracle": {"width_px": 16, "height_px": 16, "device": "cpu"},
        "selected_depth": {"width_px": 8, "height_px": 8, "chunk_steps": 2},
        "recipes": [{"name": "greedy", "policy": "oracle_greedy", "horizon": 1}],
        "shards": {"rows_per_shard": 2, "output_dir": output_dir},
    }
    return CampaignConfig(**(parts | changes))


@dataclass(frozen=True)
class Promoted:
    """A whole campaign: what the run said, and the tables of its promoted store, all splits together."""

    run: CampaignRunResult
    targets: pl.DataFrame
    candidates: pl.DataFrame
    sources: pl.DataFrame
    suspicious: pl.DataFrame


def promoted(store: Path, output_dir: Path, **changes: Any) -> Promoted:
    config = campaign_of(store, output_dir, **changes)
    assert write_rollout_shard_manifest_from_config(config).num_rows == len(VinOfflineStore.open(store))
    run = run_campaign(config)
    children = promote_rollout_campaign(config).version.children
    for child in children:
        assert validate_rollout_zarr_store(child, deep=True).errors == []
    readers = [RolloutZarrStoreReader(child) for child in children]
    tables = [pl.concat([_with_targets(reader, name) for reader in readers]) for name in _TABLES]
    return Promoted(run, *tables, pl.concat([suspicious_rollout_rows(reader) for reader in readers]))


def _with_targets(reader: RolloutZarrStoreReader, name: str) -> pl.DataFrame:
    """A table; candidates with the id of their target."""
    table = reader.table(name, decode=True)
    if name != "candidates":
        return table
    rollouts = reader.table("rollouts", columns=("rollout_row_id", "target_row_id"))
    ids = reader.table("targets", columns=("target_row_id", "target_id"), decode=True)
    return table.join(rollouts.join(ids, on="target_row_id"), on="rollout_row_id", maintain_order="left")


_TABLES = ("targets", "candidates", "sources")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The store of a variant, written once. Shared: not to be changed."""
    root = tmp_path_factory.mktemp("foreign")
    return cache(lambda name: write_foreign_store(root / name, VARIANTS[name].variant))


@pytest.fixture(scope="module")
def plain(written: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Promoted:
    return promoted(written("version 7"), tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", OPENED)
def test_every_variant_opens_with_what_was_written(written: Callable[[str], Path], name: str) -> None:
    variant = VARIANTS[name].variant
    store = VinOfflineStore.open(written(name))
    assert store.version == variant.version
    for row in store.rows():
        sample, walk = store.sample(row), walk_of(variant, row.sample_index)
        poses = sample.actor.trajectory_world_camera
        assert len(poses) == variant.walks[row.sample_index]
        assert np.allclose(translation(poses), walk.camera[:, :3, 3], atol=1e-5)
        assert np.allclose(rotation(poses), walk.camera[:, :3, :3], atol=1e-5)
        assert np.allclose(sample.actor.reference_pose_world_camera[9:], walk.camera[-1, :3, 3], atol=1e-5)
        assert len(sample.actor.points_world) == 420 and (sample.actor.points_inv_dist_std == np.float32(0.01)).all()
        times = sample.actor.time_ns
        assert (times is None) == (not variant.trajectory) and (times is None or (np.diff(times) > 0).all())
        camera = sample.actor.camera
        assert (camera.fx_px, camera.cx_px, camera.height_px, camera.width_px) == (90.0, 64.0, 96, 128)
        assert (sample.actor.evidence is None) == (variant.grid is None)
        for boxes in (sample.truth.gt_boxes, sample.actor.detected):
            if boxes is None or not len(boxes):
                continue
            centres = [pose[:3, 3] for pose in box_poses_world()]
            assert np.allclose(boxes.boxes.centers_world, centres, atol=1e-4)
            ids = [CLASSES.index(kind) for kind, *_ in OBJECTS]
            unnamed = [f"class_{number}" for number in ids]
            assert list(boxes.class_names) == (unnamed if variant.names == "none" else [kind for kind, *_ in OBJECTS])


@pytest.mark.parametrize("name", OPENED)
def test_check_tells_apart_what_is_unusual_and_what_is_unknown(written: Callable[[str], Path], name: str) -> None:
    expected = VARIANTS[name]
    audit = audit_store(written(name))
    assert audit.ok and audit.broken == () and audit.format_version == expected.variant.version
    _match(audit.unusual, expected.unusual)
    _match(audit.unknown, expected.unknown)


def _match(findings: tuple[str, ...], patterns: tuple[str, ...]) -> None:
    assert len(findings) == len(patterns), findings
    for pattern in patterns:
        assert any(re.search(pattern, finding) for finding in findings), (pattern, findings)


def _campaigns() -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] if e.slow else [], id=name) for name, e in VARIANTS.items()]


@pytest.mark.parametrize("name", _campaigns())
@pytest.mark.ci
def test_every_variant_is_planned_run_and_promoted(
    written: Callable[[str], Path], tmp_path: Path, plain: Promoted, name: str
) -> None:
    variant = VARIANTS[name].variant
    made = promoted(written(name), tmp_path / "out")
    assert set(made.sources["source_cache_version_id"]) == {str(variant.version)}
    assert made.run.planned == -(-variant.rows // 2)
    skipped = [reason for outcome in made.run.shards for reason in outcome.skipped]
    lost = range(variant.rows) if variant.without_detections == "all" else variant.without_detections
    assert len(skipped) == len(lost) and all("NO_ACTOR_VISIBLE_SOURCE" in reason for reason in skipped)
    unlabelled = range(variant.rows) if variant.without_truth == "all" else variant.without_truth
    keys = {f"ASE_{81283 + row // 2}_{row:06d}" for row in unlabelled}
    _targets_are_labelled_except_of(made, keys)
    assert made.suspicious.filter(pl.col("severity") == "error").is_empty()
    if _sees_the_same(variant):
        labels = [name for name in StepLabels.__dataclass_fields__ if name.startswith("target_")]
        assert made.candidates["q_train_mask"].any()
        assert made.candidates.select(labels).equals(plain.candidates.select(labels), null_equal=True)


def _sees_the_same(variant: Variant) -> bool:
    """Whether targets and labels are those of the plain store, to the bit: only the layout differs."""
    seen = (variant.walks, variant.without_truth, variant.without_detections, variant.grid, variant.snippet_shift_m)
    return seen == (PLAIN.walks, (), (), PLAIN.grid, 0.0) and variant.names != "none"


def _targets_are_labelled_except_of(made: Promoted, keys: set[str]) -> None:
    for target in made.targets.iter_rows(named=True):
        scene, snippet = target["target_id"].split(":")[:2]
        views = made.candidates.filter(pl.col("target_id") == target["target_id"])
        assert len(views) == 6 and views["actor_action_mask"].any()
        labelled = f"ASE_{scene}_{snippet}" not in keys
        assert views["oracle_label_mask"].any() == views["q_train_mask"].any() == labelled
        if not labelled:
            assert target["gt_match_status_id"] == "unmatched_gt" and not target["gt_label_valid_mask"]
            assert target["target_primary_invalid_reason"] != 0 and target["matched_gt_target_row_id"] == -1
        else:
            assert target["gt_match_status_id"] == "matched" and target["gt_label_valid_mask"]


@pytest.mark.ci
def test_boxes_are_where_the_snippet_pose_puts_them(tmp_path: Path, plain: Promoted) -> None:
    """A frame of its own gives the labels of the plain store but for rounding, which the first rig pose would not."""
    store = write_foreign_store(tmp_path / "store", replace(PLAIN, version=11, snippet_shift_m=0.7))
    made = promoted(store, tmp_path / "out")
    gains = [table.candidates["target_root_gain"].to_numpy() for table in (made, plain)]
    assert np.isfinite(gains[1]).any() and np.allclose(*gains, atol=1e-3, equal_nan=True)


def test_store_without_detections_can_start_from_true_boxes(tmp_path: Path) -> None:
    store = write_foreign_store(tmp_path / "store", replace(PLAIN, without_detections="all"))
    audit = audit_store(store)
    assert audit.ok and any("no detections in every row; they are skipped" in finding for finding in audit.unusual)
    run = run_campaign(campaign_of(store, tmp_path / "observed"))
    assert [reason for outcome in run.shards for reason in outcome.skipped] == [
        f"ASE_{81283 + row // 2}_{row:06d}: NO_ACTOR_VISIBLE_SOURCE" for row in range(4)
    ]
    with refused(PromotionRefused, tmp_path / "observed"):
        promote_rollout_campaign(campaign_of(store, tmp_path / "observed"))
    made = promoted(store, tmp_path / "given", targets={"top_k": 2, "protocol": "v0_gt_input"})
    assert len(made.targets) == 8 and made.candidates["q_train_mask"].any()


def test_check_shows_unusual_and_unknown_and_still_passes(written: Callable[[str], Path]) -> None:
    store = written("parts that nobody knows")
    shown = call("source", "check", str(store))
    assert shown.code == 0 and "unusual" in shown.out and "unknown" in shown.out
    assert_names(" ".join(shown.out.split()), "version 7", "4 rows", "0 broken", "2 unusual", "2 unknown")
    told = call("source", "check", str(store), "--json")
    findings = json.loads(told.out)
    assert told.code == 0 and [len(findings[kind]) for kind in ("broken", "unusual", "unknown")] == [0, 2, 2]
    assert json.loads(call("source", "info", str(store), "--json").out)["format_version"] == 7


def test_absent_chunks_are_read_as_zeros(written: Callable[[str], Path]) -> None:
    store = written("a row without true boxes")
    chunks = store / "shards" / "shard-000000" / "gt" / "obbs" / "c"
    assert [path.name for path in chunks.iterdir()] == ["0"]
    opened = VinOfflineStore.open(store)
    assert [len(opened.sample(row).truth.gt_boxes) for row in opened.rows()] == [3, 0, 3, 3]


def test_lost_evidence_chunk_and_other_camera_units_are_broken(tmp_path: Path) -> None:
    store = write_foreign_store(tmp_path / "store", PLAIN)
    shard = store / "shards" / "shard-000000"
    shutil.rmtree(shard / "backbone" / "pts_world" / "c" / "0")
    camera = zarr.open_array(shard / "oracle" / "p3d" / "in_ndc", mode="r+")
    camera[1] = True
    broken = audit_store(store).broken
    assert len(broken) == 2
    assert re.search(r"backbone.pts_world row 0 .* voxels with counts lie at zero; a chunk seems to be", broken[0])
    assert re.search(r"oracle.p3d.in_ndc row 1 .*is true: the camera is not in pixels", broken[1])


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (None, {}),
        ({3: "bed"}, {3: "bed"}),
        ({"3": "bed", "-1": "none"}, {3: "bed", -1: "none"}),
        (["floor", None, "bed"], {0: "floor", 2: "bed"}),
    ],
)
def test_class_names_come_as_a_map_or_a_list(record: Any, names: dict[int, str]) -> None:
    assert class_names_of(record) == names


@pytest.mark.parametrize(
    ("record", "found"),
    [("bed", "str"), (3, "int"), ({"bed": 3}, "'bed'"), ({True: "bed"}, "True"), ({1.5: "bed"}, "1.5")],
)
def test_other_class_names_are_refused(record: Any, found: str) -> None:
    with refused(ValueError, found):
        class_names_of(record)


BOTH = ("oracle.reference_pose_world_rig", "vin.reference_pose_world_rig")
RELABELLED: dict[str, tuple[Variant, int, tuple[str, ...]]] = {
    "7 as 8": (PLAIN, 8, ("vin.t_world_snippet", "version 8")),
    "8 as 7": (replace(PLAIN, version=8), 7, ("vin.t_world_snippet", "versions 8 to 11", "version 7")),
    "8 as 11": (replace(PLAIN, version=8), 11, ("vin.reference_pose_world_rig", "version 11")),
    "11 as 8": (replace(PLAIN, version=11), 8, ("vin.reference_pose_world_rig", "versions 9 to 11", "version 8")),
    "both names": (replace(PLAIN, version=10, reference="both"), 10, (*BOTH, "version 10")),
    "neither name": (replace(PLAIN, version=9, reference="none"), 9, (*BOTH, "version 9")),
}


@pytest.mark.parametrize("kind", RELABELLED)
def test_a_relabelled_store_is_refused_by_its_blocks(tmp_path: Path, kind: str) -> None:
    variant, version, names = RELABELLED[kind]
    store = relabelled(write_foreign_store(tmp_path / "store", variant), version)
    with refused(SourceDamaged, *names):
        VinOfflineStore.open(store)
    audit = audit_store(store)
    for shard in ("shard-000000", "shard-000001"):
        assert any(all(name in problem for name in (shard, *names)) for problem in audit.broken), audit.broken
    assert not audit.ok


def relabelled(store: Path, version: Any) -> Path:
    manifest = json.loads((store / layout.MANIFEST_FILE).read_text())
    (store / layout.MANIFEST_FILE).write_text(json.dumps(manifest | {"version": version}))
    return store
