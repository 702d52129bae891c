"""Plan and markers in columns say what their slow twins say, line by line and shard by shard."""

import json
import os
import shutil

import pytest

from rollout_assets.campaigns import shard as shards
from rollout_assets.campaigns.columns import marker_columns
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import write_failure
from rollout_assets.campaigns.plan import (
    entry_of,
    open_source,
    plan_rollout_shards,
    read_rollout_shard_manifest,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.promotion_gate import unvalidated_shards, version_on_disk
from rollout_assets.campaigns.status import (
    promoted_behind,
    shard_status,
    summarize_rollout_shard_campaign,
    unplanned_rows,
)
from rollout_assets.config import CampaignConfig, SplitConfig, load_campaign
from rollout_assets.errors import CampaignError
from rollout_assets.files import file_lock
from rollout_assets.rollouts import promote_rollout_campaign
from rollout_assets.testing.fake_shards import FakeSource
from rollout_assets.testing.many_shards import build_large_source, finish_shards, write_large_campaign
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

RUNS = (("train", 7), ("val", 3), ("train", 4), ("val", 1))


@pytest.fixture(autouse=True)
def kept_at_once(monkeypatch):
    """Everything that was read is kept for the next look, as it is two seconds after it was written."""
    monkeypatch.setattr(marker_columns, "SETTLED_NS", -(10**12))


def config_at(folder, **changes):
    shards_section = {"output_dir": folder, "rows_per_shard": changes.pop("rows_per_shard", 3)}
    return CampaignConfig(name="columns", shards=shards_section, **changes)


@pytest.mark.parametrize("rows_per_shard", [1, 3, 100])
@pytest.mark.parametrize("split", [{}, {"mode": "by_scene", "shares": {"train": 0.5, "val": 0.5}}])
def test_lines_are_those_of_the_models_byte_for_byte(tmp_path, rows_per_shard, split):
    config = config_at(tmp_path, rows_per_shard=rows_per_shard, split=split)
    source = FakeSource(RUNS, root=tmp_path / 'sour"ce ü', splits=SplitConfig(**split))
    first = FakeSource(RUNS[:2], root=source.root, splits=source.splits)
    for store in (first, source):
        existing = tuple(read_rollout_shard_manifest(config)) if (tmp_path / "plan.jsonl").exists() else ()
        slow = plan_rollout_shards(config, existing, store=store)
        plan = write_rollout_shard_manifest_from_config(config, store=store)
        assert plan.path.read_bytes() == b"".join(entry.to_json() for entry in slow)
        assert plan.entries == slow and plan.new == len(slow) - len(existing)
    kept = read_rollout_shard_manifest(config)
    CampaignLayout.of(config).plan_columns.unlink()
    read_again = read_rollout_shard_manifest(config)
    for planned in (kept, read_again):
        assert planned.columns.sha256 == [entry.sha256 for entry in slow] and planned.columns.canonical
        assert planned.columns.splits == [entry.split for entry in slow]
        assert planned.columns.sample.tolist() == [row.sample_index for entry in slow for row in entry.rows]
    columns, again = kept.columns.to_columns(), read_again.columns.to_columns()
    assert all((columns[name] == again[name]).all() for name in columns)


def test_a_plan_written_by_hand_is_read_and_grows(tmp_path):
    config, first = config_at(tmp_path), FakeSource(RUNS[:1])
    plan = write_rollout_shard_manifest_from_config(config, store=first)
    spaced = b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in plan.entries.lines)
    plan.path.write_bytes(spaced)
    read = read_rollout_shard_manifest(config)
    assert read == plan.entries and not read.columns.canonical
    grown = write_rollout_shard_manifest_from_config(config, store=FakeSource(RUNS[:2]))
    assert len(grown.entries) == 4 and grown.entries[:3] == plan.entries[:]


def test_one_entry_is_found_alone_and_a_wrong_one_is_named(tmp_path):
    config = config_at(tmp_path)
    plan = write_rollout_shard_manifest_from_config(config, store=FakeSource(RUNS))
    assert [entry_of(config, entry.shard_id) for entry in plan.entries] == list(plan.entries)
    for wrong in ("shard-000099", "shard-1", "nothing"):
        with refused(CampaignError, wrong, "shard-000000 to shard-000005"):
            entry_of(config, wrong)


def test_columns_that_are_damaged_or_old_are_made_again(tmp_path):
    config = config_at(tmp_path)
    plan = write_rollout_shard_manifest_from_config(config, store=FakeSource(RUNS))
    kept = CampaignLayout.of(config).plan_columns
    whole = kept.read_bytes()
    for content in (b"", b"no columns", whole[:-30], whole[:200]):
        kept.write_bytes(content)
        assert read_rollout_shard_manifest(config).columns.sha256 == plan.entries.columns.sha256
    os.utime(plan.path)
    assert read_rollout_shard_manifest(config) == plan.entries


