"""Builders and promoters of a campaign in object storage, killed at named steps while a reader watches; in CI at each.

The reader never sees anything but a complete version; the next run finishes alone; content equals an undisturbed run's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import remove_version
from rollout_assets.campaigns.objects.storage import storage_at
from rollout_assets.campaigns.plan import entry_of
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.versions import (
    current_version,
    prune_promoted_versions,
    rollback_promotion,
    unpin_promotion,
)
from rollout_assets.errors import StoreError
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from tests.campaigns.kill_campaigns import fake_campaign
from tests.campaigns.test_shards_killed import Zygote

SHARD = "shard-000001"
FIRST, BOTH = (("train", 1),), (("train", 2),)


class Watcher:
    """Opens the promoted store over and over, and keeps every content that it saw and whatever was wrong."""

    def __init__(self, url: ObjectUrl) -> None:
        self.store = f"{url}/rollouts.zarr/train"
        self.seen: list[str] = []
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        try:
            reader = RolloutZarrStoreReader(self.store)
            reader.array("candidates/target_rri")
            self.seen.append(str(reader.sidecar_manifest()["content_sha256"]))
        except StoreError as error:
            self.wrong.append(str(error))

    def _watch(self) -> None:
        while not self._stop.wait(0.3):
            self.look()


@pytest.fixture(scope="module")
def zygote(object_storage) -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


def recorded(run) -> list[str]:
    """The named steps of an undisturbed run, each once, in order."""
    steps: list[str] = []
    run(steps.append)
    return list(dict.fromkeys(step for step in steps if not step.startswith("flush/")))


def manifest_digest(url: ObjectUrl) -> str:
    return str(RolloutZarrStoreReader(f"{url}/rollouts.zarr/train").sidecar_manifest()["content_sha256"])


def go_back(config) -> None:
    """Let the next promotion begin where this one did, whatever it has published."""
    layout = CampaignLayout.of(config)
    if current_version(config).name != "v000001":
        rollback_promotion(config, "v000001")
        unpin_promotion(config)
    for name in storage_at(layout.url).version_names():
        if name != "v000001":
            remove_version(layout, name)


@pytest.mark.ci
def test_kills_lose_nothing_and_readers_see_whole_versions(zygote, object_storage, tmp_path):
    """Kill a builder and a promoter at every step that an undisturbed run takes."""
    on_disk = fake_campaign(tmp_path, BOTH)
    on_disk.run_all()
    expected = RolloutZarrStoreReader(promote_rollout_campaign(on_disk.config).version.children[0]).sidecar_manifest()

    url = object_storage.url("killed")
    first = fake_campaign(url, FIRST)
    entry = first.plan().entries[0]
    building = recorded(lambda on_step: first.run(entry, on_step))
    assert {"upload/before", "upload/after", "marker/before", "marker/after"} <= set(building)
    promoting = recorded(lambda on_step: promote_rollout_campaign(first.config, on_step=on_step))
    assert {"objects/half", "root/before", "root/after", "switch/before", "switch/after"} <= set(promoting)
    contents = {manifest_digest(url), str(expected["content_sha256"])}

    both = fake_campaign(url, BOTH)
    both.plan()
    objects = storage_at(url).objects
    with Watcher(url) as watcher:
        for step in building:
            answer = zygote.ask(kind="shard", root=url, rows=BOTH, shard=SHARD, step=step, nth=0)
            published = [fact.key for fact in objects.listing("markers") if SHARD in fact.key]
            assert answer["killed"] and len(published) == (step == "marker/after"), step
            objects.remove(published)  # so that the next attempt has something to do
        both.run(entry_of(both.config, SHARD))
        for step in promoting:
            assert zygote.ask(kind="promotion", root=url, rows=BOTH, step=step, nth=0)["killed"], step
            watcher.look()
            go_back(both.config)
        result = promote_rollout_campaign(both.config)
        watcher.look()
    assert watcher.wrong == [] and set(watcher.seen) == contents
    assert manifest_digest(url) == str(expected["content_sha256"])
    assert validate_rollout_zarr_store(result.version.children[0], deep=True).ok
    prune_promoted_versions(both.config, 1)
    assert manifest_digest(url) == str(expected["content_sha256"])
