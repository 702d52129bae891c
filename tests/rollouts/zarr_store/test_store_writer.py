"""Writing: what does not fit is refused and leaves nothing; what fits gives the same bytes however it comes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.config import CampaignConfig, SelectedDepthRetentionConfig, load_campaign
from rollout_assets.errors import RecordRefused, StoreExists
from rollout_assets.rollouts.trace import RolloutStep, RolloutZarrRecord, SelectedDepth
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    RolloutZarrStoreWriter,
    validate_rollout_zarr_store,
    write_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation, RolloutStoreManifestContext
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.rollouts.zarr_store.store_under_test import CONFIG, CREATED, HEIGHT, RECORDS, WIDTH
from tests.support.refusals import refused

FEW = replace(RECORDS, sources=1, targets=1, recipes=("random_valid",), dead_ends=False)


def first() -> RolloutZarrRecord:
    return next(iter(FEW))


def with_step(record: RolloutZarrRecord, change: Callable[[RolloutStep], RolloutStep]) -> RolloutZarrRecord:
    chain = record.chains[0]
    steps = (change(chain.steps[0]), *chain.steps[1:])
    return replace(record, chains=(replace(chain, steps=steps), *record.chains[1:]))


def other_lineage(**fields: object) -> list[RolloutZarrRecord]:
    record = first()
    return [record, replace(record, lineage=replace(record.lineage, **fields), rollout_id_prefix="other")]


def labelled_invalid(step: RolloutStep) -> RolloutStep:
    gain = np.where(step.shell.actor_action_mask, step.labels.target_root_gain, np.float32(0.1))
    assert not step.shell.actor_action_mask.all()
    return replace(step, labels=replace(step.labels, target_root_gain=gain))


def wrong_bits(step: RolloutStep) -> RolloutStep:
    bits = np.where(step.shell.actor_action_mask, np.uint32(4), step.shell.invalid_reason_bitset)
    return replace(step, shell=replace(step.shell, invalid_reason_bitset=bits))


def small_depth(step: RolloutStep) -> RolloutStep:
    shape = (HEIGHT - 1, WIDTH)
    depth = SelectedDepth(np.zeros(shape, np.float32), np.zeros(shape, np.bool_), (1.0, 1.0), (1.0, 1.0))
    return replace(step, selected_depth=depth)


def invalid_choice(step: RolloutStep) -> RolloutStep:
    at = int(np.flatnonzero(~step.shell.actor_action_mask)[0])
    return replace(step, selection=replace(step.selection, selected_shell_index=at))


def short_labels(step: RolloutStep) -> RolloutStep:
    return replace(step, labels=replace(step.labels, target_rri=step.labels.target_rri[:-1]))


BAD = {
    "no records": (list, ["records", "source row"]),
    "mixed splits": (
        lambda: other_lineage(split="val", source_sample_index=7, source_sample_key="x"),
        ["'other'", "'train'", "'val'"],
    ),
    "source conflict": (lambda: other_lineage(scene_id="elsewhere"), ["'other'", "scene_id 0 and 1"]),
    "target conflict": (lambda: other_lineage(target_sem_id=9), ["'other'", "target_sem_id 3 and 9"]),
    "other protocol": (
        lambda: other_lineage(target_protocol_version="v0_gt_input"),
        ["'other'", "'v1_observed'", "'v0_gt_input'"],
    ),
    "foreign target source": (
        lambda: other_lineage(target_source="gt_obbs_oracle"),
        ["'other'", "'detected_obbs'", "'gt_obbs_oracle'"],
    ),
    "no hash": (lambda: other_lineage(oracle_config_hash=None), ["'other'", "oracle_config_hash"]),
    "NaN root": (
        lambda: [replace(first(), root=replace(first().root, pose_world_camera=np.full(12, np.nan, np.float32)))],
        ["root pose", "[nan, "],
    ),
    "wrong depth size": (
        lambda: [with_step(first(), small_depth)],
        ["chain 0 step 0", "selected depth", "10 x 12 px", "(9, 12)"],
    ),
    "no depth": (
        lambda: [with_step(first(), lambda s: replace(s, selected_depth=None))],
        ["chain 0 step 0", "selected depth"],
    ),
    "label on invalid row": (lambda: [with_step(first(), labelled_invalid)], ["step 0 candidate 0", "label"]),
    "bits against mask": (lambda: [with_step(first(), wrong_bits)], ["invalid_reason_bitset"]),
    "invalid choice": (lambda: [with_step(first(), invalid_choice)], ["chain 0 step 0", "candidate 0"]),
    "short labels": (lambda: [with_step(first(), short_labels)], ["target_rri", 69, 70]),
    "choice outside": (
        lambda: [with_step(first(), lambda s: replace(s, selection=replace(s.selection, selected_shell_index=99)))],
        ["chain 0 step 0", "selected_shell_index", 99],
    ),
    "goes on after nothing": (
        lambda: [
            with_step(
                first(),
                lambda s: replace(s, selection=replace(s.selection, selected_shell_index=-1), selected_depth=None),
            )
        ],
        ["chain 0 step 0", "selected"],
    ),
    "chain without steps": (
        lambda: [replace(first(), chains=(replace(first().chains[0], steps=()),))],
        ["chain 0 ", "steps"],
    ),
    "horizon": (lambda: [replace(first(), horizon=0)], ["horizon", 32767, 0]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    records, names = BAD[case]
    with refused(RecordRefused, *names):
        write_rollout_zarr_store(tmp_path / "store.zarr", records(), CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_destination_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "store.zarr").mkdir()
    (tmp_path / "store.zarr" / "mine").write_text("x")
    with refused(StoreExists, tmp_path / "store.zarr"):
        write_rollout_zarr_store(tmp_path / "store.zarr", FEW, CONFIG)
    with refused(StoreExists, tmp_path / "store.zarr"):
        RolloutZarrStoreWriter(tmp_path / "store.zarr", CONFIG)
    assert [path.name for path in tmp_path.rglob("*")] == ["store.zarr", "mine"]


def test_a_failing_source_of_records_leaves_nothing(tmp_path: Path) -> None:
    def records() -> Iterator[RolloutZarrRecord]:
        yield from RECORDS
        raise RuntimeError("the oracle is gone")

    with refused(RuntimeError, "the oracle is gone"):
        write_rollout_zarr_store(tmp_path / "store.zarr", records(), CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "step", ["flush/candidates", "flush/q_h", "view", "manifest/before", "manifest/after", "metadata", "root"]
)
def test_failure_at_any_announced_step_leaves_nothing(step: str, tmp_path: Path) -> None:
    seen: list[str] = []

    def stop(name: str) -> None:
        seen.append(name)
        if name == step:
            raise RuntimeError(f"killed at {name}")

    with refused(RuntimeError, step):
        write_rollout_zarr_store(tmp_path / "store.zarr", RECORDS, CONFIG, on_step=stop)
    assert seen[-1] == step
    assert list(tmp_path.iterdir()) == []


def test_equal_records_give_equal_digests_whatever_the_chunks(good_store: Path, tmp_path: Path) -> None:
    expected = RolloutZarrStoreReader(good_store).sidecar_manifest()
    again = write_rollout_zarr_store(tmp_path / "again", list(RECORDS), CONFIG, created_at_utc=CREATED)
    assert again.manifest_sha256 == RolloutZarrStoreReader(good_store).attributes["manifest_sha256"]
    later = write_rollout_zarr_store(tmp_path / "later", RECORDS, CONFIG, created_at_utc="2027-01-01T00:00:00Z")
    assert later.manifest_sha256 != again.manifest_sha256
    for chunk_rows, shard in ((64, 1), (100, 3), (65_536, 4)):
        config = CONFIG.model_copy(update={"chunk_rows": chunk_rows, "chunks_per_shard": shard, "chunk_states": 11})
        other = tmp_path / f"chunks-{chunk_rows}"
        write_rollout_zarr_store(other, RECORDS, config, created_at_utc=CREATED)
        found = RolloutZarrStoreReader(other).sidecar_manifest()
        assert found["content_sha256"] == expected["content_sha256"]
        assert found["source_coverage"] == expected["source_coverage"]
        assert validate_rollout_zarr_store(other, deep=True).errors == []


@pytest.mark.parametrize("cuts", [(1, 4), (2, 1, 2), (5,)])
def test_merged_stores_equal_one_store(cuts: tuple[int, ...], good_store: Path, tmp_path: Path) -> None:
    with RolloutZarrStoreWriter(tmp_path / "merged", CONFIG, created_at_utc=CREATED) as writer:
        at = 0
        for count in cuts:
            part = tmp_path / f"part-{at}"
            write_rollout_zarr_store(part, replace(RECORDS, sources=count, first_sample=at), CONFIG)
            writer.append_store(RolloutZarrStoreReader(part))
            at += count
        merged = writer.finish()
    assert merged.manifest_sha256 == RolloutZarrStoreReader(good_store).attributes["manifest_sha256"]
    assert validate_rollout_zarr_store(tmp_path / "merged", deep=True).errors == []


def test_records_and_stores_may_be_mixed(good_store: Path, tmp_path: Path) -> None:
    parts = [replace(RECORDS, sources=1, first_sample=at) for at in range(5)]
    write_rollout_zarr_store(tmp_path / "middle", (r for part in parts[1:3] for r in part), CONFIG)
    with RolloutZarrStoreWriter(tmp_path / "mixed", CONFIG, created_at_utc=CREATED) as writer:
        for record in parts[0]:
            writer.append(record)
        writer.append_store(RolloutZarrStoreReader(tmp_path / "middle"))
        for record in (*parts[3], *parts[4]):
            writer.append(record)
        writer.finish()
    digest = RolloutZarrStoreReader(tmp_path / "mixed").attributes["manifest_sha256"]
    assert digest == RolloutZarrStoreReader(good_store).attributes["manifest_sha256"]


def test_merging_refuses_another_split_and_other_settings(tmp_path: Path) -> None:
    write_rollout_zarr_store(tmp_path / "val", replace(FEW, split="val"), CONFIG)
    with RolloutZarrStoreWriter(tmp_path / "merged", CONFIG) as writer:
        for record in FEW:
            writer.append(record)
        with refused(RecordRefused, tmp_path / "val", "'train'", "'val'"):
            writer.append_store(RolloutZarrStoreReader(tmp_path / "val"))
    other = CONFIG.model_copy(update={"selected_depth": SelectedDepthRetentionConfig(enabled=False)})
    expected = refused(RecordRefused, tmp_path / "val", "selected_depth_enabled", False, True)
    with expected, RolloutZarrStoreWriter(tmp_path / "merged", other) as writer:
        writer.append_store(RolloutZarrStoreReader(tmp_path / "val"))
    assert not (tmp_path / "merged").exists()


def test_merging_refuses_a_store_whose_crops_would_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "crops"
    write_rollout_zarr_store(path, FEW, CONFIG)
    document = json.loads((path / "zarr.json").read_bytes())
    document["attributes"]["target_eval_crops_num_rows"] = 3
    (path / "zarr.json").write_text(json.dumps(document))
    expected = refused(RecordRefused, path, "target_eval_crops_num_rows", 3)
    with expected, RolloutZarrStoreWriter(tmp_path / "merged", CONFIG) as writer:
        writer.append_store(RolloutZarrStoreReader(path))


def test_a_store_of_records_without_chains_is_a_store(tmp_path: Path) -> None:
    records = [replace(record, chains=()) for record in FEW]
    result = write_rollout_zarr_store(tmp_path / "store.zarr", records, CONFIG)
    assert (result.num_sources, result.num_targets, result.num_rollouts, result.num_candidates) == (1, 1, 0, 0)
    assert validate_rollout_zarr_store(tmp_path / "store.zarr", deep=True).errors == []
    reader = RolloutZarrStoreReader(tmp_path / "store.zarr")
    assert all(len(values) == 0 for values in reader.q_h_view().values())
    assert reader.q_h_view(discount_gamma=0.5)["td_discount"].shape == (0,)


@pytest.mark.parametrize("protocol", ["v1_observed", "v0_gt_input"])
def test_both_protocols_are_stored(protocol: str, tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"target_protocol_version": protocol})
    write_rollout_zarr_store(tmp_path / "store.zarr", replace(RECORDS, sources=2, protocol=protocol), config)
    assert validate_rollout_zarr_store(tmp_path / "store.zarr").errors == []
    assert RolloutZarrStoreReader(tmp_path / "store.zarr").array("candidates/q_train_mask").any()


def test_small_tables_grow_no_files(tmp_path: Path) -> None:
    records = SyntheticRecords(sources=2, targets=2, dead_ends=False)
    config = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False))
    write_rollout_zarr_store(tmp_path / "store.zarr", records, config)
    reader = RolloutZarrStoreReader(tmp_path / "store.zarr")
    assert len(reader.files.sizes()) < 400
    assert reader.root["candidates/target_rri"].chunks == (reader.num_rows("candidates"),)


def test_config_comes_from_a_campaign() -> None:
    campaign = load_campaign("demo")
    config = RolloutZarrStoreConfig.from_campaign(campaign)
    assert config.chunk_rows == campaign.store.chunk_rows
    assert config.selected_depth == campaign.selected_depth


def test_the_manifest_says_how_a_store_was_made(tmp_path: Path) -> None:
    toml = tmp_path / "campaign.toml"
    toml.write_text('name = "x"\n')
    invocation = RolloutStoreInvocation.of_campaign(toml, "cli")
    campaign = CampaignConfig(name="x", seed=1)
    context = RolloutStoreManifestContext.here(campaign, invocation, {"shard_id": "shard-000000"})
    write_rollout_zarr_store(tmp_path / "store.zarr", FEW, CONFIG, context=context)
    generation = RolloutZarrStoreReader(tmp_path / "store.zarr").sidecar_manifest()["generation"]
    assert generation["writer_config"]["seed"] == 1
    assert generation["shard"] == {"shard_id": "shard-000000"}
    assert generation["invocation"]["raw_toml_text"] == 'name = "x"\n'
    assert len(generation["invocation"]["raw_toml_sha256"]) == 64
    assert generation["runtime"]["packages"]["zarr"]
    assert dataclasses.asdict(invocation)["mode"] == "cli"