def same_status(config, source=None):
    """The survey's statuses, which must be those of the slow look at every shard."""
    layout = CampaignLayout.of(config)
    summary = summarize_rollout_shard_campaign(config, source=source)
    fast = summary.shards
    slow = [shard_status(config, layout, entry, source) for entry in read_rollout_shard_manifest(config)]
    assert [vars(one) for one in fast] == [vars(one) for one in slow]
    for state, count in summary.counts().items():
        assert [vars(one) for one in summary.of(state)] == [vars(one) for one in slow if one.state == state]
        assert count == len(summary.of(state)) == [one.state for one in slow].count(state)
    assert [one.shard_id for one in fast.without_records()] == [one.shard_id for one in slow if one.records == 0]
    assert summary.complete == all(one.state == "succeeded" for one in slow)
    assert [vars(one) for one in fast[1:]] == [vars(one) for one in slow[1:]]
    return {one.shard_id: one.state for one in fast}


def test_every_state_of_a_shard_is_the_one_that_a_slow_look_finds(tmp_path):
    campaign = fake_campaign(tmp_path / "out", [("train", 9)], options={"barren": frozenset({8})})
    config, layout, source = campaign.config, CampaignLayout.of(campaign.config), campaign.source
    entries = campaign.plan().entries
    assert set(same_status(config, source).values()) == {"missing"}
    for number in (0, 1, 2, 3, 8):
        campaign.run(entries[number])
    for _ in range(2):
        assert list(same_status(config, source).values()).count("succeeded") == 5
    (layout.shard("shard-000001") / "extra").touch()
    owner = layout.shard("shard-000002") / "_owner.json"
    owner.write_bytes(owner.read_bytes().replace(b'"process": ', b'"process":  '))
    manifest = layout.shard("shard-000003") / "rollouts.zarr/manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    write_failure(layout, entries[4], RuntimeError("no"))
    (layout.staging / "shard-000005.20260101T000000000000Z").mkdir()
    (layout.shard("shard-000006") / "rollouts.zarr").mkdir(parents=True)
    with file_lock(layout.lock("shard-000007"), "test"):
        states = same_status(config, source)
    assert list(states.values()) == [
        *("succeeded", "incomplete", "incomplete", "incomplete", "failed", "incomplete", "incomplete"),
        *("running", "succeeded"),
    ]
    edited = config.model_copy(update={"seed": 99})
    assert "succeeded" not in same_status(edited, source).values()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_problems", lambda *_, **__: pytest.fail("looked at a shard that is known"))
        current = CampaignSurvey.of(config).current(source)
    assert current.nonzero()[0].tolist() == [0, 8]


def test_a_changed_mesh_or_source_makes_its_shards_stale(tmp_path):
    build_large_source(tmp_path / "source", 120)
    config = load_campaign(write_large_campaign(tmp_path, tmp_path / "source", rows_per_shard=8))
    source = open_source(config)
    plan = write_rollout_shard_manifest_from_config(config, store=source)
    finish_shards(CampaignLayout.of(config), plan.entries, source)
    assert set(same_status(config, source).values()) == {"succeeded"}
    first, second, _ = sorted((tmp_path / "source/meshes").iterdir())
    shutil.copyfile(second, first)
    assert list(same_status(config, open_source(config)).values()).count("incomplete") == 7
    (tmp_path / "source/shards/shard-000000/vin/lengths/zarr.json").touch()
    assert list(same_status(config, open_source(config)).values()).count("incomplete") == 15


def test_columns_and_markers_agree_on_validated_and_promoted(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 3), ("val", 1)])
    campaign.run_all()
    config, layout = campaign.config, CampaignLayout.of(campaign.config)
    planned = read_rollout_shard_manifest(config)
    validated = {entry.shard_id: version_on_disk(layout, entry) for entry in planned}
    validated["shard-000001"] = "another"
    del validated["shard-000003"]
    assert unvalidated_shards(config, planned, validated) == unvalidated_shards(config, tuple(planned), validated)
    assert promoted_behind(config, planned, CampaignSurvey.of(config)) == promoted_behind(config, tuple(planned)) != ""
    promote_rollout_campaign(config)
    assert promoted_behind(config, planned, CampaignSurvey.of(config)) == promoted_behind(config, tuple(planned)) == ""
    grown = FakeSource((*campaign.source.runs, ("train", 2)))
    assert unplanned_rows(config, planned, grown) == unplanned_rows(config, tuple(planned), grown)
    assert len(unplanned_rows(config, planned, grown)) == 2
