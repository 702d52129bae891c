"""Cost follows what is new: what is read of the rest is a bounded sample, and a full read is kept in mind."""

import os
import shutil

import pytest

from rollout_assets.campaigns.columns.kept import keep_columns, kept_columns
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.inventory import check_version, last_full_read, read_inventory, written_files
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.merging.row_counts import COUNTED_TABLES, VERSION, rows_of_shards, table_rows
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.promotion_gate import (
    damage_of_shards,
    numbers_to_read,
    refuse_unvalidated,
    version_on_disk,
)
from rollout_assets.errors import PromotionRefused, StoreError
from rollout_assets.rollouts import (
    current_version,
    promote_rollout_campaign,
    prune_promoted_versions,
    summarize_rollout_shard_campaign,
)
from tests.campaigns.kill_campaigns import fake_campaign
from tests.campaigns.test_versions import CHUNK, flip
from tests.support.refusals import refused

ROWS = [("train", 4), ("val", 1)]
MORE_ROWS = [*ROWS, ("train", 1)]
ONE = ReadSample(seed=1, most_files=1, most_shards=1)


@pytest.fixture(scope="module")
def promoted_once(tmp_path_factory):
    """Five shards promoted as v000001, and a sixth that is built. Shared: copy before changing."""
    root = tmp_path_factory.mktemp("again") / "out"
    campaign = fake_campaign(root, ROWS)
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    fake_campaign(root, MORE_ROWS).run_all()
    return root


