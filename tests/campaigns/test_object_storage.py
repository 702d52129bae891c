"""A campaign in object storage: the same content as on a disk, few requests, one result of two builders."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import zarr
from obstore.store import from_url
from zarr.storage import ObjectStore

from rollout_assets.campaigns.integrity import open_shard
from rollout_assets.campaigns.inventory import read_inventory
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects import publishing
from rollout_assets.campaigns.objects.storage import storage_at
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.campaigns.versions import (
    current_version,
    prune_promoted_versions,
    rollback_promotion,
    unpin_promotion,
)
from rollout_assets.errors import CampaignError, NotReadBack, PromotionRefused, StoreError
from rollout_assets.learning import QHIterableDataset, QHLoader
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.digests import version_digests
from tests.support.refusals import refused

SMALL_CHUNKS = {"store": {"chunk_rows": 8, "chunk_states": 4}, "options": {"targets": 2, "chains": 2}}
"""So small that an extended store has files that are full, and therefore shared."""


def elsewhere(campaign, monkeypatch, folder):
    """The same campaign as another machine sees it: without any copy."""
    monkeypatch.setenv("ROLLOUT_ASSETS_CACHE", str(folder))
    return replace(campaign)


@pytest.fixture(scope="module")
def grown(object_storage, tmp_path_factory):
    """Built and promoted with one shard, then with a second, in object storage and on a disk."""
    versions = {}
    for place in (object_storage.url("grown"), tmp_path_factory.mktemp("grown")):
        before = fake_campaign(place, [("train", 1)], **SMALL_CHUNKS)
        before.run_all()
        first = version_digests(promote_rollout_campaign(before.config).version)
        after = fake_campaign(place, [("train", 2)], **SMALL_CHUNKS)
        after.run_all()
        result = promote_rollout_campaign(after.config)
        versions[type(place).__name__] = (
            after,
            first,
            version_digests(result.version),
            [part.how for part in result.splits],
        )
    return versions


@pytest.mark.ci
def test_promoted_and_extended_content_equals_that_on_a_disk(grown):
    (_, *there), (_, *on_disk) = grown.values()
    assert there == on_disk and there[-1] == ["extended"]


@pytest.mark.ci
def test_every_reader_opens_it(grown, object_storage):
    campaign = grown["ObjectUrl"][0]
    url = f"{object_storage.url('grown')}/rollouts.zarr/train"
    reader = RolloutZarrStoreReader(url)
    assert reader.resolved_location == f"{object_storage.url('grown')}/versions/v000002/train"
    assert validate_rollout_zarr_store(url, deep=True).ok
    plain = zarr.open_group(ObjectStore(from_url(reader.resolved_location), read_only=True), mode="r")
    assert np.array_equal(plain["candidates/target_rri"][:], reader.array("candidates/target_rri"), equal_nan=True)
    with refused(StoreError, object_storage.url("grown") / "rollouts.zarr", "train"):
        RolloutZarrStoreReader(object_storage.url("grown") / "rollouts.zarr")
    assert current_version(campaign.config).children == (f"{object_storage.url('grown')}/versions/v000002/train",)


def test_each_file_of_an_extended_version_is_written_once(grown, object_storage):
    puts = [path for method, path in object_storage.requests() if method == "PUT" and "/grown/versions/v000002" in path]
    inventory = CampaignLayout.of(grown["ObjectUrl"][0].config).inventory("v000002")
    assert len(puts) == inventory.read_text().count('"sha256"')


def test_opening_and_a_first_batch_take_few_requests(grown, object_storage):
    url = f"{object_storage.url('grown')}/rollouts.zarr/train"
    with object_storage.counted() as opening:
        RolloutZarrStoreReader(url)
    assert opening.total() <= 3
    with object_storage.counted() as batch:
        dataset = QHIterableDataset(url, 2)
        next(iter(dataset))
    assert dataset.verified
    (pin,) = dataset.source.pins
    prefixes = tuple(f"train/{array}/c/" for array in pin.seals)
    inventory = read_inventory(CampaignLayout.of(grown["ObjectUrl"][0].config), "v000002")
    chunks = [path for path in inventory.files if path.startswith(prefixes)]
    assert len(chunks) >= len(pin.seals)
    assert batch.total() <= opening.total() + len(chunks) + 2, "one request a chunk of what is verified, and few more"


@pytest.mark.ci
def test_training_batches_equal_those_of_a_disk(grown, object_storage):
    url = f"{object_storage.url('grown')}/rollouts.zarr/train"
    on_disk = CampaignLayout.of(grown["PosixPath"][0].config).promoted / "train"
    expected = list(QHLoader(QHIterableDataset(on_disk, 2, seed=3)))
    for workers in (0, 1):
        batches = list(QHLoader(QHIterableDataset(url, 2, seed=3), num_workers=workers))
        assert len(batches) == len(expected)
        for batch, other in zip(batches, expected, strict=True):
            assert all((one == two).all() for one, two in zip(_tensors(batch), _tensors(other), strict=True))


def _tensors(batch):
    values = vars(batch).values() if hasattr(batch, "__dict__") else batch
    return [value.nan_to_num(0.5) for value in values if hasattr(value, "nan_to_num")]


def test_another_machine_sees_the_same(grown, monkeypatch, tmp_path, object_storage):
    campaign = grown["ObjectUrl"][0]
    here = summarize_rollout_shard_campaign(campaign.config)
    other = elsewhere(campaign, monkeypatch, tmp_path)
    with object_storage.counted() as requests:
        there = summarize_rollout_shard_campaign(other.config)
    assert requests["list"] <= 5
    assert [vars(shard) for shard in there.shards] == [vars(shard) for shard in here.shards]
    assert there.complete and not there.behind and not there.damaged_versions
    entries = read_rollout_shard_manifest(other.config)
    assert other.run(entries[0]).outcome == "already_finished"
    assert promote_rollout_campaign(other.config).splits == ()


@pytest.mark.ci
def test_status_of_many_shards_takes_few_requests(object_storage):
    campaign = fake_campaign(object_storage.url("many-shards"), [("train", 60)])
    entries = campaign.plan().entries
    campaign.run(entries[0])
    storage = storage_at(object_storage.url("many-shards"))
    marker = next(iter(storage.marker_keys()))
    content = storage.objects.read(marker.key)
    for entry in entries[1:]:  # as if each had been built: status reads markers only
        own = content.replace(entries[0].sha256.encode(), entry.sha256.encode())
        own = own.replace(entries[0].shard_id.encode(), entry.shard_id.encode())
        storage.objects.put(f"markers/{entry.shard_id}.{entry.sha256[:16]}.json", own)
    with object_storage.counted() as first:
        summarize_rollout_shard_campaign(campaign.config)
    with object_storage.counted() as again:
        summarize_rollout_shard_campaign(campaign.config)
    assert first["list"] <= 5 and again["list"] <= 5
    assert again.total() <= 10


def test_a_rollback_pins_everywhere_and_datasets_keep_a_version(grown, object_storage, monkeypatch, tmp_path):
    """Changes the shared campaign, so it comes after the other tests of it."""
    campaign = grown["ObjectUrl"][0]
    assert rollback_promotion(campaign.config).name == "v000001"
    other = elsewhere(campaign, monkeypatch, tmp_path)
    assert current_version(other.config).name == "v000001"
    with refused(PromotionRefused, "v000001", "campaign unpin"):
        promote_rollout_campaign(other.config)
    store = f"{object_storage.url('grown')}/rollouts.zarr/train"
    dataset = QHIterableDataset(store, 2)
    assert "versions/v000001" in dataset.source.pins[0].location
    assert unpin_promotion(other.config).version == "v000001"
    assert promote_rollout_campaign(other.config).version.name == "v000002"
    assert len(list(dataset)) == len(dataset)
    prune_promoted_versions(campaign.config, 1)
    with refused(StoreError, "v000001", store):
        list(dataset)


def test_one_of_two_builders_is_published_the_other_is_removed(object_storage, monkeypatch, tmp_path):
    campaign = fake_campaign(object_storage.url("two"), [("train", 1)])
    entry = campaign.plan().entries[0]
    winner = {}

    def overtaken(step):
        if step == "marker/before" and not winner:
            winner["result"] = campaign.run(entry)

    orphan = campaign.run(entry, overtaken)
    storage = storage_at(object_storage.url("two"))
    assert len(list(storage.marker_keys())) == 1
    assert len(list(storage.objects.listing("packs"))) == 1
    assert orphan.owner.attempt == winner["result"].owner.attempt
    assert elsewhere(campaign, monkeypatch, tmp_path).run(entry).outcome == "already_finished"


def test_two_builders_that_differ_are_an_error(object_storage):
    campaign = fake_campaign(object_storage.url("differ"), [("train", 1)])
    entry = campaign.plan().entries[0]
    other = fake_campaign(object_storage.url("differ"), [("train", 1)], options={"targets": 3})
    began = []

    def overtaken(step):
        if step == "marker/before" and not began:
            began.append(step)
            other.run(entry)

    with refused(NotReadBack, entry.shard_id):
        campaign.run(entry, overtaken)


@pytest.mark.ci
def test_an_overtaken_promotion_publishes_nothing(object_storage, monkeypatch, tmp_path):
    campaign = fake_campaign(object_storage.url("overtaken"), [("train", 1)])
    campaign.run_all()
    other = []

    def overtaken(step):
        if step == "switch/before" and not other:
            other.append(step)
            with monkeypatch.context() as patch:
                patch.setenv("ROLLOUT_ASSETS_CACHE", str(tmp_path))
                promote_rollout_campaign(campaign.config)

    result = promote_rollout_campaign(campaign.config, on_step=overtaken)
    assert result.version.name == "v000001" and not result.moved and result.splits == ()
    assert current_version(campaign.config).name == "v000001"


def test_two_planners_do_not_lose_each_others_shards(object_storage, monkeypatch, tmp_path):
    url = object_storage.url("planners")
    first = fake_campaign(url, [("train", 1)])
    first.plan()
    real_publish, raced = publishing.publish_plan, []

    def overtaken(*arguments):
        if not raced:
            raced.append(True)
            with monkeypatch.context() as patch:
                patch.setenv("ROLLOUT_ASSETS_CACHE", str(tmp_path))
                fake_campaign(url, [("train", 2)]).plan()
        return real_publish(*arguments)

    monkeypatch.setattr("rollout_assets.campaigns.plan.publish_plan", overtaken)
    plan = fake_campaign(url, [("train", 3)]).plan()
    assert len(plan.entries) == 3 and len(read_rollout_shard_manifest(first.config)) == 3


def test_a_failed_build_leaves_a_note_that_everybody_sees(object_storage, monkeypatch, tmp_path):
    campaign = fake_campaign(object_storage.url("failing"), [("train", 1)])
    entry = campaign.plan().entries[0]

    def fail(step):
        if step == "owner/before":
            raise ValueError("no luck")

    with refused(ValueError, "no luck"):
        campaign.run(entry, fail)
    status = summarize_rollout_shard_campaign(elsewhere(campaign, monkeypatch, tmp_path).config)
    assert [(shard.state, shard.reason) for shard in status.shards] == [("failed", "ValueError: no luck")]


def test_another_campaign_is_refused(object_storage):
    fake_campaign(object_storage.url("owned")).plan()
    with refused(CampaignError, "'made-up'", "'other'"):
        fake_campaign(object_storage.url("owned"), name="other").plan()


@pytest.mark.ci
def test_damage_of_a_version_is_named_and_healed(object_storage):
    campaign = fake_campaign(object_storage.url("damaged"), [("train", 1)])
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    storage = storage_at(object_storage.url("damaged"))
    storage.objects.remove(["versions/v000001/train/candidates/target_rri/c/0"])
    status = summarize_rollout_shard_campaign(campaign.config)
    assert ["target_rri" in problem for problem in status.damaged_versions[0].problems] == [True]
    result = promote_rollout_campaign(campaign.config)
    assert result.version.name == "v000002" and validate_rollout_zarr_store(result.version.children[0], deep=True).ok


def test_a_lost_copy_is_made_again(object_storage):
    campaign = fake_campaign(object_storage.url("lost-copy"), [("train", 1)])
    campaign.run_all()
    shutil.rmtree(CampaignLayout.of(campaign.config).root)
    assert summarize_rollout_shard_campaign(campaign.config).complete
    assert open_shard(campaign.config, "shard-000000").num_rows("candidates") > 0
