"""A campaign's own splits: planned, built, promoted and changed, with the source's split kept beside them."""

import hashlib
import json
import os
import shutil
import signal
from itertools import count
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.campaigns import markers, reuse
from rollout_assets.campaigns.integrity import examine_shard
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import (
    open_source,
    plan_rollout_shards,
    read_rollout_shard_manifest,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.shard import run_rollout_shard, shard_problems
from rollout_assets.campaigns.staleness import stale_parts
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign, unplanned_rows
from rollout_assets.collection.campaign_inputs import CampaignInputs
from rollout_assets.config import CampaignConfig, SceneLists, SourceConfig, SplitShares, toml_text
from rollout_assets.errors import CampaignError, NotReadBack, PromotionRefused, ShardDrift
from rollout_assets.files import tree_digests
from rollout_assets.inspection.replay import replay_sources
from rollout_assets.rollouts.zarr_store.manifest import manifest_json_bytes, read_rollout_store_manifest
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.summary import store_info
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.sources.scene_splits import hashed_split
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.fake_shards import FakeCampaign, FakeSource
from tests.campaigns.kill_campaigns import fake_campaign, real
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

HALVES = {"train": 0.5, "val": 0.5}


def split_by_sample(store):
    """Give a copied store the splits of ARIA-NBV's writer, by SHA-1 of the sample key; returns them by key."""
    index = store / "sample_index.jsonl"
    rows = [json.loads(line) for line in index.read_text().splitlines()]
    for row in rows:
        row["split"] = ("val", "train")[int(hashlib.sha1(row["sample_key"].encode()).hexdigest(), 16) % 2]
    index.write_text("".join(json.dumps(row) + "\n" for row in rows))
    members = {split: [row["sample_index"] for row in rows if row["split"] == split] for split in ("train", "val")}
    for split, indices in members.items():
        np.save(store / f"splits/{split}.npy", np.array(indices, np.int64))
    manifest = json.loads((store / "manifest.json").read_text())
    manifest["stats"] |= {f"num_{split}": len(indices) for split, indices in members.items()}
    (store / "manifest.json").write_text(json.dumps(manifest))
    return {row["sample_key"]: row["split"] for row in rows}


def seed_that_divides(scenes):
    """A seed that puts the first of two scenes into train and the second into val."""
    shares = SplitShares(**HALVES)
    return next(seed for seed in count() if [hashed_split(scene, seed, shares) for scene in scenes] == ["train", "val"])


def moved(campaign, **split):
    """The same campaign after its ``[split]`` was edited."""
    shards, source = campaign.config.shards, campaign.config.source.model_dump()
    changes = {"rows_per_shard": shards.rows_per_shard, "source": source, "split": split}
    return fake_campaign(shards.output_dir, campaign.source.runs, **changes)


def scenes_of(entries):
    return [(entry.split, sorted({row.scene_id[-1] for row in entry.rows})) for entry in entries]


FOUR_SCENES = (("train", 6), ("val", 2))


@pytest.fixture(scope="module")
def built_scenes(tmp_path_factory):
    """Four scenes of two rows, a scene a shard, all of them built: 0 to 2 in train, 3 in val. Copy before changing."""
    root = tmp_path_factory.mktemp("four") / "out"
    fake_campaign(root, FOUR_SCENES, rows_per_shard=2).run_all()
    return root


@pytest.fixture
def four_scenes(built_scenes, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(built_scenes, tmp_path / "out", symlinks=True)
    return fake_campaign(tmp_path / "out", FOUR_SCENES, rows_per_shard=2)


@pytest.mark.ci
def test_a_store_split_by_sample_is_refused_and_promotes_by_scene(store_copy, tmp_path):
    own = split_by_sample(store_copy)
    config = real(tmp_path / "out", store_copy, rows_per_shard=4)
    scenes = sorted({row.scene_id for row in open_source(config).rows()})
    leaking = {scene for scene in scenes if len({own[key] for key in own if key.startswith(scene)}) > 1}
    assert leaking, "the store must leak, or this shows nothing"
    assert run_campaign(config).ok
    with refused(PromotionRefused, *leaking, '[split] mode = "by_scene"'):
        promote_rollout_campaign(config)

    split = {"mode": "by_scene", "seed": seed_that_divides(scenes), "shares": HALVES}
    config = real(tmp_path / "out", store_copy, rows_per_shard=4, split=split)
    plan = write_rollout_shard_manifest_from_config(config)
    for row in (row for entry in plan.entries for row in entry.rows):
        assert row.split == ("train" if row.scene_id == scenes[0] else "val")
        assert row.own_split == own[row.sample_key] and (row.source_split is None) == (row.split == row.own_split)
    assert run_campaign(config).ok
    version = promote_rollout_campaign(config).version
    for path in version.children:
        assert not validate_rollout_zarr_store(path, deep=True).findings
        reader = RolloutZarrStoreReader(path)
        sources = reader.table("sources", decode=True)
        assert set(sources["split_id"]) == {path.name}
        keys = sources["sample_key_id"].to_list()
        assert {key: reader.source_splits.get(key, path.name) for key in keys} == {key: own[key] for key in keys}
        stored = [reader.rollout(row).lineage for row in range(reader.num_rows("rollouts"))]
        assert all((line.source_split or line.split) == own[line.source_sample_key] for line in stored)
        counted = {split: [own[key] for key in keys].count(split) for split in ("train", "val")}
        shown = ", ".join(f"{number} {split}" for split, number in counted.items() if number)
        assert store_info(reader).split_in_source == shown
        assert all(replay.identical for replay in replay_sources(reader, config))


def test_what_a_store_says_of_the_sources_splits_is_checked(store_copy, tmp_path):
    own = split_by_sample(store_copy)
    config = real(
        tmp_path / "out", store_copy, rows_per_shard=4, split={"mode": "by_scene", "shares": {"train": 1.0, "val": 0.0}}
    )
    assert run_campaign(config).ok
    shard = tmp_path / "out/shards/shard-000000/rollouts.zarr"
    manifest = read_rollout_store_manifest(shard)
    assert manifest["source_splits"] == {key: split for key, split in own.items() if split != "train"}
    for forged in ({"nobody": "val"}, dict.fromkeys(manifest["source_splits"], "train"), {}, ["val"]):
        (shard / "manifest.json").write_bytes(manifest_json_bytes(manifest | {"source_splits": forged}))
        findings = validate_rollout_zarr_store(shard).findings
        assert any("source_splits" in finding.where for finding in findings), forged


def test_only_shards_of_moved_scenes_are_built_again(four_scenes, tmp_path):
    before = read_rollout_shard_manifest(four_scenes.config)
    promote_rollout_campaign(four_scenes.config)
    edited = moved(four_scenes, mode="explicit", scenes={"val": ["room-train-00001", "room-val-00003"]}, rest="train")
    plan = edited.plan()
    assert plan.new == 1 and plan.replaced is not None
    assert scenes_of(plan.entries) == [("train", ["0"]), ("val", ["1"]), ("train", ["2"]), ("val", ["3"])]
    assert [entry.to_json() == old.to_json() for entry, old in zip(plan.entries, before, strict=True)] == [1, 0, 1, 1]
    assert {row.source_split for row in plan.entries[1].rows} == {"train"}
    outcomes = [edited.run(entry).outcome for entry in plan.entries]
    assert outcomes == ["already_finished", "built", "already_finished", "already_finished"]
    with refused(PromotionRefused, "train rollouts", "v000001", "shard-000001", "--allow-fewer"):
        promote_rollout_campaign(edited.config)
    stores = promote_rollout_campaign(edited.config, allow_fewer=True).version.children
    assert {path.name: RolloutZarrStoreReader(path).num_rows("sources") for path in stores} == {"train": 4, "val": 4}


def test_the_former_split_gives_the_former_plan(four_scenes):
    before = [entry.to_json() for entry in read_rollout_shard_manifest(four_scenes.config)]
    moved(four_scenes, mode="explicit", scenes={"val": ["room-train-00001"]}, rest="train").plan()
    assert scenes_of(read_rollout_shard_manifest(four_scenes.config))[1::2] == [("train", ["3"]), ("val", ["1"])]
    assert [entry.to_json() for entry in moved(four_scenes).plan().entries] == before
    assert [four_scenes.run(entry).outcome for entry in four_scenes.plan().entries] == ["already_finished"] * 4


def tree_of(shard_dir, *left_out):
    """Digests of a store's files by path."""
    return {path: digest for path, digest in tree_digests(shard_dir / "rollouts.zarr").items() if path not in left_out}


def without_times(shard_dir):
    """The manifest and the root of a shard's store, without what names a moment or a run."""
    root = json.loads((shard_dir / "rollouts.zarr/zarr.json").read_text())
    manifest = read_rollout_store_manifest(shard_dir / "rollouts.zarr")
    manifest["generation"] |= {"invocation": None}
    for attributes in (root["attributes"], manifest["root_attrs"], manifest):
        attributes.pop("created_at_utc", None)
        attributes.pop("manifest_sha256", None)
    return root, manifest


ONLY_TRAIN = {"rows_per_shard": 2, "source": {"splits": ["train"]}}


@pytest.fixture(scope="module")
def built_train(tmp_path_factory):
    """Four built shards of train alone. Shared: copy before changing."""
    root = tmp_path_factory.mktemp("train") / "out"
    fake_campaign(root, [("train", 8)], **ONLY_TRAIN).run_all()
    return root


@pytest.fixture
def renumbered(built_train, tmp_path):
    """Four built shards of train: scene 1 has moved to val, so that the last shard takes its number."""
    shutil.copytree(built_train, tmp_path / "out", symlinks=True)
    before = fake_campaign(tmp_path / "out", [("train", 8)], **ONLY_TRAIN)
    return before, moved(before, mode="explicit", scenes={"val": ["room-train-00001"]}, rest="train")


def test_a_renumbered_shard_is_reused_and_equals_a_build(renumbered, tmp_path):
    _, edited = renumbered
    entries = edited.plan().entries
    assert scenes_of(entries) == [("train", ["0"]), ("train", ["3"]), ("train", ["2"])]
    results = [edited.run(entry) for entry in entries]
    assert [result.outcome for result in results] == ["already_finished", "reused", "already_finished"]
    reused = results[1]
    assert reused.owner.reused_from == "shard-000003" and [moved.name for moved in reused.set_aside] == ["shard-000001"]
    assert not shard_problems(reused.shard_dir, entries[1], edited.source, deep=True)
    assert edited.run(entries[1]).outcome == "already_finished"

    (tmp_path / "fresh").mkdir()
    shutil.copy(tmp_path / "out/plan.jsonl", tmp_path / "fresh/plan.jsonl")
    shards = {"output_dir": tmp_path / "fresh", "rows_per_shard": 2}
    config = edited.config.model_copy(update={"shards": edited.config.shards.model_validate(shards)})
    fresh = FakeCampaign.of(config, edited.source.runs, targets=1, chains=1, shell=(3, 5)).run(entries[1])
    assert fresh.outcome == "built" and fresh.owner.content_sha256 == reused.owner.content_sha256
    documents = ("manifest.json", "zarr.json")
    assert tree_of(reused.shard_dir, *documents) == tree_of(fresh.shard_dir, *documents)
    assert without_times(reused.shard_dir) == without_times(fresh.shard_dir)
    assert promote_rollout_campaign(edited.config).version.record.splits.keys() == {"train"}


def test_a_reused_shard_of_a_real_source_equals_a_build(small_store, tmp_path):
    scenes = sorted({row.scene_id for row in VinOfflineStore.open(small_store).rows()})
    lists = ({"train": scenes}, {"train": scenes[1:], "val": scenes[:1]})
    source = SourceConfig(store_dir=small_store, splits=("train",))
    whole, part, fresh = (
        real(tmp_path / folder, small_store, rows_per_shard=2, split={"mode": "explicit", "scenes": listed}).model_copy(
            update={"source": source}
        )
        for folder, listed in (("out", lists[0]), ("out", lists[1]), ("fresh", lists[1]))
    )
    assert [shard.outcome for shard in run_campaign(whole).shards] == ["built"] * 2
    assert [shard.outcome for shard in run_campaign(part).shards] == ["reused"]
    entry = read_rollout_shard_manifest(part)[0]
    assert not examine_shard(part, entry).all_findings()
    reused = markers.read_owner(tmp_path / "out/shards/shard-000000")

    (tmp_path / "fresh").mkdir()
    shutil.copy(tmp_path / "out/plan.jsonl", tmp_path / "fresh")
    built = run_rollout_shard(fresh, entry)
    assert built.outcome == "built" and built.owner.content_sha256 == reused.content_sha256
    assert [row.records for row in reused.rows] == [row.records for row in built.owner.rows] and reused.records
    documents = ("manifest.json", "zarr.json")
    assert tree_of(tmp_path / "out/shards/shard-000000", *documents) == tree_of(built.shard_dir, *documents)


def test_set_aside_shards_are_reused_when_the_split_returns(four_scenes, tmp_path):
    before = {entry.shard_id: tree_of(tmp_path / "out/shards" / entry.shard_id) for entry in four_scenes.plan().entries}
    moved(four_scenes, mode="explicit", scenes={"val": ["room-train-00001"]}, rest="train").run_all()
    results = [four_scenes.run(entry) for entry in four_scenes.plan().entries]
    assert [result.outcome for result in results] == ["already_finished", "reused", "already_finished", "reused"]
    assert all(tree_of(result.shard_dir) == before[result.shard_id] for result in results)


def test_a_former_shard_that_is_damaged_is_not_reused(renumbered):
    before, edited = renumbered
    entries = edited.plan().entries
    column = before.config.shards.output_dir / "shards/shard-000003/rollouts.zarr/steps/step_index/c/0"
    column.write_bytes(column.read_bytes()[:-1] + b"?")
    assert edited.run(entries[1]).outcome == "built"


def test_a_former_shard_that_fails_validation_is_built_again(renumbered, monkeypatch):
    _, edited = renumbered
    entries = edited.plan().entries
    refusal = NotReadBack("a rule that was added since")
    monkeypatch.setattr(reuse.markers, "validate_and_seal", Mock(side_effect=refusal))
    result = edited.run(entries[1])
    assert result.outcome == "built" and result.owner.reused_from is None


TAKE_OVER_STEPS = ("reuse/before", "reuse/after", "owner/after", "rename/before", "success/before")


def killed_at(step, campaign, entry):
    """Whether SIGKILL ended a process that was finishing a shard at a step."""
    process = os.fork()
    if process == 0:
        campaign.run(entry, lambda reached: os.kill(os.getpid(), signal.SIGKILL) if reached == step else None)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL


@pytest.mark.ci
def test_a_killed_or_interrupted_reuse_is_made_by_the_next_run(renumbered):
    _, edited = renumbered
    entry = edited.plan().entries[1]
    layout = CampaignLayout.of(edited.config)
    final = layout.shard(entry.shard_id)

    def interrupt(reached):
        if reached == step:
            raise KeyboardInterrupt

    for step in TAKE_OVER_STEPS:
        assert killed_at(step, edited, entry) and shard_problems(final, entry, None, deep=True)
        with pytest.raises(KeyboardInterrupt):
            edited.run(entry, interrupt)
        assert not final.exists() and not list(layout.staging.iterdir())
    assert edited.run(entry).outcome == "reused"


SCENE_LISTS = st.lists(st.booleans(), min_size=6, max_size=6)


@given(SCENE_LISTS, SCENE_LISTS, st.integers(1, 5), st.sampled_from([("train",), ("val", "train")]))
def test_every_row_is_planned_once_and_unmoved_shards_stay(first, second, rows, asked):
    runs = (("train", 7), ("val", 5))
    scenes = list(dict.fromkeys(row.scene_id for row in FakeSource(runs).rows()))
    entries, source = (), FakeSource(runs)
    for flags in (first, second):
        split = {
            "mode": "explicit",
            "rest": "train",
            "scenes": {"val": ["none", *(s for s, f in zip(scenes, flags, strict=False) if f)]},
        }
        config = CampaignConfig(name="a", source={"splits": asked}, shards={"rows_per_shard": rows}, split=split)
        source = FakeSource(runs, splits=config.split)
        before, entries = entries, plan_rollout_shards(config, entries, store=source)
        assert [entry.shard_id for entry in entries] == [f"shard-{number:06d}" for number in range(len(entries))]
        planned = {row.sample_index: row.split for entry in entries for row in entry.rows}
        assert len(planned) == sum(len(entry.rows) for entry in entries)
        assert planned == {row.sample_index: row.split for row in source.rows() if row.split in asked}
        contents = {(entry.split, entry.rows) for entry in entries}
        assert all((entry.split, entry.rows) in contents for entry in before if not entry.split_change(config))
    assert plan_rollout_shards(config, entries, store=source) == entries


def test_rows_of_one_shard_that_part_are_planned_in_two(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 8)], rows_per_shard=4)
    campaign.run_all()
    plan = moved(campaign, mode="explicit", scenes={"val": ["room-train-00002"]}, rest="train").plan()
    assert scenes_of(plan.entries) == [("train", ["0", "1"]), ("train", ["3"]), ("val", ["2"])]
    assert [entry.shard_id for entry in plan.entries] == ["shard-000000", "shard-000001", "shard-000002"]


