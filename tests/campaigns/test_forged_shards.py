"""A shard that was altered and sealed again passes every digest of its own, and no way to readers."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from rollout_assets.campaigns.integrity import examine_shard
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner, validate_and_seal, write_success
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.promotion_gate import refuse_unvalidated, version_on_disk
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.errors import PromotionRefused
from rollout_assets.files import publish_json
from tests.campaigns.kill_campaigns import fake_campaign
from tests.rollouts.zarr_store.forging import reseal
from tests.support.refusals import refused

DEPTH = "selected_depth/depth_m"


def forge_depth(shard) -> None:
    """Scale the depth of a finished shard, and make every digest, marker and seal agree."""
    store = shard / "rollouts.zarr"
    array = zarr.open_array(store / DEPTH, mode="r+")
    array[...] = (np.asarray(array[...]) * 1.01).astype(array.dtype)
    reseal(store, [DEPTH])
    owner = read_owner(shard).model_copy(update={"store": validate_and_seal(store)})
    publish_json(shard / "_owner.json", owner.model_dump(mode="json"))
    write_success(shard, shard.name)


@pytest.mark.parametrize("promoted_before", [False, True])
def test_a_forgery_that_was_sealed_again_is_not_published_by_either_way(promoted_before, tmp_path):
    campaign = fake_campaign(tmp_path)
    campaign.run_all()
    layout, entries = CampaignLayout(tmp_path), read_rollout_shard_manifest(campaign.config)
    validated = {entry.shard_id: version_on_disk(layout, entry) for entry in entries}
    if promoted_before:
        promote_rollout_campaign(campaign.config)
    shard = layout.shard("shard-000001")
    honest = read_owner(shard)
    forge_depth(shard)
    for _ in range(2):  # the second one finds what the first has kept in columns
        with refused(PromotionRefused, "shard-000001"):
            promote_rollout_campaign(campaign.config)
        with refused(PromotionRefused, "shard-000001"):
            refuse_unvalidated(campaign.config, validated)
    assert examine_shard(campaign.config, entries[1]).all_findings(), "it cannot be validated either"
    assert [shard.state for shard in summarize_rollout_shard_campaign(campaign.config).shards] == [
        "succeeded",
        "incomplete",
        "succeeded",
    ]
    assert campaign.run(entries[1]).outcome == "built" and read_owner(shard).content_sha256 == honest.content_sha256
    assert promote_rollout_campaign(campaign.config).version.name == "v000001"
