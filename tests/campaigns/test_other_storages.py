"""Campaigns in Google's and Azure's storage: the conditions of writes hold, and the content is that of a disk."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.campaigns.versions import (
    current_version,
    prune_promoted_versions,
    rollback_promotion,
    unpin_promotion,
)
from rollout_assets.errors import PromotionRefused
from rollout_assets.learning import QHIterableDataset, QHLoader
from rollout_assets.locations.conditions import require_conditional_writes
from rollout_assets.locations.mirror import ObjectMirror
from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.testing.azurite import local_azurite
from rollout_assets.testing.object_storage import environment_of, local_object_storage
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.digests import version_digests

SMALL_CHUNKS = {"store": {"chunk_rows": 8, "chunk_states": 4}, "options": {"targets": 2, "chains": 2}}


def google(folder):
    return local_object_storage(folder, "gs")


@pytest.fixture(
    scope="module",
    params=[pytest.param(google, id="gs"), pytest.param(local_azurite, id="az", marks=pytest.mark.cluster)],
)
def storage(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("storage")
    with request.param(folder) as storage, environment_of(storage, folder / "cache"):
        yield storage


def test_conditions_hold_in_a_race_and_removal_needs_no_object(storage):
    folder = ObjectFolder(storage.url("race"))
    require_conditional_writes(folder)
    with ThreadPoolExecutor(8) as threads:
        created = list(threads.map(lambda number: folder.create("one", f"{number}".encode()), range(8)))
        before = folder.read_tagged("one")
        replaced = list(threads.map(lambda number: folder.replace("one", f"n{number}".encode(), before), range(8)))
    assert sum(created) == 1 and created[int(before.data)]
    assert sum(replaced) == 1 and folder.read("one") == f"n{replaced.index(True)}".encode()
    assert not folder.replace("absent", b"x", before)
    folder.put("two", b"2")
    folder.remove(["absent", "one", "absent too"])
    assert [fact.key for fact in folder.listing()] == ["two"]


def test_listed_tags_are_those_of_objects_so_copies_are_reused(storage):
    folder = ObjectFolder(storage.url("tags"))
    folder.put("shard/a", b"1")
    assert [fact.etag for fact in folder.listing()] == [folder.read_tagged("shard/a").etag]
    mirror = ObjectMirror(folder.url)
    mirror.folder("shard")
    mirror.folder("shard")
    assert mirror.objects.requests == {"list": 2, "get": 1}


@pytest.mark.ci
def test_a_campaign_is_built_extended_and_read_as_on_a_disk(storage, tmp_path):
    promoted = []
    for place in (storage.url("grown"), tmp_path):
        before = fake_campaign(place, [("train", 1)], **SMALL_CHUNKS)
        before.run_all()
        first = version_digests(promote_rollout_campaign(before.config).version)
        after = fake_campaign(place, [("train", 2)], **SMALL_CHUNKS)
        after.run_all()
        result = promote_rollout_campaign(after.config)
        promoted.append((first, version_digests(result.version), [part.how for part in result.splits]))
        assert summarize_rollout_shard_campaign(after.config).complete
        rollback_promotion(after.config)
        assert version_digests(current_version(after.config)) == first
        with pytest.raises(PromotionRefused):
            promote_rollout_campaign(after.config)
        unpin_promotion(after.config)
        assert promote_rollout_campaign(after.config).moved
        prune_promoted_versions(after.config, 1)
    assert promoted[0] == promoted[1] and promoted[0][-1] == ["extended"]
    places = (f"{storage.url('grown')}/rollouts.zarr/train", tmp_path / "rollouts.zarr/train")
    there, on_disk = (list(QHLoader(QHIterableDataset(place, 2, seed=3))) for place in places)
    assert len(there) == len(on_disk) > 0
    assert all((one.q_train_mask == two.q_train_mask).all() for one, two in zip(there, on_disk, strict=True))