def test_rows_that_move_into_an_unused_split_leave_the_plan(tmp_path):
    source = {"splits": ["train"]}
    only_train = fake_campaign(tmp_path, [("train", 6), ("val", 2)], rows_per_shard=2, source=source)
    assert scenes_of(only_train.plan().entries) == [("train", ["0"]), ("train", ["1"]), ("train", ["2"])]
    scenes = {"val": ["room-train-00001", "room-val-00003"]}
    plan = moved(only_train, mode="explicit", scenes=scenes, rest="train").plan()
    assert scenes_of(plan.entries) == [("train", ["0"]), ("train", ["2"])], "the last one closes the gap"
    assert [entry.shard_id for entry in plan.entries] == ["shard-000000", "shard-000001"]


def test_an_edited_split_is_refused_until_it_is_planned(four_scenes):
    edited = moved(four_scenes, mode="explicit", scenes={"val": ["room-train-00001"]}, rest="train")
    second = read_rollout_shard_manifest(edited.config)[1]
    with refused(ShardDrift, "shard-000001", "room-train-00001", "[split]", "campaign plan"):
        edited.run(second)
    with refused(ShardDrift, "room-train-00001", "[split]"):
        promote_rollout_campaign(edited.config)
    stale = {part.what: part.why for part in stale_parts(edited.config, edited.source)}
    assert set(stale) == {"rollout_shard_plan", "shard-000001", "shard-000003", "rollouts_zarr"}
    assert_names(stale["rollout_shard_plan"], "room-train-00001", "train")
    states = summarize_rollout_shard_campaign(edited.config).shards
    assert [shard.state for shard in states] == ["succeeded", "incomplete", "succeeded", "incomplete"]
    new = unplanned_rows(edited.config, read_rollout_shard_manifest(edited.config), edited.source)
    assert [key.split("/")[0] for key in new] == ["room-val-00003"] * 2 + ["room-train-00001"] * 2