@pytest.fixture
def campaign(promoted_once, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(promoted_once, tmp_path / "out", symlinks=True)
    return fake_campaign(tmp_path / "out", MORE_ROWS)


def validated(campaign):
    """Every shard, as if it had been validated as it is now."""
    layout = CampaignLayout.of(campaign.config)
    return {entry.shard_id: version_on_disk(layout, entry) for entry in campaign.plan().entries}


def alter(path):
    """Flip a bit of a file and leave its time as it was."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_sample_is_bounded_and_the_same_for_the_same_seed():
    sizes = {f"file-{number}": 10 for number in range(1_000)}
    assert ReadSample(3, most_bytes=95).files(sizes, "v1") == ReadSample(3, most_bytes=95).files(sizes, "v1")
    assert len(ReadSample(3, most_bytes=95).files(sizes, "v1")) == 9
    assert len(ReadSample(3, most_files=7).files(sizes, "v1")) == 7
    assert ReadSample(3).files(sizes, "v1") == sizes.keys(), "what is smaller than the sample is read whole"
    assert len(ReadSample(3, most_bytes=1).files(sizes, "v1")) == 1, "never nothing"
    assert ReadSample(3, most_files=7).files(sizes, "v1") != ReadSample(4, most_files=7).files(sizes, "v1")
    assert ReadSample(3).files({}, "v1") == ReadSample(3).shards({}) == frozenset()
    assert len(ReadSample(3, most_shards=2).shards(sizes)) == 2


def test_the_gate_reads_new_shards_and_a_sample_of_the_others(campaign):
    survey = CampaignSurvey.of(campaign.config)
    read = numbers_to_read(campaign.config, survey, ONE)
    assert len(read) == 2 and 5 in read
    drawn = {
        number
        for seed in range(40)
        for number in numbers_to_read(campaign.config, survey, ReadSample(seed, most_shards=1))
    }
    assert drawn == set(range(6)), "over time every shard is drawn"
    shutil.rmtree(campaign.config.shards.output_dir / "versions")
    assert numbers_to_read(campaign.config, survey, ONE) == list(range(6)), "nothing is promoted: all are new"


def test_the_gate_reads_all_new_shards_and_a_sample_of_old_ones(campaign):
    shards = CampaignLayout.of(campaign.config).shards
    versions = validated(campaign)
    alter(shards / "shard-000002/rollouts.zarr" / CHUNK)
    survey = CampaignSurvey.of(campaign.config)
    samples = [ReadSample(seed, most_shards=1) for seed in range(40)]
    hit = next(sample for sample in samples if 2 in numbers_to_read(campaign.config, survey, sample))
    miss = next(sample for sample in samples if 2 not in numbers_to_read(campaign.config, survey, sample))
    refuse_unvalidated(campaign.config, versions, miss)
    with refused(PromotionRefused, "shard-000002: ", "rollouts.zarr"):
        refuse_unvalidated(campaign.config, versions, hit)
    alter(shards / "shard-000005/rollouts.zarr" / CHUNK)
    with refused(PromotionRefused, "shard-000005: ", "rollouts.zarr"):
        refuse_unvalidated(campaign.config, versions, miss)


@pytest.mark.ci
def test_several_processes_find_the_damage_that_one_finds(campaign, monkeypatch):
    layout = CampaignLayout.of(campaign.config)
    alter(layout.shard("shard-000001") / "rollouts.zarr" / CHUNK)
    monkeypatch.setattr("rollout_assets.campaigns.promotion_gate.WORTH_A_WORKER", 2)
    by_two = damage_of_shards(layout, range(6), 2)
    assert by_two == damage_of_shards(layout, range(6), 1) and set(by_two) == {1}


def test_new_files_are_all_read_and_earlier_ones_by_sample(campaign):
    layout = CampaignLayout.of(campaign.config)
    assert last_full_read(layout, "v000001") is not None, "whatever is built from its shards was read"
    result = promote_rollout_campaign(campaign.config, sample=ONE)
    assert [(child.split, child.how) for child in result.splits] == [("train", "extended"), ("val", "linked")]
    assert result.sample_seed == ONE.seed and last_full_read(layout, "v000002") is None
    written = written_files(layout, "v000002")
    assert not any(path.startswith("val/") for path in written)
    inventory = read_inventory(layout, "v000002")
    check = check_version(layout, "v000002", sample=ONE, written=written)
    new = sum(inventory.files[path].bytes for path in written)
    assert check.sound and new <= check.bytes_read < check.bytes_published
    assert check_version(layout, "v000002", deep=True).bytes_read == check.bytes_published
    assert last_full_read(layout, "v000002") is not None
    assert prune_promoted_versions(campaign.config, keep=1).versions == ("v000001",)
    assert last_full_read(layout, "v000001") is None


def test_damage_in_a_linked_split_is_found_by_sample_and_deep(campaign):
    flip(campaign, f"v000001/val/{CHUNK}")
    layout = CampaignLayout.of(campaign.config)
    problem = "v000001 val candidates/target_rri: c/0 was altered since it was published"

    sizes = {path: file.bytes for path, file in read_inventory(layout, "v000001").of_split("val").items()}
    samples = [ReadSample(seed, most_files=40) for seed in range(100)]
    hit = next(sample for sample in samples if f"val/{CHUNK}" in sample.files(sizes, "v000001/val"))
    miss = next(sample for sample in samples if f"val/{CHUNK}" not in sample.files(sizes, "v000001/val"))
    assert check_version(layout, "v000001", split="val", sample=miss).sound
    result = promote_rollout_campaign(campaign.config, sample=hit)
    assert result.damaged == (problem,) and [child.how for child in result.splits] == ["extended", "built"]
    deep = summarize_rollout_shard_campaign(campaign.config, deep=True).damaged_versions
    assert [version.problems for version in deep] == [(problem,)]


def test_an_invalid_version_is_not_published(campaign):
    root = campaign.config.shards.output_dir
    shutil.rmtree(root / "versions/v000001/val")

    def damage(step):
        if step == "val/validate":
            alter(next(root.glob("staging/promotion.*")) / "val" / CHUNK)

    with refused(StoreError, "v000002: val", "candidates/target_rri"):
        promote_rollout_campaign(campaign.config, on_step=damage)
    assert current_version(campaign.config).name == "v000001"
    assert not (root / "versions/v000002").exists() and not list(root.glob("staging/promotion.*"))


def test_a_split_that_is_gone_is_one_line_and_is_built_again(campaign):
    shutil.rmtree(campaign.config.shards.output_dir / "versions/v000001/val")
    result = promote_rollout_campaign(campaign.config)
    (problem,) = result.damaged
    assert problem.startswith("v000001 val: ")
    assert [child.how for child in result.splits] == ["extended", "built"]


def test_shard_rows_are_read_again_when_they_do_not_add_up(campaign):
    layout, version = CampaignLayout.of(campaign.config), current_version(campaign.config)
    shards = version.record.splits["train"]
    children = {child.name: child for child in version.children}
    rows = rows_of_shards(layout, shards)
    assert rows.shape == (4, len(COUNTED_TABLES)) and (rows > 0).all()
    assert all(counted.add_up for counted in table_rows(layout, version.record, children))
    swapped = table_rows(layout, version.record, {"train": children["val"], "val": children["train"]})
    assert str(swapped[0]) == "train sources: 1 rows, its shards have 4"
    kept = kept_columns(layout.row_columns, VERSION)
    keep_columns(layout.row_columns, VERSION, kept | {"rows": kept["rows"] + 1})
    assert all(counted.add_up for counted in table_rows(layout, version.record, children)), "asked again"
    layout.shards.rename(layout.shards.with_name("elsewhere"))
    assert (rows_of_shards(layout, shards) == rows).all(), "kept, so that no shard is opened"
    other = shards[0].model_copy(update={"content_sha256": "0" * 64})
    assert (rows_of_shards(layout, [other]) == 0).all(), "another content has other rows"