def test_new_scenes_only_add_lines_to_a_plan_by_scene(tmp_path):
    split = {"mode": "by_scene", "shares": HALVES, "seed": 5}
    first = fake_campaign(tmp_path, [("train", 12)], rows_per_shard=2, split=split).plan()
    assert {entry.split for entry in first.entries} == {"train", "val"}
    before = first.path.read_bytes()
    grown = fake_campaign(tmp_path, [("train", 12), ("val", 8)], rows_per_shard=2, split=split).plan()
    assert grown.replaced is None and grown.path.read_bytes().startswith(before) and grown.num_rows == 20


@pytest.mark.ci
def test_an_extended_store_keeps_the_source_splits_of_old_rows(tmp_path):
    split = {"mode": "by_scene", "shares": {"train": 0.0, "val": 1.0}}
    fake_campaign(tmp_path, [("train", 2)], split=split).run_all()
    promote_rollout_campaign(fake_campaign(tmp_path, split=split).config)
    grown = fake_campaign(tmp_path, [("train", 2), ("val", 2), ("train", 1)], split=split)
    grown.run_all()
    extended = promote_rollout_campaign(grown.config)
    assert [part.how for part in extended.splits] == ["extended"]
    manifest = read_rollout_store_manifest(extended.version.children[0])
    assert sorted(manifest["source_splits"].values()) == ["train"] * 3 and len(manifest["source_splits"]) == 3
    anew = promote_rollout_campaign(grown.config, incremental=False)
    assert read_rollout_store_manifest(anew.version.children[0])["source_splits"] == manifest["source_splits"]


def test_a_changed_split_of_the_source_is_drift_under_any_split(tmp_path):
    split = {"mode": "by_scene", "shares": {"train": 1.0, "val": 0.0}}
    config = fake_campaign(tmp_path, [("train", 2)], split=split).config
    existing = plan_rollout_shards(config, store=FakeSource((("train", 2),), splits=config.split))
    rows = [row.model_copy(update={"source_split": "val"}) for row in existing[0].rows]
    altered = existing[0].model_copy(update={"rows": tuple(rows)})
    with refused(ShardDrift, "campaign plan --anew"):
        plan_rollout_shards(config, (altered,), store=FakeSource((("train", 2),), splits=config.split))


def test_a_source_opened_with_other_splits_is_not_planned(tmp_path):
    config = fake_campaign(tmp_path, split={"mode": "by_scene", "shares": {"train": 0.0, "val": 1.0}}).config
    with refused(CampaignError, "open_source(config)"):
        plan_rollout_shards(config, store=FakeSource((("train", 2),)))


def test_collection_requests_follow_the_split_of_the_campaign(small_store, tmp_path):
    scenes = ["synthetic-11-00000", "synthetic-11-00001"]
    keys = {}
    for train, val in (scenes, reversed(scenes)):
        config = real(
            tmp_path / "out", small_store, split={"mode": "explicit", "scenes": {"train": [train], "val": [val]}}
        )
        inputs = CampaignInputs(config, "validation", tmp_path / "requests.jsonl")
        assert inputs.write(reuse=True).source_rows == 2
        keys[val] = {json.loads(line)["sample_key"] for line in inputs.path.read_text().splitlines()}
    assert all(key.startswith(scene) for scene, of_scene in keys.items() for key in of_scene) and all(keys.values())


def test_planning_names_leaking_scenes_and_those_not_listed(store_copy, tmp_path):
    split_by_sample(store_copy)
    campaign = tmp_path / "campaign.toml"
    campaign.write_text(toml_text(real(tmp_path / "out", store_copy)))
    shown = call("campaign", "plan", "-c", str(campaign))
    assert shown.code == 0
    assert_names(" ".join(shown.out.split()), "synthetic-11-0000", '[split] mode = "by_scene"')
    config = real(tmp_path / "out", store_copy, split={"mode": "explicit", "scenes": {"val": ["synthetic-11-00000"]}})
    campaign.write_text(toml_text(config))
    unlisted = call("campaign", "plan", "-c", str(campaign))
    assert unlisted.code == 2
    assert_names(" ".join(unlisted.err.split()), "1 scene", "[split]", "synthetic-11-00001")
    elsewhere = config.split.model_copy(
        update={"rest": "train", "scenes": SceneLists(val=("kitchen", "synthetic-11-00000"))}
    )
    campaign.write_text(toml_text(config.model_copy(update={"split": elsewhere})))
    shown = call("campaign", "plan", "-c", str(campaign))
    assert shown.code == 0
    assert_names(" ".join(shown.out.split()), "1 scene", "[split]", "kitchen")
